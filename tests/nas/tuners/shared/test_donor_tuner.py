"""The donor of a new point without a parent."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from nas.core.checkpoint import Checkpoint
from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.reference import Reference
from nas.core.trial import Proposal, Reason, State, Trial
from nas.inheritance.donors.chooser import DonorChooser
from nas.spaces.parameters.space import Choice, Float, ParameterSpace
from nas.storage.verified import digest_of

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
    """Each choice names its donor among trials with weights, and lists in advance the possible ones."""
    chooser = DonorChooser(choice, SPACE, METRIC)

    assert chooser.choose(LINEAGE, NEW) == donors
    assert set(donors) <= set(chooser.candidates(LINEAGE))
    assert 3 not in chooser.candidates(LINEAGE)


def test_best_donor_needs_no_score() -> None:
    """A trial stopped before its first score can be a donor of ``best_donor`` alone."""
    stopped = replace(trial(4, 16, 16, 0.5, 0.0), state=State.STOPPED, reason=Reason.DEADLINE, metrics={"loss": 0.5})
    lineage = Lineage.of([*LINEAGE.finished, stopped])

    for choice, takes in (("best_donor", True), ("best", False), ("nearest", False)):
        chooser = DonorChooser(choice, SPACE, METRIC)
        assert (chooser.choose(lineage, NEW) == (4,)) is takes
        assert (4 in chooser.candidates(lineage)) is takes


def test_nearest_is_the_same_in_every_process() -> None:
    """Of two trials whose distances differ only in the last bit, each process names the same one."""
    script = """
from nas.spaces.parameters.space import Float, ParameterSpace
space = ParameterSpace({name: Float(0.0, 1.0) for name in "abc"})
one, other = ({"a": x, "b": 0.2, "c": 0.4 - x} for x in (0.1, 0.3))
origin = dict.fromkeys("abc", 0.0)
print(space.distance(origin, one).hex(), space.distance(origin, other).hex(), list(set("abc")))
"""
    told = [
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": str(seed)}, check=True, text=True,
            stdout=subprocess.PIPE,
        ).stdout.split(maxsplit=2)
        for seed in range(4)
    ]  # fmt: skip

    assert len({order for *_, order in told}) > 1
    assert len({tuple(distances) for *distances, _ in told}) == 1


@pytest.mark.parametrize("choice", ["none", "best", "nearest", "best_donor"])
def test_no_trial_has_weights(choice: str) -> None:
    """Without any weights there are no donors, and a trial starts from scratch."""
    assert DonorChooser(choice, SPACE, METRIC).choose(Lineage.of([trial(0, 8, 8, 0, 1, has_weights=False)]), NEW) == ()


def test_unknown_choice() -> None:
    """An unknown choice is refused with the allowed ones."""
    with pytest.raises(
        ConfigurationError, match=r"tuner.donor='Father': must be none, nearest, best, best_donor, local_recent"
    ):
        DonorChooser("Father", SPACE, METRIC)
