"""How long trials will take, by those that have ended."""

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
    """Of no stage, not even how long one takes at the least."""
    estimator = DurationEstimator(PLAN)

    assert [estimator.has_seen(stage) for stage in PLAN.stages] == [False] * 3
    assert estimator.shortest_s(SEARCH) is estimator.mean_s(SEARCH) is estimator.usual_s(SEARCH) is None


def test_durations_seen() -> None:
    """The shortest, the mean, and what nine in ten do not exceed, in whatever order they came."""
    estimator = learned(trial(seconds) for seconds in (7, 3, 10, 1, 9, 5, 2, 8, 6, 4))

    assert (estimator.shortest_s(SEARCH), estimator.mean_s(SEARCH), estimator.usual_s(SEARCH)) == (1, 5.5, 9)
    assert estimator.usual_s(FINAL) is None  # nothing was declared


def test_what_did_not_run_its_course_does_not_count() -> None:
    """Failures tell nothing, the deadline a least; what a stopper stopped is usual, but not the shortest."""
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
    """It has loaded data, and is not what the next ones take, where another one tells; the shortest it may be."""
    first, second, other = trial(20.0, slot=0, epochs=0.1), trial(5.0, slot=0, epochs=0.1), trial(4.0, slot=1)

    assert learned([first]).usual_s(SEARCH) == 20.0
    seen = learned([first, other, second])
    assert (seen.shortest_s(SEARCH), seen.mean_s(SEARCH), seen.usual_s(SEARCH)) == (4.0, 5.0, 5.0)
    assert seen.usual_s(FINAL) == pytest.approx(50.0)


def test_each_session_warms_its_slots_up() -> None:
    """The first trial of a slot in a later session has loaded data again."""
    estimator = learned([trial(20.0, slot=0), trial(5.0, slot=0)])
    estimator.start_session()
    estimator.learn(trial(30.0, slot=0))

    assert (estimator.mean_s(SEARCH), estimator.usual_s(SEARCH)) == (5.0, 5.0)


def test_what_is_found_out_before_training_takes_as_long_in_every_stage() -> None:
    """Two of ten seconds were: a final of ten times the epochs takes 2 s + 80 s."""
    searched = trial(10.0, epochs=0.1)
    searched = replace(searched, cost={**searched.cost, "static_metrics_seconds": 2.0})

    assert learned([searched]).usual_s(FINAL) == pytest.approx(82.0)


def test_what_comes_before_the_epochs_takes_as_long_in_every_stage() -> None:
    """A slot's first trial that spent 18 of 20 s on loading foretells a final of 18 s + 20 s, not of 200 s."""
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
def test_later_stages_are_foretold(
    epochs: float | None, scale: float | None, final: float | None, recheck: float | None
) -> None:
    """A final does all epochs at full size; what scores the same weights anew counts as long as what trained them."""
    searched = trial(10.0, epochs=epochs, scale=scale)

    assert cost_ratio(searched, FINAL) == (None if final is None else pytest.approx(final))
    assert cost_ratio(searched, RECHECK) == recheck
    assert learned([searched]).usual_s(FINAL) == (None if final is None else pytest.approx(10 * final))


def test_what_was_seen_goes_before_what_was_foretold() -> None:
    """The first final that has ended tells more than any declaration."""
    estimator = learned([trial(10.0, epochs=0.1), trial(50.0, stage=FINAL, epochs=1.0)])

    assert estimator.shortest_s(FINAL) == estimator.usual_s(FINAL) == 50.0
