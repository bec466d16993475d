"""Constraints: a point that breaks one is never trained, with any tuner."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from nas.api.results import Results
from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError, SearchFailedError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.spec import Spec
from nas.core.trial import Proposal, Trial
from nas.problems.digits import DigitsProblem
from nas.search.definition import Search
from nas.spaces.parameters.space import Choice, Int, ParameterSpace
from nas.spaces.space import Space
from nas.testing import check_tuner
from nas.tuners.anneal import AnnealTuner
from nas.tuners.base import STOP, Answer, Tuner
from nas.tuners.batch import BatchTuner
from nas.tuners.evolution import EvolutionTuner
from nas.tuners.grid import GridTuner
from nas.tuners.nsga2 import Nsga2Tuner
from nas.tuners.random import RandomTuner
from nas.tuners.shared import constrained
from nas.tuners.shared.constrained import MAX_REFUSED, ConstrainedTuner
from tests.support.landscape import finished
from tests.support.problems import SizeProblem, size_of

METRICS, SPACE = SizeProblem.metrics, SizeProblem.own_space
GRID = ParameterSpace({"a": Int(1, 12), "b": Choice(1, 2, 4, 8)})


class KeepingTuner(Tuner):
    """Another tuner under constraints, as ``check_tuner`` builds it."""

    def __init__(
        self, space: Space, metrics: tuple[Metric, ...], *, seed: int = 0, tuner: type[Tuner], size: float = 20
    ) -> None:
        super().__init__(space, metrics, seed=seed)
        self.inner = ConstrainedTuner(
            tuner(space, metrics, seed=seed), SizeProblem(space=space).static_metrics, {"size": size}
        )

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the constrained tuner's answer, which must keep the constraint."""
        answer = self.inner.ask(lineage, number, job)
        assert not isinstance(answer, Proposal) or size_of(answer.point) <= 20
        return answer

    def may_inherit_from(self, lineage: Lineage) -> list[int]:
        """Returns the trials that the tuner may name."""
        return list(self.inner.may_inherit_from(lineage))


def found(tuner: type[Tuner], n: int = 30, **more: Any) -> Results:
    search = Search(problem=Spec.of(SizeProblem), tuner=Spec.of(tuner), constraints={"size": 20}, **more)
    return run_search(search, root=f"memory://constrained-{tuner.__name__}-{n}", budget=Budget(trials=n))


@pytest.mark.parametrize("tuner", [RandomTuner, EvolutionTuner, AnnealTuner, GridTuner, Nsga2Tuner])
def test_no_trial_breaks_a_constraint(tuner: type[Tuner]) -> None:
    """With half of the space too large, none of thirty trials is, and numbers have no gap."""
    summary = found(tuner)
    searched = [t for t in summary.lineage if t.stage == "search"]

    assert [t.index for t in searched] == list(range(30))
    assert all(t.metrics["size"] <= 20 for t in searched)


@pytest.mark.slow
@pytest.mark.parametrize("tuner", [EvolutionTuner, RandomTuner, Nsga2Tuner])
def test_contract(tuner: type[Tuner]) -> None:
    """A constrained tuner is a function of the lineage: in another process, resumed, with deleted weights."""
    check_tuner(Spec.of(KeepingTuner, tuner=tuner), SPACE, METRICS)


def proposed(tuner: Tuner) -> list[Point]:
    """Returns the points that a tuner proposes until STOP."""
    trials: list[Trial] = []
    while isinstance(answer := tuner.ask(Lineage.of(trials), len(trials), 0), Proposal):
        trials.append(finished(len(trials), answer, 0.0))
    assert answer is STOP
    return [trial.point for trial in trials]


def test_a_grid_leaves_out_large_points() -> None:
    """Each point within the constraint comes once, in the grid's order, then STOP."""
    tuner = ConstrainedTuner(
        GridTuner(GRID, METRICS, resolution=12), SizeProblem(space=GRID).static_metrics, {"size": 20}
    )

    assert proposed(tuner) == [point for point in GRID.points() if point["a"] * point["b"] <= 20]


def test_a_list_leaves_out_large_points() -> None:
    """Only the listed points within the constraint come."""
    points = [{"a": a, "b": 4} for a in (9, 5, 6, 1)]
    tuner = ConstrainedTuner(
        BatchTuner(GRID, METRICS, points=points), SizeProblem(space=GRID).static_metrics, {"size": 20}
    )

    assert proposed(tuner) == [points[1], points[3]]


class ChangingProblem(SizeProblem):
    """Empties each point whose size it returns."""

    def static_metrics(self, point: Point) -> Mapping[str, float]:
        found = super().static_metrics(point)
        point.clear()
        return found


