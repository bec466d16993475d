"""NSGA-II: initial points, then children of two parents from the front, by generations."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage, LineageLog
from nas.core.metric import Metric
from nas.core.pareto import hypervolume, losses_of
from nas.core.point import Point, point_key
from nas.core.spec import Spec
from nas.core.trial import Proposal, Reason, State, Trial
from nas.spaces.parameters.space import Choice, Float, Int, ParameterSpace
from nas.testing import check_tuner
from nas.tuners.base import STOP, Tuner
from nas.tuners.nsga2 import Nsga2Tuner
from nas.tuners.random import RandomTuner
from tests.support.landscape import pending

METRICS = (Metric("accuracy"), Metric("flops", "minimize"))
FLAT = ParameterSpace({f"op_{i}": Choice(*range(5)) for i in range(6)})
TREE = ParameterSpace(
    {
        "depth": Int(1, 3),
        "second": Choice(1, 3, 5, when={"depth": [2, 3]}),
        "head": Choice({"kind": "linear"}, {"kind": "mlp", "width": Int(4, 64)}),
        "rate": Float(1e-4, 1.0, log=True),
    }
)


def scores(point: Point) -> dict[str, float]:
    """Returns cost and gain of larger operations; the front has large ones at some places only."""
    flops = sum(point.values())
    accuracy = sum((i + 1) * value for i, value in enumerate(point.values())) - 2 * (point["op_0"] == point["op_5"])
    return {"accuracy": accuracy, "flops": flops}


def search(tuner: Tuner, n: int, score: Callable[[Point], dict[str, float]] = scores) -> list[Trial]:
    trials: list[Trial] = []
    for number in range(n):
        answer = tuner.ask(Lineage.of(trials), number, number)
        assert isinstance(answer, Proposal)
        trials.append(finished(number, answer, score(answer.point)))
    return trials


def finished(number: int, proposal: Proposal, metrics: dict[str, float]) -> Trial:
    return Trial(number=number, index=number, proposal=proposal, state=State.COMPLETE, metrics=metrics)


def test_it_finds_more_of_the_front_than_random_search() -> None:
    """In each of five seeds, the hypervolume after 100 trials is greater than random search's."""

    def covered(tuner: type[Tuner], seed: int) -> float:
        trials = search(tuner(FLAT, METRICS, seed=seed), 100)
        return hypervolume([losses for t in trials if (losses := losses_of(t, METRICS))], (0.0, 25.0))

    gains = [covered(Nsga2Tuner, seed) / covered(RandomTuner, seed) for seed in range(5)]
    assert min(gains) > 1.0
    assert statistics.mean(gains) > 1.04


def test_a_child_is_made_of_its_parents() -> None:
    """All decisions but one are a parent's; the first parent has more of them."""
    trials = search(Nsga2Tuner(FLAT, METRICS, population_size=8), 80)

    assert [t.parents for t in trials[:8]] == [()] * 8
    crossed = [t for t in trials[8:] if len(t.parents) == 2]
    assert len(crossed) > 40
    for child in crossed:
        one, other = (trials[parent].point for parent in child.parents)
        foreign = [name for name, value in child.point.items() if value not in (one[name], other[name])]
        assert len(foreign) <= 1
        shared = [sum(child.point[name] == parent[name] for name in parent) for parent in (one, other)]
        assert shared[0] >= shared[1]
        told = child.proposal.derivation
        assert told["decisions_of"] == dict(zip(map(str, child.parents), shared, strict=True))
        assert told["crossed"] == [*child.parents]


def test_without_crossover_there_is_one_parent() -> None:
    """Without crossover a child differs from its parent in one decision."""
    trials = search(Nsga2Tuner(FLAT, METRICS, population_size=8, crossover_rate=0.0), 40)

    assert all(len(t.parents) == 1 for t in trials[8:])
    assert all(sum(t.point[n] != v for n, v in trials[t.parents[0]].point.items()) == 1 for t in trials[8:])


def test_no_point_twice_and_pending_trials_count() -> None:
    """Forty asks without a new result give forty new points."""
    tuner = Nsga2Tuner(FLAT, METRICS, population_size=8)
    trials = search(tuner, 20)
    trials += pending(tuner, trials, 40)

    assert all(trial.parents for trial in trials[20:])
    assert len({point_key(t.point) for t in trials}) == 60


