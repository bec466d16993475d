"""The line on a final below a trial in hand advises only what can work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nas.core.checkpoint import Checkpoint
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.policy import Policy, Stage
from nas.core.reference import Reference
from nas.core.trial import Proposal, Reason, State, Trial
from nas.views.finals_line import finals_line, more_epochs_lines

ACCURACY = Metric("accuracy")
FINAL = Stage(name="final")
WEIGHTS = Checkpoint(manifest=Reference("manifests/000000-aa.json", 9, f"blake3:{0:064x}"), packs=())
MORE = "more_epochs=N trains the winner further"


def trial(number: int, stage: str, value: float, *parents: int) -> Trial:
    proposal = Proposal(point={"x": number}, parents=parents)
    scores = {"accuracy": value}
    made = Trial(number=number, index=number, proposal=proposal, stage=stage, state=State.COMPLETE, metrics=scores)
    return replace(made, checkpoint=WEIGHTS)


SEARCHED = replace(trial(0, "search", 0.9), policies=frozenset({Policy.SHARE_PARAMS}))
RETRAINED = trial(1, "final", 0.8, 0)


def line(winner: Trial, *trials: Trial) -> str | None:
    return finals_line(Lineage.of(trials), winner, ACCURACY, FINAL)


def test_more_epochs_is_advised_if_it_can_work() -> None:
    """The winner needs weights, the problem must inherit, and the advice ends once it was taken."""
    assert MORE in str(line(RETRAINED, SEARCHED, RETRAINED))
    bare = replace(RETRAINED, checkpoint=None)
    alone = replace(SEARCHED, policies=frozenset())
    further = replace(trial(2, "final", 0.7, 1), more_epochs=5)
    for winner, trials in (
        (bare, (SEARCHED, bare)),
        (RETRAINED, (alone, RETRAINED)),
        (RETRAINED, (SEARCHED, RETRAINED, further)),
    ):
        assert line(winner, *trials) == (
            "better in hand: trial 0 (search), full validation accuracy 0.9000: export=best takes it; "
            "policy=warm_final starts finals from inherited weights"
        )


def test_taken_trial_is_named_beside_the_final() -> None:
    """After export=best the line names both trials, and gives no advice that was taken."""
    assert line(SEARCHED, SEARCHED, RETRAINED) == (
        "export=best takes trial 0 (search) instead of trial 1 (final), full validation accuracy 0.8000, "
        "which is worse; export=final takes the final"
    )


def test_final_that_is_not_the_winner_is_not_spoken_of() -> None:
    """A final below its own trial matters only if it wins."""
    best = trial(2, "final", 0.95, 0)
    lost = replace(SEARCHED, checkpoint=None)

    assert line(best, SEARCHED, RETRAINED, best) is None
    assert str(line(RETRAINED, lost, RETRAINED)).startswith(
        "trial 1 (final), full validation accuracy 0.8000, is below its trial 0, 0.9000, which has no weights; "
    )


def test_score_before_more_epochs_is_named_if_it_compares() -> None:
    """A score of a part of the data, of a smaller network or of shared weights does not compare with a full one."""
    further = replace(trial(1, "search", 0.9, 0), more_epochs=5)
    quick, small = frozenset({Policy.QUICK_EVAL}), frozenset({Policy.DOWNSCALE})
    subnet = frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN})

    def says_before(parent: frozenset[Policy], own: frozenset[Policy] = frozenset()) -> bool:
        trials = [replace(SEARCHED, policies=parent), replace(further, policies=own)]
        [said] = more_epochs_lines(Lineage.of(trials), trials[1], ACCURACY)
        return said.endswith("accuracy 0.9000, before 0.9000")

    assert says_before(frozenset()) and says_before(SEARCHED.policies) and says_before(quick, quick)
    assert not any(map(says_before, (quick, small, subnet)))


@pytest.mark.parametrize(
    ("state", "reason", "done", "end"),
    [
        (State.COMPLETE, None, "trained", ""),
        (State.STOPPED, Reason.DEADLINE, "was to train", ", and met the deadline"),
        (State.STOPPED, Reason.STOPPER, "was to train", ", and was stopped"),
    ],
)
def test_more_epochs_are_trained_only_if_complete(state: State, reason: Reason | None, done: str, end: str) -> None:
    """A trial that ended before its last epoch is not said to have trained all of them."""
    further = replace(trial(2, "final", 0.85, 1), more_epochs=20, state=state, reason=reason, inherited=1.0)

    assert more_epochs_lines(Lineage.of([SEARCHED, RETRAINED, further]), RETRAINED, ACCURACY) == [
        f"more epochs: trial 2 {done} trial 1 for 20 more, from 100% of its weights{end}: accuracy 0.8500, "
        "before 0.8000; the winner stays trial 1"
    ]
