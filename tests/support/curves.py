"""Trials with curves, for the tests of stoppers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Proposal, State, Trial

METRIC = Metric("acc")
Curve = Mapping[int, float] | Iterable[float]


def trial(number: int, curve: Curve, state: State = State.RUNNING) -> Trial:
    """A trial that reported these values: by step, or from step 1 on. One that has ended scores the last of them."""
    steps = curve.items() if isinstance(curve, Mapping) else enumerate(curve, 1)
    reports = tuple((step, {"acc": value}) for step, value in steps)
    scored = reports and state in (State.COMPLETE, State.STOPPED)
    return Trial(
        number=number, index=number, proposal=Proposal(point={"x": number}), state=state, curve=reports,
        metrics=reports[-1][1] if scored else {},
    )  # fmt: skip


def others(*curves: Curve, state: State = State.COMPLETE) -> Lineage:
    """A lineage of trials with these curves, numbered from 0."""
    return Lineage.of(trial(number, curve, state) for number, curve in enumerate(curves))
