"""Command-line overrides, checked before Hydra reads them, so that each mistake gets one clear line."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from flows.cli.only_options import OnlyOption, split_only
from flows.cli.options import CONF, PAGES_OF_GROUPS, keys_of, options_of, page_of
from flows.cli.program import command
from nas.core.errors import ConfigurationError
from nas.core.validation import did_you_mean, near_names
from nas.views.formatting import masked

BUILT = ("problem", "tuner", "stopper")
"""Groups whose yaml builds a class. They accept any key: the constructor is the schema."""
OPTIONAL = ("stopper", "logger")
"""Groups whose default is ``null``, which Hydra refuses as a choice."""
REQUIRED = ("storage", "runner")
"""Groups whose choice the commands that have them read without asking whether there is one."""
ADDED = ("tuner", "experiment")
"""Groups of ``flows.search`` without a default: a choice is written with a +."""
OWN = "conf"
"""Folder in the working folder whose choices are found without ``--config-dir``."""
_NO_TEXT = re.compile(r"[+-]?[0-9._]+(e[+-]?[0-9]+)?|[+-]?(inf|nan)|true|false", re.IGNORECASE)
"""Values that Hydra takes for a number or a truth value."""
NOTES_ON_GROUPS = (
    "",
    "A choice has its own keys: storage.root=URL storage.options.KEY=VALUE tuner.population_size=16",
    "  -m                run each combination of the listed values: seed=1,2",
    "  --cfg job         show the configuration and run nothing",
    "  --config-dir DIR  your own choices: DIR/problem/mine.yaml is problem=mine; default: conf, if it has any",
)
WRAPPERS = ("screened", "supernet")
"""Tuners whose key ``inner`` is another choice of the group tuner."""
CLUSTERS = ("ssh", "slurm", "pbs", "kubernetes")
"""Names of clusters that users try as a runner."""
FREE = (
    *(f"{group}." for group in BUILT),
    "logger.",
    "storage.options.",
    "constraints.",
    "runner.cluster.",
    "runner.adapt.",
    "runner.resources.",
)


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line.

    Attributes:
        flags: Hydra's options, with their values.
        overrides: Overrides as Hydra gets them.
        named: Keys and groups that are set.
        swept: Keys and groups that a multirun varies.
        wants_help: Whether only the help text is printed.
        is_multirun: Whether the command runs several jobs.
        config_dir: A folder with further choices, or None.
        only: Options for jobs with one tuner.
    """

    flags: tuple[str, ...]
    overrides: tuple[str, ...]
    named: frozenset[str]
    swept: frozenset[str]
    wants_help: bool
    is_multirun: bool = False
    config_dir: str | None = None
    only: tuple[OnlyOption, ...] = ()

    @classmethod
    def read(cls, config: str, argv: Sequence[str]) -> Arguments:
        """Reads ``argv``, with options and overrides in any order.

        Raises:
            ConfigurationError: an option is unknown, or an override can't be parsed.
        """
        from hydra._internal.utils import get_args_parser

        parser = get_args_parser()
        parser.error = _refuse  # type: ignore[method-assign]
        argv = [_as_text(_as_list(config, text)) for text in argv]
        given = parser.parse_intermixed_args(argv)
        rest, flags = list(given.overrides), []
        for text in argv:
            if rest and text == rest[0]:
                rest.pop(0)
            else:
                flags.append(text)
        own, only = split_only(given.overrides) if config == "search" else (given.overrides, ())
        named, swept = _keys_of(config, own)
        overrides = _with_free_keys(config, own, named)
        if given.config_dir is None and has_own_choices(config):
            flags += ["--config-dir", OWN]
            given.config_dir = OWN
        if given.cfg or given.info:  # Hydra prints the configuration and runs nothing
            overrides = [o if _names_a_variable(o) and not given.resolve else masked(o) for o in overrides]
        return cls(
            flags=tuple(flags),
            overrides=tuple(overrides),
            named=frozenset(named),
            swept=frozenset(swept),
            wants_help=given.help,
            is_multirun=given.multirun and not (given.cfg or given.info or given.config_path or given.config_name),
            config_dir=given.config_dir,
            only=only,
        )


