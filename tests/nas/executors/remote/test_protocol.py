"""What travels between a driver and its workers arrives as it was, to the bit, or is refused."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nas.core.checkpoint import Checkpoint
from nas.core.errors import CorruptError
from nas.core.policy import Policy
from nas.core.reference import Reference
from nas.core.spec import Spec
from nas.core.trial import DonorWeights, Proposal, Reason, State, Trial
from nas.executors.events import (
    Event,
    ExtraResult,
    Finished,
    JobLeftWorker,
    Reported,
    Started,
    TrialLost,
    TrialRequested,
)
from nas.executors.remote.protocol import (
    assignment_from_wire,
    assignment_to_wire,
    dumps,
    event_from_wire,
    event_to_wire,
    job_start_from_wire,
    job_start_to_wire,
    loads,
    spec_from_wire,
    trial_from_wire,
    trial_to_wire,
)
from nas.training.messages import Assignment, JobStart

DIGEST = "blake3:" + "0" * 64
CHECKPOINT = Checkpoint(
    manifest=Reference("manifests/000001-ab.json", 17, DIGEST),
    packs=(Reference("packs/000001-ab-0.safetensors", 2**40, DIGEST),),
    signature="",
)
RUNNING = Trial(
    number=7,
    index=5,
    proposal=Proposal(
        point={"width": 3, "rate": 0.1, "name": "\ud800 halves and ü", "layers": [1, None, True]},
        parents=(1,),
        donors=(1, "other:4"),
        policies=frozenset({Policy.EARLY_STOP}),
        fidelity=0.5,
        derivation={"ops": [["widen", 2]]},
        reason="child",
    ),
    job=3,
    policies=frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP}),
    seed=2**31 - 1,
    generation=2,
    created=1700000000.123456,
    learned=(0, 2),
    state=State.RUNNING,
    attempt=2,
    slot=1,
    resolved_donor="other:4",
    inheritance={"replaced": {"1": 0}},
)
FINISHED = Trial(
    number=7,
    index=5,
    proposal=RUNNING.proposal,
    state=State.FAILED,
    reason=Reason.NOT_FINITE,
    metrics={"score": 0.1, "n": 2**63 - 1},
    curve=((1, {"score": -0.0}), (2, {"score": 5e-324})),
    cost={"seconds": 0.25, "gpu_seconds": 0.0},
    checkpoint=CHECKPOINT,
    resolved_donor=1,
    donor=1,
    inherited=0.75,
    inheritance={"n_copied": 3},
    attempt=1,
    slot=0,
    started=1.5,
    finished=2.5,
    error="Traceback\n  \x1b[31m",
    returned='{"default": NaN}',
)


def over_the_wire(message: dict[str, Any]) -> dict[str, Any]:
    return loads(dumps(message))


@pytest.mark.parametrize("trial", [RUNNING, FINISHED], ids=["running", "finished"])
def test_trials_arrive_as_they_were(trial: Trial) -> None:
    """All that an attempt or the loop needs of a trial."""
    assert trial_from_wire(over_the_wire(trial_to_wire(trial))) == trial


def test_assignments_arrive_as_they_were() -> None:
    """With whose weights, of this search and of another."""
    donors = (DonorWeights(1, CHECKPOINT), DonorWeights("other:4", CHECKPOINT))
    for given_ in (Assignment(RUNNING, donors, 4, False, 6), Assignment(RUNNING)):
        assert assignment_from_wire(over_the_wire(assignment_to_wire(given_))) == given_


def test_stays_and_specs_arrive_as_they_were() -> None:
    """A job that begins anew, and what to build."""
    spec = Spec("my.Problem", {"deep": {"list": [1, 2.5, None]}})

    assert job_start_from_wire(over_the_wire(job_start_to_wire(JobStart(3, 1, 4, job_index=2)))) == JobStart(
        3, 1, 4, job_index=2
    )
    assert spec_from_wire(over_the_wire(spec.to_json())) == spec


@pytest.mark.parametrize(
    "event",
    [
        Started(7, 2, 1),
        Reported(7, -3, {"score": 0.1, "n": 3}),
        ExtraResult(7, '{"default": NaN}'),
        TrialRequested(3),
        JobLeftWorker(3, error="Traceback", lost=None),
        Finished(FINISHED),
        TrialLost(3, 7, "its worker was killed by SIGKILL"),
        TrialLost(3, 7, "the hours were spent", counts=False),
    ],
    ids=lambda event: type(event).__name__,
)
def test_events_arrive_as_they_were(event: Event) -> None:
    """Each that a worker tells."""
    assert event_from_wire(over_the_wire(event_to_wire(event))) == event


@given(st.floats(width=64) | st.floats(width=32) | st.integers(-(2**63), 2**63 - 1))
def test_numbers_keep_their_bits(value: float) -> None:
    """Doubles, what was a float32, whole numbers, infinities and NaN."""
    [arrived] = event_from_wire(over_the_wire(event_to_wire(Reported(0, 0, {"x": value})))).metrics.values()  # type: ignore[union-attr]

    assert type(arrived) is type(value)
    if isinstance(value, float) and math.isnan(value):
        assert math.isnan(arrived)
    elif isinstance(value, float):
        assert struct.pack("d", arrived) == struct.pack("d", value)
    else:
        assert arrived == value


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"is": "taken over"},
        {"is": "asked", "job": -1},
        {"is": "asked", "job": True},
        {"is": "asked", "job": 1, "also": 2},
        {"is": "started", "trial": 1, "attempt": "1", "slot": 0},
        {"is": "reported", "trial": 1, "step": 0, "metrics": {"x": "1"}, "asks": False},
        {"is": "finished", "trial": trial_to_wire(RUNNING)},
        {"is": "finished", "trial": {"result": None}},
        {"is": "lost", "job": 1, "trial": 1},
    ],
    ids=lambda message: str(message)[:40],
)
def test_what_no_worker_says_is_refused(message: dict[str, Any]) -> None:
    """A key too many, one too few, another kind of value, or a trial without its result."""
    with pytest.raises(CorruptError):
        event_from_wire(message)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b"[" * 100_000, b"1"], ids=lambda d: repr(d[:5]))
def test_what_is_no_object_is_refused(data: bytes) -> None:
    """Anything that is not one JSON object."""
    with pytest.raises(CorruptError):
        loads(data)
