"""Several objectives under a constraint: front, finalists, resuming, refusals."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pandas as pd
import pytest

from nas.core.metric import Metric
from nas.core.pareto import numbers_on_front
from tests.support.commands import run, trials

METRICS = (Metric("accuracy"), Metric("parameters", "minimize"))
DIGITS = (
    *("problem._target_=short_digits.ShortDigits", "problem.objectives=[accuracy,parameters]"),
    *("name=small", "device=cpu", "threads=1"),
)
COMMAND = (
    *DIGITS,
    *("+tuner=nsga2", "tuner.population_size=4", "+constraints.parameters=8e3", "runner=threads", "slots=2"),
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_search_for_small_networks(here: Path, api_url: str) -> None:
    """Networks keep the limit, finalists are from the front, a larger budget extends, another limit is refused."""
    done = run(here, *COMMAND, "budget.trials=8", PREFECT_API_URL=api_url)
    found = trials(here / "heirloom" / "small")
    searched = [t for t in found if t.stage == "search"]
    front = numbers_on_front(searched, METRICS)

    assert done.status == 0, done.err
    assert [t.index for t in searched] == list(range(8))
    assert all(isinstance(t.metrics["parameters"], int) and t.metrics["parameters"] <= 8000 for t in found)
    assert {t.parents[0] for t in found if t.stage == "final"} <= front or len(front) < 2
    assert f"front (search): {len(front)} trial" in done.out
    assert "parameters" in next(line for line in done.out.splitlines() if line.startswith("front (search)"))

    again = run(here, *COMMAND, "budget.trials=12", PREFECT_API_URL=api_url)
    extended = trials(here / "heirloom" / "small")
    assert again.status == 0, again.err
    assert [t.proposal for t in extended if t.stage == "search"][:8] == [t.proposal for t in searched]
    assert sum(t.stage == "search" for t in extended) == 12

    other = run(here, *COMMAND, "budget.trials=12", "constraints.parameters=9000")
    assert other.status == 2
    assert "constraints.parameters: 8000.0 there, 9000.0 here" in other.complaint

    more = run(here, *DIGITS, "finalists=3", module="flows.final", PREFECT_API_URL=api_url)
    assert more.status == 0, more.err
    report = run(here, "name=small", "format=csv", module="flows.report")
    table = pd.read_csv(io.StringIO(report.out))
    assert set(table[table["front"]]["trial"]) == numbers_on_front(trials(here / "heirloom" / "small"), METRICS)
    as_json = json.loads(run(here, "name=small", "format=json", module="flows.report").out)
    assert {type(row["front"]) for row in as_json} == {bool}