def has_own_choices(config: str) -> bool:
    """Returns whether the working folder's ``conf`` has choices for a group of the command."""
    has_any = any(os.path.isdir(os.path.join(OWN, group)) for group in groups_of(config))
    return has_any and not os.path.samefile(CONF, OWN)


def _as_list(config: str, argument: str) -> str:
    """Returns ``names=a,b`` as a list, which Hydra would take for two values of a multirun."""
    key, _, value = argument.partition("=")
    if config != "compare" or key != "names" or value.startswith("[") or value == "null":
        return argument
    return f"names=[{','.join(_quoted(name.strip()) for name in value.split(',') if name.strip())}]"


def _as_text(argument: str) -> str:
    """Returns ``name=1e3`` and ``name=größe`` with quotes: Hydra reads a number, or nothing."""
    key, _, value = argument.partition("=")
    needs_quotes = _NO_TEXT.fullmatch(value) or not (value.isascii() or value.startswith(("'", '"')))
    return f"name={_quoted(value)}" if key == "name" and needs_quotes else argument


def _names_a_variable(override: str) -> bool:
    """Returns whether the value is one interpolation, ``${oc.env:NAME}``, which needs no mask."""
    return re.fullmatch(r"[^=]*=\$\{[^{}]*\}", override) is not None


def _refuse(message: str) -> NoReturn:
    raise ConfigurationError(f"{message.removeprefix('argument ')}; --help lists all options")


def _keys_of(config: str, overrides: Sequence[str]) -> tuple[set[str], set[str]]:
    """Returns the keys and groups that are set, and those that a multirun varies."""
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
            why = f" ({str(error).strip().splitlines()[0]})" if shown == text else ""  # Hydra repeats the secret
            raise ConfigurationError(
                f"can't read {shown!r}{why}: write KEY=VALUE, and quote values of several words: \"KEY='a, b'\""
            ) from error
        key = str(override.key_or_group)
        if not key:
            raise ConfigurationError(f"can't read {masked(text)!r}: write a key before the =")
        if text.endswith("=null") and key not in OPTIONAL and (choices := choices_of(key, config)):
            raise ConfigurationError(f"{text}: choose one of {', '.join(choices)}")
        named.add(key)
        if override.is_sweep_override():
            swept.add(key)
    return named, swept


def _hint(config: str, text: str) -> str | None:
    """Returns the probable meaning of a word without ``=``."""
    if not re.fullmatch(r"[\w.-]+", text):
        return None
    if text in _names_of_keys(config).values() or text in groups_of(config):
        return f"write {text}=VALUE"
    for group in groups_of(config):
        if text in choices_of(group, config):
            return f"did you mean {'+' if group in ADDED else ''}{group}={text}?"
    return None if config == "search" else f"did you mean name={text}?"


def _with_free_keys(config: str, overrides: Sequence[str], named: set[str]) -> list[str]:
    """Returns overrides that let ``problem._target_=my.Class problem.width=64`` work.

    Hydra refuses keys that the chosen yaml does not hold, so constructor keys get ``++``. A group with a
    ``_target_`` but no choice gets the choice ``custom``, a yaml with nothing but a target.
    """
    optional = tuple(f"+{group}=" for group in OPTIONAL)
    plain = [o.removeprefix("+") if o.startswith(optional) else o for o in overrides]
    if config == "search":
        has_preset = any(re.match(r"\+?experiment=", o) for o in plain)  # whose tuner ``tuner=`` replaces
        added = [group for group in ADDED if group != "tuner" or not has_preset]
        plain = [f"+{o}" if o.partition("=")[0] in added else o for o in plain]
    plain = [o for o in plain if o not in [f"{group}=null" for group in OPTIONAL]]  # Hydra refuses a default as choice
    result = ["++" + o.lstrip("+") if o.lstrip("+").startswith(FREE) else o for o in plain]
    result = [_with_nested_choice(text, overrides) for text in result]
    prepared = BUILT if config == "search" else ()  # other commands take the targets from the search's record
    custom = [group for group in prepared if f"{group}._target_" in named and group not in named]
    return [*result, *(f"+{group}=custom" if group == "tuner" else f"{group}=custom" for group in custom)]


