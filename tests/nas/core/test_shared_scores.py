"""Scores of shared weights are told from accuracies of trained networks."""

from __future__ import annotations

from typing import Any

import pytest

from nas.core.policy import Policy
from nas.core.shared_scores import has_shared_score, shared_scores
from nas.core.trial import Proposal, State, Trial

SHARE = frozenset({Policy.SHARE_PARAMS})
UNTRAINED = SHARE | {Policy.SKIP_TRAIN}


def trial(number: int, point: dict[str, Any], policies: frozenset[Policy], donor: int | str | None = None) -> Trial:
    """A complete trial with the weights of a donor."""
    return Trial(
        number=number, index=number, proposal=Proposal(point=point), policies=policies, donor=donor,
        state=State.COMPLETE, metrics={"accuracy": 0.5},
    )  # fmt: skip


TRIALS = [
    trial(0, {"supernet_epoch": 0}, SHARE),
    trial(1, {"op": "conv"}, UNTRAINED, donor=0),
    trial(2, {"op": "conv"}, UNTRAINED, donor=1),
    trial(3, {"op": "conv"}, SHARE, donor=0),
    trial(4, {"op": "conv"}, UNTRAINED, donor=3),
    trial(5, {"op": "skip"}, UNTRAINED, donor=3),
    trial(6, {"op": "skip"}, UNTRAINED, donor="other:3"),
    trial(7, {"op": "skip"}, frozenset({Policy.EARLY_STOP})),
]


@pytest.mark.parametrize(
    ("number", "is_shared", "why"),
    [
        (0, True, "an epoch's score is a mean of subnets"),
        (1, True, "a subnet trains nothing"),
        (2, True, "scoring a subnet again does not train it"),
        (3, False, "a child that trains has a score of its own"),
        (4, False, "scoring a trained network again, on more data, is a score of that training"),
        (5, True, "weights of another architecture"),
        (6, True, "weights of another search"),
        (7, False, "a short training is a training"),
    ],
)
def test_shared_scores(number: int, is_shared: bool, why: str) -> None:
    """A score is shared unless the same point was trained."""
    by_number = {one.number: one for one in TRIALS}

    assert has_shared_score(TRIALS[number], by_number.get) == is_shared, why
    assert (number in shared_scores(TRIALS)) == is_shared


def test_unfinished_trials_have_no_score() -> None:
    """A subnet that runs is not among the scores."""
    assert shared_scores([TRIALS[0], TRIALS[1].as_running()]) == {0}


def test_donors_in_a_circle() -> None:
    """Records that name one another as donors, which no search writes, end in an answer."""
    circle = [trial(0, {"op": "conv"}, UNTRAINED, donor=1), trial(1, {"op": "conv"}, UNTRAINED, donor=0)]

    assert shared_scores(circle) == {0, 1}
