"""Proposals and trials: frozen, and equal after JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nas.core.checkpoint import Checkpoint
from nas.core.errors import ConfigurationError, CorruptError
from nas.core.policy import Policy
from nas.core.reference import Reference
from nas.core.trial import Proposal, Reason, State, Trial
from nas.storage.record_format import decode_record, encode_record
from nas.storage.trial_records import proposal_from_json, trial_from_records
from nas.storage.verified import digest_of

REFERENCE = Reference("manifests/000007-ab.json", 12, digest_of(b"manifest"))
CHECKPOINT = Checkpoint(manifest=REFERENCE, packs=(replace(REFERENCE, path="packs/a"),))

numbers = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**60), 2**60)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)
points = st.dictionaries(st.text(max_size=6), json_values, max_size=4)
metrics = st.dictionaries(st.text(min_size=1, max_size=6), numbers, max_size=3)
counts = st.integers(0, 10**6)
proposals = st.builds(
    Proposal,
    point=points,
    parents=st.lists(counts, max_size=3, unique=True).map(tuple),
    donors=st.none() | st.lists(counts | st.just("other:42"), max_size=3, unique=True).map(tuple),
    policies=st.none() | st.frozensets(st.sampled_from(Policy)),
    fidelity=st.none() | st.floats(0, 1, exclude_min=True),
    relative_duration=st.just(1) | st.integers(2, 500),
    derivation=json_values,
    reason=st.text(max_size=20),
)
proposed = {
    "number": counts,
    "index": counts,
    "proposal": proposals,
    "stage": st.sampled_from(["search", "final", "mine"]),
    "job": counts,
    "policies": st.frozensets(st.sampled_from(Policy)),
    "seed": counts,
    "generation": counts,
    "created": st.none() | st.floats(0, 2e9),
    "learned": st.lists(counts, max_size=4).map(tuple),
}
finished = {
    "state": st.sampled_from([State.COMPLETE, State.STOPPED, State.FAILED]),
    "reason": st.none() | st.sampled_from(Reason),
    "metrics": metrics,
    "curve": st.lists(st.tuples(counts, metrics), max_size=3).map(tuple),
    "cost": st.just({"seconds": 0.25, "gpu_seconds": 0.0}),
    "checkpoint": st.sampled_from([None, CHECKPOINT]),
    "resolved_donor": st.none() | counts | st.just("other:42"),
    "donor": st.none() | counts | st.just("other:42"),
    "inherited": st.none() | st.floats(0, 1),
    "inheritance": st.just({"share": 0.5, "replaced": {"3": None}}),
    "attempt": st.integers(0, 5),
    "slot": st.none() | st.integers(0, 9),
    "started": st.none() | st.floats(0, 2e9),
    "finished": st.none() | st.floats(0, 2e9),
    "error": st.none() | st.text(max_size=30),
}


def types_of(value: object) -> object:
    """Returns the value with the type of each part, since 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return {key: types_of(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [types_of(item) for item in value]
    return type(value).__name__, value


def through_json(trial: Trial) -> Trial:
    proposal = decode_record(encode_record(trial.proposal_record()))
    result = decode_record(encode_record(trial.result_record())) if trial.is_finished else None
    return trial_from_records(proposal, result)


@given(st.builds(Trial, **proposed, **finished))
def test_finished_trial_is_the_same_after_json(trial: Trial) -> None:
    """A finished trial is equal after its two records, with ints and floats kept apart."""
    again = through_json(trial)

    assert again == trial
    assert types_of(again.point) == types_of(trial.point)
    assert types_of(dict(again.metrics)) == types_of(dict(trial.metrics))
    assert types_of(again.curve) == types_of(trial.curve)


@given(st.builds(Trial, **proposed))
def test_unfinished_trial_is_the_same_after_json(trial: Trial) -> None:
    """A waiting trial is equal after its record."""
    assert through_json(trial) == trial


@given(proposals)
def test_proposal_is_the_same_after_json(proposal: Proposal) -> None:
    """Default donors (None) and no donors (empty) stay different."""
    assert proposal_from_json(json.loads(json.dumps(proposal.to_json()))) == proposal


def test_zero_metrics_are_kept() -> None:
    """Scores of 0 in result and curve survive JSON, and are values."""
    trial = Trial(
        number=0,
        index=0,
        proposal=Proposal(point={"x": 0}),
        state=State.COMPLETE,
        metrics={"loss": 0.0, "errors": 0},
        curve=((0, {"loss": 0.0}), (1, {"loss": -0.0})),
        inherited=0.0,
    )

    again = through_json(trial)

    assert types_of(dict(again.metrics)) == types_of({"loss": 0.0, "errors": 0})
    assert again.value("loss") == 0.0
    assert again.inherited == 0.0
    assert math.copysign(1, again.curve[1][1]["loss"]) == -1


def test_nested_point_keeps_order_and_types() -> None:
    """A nested point keeps its lists, nulls and key order."""
    point = {"b": [1, 1.0, True, None, {"z": "ü", "a": []}], "a": {"deep": {"er": 1e-300}}}
    trial = Trial(number=0, index=0, proposal=Proposal(point=point))

    again = through_json(trial)

    assert types_of(again.point) == types_of(point)
    assert json.dumps(again.point) == json.dumps(point)


def test_single_precision_is_no_double() -> None:
    """A float comes back to the last bit."""
    trial = Trial(number=0, index=0, proposal=Proposal(point={"x": 0.1 + 0.2}))

    assert through_json(trial).point["x"].hex() == (0.1 + 0.2).hex()


def test_trial_is_frozen_and_can_be_pickled() -> None:
    """A trial can't be changed, and pickles to an equal one."""
    trial = Trial(number=0, index=0, proposal=Proposal(point={"x": 1}), checkpoint=CHECKPOINT)

    with pytest.raises(dataclasses.FrozenInstanceError):
        trial.number = 1  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(trial)) == trial


@pytest.mark.parametrize("duration", [0, -1, 1.5, True, "2"])
def test_relative_duration_is_a_count(duration: Any) -> None:
    """A relative duration that is not a whole number of at least 1 is refused."""
    with pytest.raises(ConfigurationError, match=r"relative_duration=.*: must be a whole number of at least 1"):
        Proposal(point={}, relative_duration=duration)


@pytest.mark.parametrize("fidelity", [0, 0.0, -0.5, 1.5, math.nan, True, "0.5"])
def test_fidelity_is_a_share(fidelity: float) -> None:
    """A fidelity outside (0, 1] is refused."""
    with pytest.raises(ConfigurationError, match=r"fidelity=.*: must be a number in \(0, 1\]"):
        Proposal(point={}, fidelity=fidelity)


@pytest.mark.parametrize("sources", [("1",), (True,), (-1,), (1, 1), [1], 1, (None,), (1.0,), None], ids=str)
def test_parents_are_numbers_of_trials(sources: Any) -> None:
    """Parents must be distinct whole numbers from 0."""
    with pytest.raises(ConfigurationError, match=r"parents=.*: must be a tuple of numbers of trials from 0, each once"):
        Proposal(point={}, parents=sources)


@pytest.mark.parametrize("sources", [(True,), (-1,), (1, 1), ("a:1", "a:1"), ["a:1"], "a:1", (None,), (1.0,)], ids=str)
def test_donors_are_numbers_or_names(sources: Any) -> None:
    """Donors must be distinct numbers or other searches' names."""
    with pytest.raises(ConfigurationError, match=r"donors=.*: must be a tuple of .* 'search:number' .* or local_"):
        Proposal(point={}, donors=sources)


@pytest.mark.parametrize(
    "policies",
    [("SHARE_PARAMS",), frozenset({"SHARE_PARAMS"}) | {"FAST"}, "EARLY_STOP"],
    ids=["tuple", "unknown", "text"],
)
def test_policies_are_policies(policies: Any) -> None:
    """Other names, and other containers, are refused as policies."""
    with pytest.raises(ConfigurationError, match=r"policies=.*: must be a frozenset of nas.Policy"):
        Proposal(point={}, policies=policies)


def test_donors_are_by_default_the_parents() -> None:
    """The donors are the parents, unless the proposal names others or none."""
    assert Proposal(point={}, parents=(1, 2)).weight_donors == (1, 2)
    assert Proposal(point={}, parents=(1,), donors=("other:3",)).weight_donors == ("other:3",)
    assert Proposal(point={}, parents=(1,), donors=()).weight_donors == ()


@pytest.mark.parametrize(
    ("state", "value"), [("COMPLETE", 0.0), ("STOPPED", 0.0), ("FAILED", None), ("RUNNING", None), ("WAITING", None)]
)
def test_value_is_of_scored_trials(state: str, value: float | None) -> None:
    """Complete and stopped trials have a value, also zero; others have none."""
    trial = Trial(number=0, index=0, proposal=Proposal(point={}), state=State(state), metrics={"loss": 0.0})

    assert trial.value("loss") == value
    assert trial.value("accuracy") is None


def test_stopped_trial_has_its_last_report() -> None:
    """A stopped trial keeps its last report, which overrides static metrics."""
    trial = Trial(number=0, index=0, proposal=Proposal(point={}), state=State.RUNNING)
    curve = [(1, {"accuracy": 0.25, "flops": 3.0}), (2, {"accuracy": 0.5, "flops": 4.0})]

    ended = trial.stop(Reason.STOPPER, curve, {"flops": 2.0, "params": 7.0})

    assert (ended.state, ended.reason, ended.error) == (State.STOPPED, Reason.STOPPER, trial.error)
    assert ended.metrics == {"accuracy": 0.5, "flops": 4.0, "params": 7.0}


def test_stopped_without_a_report_is_failed() -> None:
    """A trial stopped before any report is FAILED, even with static metrics."""
    trial = Trial(number=0, index=0, proposal=Proposal(point={}), state=State.RUNNING)

    ended = trial.stop(Reason.DEADLINE, [], {"flops": 2.0})

    assert (ended.state, ended.reason, ended.metrics) == (State.FAILED, Reason.DEADLINE, {})
    assert ended.error == "stopped before its first report"


def test_started_trial_is_running() -> None:
    """A started trial is RUNNING with attempt, slot and donor; the original is unchanged."""
    trial = Trial(number=3, index=3, proposal=Proposal(point={}, parents=(1,)))

    running = trial.start(attempt=2, slot=1, resolved_donor=1)

    assert (running.state, running.attempt, running.slot, running.resolved_donor) == (State.RUNNING, 2, 1, 1)
    assert trial.state == State.WAITING


def test_complete_trial_keeps_its_start() -> None:
    """A complete trial has its scores and weights, and keeps attempt, slot and reports."""
    running = Trial(number=3, index=3, proposal=Proposal(point={})).start(attempt=2, slot=1).report(1, {"loss": 0.5})

    complete = running.complete({"loss": 0.25}, CHECKPOINT).finish(7.0, cost={"seconds": 2.0})

    assert (complete.state, complete.metrics, complete.checkpoint) == (State.COMPLETE, {"loss": 0.25}, CHECKPOINT)
    assert (complete.attempt, complete.slot, complete.curve) == (2, 1, ((1, {"loss": 0.5}),))
    assert (complete.finished, complete.cost) == (7.0, {"seconds": 2.0})


def test_failed_trial_has_reason_and_error() -> None:
    """A failed trial has its reason and its error."""
    failed = Trial(number=3, index=3, proposal=Proposal(point={})).fail(Reason.LOST, "the worker died")

    assert (failed.state, failed.reason, failed.error) == (State.FAILED, Reason.LOST, "the worker died")


@given(st.builds(Trial, **proposed, **finished))
def test_lost_trial_is_as_proposed(trial: Trial) -> None:
    """A lost trial is WAITING with its proposal's fields; as_running differs only in the state."""
    lost = trial.lose()

    assert lost == through_json(lost)
    assert lost.proposal_record() == trial.proposal_record()
    assert trial.as_running() == replace(lost, state=State.RUNNING)


@given(st.builds(Trial, **proposed, **finished))
def test_trial_without_weights_keeps_its_result(trial: Trial) -> None:
    """Deleting weights changes only the checkpoint."""
    deleted = trial.delete_weights()

    assert (deleted.checkpoint, deleted.weights_deleted) == (None, True)
    assert replace(deleted, checkpoint=trial.checkpoint, weights_deleted=False) == trial


def test_finished_states() -> None:
    """COMPLETE, STOPPED and FAILED are finished."""
    states = {s for s in State if Trial(number=0, index=0, proposal=Proposal(point={}), state=s).is_finished}

    assert states == {State.COMPLETE, State.STOPPED, State.FAILED}


@pytest.mark.parametrize(
    ("record", "change"),
    [
        ("proposal", {"policies": ["FAST"]}),
        ("proposal", {"index": "x"}),
        ("proposal", {"proposal": None}),
        ("proposal", {"stage": ...}),
        ("result", {"state": "DONE"}),
        ("result", {"reason": "bored"}),
        ("result", {"trial": 8}),
        ("result", {"curve": [[1]]}),
        ("result", {"checkpoint": {"manifest": 1}}),
        ("result", {"metrics": ...}),
    ],
)
def test_damaged_record_is_named(record: str, change: dict[str, Any]) -> None:
    """A record with a missing key or an invalid value is a CorruptError that names the file."""
    trial = Trial(number=7, index=7, proposal=Proposal(point={}), state=State.COMPLETE)
    records: dict[str, dict[str, Any]] = {"proposal": trial.proposal_record(), "result": trial.result_record()}
    records[record] = {k: v for k, v in {**records[record], **change}.items() if v is not ...}

    with pytest.raises(CorruptError, match=rf"^trials/000007\.{record}\.json can't be read: "):
        trial_from_records(records["proposal"], records["result"])
