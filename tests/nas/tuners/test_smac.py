"""SMAC3's forest in a space that is soon exhausted."""

from __future__ import annotations

import pytest

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import point_key
from nas.core.trial import State, Trial
from nas.spaces.parameters.space import Choice, Float, Int, ParameterSpace
from nas.tuners.base import STOP
from nas.tuners.smac import SmacTuner
from tests.support.landscape import search


@pytest.mark.slow
@pytest.mark.parametrize("n_pending", [0, 2])
def test_a_small_space_is_used_up_and_then_it_stops(n_pending: int) -> None:
    """Six points give six trials, then STOP, also while some still run."""
    space = ParameterSpace({"width": Int(1, 3), "op": Choice("a", "b")})
    tuner = SmacTuner(space, (Metric("loss", "minimize"),), n_initial_points=2, random_share=0.0)

    trials = search(tuner, 6, lambda point: float(point["width"]))
    ended, pending = trials[: 6 - n_pending], trials[6 - n_pending :]
    running = [Trial(number=t.number, index=t.index, proposal=t.proposal, state=State.RUNNING) for t in pending]

    assert len({point_key(trial.point) for trial in trials}) == 6
    assert tuner.ask(Lineage.of([*ended, *running]), 6, 6) is STOP


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1e7, -1e7, 1e300])
def test_large_scores_may_tie(scale: float) -> None:
    """Two trials share the best of scores that are so large that 1e-10 is lost beside them."""
    space = ParameterSpace({"width": Int(1, 50), "rate": Float(1e-4, 1.0, log=True)})
    tuner = SmacTuner(space, (Metric("loss", "minimize"),), n_initial_points=4, random_share=0.0)

    trials = search(tuner, 8, lambda point: scale * max(10, abs(point["width"] - 25)))

    assert len({point_key(trial.point) for trial in trials}) == 8
