"""The reference of options agrees with the defaults and comments of ``conf/``, from which ``--help`` prints."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from flows.cli.options import CONF, PAGES_OF_GROUPS, options_of
from flows.cli.overrides import choices_of, groups_of, help_text
from nas.core.targets import load_target
from tests.support.options_page import BLOCK, CHOICES, GROUPS, PAGE, table, with_tables

OF_COMMANDS, SECTIONS = ([found[1].split() for found in BLOCK.findall(page.read_text())] for page in (PAGE, CHOICES))
"""The files of ``conf/`` that each table shows."""
SHOWN = [config for configs in [*OF_COMMANDS, *SECTIONS] for config in configs]
COMMANDS = sorted(path.stem for path in CONF.glob("*.yaml"))
INJECTED = {"tuner": {"space", "metrics", "seed"}, "problem": set[str](), "stopper": {"metrics"}}
"""Arguments that the search gives to the classes of a group."""
PUBLISHED = ("problem/nasbench201", "problem/nasbench_macro")
"""Tables whose sections refer to that of ``tabular``."""


PAGES = sorted({*SHOWN, *(f"storage/{path.stem}" for path in CONF.glob("storage/*.yaml"))})
"""Files of ``conf/`` whose options are read from their lines."""


def read(text: str) -> Any:
    """Returns a default as OmegaConf reads it."""
    loaded: Any = OmegaConf.to_container(OmegaConf.create(f"default: {text}"))
    return loaded["default"]


@pytest.mark.parametrize("config", PAGES)
def test_options_are_those_of_the_configuration(config: str) -> None:
    """Keys and defaults that are read from lines are those that OmegaConf reads; no line is left out."""
    group = config.rpartition("/")[0].replace("/", ".")
    loaded: Any = OmegaConf.to_container(OmegaConf.load(CONF / f"{config}.yaml"))
    found = OmegaConf.create({})
    for option in options_of(config):
        if option.is_set:
            OmegaConf.update(found, option.key.removeprefix(f"{group}."), read(option.default))

    known = {key: value for key, value in loaded.items() if key not in ("defaults", "kind", "_target_")}
    assert OmegaConf.to_container(found) == known


@pytest.mark.parametrize("path", [PAGE, CHOICES], ids=lambda path: path.stem)
def test_tables_are_made_from_the_configuration(path: Path) -> None:
    """No option is missing and no default or meaning differs; ``python -m tests.support.options_page`` fixes it."""
    page = path.read_text()

    assert with_tables(page) == page


def test_every_command_has_a_table() -> None:
    """All commands with options are in the reference, and the groups that have options of their own."""
    shown = {config for configs in OF_COMMANDS for config in configs}

    assert {*COMMANDS, *(page for pages in PAGES_OF_GROUPS.values() for page in pages)} == shown


def test_every_choice_has_a_section() -> None:
    """All tuners, problems, stoppers and clusters are on one page, each under a heading with its name."""
    paths = [path for group in GROUPS for path in CONF.glob(f"{group}/*.yaml") if path.stem != "custom"]
    headings = [re.findall(r"`(\w+)`", line) for line in re.findall(r"^### .*", CHOICES.read_text(), re.MULTILINE)]

    assert {config for configs in SECTIONS for config in configs} == {
        path.relative_to(CONF).with_suffix("").as_posix() for path in paths
    }
    assert headings == [[config.rpartition("/")[2] for config in configs] for configs in SECTIONS]


@pytest.mark.parametrize("configs", [c for c in SECTIONS if c[0].partition("/")[0] in INJECTED], ids=" ".join)
def test_every_argument_is_an_option(configs: list[str]) -> None:
    """A section has all arguments of its classes, with the defaults of those that a yaml leaves to them."""
    injected = INJECTED[configs[0].partition("/")[0]]
    named, taken = set[str](), set[str]()
    for config in configs:
        target = OmegaConf.select(OmegaConf.load(CONF / f"{config}.yaml"), "_target_")
        parameters = inspect.signature(load_target(target)).parameters
        defaults = {p.name: [*p.default] if isinstance(p.default, tuple) else p.default for p in parameters.values()}
        options = {option.key.partition(".")[2]: option for option in options_of(config)}
        left_out = {name: read(option.default) for name, option in options.items() if not option.is_set}
        shown = [*options_of(config), *(options_of("problem/tabular") if config in PUBLISHED else ())]
        named |= {option.key.split(".")[1] for option in shown}
        taken |= defaults.keys() - injected

        assert defaults | {name: value for name, value in left_out.items() if name in defaults} == defaults
    assert named == taken


def test_the_table_of_groups_names_every_choice() -> None:
    """Each group of ``flows.search`` has a row, whose plain words are the files of its folder."""
    groups = PAGE.read_text().partition("| `runner=` | where")[0]
    rows = dict(re.findall(r"^\| `\+?(\w+)=` \| (.*?) \| [^|]*\|$", groups, re.MULTILINE))
    named = {group: set(re.findall(r"`(\w+)`", row)) for group, row in rows.items()}

    assert named == {group: set(choices_of(group)) for group in groups_of("search")}


@pytest.mark.parametrize("config", SHOWN)
def test_every_option_has_a_meaning(config: str) -> None:
    """Each option has a comment, and its guide exists."""
    options = list(options_of(config))
    guides = [guide for option in options for guide in re.findall(r"docs/[\w/]+\.md", option.comment)]

    assert options or config == "tuner/auto"
    assert [option.key for option in options if not option.comment] == []
    assert [guide for guide in guides if not (CONF.parent / guide).exists()] == []


@pytest.mark.parametrize("config", SHOWN)
def test_the_type_of_an_option_allows_its_default(config: str) -> None:
    """An option whose default is null states its type; a float may be a whole number."""
    for option in options_of(config):
        default, stated = yaml.safe_load(option.default), option.type.split(" or ")

        assert stated != ["NoneType"], option.key
        assert default is None or type(default).__name__ in [*stated, *(["int"] if "float" in stated else [])]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_every_option(command: str) -> None:
    """The help text of a command has the line of each option, those of its storage and runners too."""
    pages = (page for group in groups_of(command) for page in PAGES_OF_GROUPS.get(group, ()))
    inner = [replace(option, key=option.key.rpartition(".")[2]) for option in options_of(command)]
    shown = Counter(line.strip() for line in help_text(command).splitlines())
    lines = Counter(str(option) for option in [*inner, *(option for page in pages for option in options_of(page))])

    assert lines - shown == Counter()


def test_finals_repeat_the_options_of_searches() -> None:
    """An option that both commands have has one default and one meaning, except those that the page shows."""
    shown = re.findall(r"^\| `(\w+)`", table("final"), re.MULTILINE)

    assert shown == ["name", "finalists", "more_epochs", "trial", "trust"]


def test_variables_of_roots_are_on_the_page() -> None:
    """The variables of the environment that ``conf/`` reads are in the reference."""
    named = {name for path in CONF.rglob("*.yaml") for name in re.findall(r"HEIRLOOM_\w+", path.read_text())}

    assert named
    assert [name for name in named if f"`{name}`" not in PAGE.read_text()] == []


@pytest.mark.parametrize("guide", ["budgets", "nfs"])
def test_guides_repeat_the_defaults(guide: str) -> None:
    """A guide that explains an option of the page gives it the same default."""
    rows = r"^\| `([\w.]+)` %s\| ([^|]*) \|"
    defaults = dict(re.findall(rows % r"\| [a-z ]+ ", PAGE.read_text(), re.MULTILINE))
    shown = dict(re.findall(rows % "", (PAGE.parents[1] / "guides" / f"{guide}.md").read_text(), re.MULTILINE))
    both = shown.keys() & defaults.keys()

    assert len(both) >= 3
    assert {key: shown[key].strip("`") for key in both} == {key: defaults[key].strip("`") for key in both}


def test_storages_agree() -> None:
    """An option that several storages have means the same in each."""
    stored = [option for path in CONF.glob("storage/*.yaml") for option in options_of(f"storage/{path.stem}")]
    same = {
        (option.key, option.default, option.comment) for option in stored if option.key.endswith(("keep", "max_gb"))
    }

    assert len(same) == 2
