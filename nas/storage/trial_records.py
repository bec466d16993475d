"""Trials from their records. Every field is checked, because a shared root may hold anything."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import NoneType
from typing import Any

from nas.core.checkpoint import Checkpoint
from nas.core.errors import ConfigurationError, CorruptError
from nas.core.policy import Policy, parse_policies
from nas.core.trial import DONOR_RULES, Donor, DonorRule, Proposal, Reason, State, Trial
from nas.core.validation import (
    MAX_WHOLE,
    checked_fields,
    checked_int,
    checked_number,
    checked_numbers,
    checked_time,
    path_in_errors,
    short_repr,
)
from nas.storage.record_size import METRICS_BYTES, SUGGESTED_BYTES, json_size

_TRIAL_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("trial", "index", "job", "seed", "generation"), (int,)),
    "stage": (str,),
    "policies": (list,),
    "created": (int, float, NoneType),
    "learned": (list,),
    "proposal": (dict,),
}
_PROPOSAL_KINDS: Mapping[str, tuple[type, ...]] = {
    "point": (dict,),
    "parents": (list,),
    "donors": (list, NoneType),
    "policies": (list, NoneType),
    "fidelity": (int, float, NoneType),
    "reason": (str,),
}
_RESULT: Mapping[str, tuple[type, ...]] = {
    "trial": (int,),
    "state": (str,),
    "reason": (str, NoneType),
    "metrics": (dict,),
    "curve": (list,),
    "cost": (dict,),
    "checkpoint": (dict, NoneType),
    "resolved_donor": (int, str, NoneType),
    "donor": (int, str, NoneType),
    "inheritance": (dict,),
    "attempt": (int,),
    "slot": (int, NoneType),
    "error": (str, NoneType),
}
_RESUME_STATE: Mapping[str, tuple[type, ...]] = {
    "step": (int,),
    **dict.fromkeys(("curve", "parts"), (list,)),
    "totals": (dict,),
    "inheritance": (dict, NoneType),
    **dict.fromkeys(("saved", "files", "random"), (dict,)),
}
_NEW_RESUME_STATE: Mapping[str, tuple[type, ...]] = {**_RESUME_STATE, "suggested": (list,)}
_TOTALS: Mapping[str, tuple[type, ...]] = {
    **{key: _RESULT[key] for key in ("resolved_donor", "donor", "inheritance", "cost")},
    "inherited": (int, float, NoneType),
}
MAX_POINT_VALUES = 20_000
"""A network of 1,000 layers has 12,000; each may be a column of the report."""
_DONOR = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,199}:[0-9]{1,18}")


def checked_donor(value: object, what: str) -> Donor | None:
    """Returns the value, if it is None, a trial's number or ``"name:42"``.

    Raises:
        CorruptError: it is something else.
    """
    if value is None or (isinstance(value, str) and _DONOR.fullmatch(value)):
        return value
    return checked_int(value, what)


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
                if record["trial"] != number:
                    raise CorruptError(f"it is a record of trial {record['trial']}")
    trial = Trial(**fields)
    return trial.delete_weights() if weights_deleted else trial


def _proposal_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a trial that its proposal record holds."""
    fields = checked_fields(record, _TRIAL_KINDS, others=True)
    if not fields["stage"]:
        raise CorruptError("stage must have a name")
    return {
        "number": checked_int(fields["trial"], "trial"),
        "index": checked_int(fields["index"], "index"),
        "stage": fields["stage"],
        "job": checked_int(fields["job"], "job"),
        "policies": _policies(fields["policies"]),
        "seed": checked_int(fields["seed"], "seed"),
        "generation": checked_int(fields["generation"], "generation"),
        "created": checked_time(fields["created"], "created"),
        "learned": tuple(checked_int(number, "learned") for number in fields["learned"]),
        "retry_of": None if fields.get("retry_of") is None else checked_int(fields["retry_of"], "retry_of"),
        "proposal": proposal_from_json(fields["proposal"]),
    }


