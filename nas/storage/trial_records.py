"""Trials from their records. Every field is checked, because a shared root may hold anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct, field
from msgspec.structs import asdict

from nas.core.checkpoint import Checkpoint
from nas.core.errors import ConfigurationError, CorruptError
from nas.core.policy import Policy
from nas.core.trial import DONOR_RULES, DonorRule, Proposal, Reason, State, Trial
from nas.core.validation import MAX_WHOLE, path_in_errors, short_repr
from nas.storage.record_size import METRICS_BYTES, SUGGESTED_BYTES, json_size
from nas.storage.record_values import (
    DonorId,
    DonorSource,
    Numbers,
    Positive,
    Share,
    Time,
    Whole,
    check_keys,
    checked_as,
)

MAX_POINT_VALUES = 20_000
"""A network of 1,000 layers has 12,000; each may be a column of the report."""
_FewNumbers = Annotated[Numbers, Meta(max_length=METRICS_BYTES)]
"""Columns of the report. Each takes more than a byte of a record."""
_Curve = tuple[tuple[Annotated[int, Meta(ge=-MAX_WHOLE, le=MAX_WHOLE)], Numbers], ...]
_Suggested = tuple[dict[str, Any], ...]


class _Proposal(Struct):
    """The tuner's answer in a proposal record."""

    point: dict[str, Any]
    parents: tuple[Whole, ...]
    donors: tuple[DonorSource, ...] | None
    policies: frozenset[Policy] | None
    fidelity: Annotated[int, Meta(ge=1, le=1)] | Annotated[float, Meta(gt=0, le=1)] | None
    reason: str
    derivation: Any = None
    proxies: _FewNumbers = {}
    relative_duration: Positive = 1

    def __post_init__(self) -> None:
        if (n := n_values(self.point)) > MAX_POINT_VALUES:
            raise ValueError(f"point has {n} values; it may have {MAX_POINT_VALUES}")


class _ProposalRecord(Struct):
    """Fields of a trial in ``trials/000042.proposal.json``."""

    number: Whole = field(name="trial")
    index: Whole
    stage: Annotated[str, Meta(min_length=1)]
    job: Whole
    policies: frozenset[Policy]
    seed: Whole
    generation: Whole
    created: Time | None
    learned: tuple[Whole, ...]
    proposal: dict[str, Any]
    retry_of: Whole | None = None
    more_epochs: Positive | None = None


class _Inheritance(Struct):
    """The values of an inheritance summary that code reads."""

    replaced: dict[str, DonorId | None] = {}
    lost: tuple[DonorId | None, ...] = ()
    given: Numbers = {}
    warnings: tuple[str, ...] = ()


class _Totals(Struct):
    """Fields that results and resume points share."""

    resolved_donor: DonorId | None
    donor: DonorId | None
    inheritance: dict[str, Any]
    cost: _FewNumbers
    inherited: Share | None

    def __post_init__(self) -> None:
        checked_as(_Inheritance, self.inheritance)


class _ResultRecord(_Totals, kw_only=True):
    """Fields of a trial in ``trials/000042.result.json``."""

    number: Whole = field(name="trial")
    state: State
    reason: Reason | None
    metrics: _FewNumbers
    curve: _Curve
    checkpoint: Checkpoint | None
    attempt: Whole
    slot: Whole | None
    error: str | None
    static_metrics: _FewNumbers = {}
    inherited: Share | None = None
    started: Time | None = None
    finished: Time | None = None
    returned: str | None = None
    code: str | None = None
    suggested: _Suggested = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_suggested(self.suggested)
        if self.state in (State.WAITING, State.RUNNING):
            raise ValueError(f"{self.state} is not the state of a result")


class _StartRecord(Struct):
    """``trials/000042.start-1.json``."""

    trial: Whole
    attempt: Whole
    session: Whole
    slot: Whole | None = None
    resolved_donor: DonorId | None = None
    time: Time | None = None