def _with_nested_choice(override: str, overrides: Sequence[str]) -> str:
    """Returns ``tuner.inner=NAME`` as a choice of the group tuner, if the chosen tuner wraps another."""
    found = re.fullmatch(r"\+\+tuner\.inner=([\w,]+)", override)
    if found is None or not any(re.match(rf"\+?tuner=.*\b({'|'.join(WRAPPERS)})\b", text) for text in overrides):
        return override
    return f"tuner@tuner.inner={found[1]}"


def as_shell(pairs: Sequence[str]) -> str:
    """Returns overrides ``key=value`` quoted for Hydra and for a shell."""
    return shlex.join(f"{key}={_quoted(value)}" for key, _, value in (pair.partition("=") for pair in pairs))


def override(key: str, value: object) -> str:
    """Returns the override that gives a key this value, quoted for Hydra and for a shell."""
    return shlex.quote(f"{key}={_as_hydra(value)}")


def _as_hydra(value: object) -> str:
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_as_hydra(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_as_hydra, value)) + "]"
    text = str(value)
    return _quoted(text, is_plain=text.lower() != "null")


def _quoted(value: str, *, is_plain: bool = True) -> str:
    is_plain = is_plain and not _NO_TEXT.fullmatch(value)
    if is_plain and re.fullmatch(r"[\w./:@%+?|*-]+( [\w./:@%+?|*-]+)*", value, re.ASCII):
        return value
    escaped = re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + (found[2] and "\\'"), value)
    return f"'{escaped}'"


def choices_of(group: str, config: str = "search") -> list[str]:
    """Returns Heirloom's choices of a group; empty if the command has no such group."""
    folder = CONF / group if group in groups_of(config) else None
    names = [entry.name for entry in folder.iterdir()] if folder is not None else []
    return sorted(n.removesuffix(".yaml") for n in names if n.endswith(".yaml") and n != "custom.yaml")


def groups_of(config: str) -> list[str]:
    """Returns the configuration groups of a command."""
    listed = re.findall(r"^  - (?:optional )?(\w+):", page_of(config), re.MULTILINE)
    listed = [group for group in listed if group != "hydra"]
    if "problem" not in listed:
        return listed
    return ["tuner", *listed, *(["experiment"] if config == "search" else [])]


def explain(error: Exception, config: str, overrides: Sequence[str]) -> str:
    """Returns Hydra's error as one line in Heirloom's words."""
    text = " ".join((str(error) or str(error.__cause__ or type(error).__name__)).split())
    for key, _, value in (o.lstrip("+").partition("=") for o in overrides):
        if "/" in value and key in groups_of(config) and value.strip("/").removesuffix(".yaml") in text:
            remedy = f"--config-dir DIR {key}=NAME for DIR/{key}/NAME.yaml"
            remedy = f"storage.root={value}" if key == "storage" else remedy
            return masked(f"{key}={value}: must be the name of a choice. Write {remedy}")
    if found := re.search(r"Could not find '([\w/]+)/([^/']+)'(?:.*Available options in '[\w/]+': (.*))?", text):
        options = re.split(r"\s+", found[3].partition(" Config search path")[0].strip()) if found[3] else []
        if found[1] == "runner" and found[2] in CLUSTERS:
            return f"unknown runner {found[2]}: choose runner=dask runner/cluster={found[2]} (docs/guides/clusters.md)"
        known = [name for name in options if name != "custom"]
        if "." in found[2] and found[1] in BUILT:
            return f"unknown {found[1]} {found[2]}: a class of your own is {found[1]}._target_={found[2]}"
        own = f", or a class of your own by {found[1]}._target_=my_module.MyClass" if found[1] in BUILT else ""
        question = _question(found[2].lower(), known)
        choose = f"{question} Choose" if question else ": choose"
        return f"unknown {found[1]} {found[2]}{choose} {', '.join(known)}{own}"
    if found := re.search(r"Could not override '([^']+)'", text):
        group = found[1]
        if given := [o for o in overrides if o.startswith(f"{group}=") and group in groups_of(config)]:
            return f"{masked(given[0])}: there is no default to replace, write +{masked(given[0])}"
        inner = re.search(r"full_key: (\S+)", str(error.__cause__))  # of a value that holds keys
        return unknown_key(inner[1] if inner else group, config)
    if found := re.fullmatch(r"Error merging override \+*(([^=]+)=.*)", text):
        return f"{masked(found[1])}: must hold keys. Set {found[2]}.KEY=VALUE"
    if found := re.search(r"Multiple values for (\w+)|(\w+) appears more than once", text):
        group = found[1] or found[2]
        if sum(bool(re.match(rf"\+*{group}=", o)) for o in overrides) > 1:
            return f"{group} is chosen twice"
        return f"{group} has a default: write {group}=NAME without +"
    if found := re.search(r"Could not append to config\. An item is already at '([^']+)'", text):
        return f"{found[1]} has a value already: write {found[1]}=VALUE without +"
    return re.sub(r"(In '\w+': )|( full_key: .*)|( See https://hydra\.cc.*)|( Config search path.*)", "", text)