def _result_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a trial that its result record holds."""
    fields = checked_fields(record, _RESULT, others=True)
    try:
        state = State(fields["state"])
        reason = None if fields["reason"] is None else Reason(fields["reason"])
    except ValueError as error:
        raise CorruptError(short_repr(str(error))) from error
    if state in (State.WAITING, State.RUNNING):
        raise CorruptError(f"{state} is not the state of a result")
    inherited = fields.get("inherited")
    for name in ("returned", "code"):
        if not isinstance(fields.get(name), str | NoneType):
            raise CorruptError(f"{name} must not be {short_repr(fields[name])}")
    return {
        "state": state,
        "reason": reason,
        "static_metrics": _few_numbers(fields.get("static_metrics", {}), "static_metrics"),
        "metrics": _few_numbers(fields["metrics"], "metrics"),
        "curve": tuple(_report(entry) for entry in fields["curve"]),
        "cost": _few_numbers(fields["cost"], "cost"),
        "checkpoint": None if fields["checkpoint"] is None else Checkpoint.from_json(fields["checkpoint"]),
        "resolved_donor": checked_donor(fields["resolved_donor"], "resolved_donor"),
        "donor": checked_donor(fields["donor"], "donor"),
        "inherited": None if inherited is None else checked_number(inherited, "inherited", 0, 1),
        "inheritance": _inheritance(fields["inheritance"]),
        "attempt": checked_int(fields["attempt"], "attempt"),
        "slot": None if fields["slot"] is None else checked_int(fields["slot"], "slot"),
        "started": checked_time(fields.get("started"), "started"),
        "finished": checked_time(fields.get("finished"), "finished"),
        "error": fields["error"],
        "returned": fields.get("returned"),
        "code": fields.get("code"),
        "suggested": _suggested(fields.get("suggested", [])),
    }


def check_start(record: Mapping[str, Any], number: int, attempt: int) -> None:
    """Checks ``trials/000042.start-1.json``.

    Raises:
        CorruptError: Heirloom does not write such a record.
    """
    if (record.get("trial"), record.get("attempt")) != (number, attempt):
        raise CorruptError("it is the record of another attempt")
    checked_int(record.get("session"), "session")
    if record.get("slot") is not None:
        checked_int(record["slot"], "slot")
    checked_donor(record.get("resolved_donor"), "resolved_donor")
    checked_time(record.get("time"), "time")


def check_resume_state(state: Mapping[str, Any]) -> None:
    """Checks the state of a resume point, apart from what only the trial's code reads.

    Raises:
        CorruptError: a key is missing or a value is invalid.
    """
    has_suggested = isinstance(state, dict) and "suggested" in state  # earlier versions saved none
    fields = checked_fields(state, _NEW_RESUME_STATE if has_suggested else _RESUME_STATE)
    _suggested(fields.get("suggested", []))
    checked_int(fields["step"], "step")
    for entry in fields["curve"]:
        _report(entry)
    for part in fields["parts"]:
        if not isinstance(part, list) or len(part) != 2 or not isinstance(part[0], str):
            raise CorruptError(f"parts must not hold {short_repr(part)}")
    totals = checked_fields(fields["totals"], _TOTALS)
    if not checked_numbers(totals["cost"], "cost").keys() >= {"seconds", "gpu_seconds"}:
        raise CorruptError(f"cost must not be {short_repr(totals['cost'])}")
    for key in ("resolved_donor", "donor"):
        checked_donor(totals[key], key)
    if totals["inherited"] is not None:
        checked_number(totals["inherited"], "inherited", 0, 1)
    _inheritance(totals["inheritance"])


def proposal_from_json(plain: object) -> Proposal:
    """Returns the proposal that ``Proposal.to_json`` encoded.

    Raises:
        CorruptError: it can't be decoded.
    """
    fields = checked_fields(plain, _PROPOSAL_KINDS, others=True)
    if (n := n_values(fields["point"])) > MAX_POINT_VALUES:
        raise CorruptError(f"point has {n} values; it may have {MAX_POINT_VALUES}")
    donors, policies, fidelity = fields["donors"], fields["policies"], fields["fidelity"]
    try:
        return Proposal(
            point=fields["point"],
            parents=tuple(checked_int(parent, "a parent") for parent in fields["parents"]),
            donors=None if donors is None else tuple(_donor(donor) for donor in donors),
            policies=None if policies is None else _policies(policies),
            fidelity=None if fidelity is None else checked_number(fidelity, "fidelity", 5e-324, 1),
            derivation=fields.get("derivation"),
            reason=fields["reason"],
            proxies=_few_numbers(fields.get("proxies", {}), "proxies"),
            relative_duration=checked_int(fields.get("relative_duration", 1), "relative_duration", 1),
        )
    except ConfigurationError as error:
        raise CorruptError(short_repr(str(error))) from error


def n_values(value: object) -> int:
    """Returns the number of plain values in nested lists and objects."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 1 if inner is None else sum(map(n_values, inner))


def _donor(value: object) -> Donor:
    if isinstance(value, str) and value in DONOR_RULES:
        return DonorRule(value)
    donor = checked_donor(value, "a donor")
    if donor is None:
        raise CorruptError("a donor must not be null")
    return donor


def _policies(names: list[object]) -> frozenset[Policy]:
    try:
        return parse_policies(name if isinstance(name, str) else short_repr(name) for name in names)
    except ConfigurationError as error:
        raise CorruptError(short_repr(str(error))) from error


def _suggested(points: object) -> tuple[dict[str, Any], ...]:
    if not isinstance(points, list) or not all(isinstance(point, dict) for point in points):
        raise CorruptError(f"suggested must not be {short_repr(points)}")
    if (size := json_size(points)) > SUGGESTED_BYTES:
        raise CorruptError(f"suggested has {size} bytes; it may have {SUGGESTED_BYTES}")
    return tuple(points)


def _few_numbers(data: object, what: str) -> dict[str, float]:
    """Returns numbers by name, each of which is a column of the report."""
    if isinstance(data, dict) and len(data) > METRICS_BYTES:  # a name and a number take more than one byte each
        raise CorruptError(f"{what} must not hold {len(data)} numbers")
    return checked_numbers(data, what)


def _report(entry: object) -> tuple[int, dict[str, float]]:
    if not isinstance(entry, list) or len(entry) != 2:
        raise CorruptError(f"curve must not hold {short_repr(entry)}")
    return checked_int(entry[0], "a step", -MAX_WHOLE), checked_numbers(entry[1], "curve")


def _inheritance(summary: dict[str, Any]) -> dict[str, Any]:
    """Returns an inheritance summary after checking the values that code reads."""
    replaced, lost = summary.get("replaced", {}), summary.get("lost", [])
    if not isinstance(replaced, dict) or not isinstance(lost, list):
        raise CorruptError(f"inheritance must not hold {short_repr(replaced)} and {short_repr(lost)}")
    for donor in (*replaced.values(), *lost):
        checked_donor(donor, "inheritance: a donor")
    checked_numbers(summary.get("given", {}), "inheritance: given")
    warnings = summary.get("warnings", [])
    if not isinstance(warnings, list) or not all(isinstance(text, str) for text in warnings):
        raise CorruptError(f"inheritance: warnings must not be {short_repr(warnings)}")
    return summary
