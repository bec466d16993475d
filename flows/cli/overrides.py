"""The command line, read before Hydra reads it: what is wrong with it is said in one line, by its own name."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from flows.cli.formatting import masked
from nas.core.errors import ConfigurationError

CONF = Path(__file__).resolve().parents[2] / "conf"
"""Where the yaml files lie that come with Heirloom."""
BUILT = ("problem", "tuner", "stopper")
"""Groups whose yaml says how to build a class: the constructor is the schema, so they take any key."""
ADDED = ("tuner", "experiment")
"""Groups of ``flows.search`` that have no default, so that a choice is written with a +."""
CLUSTERS = ("dask", "ray", "slurm", "kubernetes")
"""Where workers of ``runner=remote`` are started."""
FREE = (*(f"{group}." for group in BUILT), "storage.options.", "constraints.")


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line.

    Attributes:
        flags: Hydra's options, with their values.
        overrides: What sets keys and chooses groups, as Hydra should get it.
        named: Keys and groups that are set.
        swept: Those that a multirun varies.
        wants_help: Nothing is to be run.
    """

    flags: tuple[str, ...]
    overrides: tuple[str, ...]
    named: frozenset[str]
    swept: frozenset[str]
    wants_help: bool

    @classmethod
    def read(cls, config: str, argv: Sequence[str]) -> Arguments:
        """Reads ``argv``, in which options and overrides may stand in any order.

        Raises:
            ConfigurationError: an unknown option, or an override that can't be read.
        """
        from hydra._internal.utils import get_args_parser

        parser = get_args_parser()
        parser.error = _refuse  # type: ignore[method-assign]
        given = parser.parse_intermixed_args(list(argv))
        rest, flags = list(given.overrides), []
        for text in argv:
            if rest and text == rest[0]:
                rest.pop(0)
            else:
                flags.append(text)
        named, swept = _keys_of(config, given.overrides)
        overrides = _with_free_keys(config, given.overrides, named)
        if given.cfg or given.info:  # which Hydra prints itself, and nothing runs
            overrides = [o if _names_a_variable(o) and not given.resolve else masked(o) for o in overrides]
        return cls(
            flags=tuple(flags),
            overrides=tuple(overrides),
            named=frozenset(named),
            swept=frozenset(swept),
            wants_help=given.help,
        )


def _names_a_variable(override: str) -> bool:
    """Returns whether the value is one interpolation, ``${oc.env:NAME}``, which tells nothing unless it is resolved."""
    return re.fullmatch(r"[^=]*=\$\{[^{}]*\}", override) is not None


def _refuse(message: str) -> NoReturn:
    raise ConfigurationError(f"{message.removeprefix('argument ')}; --help shows what can be said")


def _keys_of(config: str, overrides: Sequence[str]) -> tuple[set[str], set[str]]:
    """Returns the keys and groups that are set, and those of them that are swept."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    named: set[str] = set()
    swept: set[str] = set()
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            shown = masked(text)
            if hint := _hint(config, text):
                raise ConfigurationError(f"can't read {shown!r}: {hint}") from error
            why = f" ({str(error).strip().splitlines()[0]})" if shown == text else ""  # which repeats parts of it
            raise ConfigurationError(
                f"can't read {shown!r}{why}: write KEY=VALUE, and quote what is more than a word: \"KEY='a, b'\""
            ) from error
        key = str(override.key_or_group)
        if not key:
            raise ConfigurationError(f"can't read {masked(text)!r}: no key stands before the =")
        if text.endswith("=null") and key != "stopper" and (choices := choices_of(key, config)):
            raise ConfigurationError(f"{text}: choose one of {', '.join(choices)}")
        named.add(key)
        if override.is_sweep_override():
            swept.add(key)
    return named, swept


def _hint(config: str, text: str) -> str | None:
    """What a lonely word was probably meant to be."""
    if not re.fullmatch(r"[\w.-]+", text):
        return None
    if text in _names_of_keys(config).values() or text in groups_of(config):
        return f"write {text}=VALUE"
    for group in groups_of(config):
        if text in choices_of(group, config):
            return f"did you mean {'+' if group in ADDED else ''}{group}={text}?"
    return None if config == "search" else f"did you mean name={text}?"


def _with_free_keys(config: str, overrides: Sequence[str], named: set[str]) -> list[str]:
    """Returns the overrides, such that ``problem._target_=my.Class problem.width=64`` works as it stands.

    Hydra refuses keys that the chosen yaml does not hold, so those of a constructor are added. Where a group's target
    is given and no choice of the group is, the choice becomes ``custom``, a yaml with nothing but a target.
    """
    plain = [o.removeprefix("+") if o.startswith("+stopper=") else o for o in overrides]
    # stopper=null says the default again, which Hydra refuses
    result = ["++" + o.lstrip("+") if o.lstrip("+").startswith(FREE) else o for o in plain if o != "stopper=null"]
    prepared = BUILT if config == "search" else ()  # for the other commands the search's record holds the targets
    custom = [group for group in prepared if f"{group}._target_" in named and group not in named]
    return [*result, *(f"+{group}=custom" if group == "tuner" else f"{group}=custom" for group in custom)]


def as_shell(pairs: Sequence[str]) -> str:
    """Overrides ``key=value`` with plain values, as Hydra reads them, as a shell takes them."""
    return shlex.join(_quoted(*pair.partition("=")[::2]) for pair in pairs)


def _quoted(key: str, value: str) -> str:
    if re.fullmatch(r"[\w./:@%+?|*-]+( [\w./:@%+?|*-]+)*", value, re.ASCII):
        return f"{key}={value}"
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + (found[2] and "\\'"), value)
    return f"{key}='{escaped}'"


def choices_of(group: str, config: str = "search") -> list[str]:
    """Returns the choices of a group of conf/ that come with Heirloom; none where it is no group of the command's."""
    folder = CONF / group if group in groups_of(config) else None
    names = [entry.name for entry in folder.iterdir()] if folder is not None else []
    return sorted(n.removesuffix(".yaml") for n in names if n.endswith(".yaml") and n != "custom.yaml")


