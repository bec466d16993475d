"""The reference of options agrees with the defaults and comments of ``conf/``, from which ``--help`` prints."""

from __future__ import annotations

import re

import pytest

from flows.cli.overrides import CONF
from tests.support.options_page import BLOCK, PAGE, options_of, with_tables

SHOWN = [found[1] for found in BLOCK.findall(PAGE.read_text())]
COMMANDS = sorted(path.stem for path in CONF.glob("*.yaml"))


def test_tables_are_made_from_the_configuration() -> None:
    """No option is missing and no default or meaning differs; ``python -m tests.support.options_page`` mends it."""
    page = PAGE.read_text()

    assert with_tables(page) == page


def test_every_command_has_a_table() -> None:
    """All commands with options are in the reference, and the groups that have options of their own."""
    assert {*COMMANDS, "storage/local", "runner/dask", "runner/ray", "runner/simulated"} == {*SHOWN}


@pytest.mark.parametrize("config", SHOWN)
def test_every_option_has_a_meaning(config: str) -> None:
    """Each option has a comment, and its guide exists."""
    options = list(options_of(config))
    guides = [guide for option in options for guide in re.findall(r"docs/[\w/]+\.md", option.comment)]

    assert options
    assert [option.key for option in options if not option.comment] == []
    assert [guide for guide in guides if not (CONF.parent / guide).exists()] == []


def test_storages_agree() -> None:
    """An option that several storages have means the same in each."""
    stored = [option for path in CONF.glob("storage/*.yaml") for option in options_of(f"storage/{path.stem}")]
    same = {
        (option.key, option.default, option.comment) for option in stored if option.key.endswith(("keep", "max_gb"))
    }

    assert len(same) == 2
