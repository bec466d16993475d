"""Searches of record format 1, whose records have no digest, are refused by every command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.commands import TIMED, everything, run
from tests.support.record_files import read_record
from tests.support.stored_search import write_stored_search

COMMANDS = {
    "search": (*TIMED, "runner=debug", "budget.trials=2"),
    "report": ("format=json",),
    "gc": ("keep=best:1",),
    "verify": (),
    "final": (),
}


@pytest.mark.slow
def test_every_command_refuses_format_1(tmp_path: Path) -> None:
    """Each command ends with one line that names both formats and the way out, and changes nothing."""
    root = tmp_path / "root"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    write_stored_search(root / "stored", scratch)
    for path in (root / "stored").rglob("*.*"):
        if path.suffix in (".json", ".beat") and path.parent.parent.name != "best":
            record = read_record(path)
            path.write_text(json.dumps({**record, "format": 1} if "format" in record else record))
    before = everything(root)
    folder = tmp_path / "here"
    folder.mkdir()

    done = {
        name: run(folder, *overrides, "name=stored", f"storage.root={root}", module=f"flows.{name}")
        for name, overrides in COMMANDS.items()
    }

    for name, one in done.items():
        assert (one.status, one.out) == (2, ""), (name, one)
        assert "stored has format 1; this Heirloom reads format 2. Use the Heirloom that" in one.complaint, name
    assert everything(root) == before