def test_static_metrics_may_change_the_point() -> None:
    """The tuner's proposal stays as it is, and so do the points that are trained."""
    search = Search(problem=Spec.of(ChangingProblem), tuner=Spec.of(RandomTuner), constraints={"size": 20})
    found = run_search(search, root="memory://constrained-changing", budget=Budget(trials=3))

    assert [trial.metrics["size"] for trial in found.lineage] == [size_of(trial.point) for trial in found.lineage]
    assert all(trial.metrics["size"] <= 20 for trial in found.lineage)


class Stubborn(Tuner):
    """Always proposes the same point."""

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal:
        return Proposal(point={"a": 12, "b": 2, "d": 0.5})


def test_a_tuner_that_gives_nothing_else_ends_the_search() -> None:
    """The error names the constraint, the least refused value, and the number of refused points."""
    with pytest.raises(
        SearchFailedError, match=r"constraints.size=20 is violated by 1 of the 1 points .* smallest value is 24"
    ):
        found(Stubborn)


def test_a_space_without_an_allowed_point() -> None:
    """A finite space is searched completely, and the error says so instead of STOP."""
    tuner = ConstrainedTuner(RandomTuner(GRID, METRICS), SizeProblem(space=GRID).static_metrics, {"size": 0.5})
    with pytest.raises(
        ConfigurationError, match=r"constraints.size=0.5 is violated by 48 of the 48 .* smallest value is 1\."
    ):
        tuner.ask(Lineage.of([]), 0, 0)

    endless = ConstrainedTuner(EvolutionTuner(SPACE, METRICS), SizeProblem().static_metrics, {"size": 0.5})
    with pytest.raises(ConfigurationError, match="refused in a row"):
        endless.ask(Lineage.of([]), 0, 0)
    assert MAX_REFUSED >= 100


def test_a_long_search_for_a_point_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It logs at growing intervals, and the answers are the same."""
    monkeypatch.setattr(constrained, "REPORT_AFTER_S", 0.001)
    tuner = ConstrainedTuner(RandomTuner(SPACE, METRICS), SizeProblem().static_metrics, {"size": 0.5})
    with pytest.raises(ConfigurationError) as given_up:
        tuner.ask(Lineage.of([]), 0, 0)

    assert 1 <= len(caplog.messages) < 16
    assert caplog.messages[0].startswith("no point found yet: constraints.size=0.5 is violated by ")
    assert str(given_up.value).startswith(f"constraints.size=0.5 is violated by {65 * MAX_REFUSED} of the ")


def test_only_limited_metrics_are_computed() -> None:
    """FLOPs are not computed for a limit on parameters, since they take several times as long."""
    problem = DigitsProblem()
    tuner = ConstrainedTuner(RandomTuner(problem.space, problem.metrics), problem.static_metrics, {"parameters": 1e9})
    point = problem.space.sample(random.Random(0))
    problem.example_inputs = lambda: pytest.fail("FLOPs were counted")  # type: ignore[method-assign]

    assert tuner.violated_by(point) == ""
    assert set(problem.static_metrics(point)) == {"parameters", "flops", "live_flops"}


def test_constraints_are_part_of_the_identity() -> None:
    """Another limit is another search, and equal numbers are the same."""
    search = Search(problem=Spec.of(SizeProblem), tuner=Spec.of(RandomTuner))
    one, same, other = (
        Search(problem=search.problem, tuner=search.tuner, constraints={"size": limit}).build()
        for limit in (20, 20.0, 21)
    )

    assert "constraints" not in search.build().identity
    assert one.identity["constraints"] == {"size": 20.0}
    assert one.digest == same.digest
    assert len({search.build().digest, one.digest, other.digest}) == 3


@pytest.mark.parametrize(
    ("constraints", "arguments", "message"),
    [
        ({"flops": 3}, {}, "constraints.flops: the problem does not know it before training. Name one of size"),
        ({"size": "3"}, {}, r"constraints.size='3': must be a number"),
        ({"size": float("nan")}, {}, r"constraints.size=nan: must be a number"),
        ({"size": 10**400}, {}, r"constraints.size=10+.*0: must be a number. Write a finite one"),
        (
            {"size": 3},
            {"error": "no such layer"},
            r"problem's static_metrics failed on .* \(ValueError: no such layer\)",
        ),
    ],
)
def test_invalid_constraints_are_refused(constraints: dict[str, Any], arguments: dict[str, Any], message: str) -> None:
    """A limit on an unknown metric, one that is no number, and a failing problem are refused at the start."""
    search = Search(problem=Spec.of(SizeProblem, **arguments), tuner=Spec.of(RandomTuner), constraints=constraints)
    with pytest.raises(ConfigurationError, match=message):
        search.build()