def test_initial_points_before_any_result() -> None:
    """With more slots than initial points, all proposals are initial points until one has a score."""
    tuner = Nsga2Tuner(FLAT, METRICS, population_size=4)
    trials = pending(tuner, [], 12)
    assert not any(trial.parents for trial in trials)
    trials[0] = finished(0, trials[0].proposal, scores(trials[0].point))

    answer = tuner.ask(Lineage.of(trials), 12, 12)
    assert isinstance(answer, Proposal)
    assert answer.parents == (0,)


def test_a_failed_trial_is_no_member() -> None:
    """A new initial point replaces a failed one; trials that failed or lack a value have no children."""
    tuner, trials = Nsga2Tuner(FLAT, METRICS, population_size=4), list[Trial]()
    for number in range(40):
        answer = tuner.ask(Lineage.of(trials), number, number)
        assert isinstance(answer, Proposal)
        trial = finished(number, answer, scores(answer.point))
        if number % 4 == 0:
            trial = replace(trial, state=State.FAILED, reason=Reason.EXCEPTION, metrics={})
        elif number % 4 == 1:
            trial = replace(trial, metrics={"accuracy": 99.0})
        trials.append(trial)

    assert sum(t.parents == () for t in trials) == 8  # of these, 4 scored
    assert all(parent % 4 > 1 for t in trials for parent in t.parents)


def test_dominated_trials_leave_with_their_generation() -> None:
    """At a generation's end the best of parents and children stay; the others are never parents again."""
    tuner = Nsga2Tuner(FLAT, METRICS, population_size=8)
    trials = search(tuner, 48)
    kept = [set(tuner.may_inherit_from(Lineage.of(trials[:n]))) for n in range(49)]

    assert [len(numbers) for numbers in kept] == [n if n < 16 else 8 + n % 8 for n in range(49)]
    gone: set[int] = set()
    for n, numbers in enumerate(kept):
        assert not gone & numbers
        gone |= set(range(n)) - numbers
    survivors = [losses_of(trials[number], METRICS) for number in kept[48]]
    assert hypervolume([s for s in survivors if s], (0.0, 25.0)) == pytest.approx(
        hypervolume([s for t in trials if (s := losses_of(t, METRICS))], (0.0, 25.0)), rel=0.1
    )


class CountedMetrics(dict[str, float]):
    """Metrics that count how often one of them is read."""

    n_read: ClassVar = 0

    def get(self, name: str, default: Any = None) -> Any:
        CountedMetrics.n_read += 1
        return super().get(name, default)


def test_an_ask_reads_only_results_since_the_ask_before() -> None:
    """After many trials an ask is as fast as after few. In another lineage it computes all generations again."""

    def new() -> Nsga2Tuner:
        return Nsga2Tuner(FLAT, METRICS, population_size=8)

    tuner, trials = new(), [replace(trial, metrics=CountedMetrics(trial.metrics)) for trial in search(new(), 60)]
    log = LineageLog(trials[:-1])
    tuner.ask(log.view(), 59, 59)
    log.append(trials[-1])
    CountedMetrics.n_read = 0
    answer = tuner.ask(log.view(), 60, 60)
    n_read = CountedMetrics.n_read
    scored = [{"accuracy": float(n % 7), "flops": float(n % 5)} for n in range(60)]
    others = [replace(trial, metrics=metrics) for trial, metrics in zip(trials, scored, strict=True)]

    assert n_read == len(METRICS)
    assert answer == new().ask(Lineage.of(trials), 60, 60)
    assert tuner.ask(Lineage.of(others), 60, 60) == new().ask(Lineage.of(others), 60, 60) != answer


def test_an_exhausted_space() -> None:
    """STOP follows the last point, also in a space of one point."""
    space = ParameterSpace({"op": Choice(1, 2, 3)})
    tuner = Nsga2Tuner(space, METRICS)
    trials = search(tuner, 3, lambda point: {"accuracy": point["op"], "flops": point["op"]})

    assert tuner.ask(Lineage.of(trials), 3, 3) is STOP


def test_contract_over_many_generations() -> None:
    """A small population in a nested space keeps the contract over many generations."""
    check_tuner(Spec.of(Nsga2Tuner, population_size=3), TREE, METRICS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"population_size": 1}, r"^tuner.population_size=1: must be a whole number of at least 2"),
        ({"population_size": 2.0}, "population_size"),
        ({"crossover_rate": 1.5}, r"^tuner.crossover_rate=1.5: must be a number from 0 to 1"),
        ({"crossover_rate": True}, "crossover_rate"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    """Invalid arguments are refused by name."""
    with pytest.raises(ConfigurationError, match=message):
        Nsga2Tuner(FLAT, METRICS, **arguments)
