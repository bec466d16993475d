"""A small landscape with numbers, a scale and a choice, and searches on it without an executor."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.policy import Stage
from nas.core.trial import Proposal, Reason, State, Trial
from nas.search.admission import AdmissionRules, admit
from nas.spaces.parameters.space import Choice, Float, Int, ParameterSpace
from nas.tuners.base import Tuner

METRIC = Metric("loss", "minimize")
SPACE = ParameterSpace(
    {"x": Float(-10.0, 10.0), "rate": Float(1e-5, 1.0, log=True), "n": Int(1, 64), "op": Choice(*"abcdef")}
)


def loss(point: Point) -> float:
    """0 at the optimum; ``rate`` has no say."""
    return abs(point["x"] - 3.0) + abs(point["n"] - 20) / 10 + (point["op"] != "c")


def finished(number: int, proposal: Proposal, score: float | None) -> Trial:
    """A COMPLETE trial, or a FAILED one where there is no score."""
    trial = Trial(number=number, index=number, proposal=proposal, state=State.COMPLETE, metrics={"loss": score or 0.0})
    if score is None:
        trial = Trial(
            number=number,
            index=number,
            proposal=proposal,
            state=State.FAILED,
            reason=Reason.EXCEPTION,
            error="no score",
        )
    return trial


def search(tuner: Tuner, n: int, score: Callable[[Point], float | None] = loss) -> list[Trial]:
    """The trials of a search with one slot."""
    trials: list[Trial] = []
    for number in range(n):
        trial = _asked_for(tuner, trials)
        trials.append(replace(finished(number, trial.proposal, score(trial.point)), generation=trial.generation))
    return trials


def pending(tuner: Tuner, trials: Sequence[Trial], n: int) -> list[Trial]:
    """Trials that are asked for one after the other, after these, and none of which has a result."""
    grown = list(trials)
    for _ in range(n):
        grown.append(_asked_for(tuner, grown))
    return grown[len(trials) :]


def _asked_for(tuner: Tuner, trials: Sequence[Trial]) -> Trial:
    number = len(trials)
    answer = tuner.ask(Lineage.of(trials), number, number)
    return admit(answer, Stage(name="search"), number, trials, AdmissionRules(tuner=tuner.shown_name, seed=0))


def least_gap_of_pending(make: Callable[[ParameterSpace], Tuner]) -> float:
    """Four asks without a result between them, where scores swing and the middle is not known: how near two come."""
    tuner = make(ParameterSpace({"x": Float(0.0, 1.0)}))
    known = [x / 20 for x in range(21) if not 6 < x < 14]
    trials = [finished(n, Proposal(point={"x": x}), math.sin(25 * x)) for n, x in enumerate(known)]
    places = sorted(trial.point["x"] for trial in pending(tuner, trials, 4))
    return min(upper - lower for lower, upper in pairwise(places))


def mean_best(make: Callable[[int], Tuner], n: int, n_seeds: int = 10) -> float:
    """The best loss of ``n`` trials, on average over the seeds."""
    return statistics.mean(min(t.metrics["loss"] for t in search(make(seed), n)) for seed in range(n_seeds))
