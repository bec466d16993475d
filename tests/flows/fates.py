"""Trials that end as their point says, and tuners whose children can't start at once; commands import it by name."""

from __future__ import annotations

import time
from itertools import islice

from torch import nn

from nas import (
    Choice,
    Int,
    Lineage,
    Metric,
    ParameterSpace,
    Point,
    Policy,
    Problem,
    Proposal,
    State,
    Stopper,
    Trial,
    TrialRun,
    Tuner,
)

FATES = ("complete", "failed", "stopped", "bare", "stopped_bare")
"""``bare`` and ``stopped_bare`` end without weights."""


class FateProblem(Problem):
    """Sleeps, saves a tiny network or not, and ends as ``point["fate"]`` says."""

    metrics = (Metric("score"),)
    policies = frozenset({Policy.SHARE_PARAMS})
    space = ParameterSpace({"fate": Choice(*FATES), "number": Int(0, 10_000)})

    def __init__(self, seconds: float = 0.3) -> None:
        self.seconds = seconds

    def train(self, run: TrialRun) -> dict[str, float]:
        fate, network = run.point["fate"], nn.Linear(4, 4)
        run.inherit(network)
        time.sleep(self.seconds)
        if fate == "failed":
            raise RuntimeError("as the point says")
        if fate in ("complete", "stopped"):
            run.save(network)
        score = run.point["number"] / 1000
        run.report(0, score=score)
        return {"score": score}


class FateStopper(Stopper):
    """Ends the trials that are to be STOPPED."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        return trial.point["fate"].startswith("stopped")


class RunningParentTuner(Tuner):
    """Names the last trial that runs, else the last that is about to, else the last that did; a generation has one fate."""

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal:
        if not len(lineage):
            return Proposal(point=_point(0, number))
        running = [trial for trial in lineage.pending if trial.state == State.RUNNING]
        parent = [*islice(lineage.newest(), 1), *lineage.pending[-1:], *running][-1]
        return Proposal(point=_point(parent.generation + 1, number), parents=(parent.number,))


class ChainTuner(Tuner):
    """Chains of three, each named before its parent has started; the last also takes the founder's weights."""

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal:
        founder, link = number - number % 3, number % 3
        point = _point(number // 3, number) if link == 0 else _point(number // 3 + 1, number)
        if link == 2:
            return Proposal(point=point, parents=(founder + 1,), donors=(founder, founder + 1))
        return Proposal(point=point, parents=(founder,) if link else ())


def _point(place: int, number: int) -> Point:
    return {"fate": FATES[place % len(FATES)], "number": number}