def groups_of(config: str) -> list[str]:
    """Returns the groups from which a command's configuration is put together."""
    listed = re.findall(r"^  - (?:optional )?(\w+):", page_of(config), re.MULTILINE)
    listed = [group for group in listed if group != "hydra"]
    return ["tuner", *listed, "experiment"] if config == "search" else listed


def page_of(config: str) -> str:
    """Returns the text of ``conf/<config>.yaml``."""
    return (CONF / f"{config}.yaml").read_text(encoding="utf-8")


def explain(error: Exception, config: str, overrides: Sequence[str]) -> str:
    """What Hydra says of a command line, in Heirloom's words and one line."""
    text = " ".join((str(error) or str(error.__cause__ or type(error).__name__)).split())
    if found := re.search(r"Could not find '([\w/]+)/([^/']+)'(?:.*Available options in '[\w/]+': (.*))?", text):
        options = re.split(r"\s+", found[3].partition(" Config search path")[0].strip()) if found[3] else []
        if found[1] == "runner" and found[2] in CLUSTERS:
            return f"unknown runner {found[2]}: choose remote, whose workers start anywhere (docs/remote_workers.md)"
        known = ", ".join(name for name in options if name != "custom")
        own = f", or a class of your own by {found[1]}._target_=my_module.MyClass" if found[1] in BUILT else ""
        return f"unknown {found[1]} {found[2]}: choose {known}{own}"
    if found := re.search(r"Could not override '([^']+)'", text):
        group = found[1]
        if given := [o for o in overrides if o.startswith(f"{group}=") and group in groups_of(config)]:
            return f"{given[0]}: there is no default to replace, write +{given[0]}"
        return unknown_key(group, config)
    if found := re.search(r"Multiple values for (\w+)|(\w+) appears more than once", text):
        group = found[1] or found[2]
        if sum(bool(re.match(rf"\+*{group}=", o)) for o in overrides) > 1:
            return f"{group} is chosen twice"
        return f"{group} has a default: write {group}=NAME without +"
    if found := re.search(r"Could not append to config\. An item is already at '([^']+)'", text):
        return f"{found[1]} has a value already: write {found[1]}=VALUE without +"
    return re.sub(r"(In '\w+': )|( full_key: .*)|( See https://hydra\.cc.*)|( Config search path.*)", "", text)


def unknown_key(key: str, config: str) -> str:
    """One line on a key that nothing would read."""
    known = _names_of_keys(config)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    did_you_mean = f"; did you mean {known[near[0]]}?" if near and known[near[0]] != key else ""
    return f"unknown key {key}{did_you_mean} (python -m flows.{config} --help shows all keys)"


def _names_of_keys(config: str) -> dict[str, str]:
    """What a user may call a key: its name, or the last part of it."""
    from omegaconf import OmegaConf

    page = OmegaConf.to_container(OmegaConf.create(page_of(config)))
    assert isinstance(page, dict)
    keys = [str(key) for key in page if key != "defaults"]
    inner = [f"{key}.{name}" for key in keys if isinstance(page[key], dict) for name in page[key]]
    return {**{name.rpartition(".")[2]: name for name in inner}, **{name: name for name in (*keys, *inner)}}


def help_text(config: str) -> str:
    """What a command takes: its groups with their choices, and its page of conf/ with the comments."""
    body = page_of(config).partition("\n\n")[2].strip().splitlines()
    first = page_of(config).splitlines()[0].removeprefix("# ").partition(": ")[0]
    lines = [f"usage: python -m flows.{config} [GROUP=CHOICE ...] [KEY=VALUE ...]", f"for example: {first}", ""]
    lines += ["groups and their choices:"]
    for group in groups_of(config):
        plus = "+" if group in ADDED else ""
        own = f", or {group}._target_=my_module.MyClass" if group in BUILT else ""
        lines.append(f"  {plus}{group}={'|'.join(choices_of(group, config))}{own}")
    lines += ["", "keys and their defaults:", *(f"  {line}" for line in body), ""]
    lines += [
        "A choice has keys of its own: storage.root=URL storage.options.KEY=VALUE tuner.population_size=16",
        "  -m                a run for each combination of what is listed: seed=1,2",
        "  --cfg job         show the configuration that would run, and run nothing",
        "  --config-dir DIR  choices of your own: DIR/problem/mine.yaml is problem=mine",
    ]
    return "\n".join(lines)
