"""The first trials of tuners, which no result influences."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import uuid4

import pytest

from nas import Budget, Float, Int, Metric, ParameterSpace, Problem, Spec, TrialRun, run_search
from nas.core.metric import Direction

FAST = ("evolution", "nsga2")
TARGETS = {
    "anneal": ("anneal.AnnealTuner", {"n_initial_points": 3}, "n_initial_points"),
    "cmaes": ("cmaes.CmaEsTuner", {"population_size": 4}, "population_size"),
    "evolution": ("evolution.EvolutionTuner", {"population_size": 3}, "population_size"),
    "gp": ("optuna.OptunaTuner", {"sampler": "gp", "options": {"n_startup_trials": 3}}, "options.n_startup_trials"),
    "metis": ("metis.MetisTuner", {"n_initial_points": 3}, "n_initial_points"),
    "network_morphism": ("network_morphism.NetworkMorphismTuner", {"n_initial_points": 3}, "n_initial_points"),
    "nsga2": ("nsga2.Nsga2Tuner", {"population_size": 3}, "population_size"),
    "pbt": ("pbt.PbtTuner", {"population_size": 3}, "population_size"),
    "smac": ("smac.SmacTuner", {"n_initial_points": 3, "random_share": 0.0}, "n_initial_points"),
    "tpe": ("optuna.OptunaTuner", {"options": {"n_startup_trials": 3}}, "options.n_startup_trials"),
}


class Slope(Problem):
    """Scores the point itself, which is to be maximized or minimized."""

    space = ParameterSpace({"x": Int(0, 999), "y": Float(0.0, 1.0)})

    def __init__(self, direction: Direction = "maximize") -> None:
        self.metrics = (Metric("score", direction),)

    def train(self, run: TrialRun) -> Mapping[str, float]:
        return {"score": run.point["x"] + run.point["y"]}


def points(tuner: Spec, n_trials: int, direction: Direction) -> list[object]:
    """Returns the points of the search stage."""
    found = run_search(
        Spec.of(Slope, direction=direction),
        tuner=tuner,
        root=f"memory://startup-{uuid4().hex}",
        budget=Budget(trials=n_trials),
        finalists=1,
    )
    return [trial.point for trial in found.lineage if trial.stage == "search"]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n not in FAST else []) for n in TARGETS])
def test_first_trials_do_not_depend_on_results(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Opposite results give the same first trials and another fourth or later; a budget of the first ones is noted."""
    target, arguments, option = TARGETS[name]
    tuner = Spec(f"nas.tuners.{target}", arguments)
    greater, less = points(tuner, 9, "maximize"), points(tuner, 9, "minimize")

    n = 4 if name == "cmaes" else 3
    assert greater[:n] == less[:n]
    assert greater != less
    assert "random search" not in caplog.text

    points(tuner, n, "maximize")
    line = (
        f"budget.trials={n}: this is a random search, because the tuner's first {n} trials do not depend on results. "
        f"Raise budget.trials above {n}, or lower tuner.{option}"
    )
    assert caplog.text.count(line) == 1


@pytest.mark.parametrize(
    ("tuner", "n", "option"),
    [
        (Spec("nas.tuners.screened.ScreenedTuner", {"inner": {"_target_": "nas.tuners.evolution.EvolutionTuner"}}), 5,
         "tuner.inner.population_size"),
        (Spec("nas.tuners.auto.AutoTuner"), 10, ""),
    ],
)  # fmt: skip
def test_tuners_that_delegate_tell_the_other_tuners_first_trials(tuner: Spec, n: int, option: str) -> None:
    """A tuner that delegates has the other's first trials, and names the option as it is written for it."""
    built = tuner.build(Slope.space, (Metric("score"),), seed=0)
    note = built.startup_trials.note(n)

    assert built.startup_trials.note(n + 1) is None
    assert note.endswith(f"Raise budget.trials above {n}" + (f", or lower {option}" if option else ""))
