"""The command on a virtual clock."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest

from tests.support.commands import run

GIVEN = ("problem=tabular", "problem.table=t.csv", "problem.parameters=[a,b]", "problem.metrics.score.column=s")


@pytest.mark.slow
def test_command_searches_a_table(tmp_path: Path) -> None:
    """runner=simulated searches a csv file on 20 workers for a budget of an hour, in an instant."""
    rows = [f"{a},{b},{a * b},600" for a, b in itertools.product(range(15), range(15))]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,s,t", *rows]))
    simulated = ("runner=simulated", "slots=20", "budget.hours=1", "problem.seconds.column=t")
    more = (*simulated, "runner.workers.straggling=0.1", "storage.root=root", "name=it")

    done = run(tmp_path, "+tuner=evolution", *GIVEN, *more)

    assert done.status == 0, done.err
    assert "best: trial" in done.out
    shown = run(tmp_path, "name=it", "storage.root=root", "format=json", module="flows.report")
    trials = json.loads(shown.out)
    assert 90 < len(trials) < 120  # 20 at a time, each 10 minutes long
    assert all(400 < trial["duration_s"] < 900 for trial in trials)
    assert max(trial["finished"] for trial in trials) < 3600
    assert re.search(r"^hours: 0\.9\d* of 1$", done.out, re.MULTILINE)


@pytest.mark.slow
def test_an_unknown_column_is_refused(tmp_path: Path) -> None:
    """The line names the column, the table and its columns; nothing is written."""
    (tmp_path / "t.csv").write_text("a,b,s\n1,2,3\n1,3,4")
    done = run(tmp_path, "+tuner=random", *GIVEN, "problem.tests.score=nocol", "runner=simulated")

    assert done.status == 2
    assert done.complaint == "problem.tests.score='nocol': must be a column of t.csv. It has a, b, s"
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_problem_that_trains_is_refused(tmp_path: Path) -> None:
    """A problem without a simulation is refused with the remedy."""
    done = run(tmp_path, "+tuner=random", "runner=simulated", "storage.root=root")

    assert done.status == 2
    assert "DigitsProblem has no `simulate`" in done.complaint
