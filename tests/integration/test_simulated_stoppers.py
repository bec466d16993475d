"""Stoppers see the same on a virtual clock as in training."""

from __future__ import annotations

import csv
import random
from pathlib import Path
from uuid import uuid4

import pytest

from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.spec import Spec
from nas.core.trial import State, Trial
from nas.executors.simulated import SimulatedExecutor
from nas.search.controller import ControllerSettings, SearchController
from nas.search.definition import Search
from nas.storage.open import open_root
from nas.storage.records import Records

N_STEPS = 16
STOPPERS = {
    "nas.stoppers.median.MedianStopper": {"min_trials": 3},
    "nas.stoppers.asha.AshaStopper": {"max_steps": N_STEPS, "brackets": 2},
    "nas.stoppers.curve.CurveStopper": {},
    "nas.stoppers.patience.PatienceStopper": {"n_reports": 2},
}


def write_table(path: Path) -> None:
    """Writes a table of errors that fall from 1 to a limit, with noise and gaps."""
    rng = random.Random(3)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["x", "error", *(f"error_{step}" for step in range(1, N_STEPS + 1))])
        for x in range(40):
            limit, rate = rng.uniform(0.05, 0.9), rng.uniform(0.2, 1.0)
            curve: list[float | str] = [
                limit + (1 - limit) * (1 - rate / 2) ** step + rng.gauss(0, 0.01) for step in range(1, N_STEPS + 1)
            ]
            last = curve[-1]
            if x % 5 == 0:
                curve[3] = ""
            writer.writerow([x, last, *curve])


def table(trials: list[Trial]) -> list[tuple[object, ...]]:
    return [(t.number, t.point, t.state, t.reason, t.metrics, t.curve) for t in trials]


@pytest.mark.parametrize("target", STOPPERS)
def test_debug_and_simulated_stop_the_same_trials(target: str, tmp_path: Path) -> None:
    """With deterministic=true the same trials end at the same reports in training and simulation."""
    write_table(tmp_path / "t.csv")
    metrics = {"error": {"direction": "minimize", "curve": "error_*"}}
    problem = Spec(
        "nas.problems.tabular.TabularProblem",
        {"table": str(tmp_path / "t.csv"), "parameters": ["x"], "metrics": metrics},
    )
    search = Search(
        problem=problem,
        tuner=Spec("nas.tuners.random.RandomTuner"),
        stopper=Spec(target, STOPPERS[target]),
        deterministic=True,
    )
    budget = Budget(trials=25)
    summary = run_search(search, root=f"memory://{uuid4().hex}", budget=budget, finalists=1)

    built = search.build()
    records = Records(open_root(f"memory://{uuid4().hex}"))
    executor = SimulatedExecutor(built.problem, records, has_stopper=True)
    controller = SearchController(
        records,
        executor,
        ControllerSettings(budget=budget, deterministic=True),
        tuner=built.tuner,
        space=built.problem.space,
        stopper=built.stopper,
    )
    controller.search(built.plan.search)

    trials = [trial for trial in summary.lineage if trial.stage == "search"]
    stopped = [trial for trial in controller.trials if trial.state == State.STOPPED]
    assert table(controller.trials) == table(trials)
    assert 2 < len(stopped) < 25
    assert executor.now_s() == pytest.approx(sum(max(s for s, _ in t.curve) / N_STEPS for t in controller.trials))
