"""Tables on a terminal: what fits is shown whole, however wide its characters are."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from flows.views.terminal import fitting_columns, print_search, print_table
from nas.core.metric import Metric
from nas.storage.open import open_root
from nas.views.snapshot import read_snapshot
from tests.support.sample_searches import BEGAN, trial, write_search


def console(width: int) -> Console:
    """A console of so many cells, as a terminal is."""
    return Console(markup=False, highlight=False, emoji=False, width=width)


def test_wide_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """Columns are chosen by the cells of their texts, so none is cut."""
    columns = {"trial": ["0"], "state": ["COMPLETE"], "point.a": ["宽" * 12], "point.b": ["宽" * 12]}
    fitting = fitting_columns(columns, 50, {"trial", "state"})
    print_table(console(50), {name: columns[name] for name in fitting})
    _, row = capsys.readouterr().out.splitlines()

    assert fitting == ["trial", "state", "point.a"]
    assert row.split() == ["0", "COMPLETE", "宽" * 12]


def test_wide_characters_in_many_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """A table of many rows is aligned by cells, too."""
    print_table(console(50), {"name": ["宽" * 4, "plain"] * 1001, "n": ["1", "22"] * 1001}, frozenset({"n"}))
    lines = capsys.readouterr().out.splitlines()

    assert len(lines) == 2003
    assert {cell_len(line) for line in lines} == {8 + 2 + 2}


def test_long_metric_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A long name of the metric is cut; trial, state and score are whole."""
    metric = Metric("accuracy_of_" * 8)
    write_search(tmp_path, "s", [trial(0, score=0.5, metrics={metric.name: 0.94213})], metrics=(metric,))
    print_search(console(80), read_snapshot(open_root(f"{tmp_path}/s"), BEGAN + 100))
    head, row = capsys.readouterr().out.splitlines()[:2]

    assert head.split()[:3] == ["trial", "state", f"metric.{metric.name}"[:39] + "…"]
    assert row.split()[:3] == ["0", "COMPLETE", "0.94213"]