class _ResumeTotals(_Totals, forbid_unknown_fields=True):
    """Totals of a trial's attempts so far."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.cost.keys() >= {"seconds", "gpu_seconds"}:
            raise ValueError("cost must have seconds and gpu_seconds")


class _ResumeState(Struct, forbid_unknown_fields=True):
    """The state in a resume point."""

    step: Whole
    curve: _Curve
    parts: list[tuple[str, Any]]
    totals: _ResumeTotals
    inheritance: dict[str, Any] | None
    saved: dict[str, Any]
    files: dict[str, Any]
    random: dict[str, Any]
    suggested: _Suggested = ()

    def __post_init__(self) -> None:
        _check_suggested(self.suggested)


def trial_from_records(
    proposal: Mapping[str, Any],
    result: Mapping[str, Any] | None = None,
    *,
    number: int | None = None,
    weights_deleted: bool = False,
    folder: str = "trials",
) -> Trial:
    """Returns the trial of a proposal record and, if it has finished, a result record.

    Args:
        proposal: See ``Trial.proposal_record``.
        result: See ``Trial.result_record``.
        number: The expected trial number; by default the one in the proposal.
        weights_deleted: Whether garbage collection deleted its weights.
        folder: Folder of the records, for errors.

    Raises:
        CorruptError: a key is missing or a value is invalid; the message names the record's file.
    """
    number = proposal.get("trial") if number is None else number
    stem = f"{folder}/{number:06d}" if type(number) is int else f"{folder}/{short_repr(number)}"
    fields: dict[str, Any] = {}
    for path, read, record in (("proposal", _proposal_fields, proposal), ("result", _result_fields, result)):
        if record is not None:
            with path_in_errors(f"{stem}.{path}.json"):
                fields |= read(record)
                if fields["number"] != number:
                    raise CorruptError(f"it is a record of trial {fields['number']}")
    trial = Trial(**fields)
    return trial.delete_weights() if weights_deleted else trial


def _proposal_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    fields = asdict(checked_as(_ProposalRecord, record))
    return fields | {"proposal": proposal_from_json(fields["proposal"])}


def _result_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    found = checked_as(_ResultRecord, record)
    check_keys(found.checkpoint, record["checkpoint"])
    return asdict(found)


def proposal_from_json(plain: object) -> Proposal:
    """Returns the proposal that ``Proposal.to_json`` encoded.

    Raises:
        CorruptError: it can't be decoded.
    """
    fields = asdict(checked_as(_Proposal, plain))
    if (donors := fields["donors"]) is not None:
        fields["donors"] = tuple(DonorRule(donor) if donor in DONOR_RULES else donor for donor in donors)
    try:
        return Proposal(**fields)
    except ConfigurationError as error:
        raise CorruptError(short_repr(str(error))) from error


def check_proposal(record: Mapping[str, Any]) -> None:
    """Checks ``trials/000042.proposal.json``.

    Raises:
        CorruptError: Heirloom does not write such a record.
    """
    _proposal_fields(record)


def check_start(record: Mapping[str, Any], number: int, attempt: int) -> None:
    """Checks ``trials/000042.start-1.json``.

    Raises:
        CorruptError: Heirloom does not write such a record.
    """
    found = checked_as(_StartRecord, record)
    if (found.trial, found.attempt) != (number, attempt):
        raise CorruptError("it is the record of another attempt")


def check_resume_state(state: Mapping[str, Any]) -> None:
    """Checks the state of a resume point, apart from what only the trial's code reads.

    Raises:
        CorruptError: a key is missing or a value is invalid.
    """
    checked_as(_ResumeState, state)


def _check_suggested(points: _Suggested) -> None:
    if points and (size := json_size(points)) > SUGGESTED_BYTES:
        raise ValueError(f"suggested has {size} bytes; it may have {SUGGESTED_BYTES}")


def n_values(value: object) -> int:
    """Returns the number of plain values in nested lists and objects."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 1 if inner is None else sum(map(n_values, inner))
