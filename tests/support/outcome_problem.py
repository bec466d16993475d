"""Trials that end as their point says, and tuners whose children can't start at once; commands import it by name."""

from __future__ import annotations

import os
import signal
import time
from itertools import islice
from pathlib import Path

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

OUTCOMES = ("complete", "failed", "stopped", "bare", "stopped_bare")
"""``bare`` and ``stopped_bare`` end without weights; there is also ``killed``, whose worker dies."""


class OutcomeProblem(Problem):
    """Sleeps, saves a tiny network or not, and ends as ``point["outcome"]`` says; later trials score better.

    Args:
        seconds: How long it sleeps.
        hold: A folder. Trial n sleeps on while the file ``n`` lies in it.
    """

    metrics = (Metric("score"),)
    policies = frozenset({Policy.SHARE_PARAMS})
    space = ParameterSpace({"outcome": Choice(*OUTCOMES, "killed"), "number": Int(0, 10_000)})

    def __init__(self, seconds: float = 0.2, hold: str = "") -> None:
        self.seconds = seconds
        self.hold = hold

    def train(self, run: TrialRun) -> dict[str, float]:
        outcome, network = run.point["outcome"], nn.Linear(4, 4)
        run.inherit(network)
        time.sleep(self.seconds)
        while self.hold and Path(self.hold, str(run.number)).exists():
            time.sleep(0.05)
        if outcome == "failed":
            raise RuntimeError("as the point says")
        if outcome == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if outcome in ("complete", "stopped"):
            run.save(network)
        score = run.point["number"] / 1000
        run.report(0, score=score)
        return {"score": score}


class OutcomeStopper(Stopper):
    """Ends the trials that are to be STOPPED."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        return trial.point["outcome"].startswith("stopped")


class RunningParentTuner(Tuner):
    """Names the last trial that runs, else the last that is about to, or that did; a generation has one outcome."""

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal:
        if not len(lineage):
            return Proposal(point=_point(OUTCOMES[0], number))
        running = [trial for trial in lineage.pending if trial.state == State.RUNNING]
        parent = [*islice(lineage.newest(), 1), *lineage.pending[-1:], *running][-1]
        outcome = OUTCOMES[(parent.generation + 1) % len(OUTCOMES)]
        return Proposal(point=_point(outcome, number), parents=(parent.number,))


class PhaseTuner(Tuner):
    """Lets each trial of a job inherit from the one before it."""

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal:
        before = next((trial.number for trial in lineage.newest() if trial.job == job), None)
        return Proposal(point=_point(OUTCOMES[0], number), parents=() if before is None else (before,))


class ChainTuner(Tuner):
    """Chains of three, each named before its parent has started; the last also asks for the first trial's weights."""

    def __init__(
        self, space: ParameterSpace, metrics: tuple[Metric, ...], *, seed: int = 0, outcomes: str = ""
    ) -> None:
        super().__init__(space, metrics, seed=seed)
        self.outcomes = outcomes.split() or OUTCOMES

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal:
        chain, link = divmod(number, 3)
        point = _point(self.outcomes[(chain + min(link, 1)) % len(self.outcomes)], number)
        if link == 0:
            return Proposal(point=point)
        donors = (number - 2, number - 1) if link == 2 else None
        return Proposal(point=point, parents=(number - 1,), donors=donors)


def _point(outcome: str, number: int) -> Point:
    return {"outcome": outcome, "number": number}
