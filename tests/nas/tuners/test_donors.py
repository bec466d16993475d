"""Whose weights a point takes that was not derived from another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nas.errors import ConfigurationError
from nas.lineage import Lineage
from nas.metric import Metric
from nas.spaces.parameter import Choice, Float, ParameterSpace
from nas.store.checkpoint import Checkpoint
from nas.store.reference import Reference, digest_of
from nas.trial import Proposal, State, Trial
from nas.tuners.donors import DonorChooser

METRIC = Metric("accuracy")
SPACE = ParameterSpace({"first": Choice(8, 16), "second": Choice(8, 16), "rate": Float(0.0, 1.0)})


def trial(number: int, first: int, second: int, rate: float, accuracy: float, *, has_weights: bool = True) -> Trial:
    point = {"first": first, "second": second, "rate": rate}
    paper = Checkpoint(manifest=Reference(f"manifests/{number}.json", 0, digest_of(b"")), packs=())
    made = Trial(number=number, index=number, proposal=Proposal(point=point), state=State.COMPLETE)
    return replace(made, metrics={"accuracy": accuracy}, checkpoint=paper if has_weights else None)


LINEAGE = Lineage.of(
    [
        trial(0, 16, 8, 0.1, 0.9),
        trial(1, 8, 8, 0.9, 0.5),
        trial(2, 8, 16, 0.2, 0.6),
        trial(3, 8, 8, 0.2, 0.99, has_weights=False),
    ]
)
NEW = {"first": 16, "second": 16, "rate": 0.2}


@pytest.mark.parametrize(
    ("choice", "donors"),
    [
        ("none", ()),
        ("best", (0,)),  # the third is better, and has no weights
        ("nearest", (2,)),  # one choice and no distance; the first lies 0.1 farther
        ("best_donor", (0,)),  # the same first layer; of the rate nothing is said
    ],
)
def test_donor_of_a_new_point(choice: str, donors: tuple[int, ...]) -> None:
    """Each choice names who it says, of those with weights; and says before whom it may name."""
    chooser = DonorChooser(choice, SPACE, METRIC)

    assert chooser.choose(LINEAGE, NEW) == donors
    assert set(donors) <= set(chooser.possible(LINEAGE))
    assert 3 not in chooser.possible(LINEAGE)


@pytest.mark.parametrize("choice", ["none", "best", "nearest", "best_donor"])
def test_nobody_has_weights(choice: str) -> None:
    """Then the donors are none, and a trial starts afresh."""
    assert DonorChooser(choice, SPACE, METRIC).choose(Lineage.of([trial(0, 8, 8, 0, 1, has_weights=False)]), NEW) == ()


def test_unknown_choice() -> None:
    """It is refused with all that are allowed."""
    with pytest.raises(ConfigurationError, match="must be one of none, nearest, best, best_donor, local_recent"):
        DonorChooser("father", SPACE, METRIC)