def _question(given: str, known: Sequence[str]) -> str:
    """Returns a question that names a similar choice, or else one that contains the word."""
    return did_you_mean(given, known) or did_you_mean(given, [name for name in known if given in name], cutoff=0)


def unknown_key(key: str, config: str) -> str:
    """Returns the error line for a key that the chosen configuration does not have."""
    group = re.split("[./]", key)[0]
    if others := [f"{group}={choice}" for choice in choices_of(group, config) if _has_key(f"{group}/{choice}", key)]:
        return f"{key}: is no key of the chosen {group}. Choose {' or '.join(others)}, or leave it out"
    known = _names_of_keys(config)
    near = near_names(key, known, n=1, cutoff=0.75)
    meant = [known[name] for name in near if known[name] != key]
    return f"unknown key {key}{did_you_mean(key, meant, cutoff=0)} ({command(config)} --help shows all keys)"


def _has_key(page: str, key: str) -> bool:
    """Returns whether a choice has an option, a table or an inner group (``runner/cluster``)."""
    keys = [option.key for option in options_of(page)]
    if any(f"{name}.".startswith(f"{key}.") for name in keys):
        return True
    _, slash, inner = key.partition("/")
    return slash != "" and f"- {inner}:" in page_of(page)


def _names_of_keys(config: str) -> dict[str, str]:
    """Returns each key by its full name and by its last part."""
    pages = [config, *_pages_of_groups(config)]
    inner = [option.key for page in reversed(pages) for option in options_of(page)]
    return {**{name.rpartition(".")[2]: name for name in inner}, **{name: name for name in (*inner, *keys_of(config))}}


def _pages_of_groups(config: str) -> list[str]:
    """Returns the pages with further options of the command's groups."""
    return [page for group in groups_of(config) for page in PAGES_OF_GROUPS.get(group, ())]


def help_text(config: str) -> str:
    """Returns the help text: groups with their choices, and the command's yaml with its comments."""
    body = page_of(config).partition("\n\n")[2].strip().splitlines()
    first = page_of(config).splitlines()[0].removeprefix("# ").partition(": ")[0]
    first = first.replace(f"python -m flows.{config}", command(config))
    groups = groups_of(config)
    usage = f"usage: {command(config)} {'[GROUP=CHOICE ...] ' if groups else ''}[KEY=VALUE ...]"
    lines = [usage, f"for example: {first}", "", *(_lines_of_groups(config) if groups else ())]
    lines += ["keys and their defaults:", *(f"  {line}" for line in body)]
    for page in _pages_of_groups(config):
        lines += ["", f"keys of {page.replace('/', '=')}:", *(f"  {option}" for option in options_of(page))]
    only = ["  only.TUNER.KEY=V  with -m: an option for the jobs with this tuner"] if config == "search" else []
    return "\n".join([*lines, *(NOTES_ON_GROUPS if groups else ()), *only])


def _lines_of_groups(config: str) -> list[str]:
    lines = ["groups and their choices:"]
    for group in groups_of(config):
        plus = "+" if group in ADDED else ""
        own = f", or {group}._target_=my_module.MyClass" if group in BUILT else ""
        lines.append(f"  {plus}{group}={'|'.join(choices_of(group, config))}{own}")
    return [*lines, ""]
