"""Estimated durations of trials, from finished ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.trial import Proposal, Reason, State, Trial
from nas.search.budget.durations import DurationEstimator, cost_ratio

CHEAP = frozenset({Policy.EARLY_STOP, Policy.DOWNSCALE})
SEARCH, RECHECK, FINAL = (
    Stage(name="search", policies=CHEAP),
    Stage(name="recheck", policies=frozenset({Policy.SKIP_TRAIN, Policy.DOWNSCALE})),
    Stage(name="final"),
)
PLAN = PolicyPlan((SEARCH, RECHECK, FINAL))


def trial(
    seconds: float,
    *,
    stage: Stage = SEARCH,
    state: State = State.COMPLETE,
    reason: Reason | None = None,
    epochs: float | None = None,
    scale: float | None = None,
    slot: int | None = None,
) -> Trial:
    shares = {"epochs_share": epochs, "scale_share": scale}
    cost = {"seconds": seconds, **{name: share for name, share in shares.items() if share is not None}}
    return Trial(
        number=0, index=0, proposal=Proposal(point={}), stage=stage.name, policies=stage.policies,
        state=state, reason=reason, cost=cost, slot=slot,
    )  # fmt: skip


def learned(trials: Iterable[Trial]) -> DurationEstimator:
    estimator = DurationEstimator(PLAN)
    for found in trials:
        estimator.learn(found)
    return estimator


def test_nothing_is_known_at_first() -> None:
    """At first no stage has an estimate, not even the shortest duration."""
    estimator = DurationEstimator(PLAN)

    assert [estimator.has_seen(stage) for stage in PLAN.stages] == [False] * 3
    assert estimator.shortest_s(SEARCH) is estimator.mean_s(SEARCH) is estimator.usual_s(SEARCH) is None


def test_observed_durations() -> None:
    """The shortest, the mean and the 90th percentile do not depend on the order."""
    estimator = learned(trial(seconds) for seconds in (7, 3, 10, 1, 9, 5, 2, 8, 6, 4))

    assert (estimator.shortest_s(SEARCH), estimator.mean_s(SEARCH), estimator.usual_s(SEARCH)) == (1, 5.5, 9)
    assert estimator.usual_s(FINAL) is None  # nothing was declared


def test_incomplete_trials_count_in_part() -> None:
    """Failures do not count, a deadline is a lower bound, and a stopped trial counts, but not as the shortest."""
    failed = trial(0.1, state=State.FAILED, reason=Reason.EXCEPTION)
    overdue = trial(0.2, state=State.STOPPED, reason=Reason.DEADLINE)
    stopped = trial(1.0, state=State.STOPPED, reason=Reason.STOPPER)

    known = learned([failed, overdue])
    assert not known.has_seen(SEARCH)
    assert (known.shortest_s(SEARCH), known.usual_s(SEARCH)) == (0.2, None)
    assert learned([stopped]).shortest_s(SEARCH) == 1.0
    seen = learned([failed, overdue, stopped, trial(4.0), trial(3.0)])
    assert (seen.shortest_s(SEARCH), seen.mean_s(SEARCH)) == (3.0, 8.0 / 3)


def test_the_first_trial_of_a_slot_warms_it_up() -> None:
    """A slot's first trial loads data, so it counts only as the shortest once there are others."""
    first, second, other = trial(20.0, slot=0, epochs=0.1), trial(5.0, slot=0, epochs=0.1), trial(4.0, slot=1)

    assert learned([first]).usual_s(SEARCH) == 20.0
    seen = learned([first, other, second])
    assert (seen.shortest_s(SEARCH), seen.mean_s(SEARCH), seen.usual_s(SEARCH)) == (4.0, 5.0, 5.0)
    assert seen.usual_s(FINAL) == pytest.approx(50.0)


def test_each_session_warms_its_slots_up() -> None:
    """A slot's first trial of a later session loads data again."""
    estimator = learned([trial(20.0, slot=0), trial(5.0, slot=0)])
    estimator.start_session()
    estimator.learn(trial(30.0, slot=0))

    assert (estimator.mean_s(SEARCH), estimator.usual_s(SEARCH)) == (5.0, 5.0)


def test_static_metrics_take_as_long_in_every_stage() -> None:
    """With 2 of 10 seconds for static metrics, a final of ten times the epochs takes 2 s + 80 s."""
    searched = trial(10.0, epochs=0.1)
    searched = replace(searched, cost={**searched.cost, "static_metrics_seconds": 2.0})

    assert learned([searched]).usual_s(FINAL) == pytest.approx(82.0)


def test_setup_takes_as_long_in_every_stage() -> None:
    """After 18 of 20 s of loading in the first trial, a final takes 18 s + 20 s, not 200 s."""
    first = trial(20.0, slot=0, epochs=0.1)
    first = replace(first, cost={**first.cost, "static_metrics_seconds": 2.0, "setup_seconds": 18.0})

    assert learned([first]).shortest_s(FINAL) == learned([first]).usual_s(FINAL) == pytest.approx(38.0)


@pytest.mark.parametrize(
    ("epochs", "scale", "final", "recheck"),
    [
        (8 / 60, 6 / 15, 60 / 8 * 15 / 6, 1.0),
        (0.5, None, 2.0, 1.0),
        (None, 0.25, 4.0, 1.0),
        (1.0, 1.0, 1.0, 1.0),
        (None, None, None, None),
        (0.0, 0.5, None, None),
    ],
)
def test_later_stages_are_estimated(
    epochs: float | None, scale: float | None, final: float | None, recheck: float | None
) -> None:
    """A final is estimated with all epochs at full size; a stage that only scores counts as long as its training."""
    searched = trial(10.0, epochs=epochs, scale=scale)

    assert cost_ratio(searched, FINAL) == (None if final is None else pytest.approx(final))
    assert cost_ratio(searched, RECHECK) == recheck
    assert learned([searched]).usual_s(FINAL) == (None if final is None else pytest.approx(10 * final))


def test_a_deadline_refutes_an_estimate() -> None:
    """If a final was stopped after more time than estimated, nothing is known but that it takes longer."""
    searched = trial(10.0, epochs=0.1)
    for seconds, usual_s, shortest_s in ((99.0, 100.0, 100.0), (110.0, None, 110.0)):
        overdue = trial(seconds, stage=FINAL, state=State.STOPPED, reason=Reason.DEADLINE)
        estimator = learned([searched, overdue])

        assert (estimator.usual_s(FINAL), estimator.mean_s(FINAL)) == (usual_s, usual_s)
        assert (estimator.shortest_s(FINAL), estimator.estimated_s(searched, FINAL)) == (shortest_s, usual_s)


def test_observed_durations_override_estimates() -> None:
    """The first finished final overrides the declared ratio."""
    estimator = learned([trial(10.0, epochs=0.1), trial(50.0, stage=FINAL, epochs=1.0)])

    assert estimator.shortest_s(FINAL) == estimator.usual_s(FINAL) == 50.0


def test_kinds_of_trials_differ() -> None:
    """Epochs of a supernet and subnets of one stage are told apart; a trial of any kind needs the time of a subnet."""
    epoch, subnet = frozenset({Policy.SHARE_PARAMS}), frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN})
    epochs = [replace(trial(seconds), policies=epoch) for seconds in (90.0, 100.0)]
    subnets = [replace(trial(seconds), policies=subnet) for seconds in (1.0, 2.0)]
    estimator = learned(epochs)

    assert [estimator.need_s(SEARCH, kind, is_usual=True) for kind in (None, epoch, CHEAP)] == [100.0] * 3
    assert estimator.need_s(SEARCH, subnet, is_usual=True) == 0.0  # it trains nothing
    for found in subnets:
        estimator.learn(found)
    assert [estimator.need_s(SEARCH, kind, is_usual=True) for kind in (None, epoch, subnet)] == [2.0, 100.0, 2.0]
    assert [estimator.need_s(SEARCH, kind, is_usual=False) for kind in (None, epoch, subnet)] == [1.0, 90.0, 1.0]


def test_finals_are_not_estimated_from_supernet_epochs() -> None:
    """An epoch with shares of a full training says nothing about the final of a subnet."""
    epoch = trial(100.0, epochs=0.5)
    epoch = replace(epoch, proposal=Proposal(point={"supernet_epoch": 3}))

    assert learned([epoch]).usual_s(FINAL) is None
