"""Checks of the records of a search, its sessions, heartbeats, garbage collections, tests and winners.

Each function raises CorruptError, without the file's name, if Heirloom does not write such a record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import NoneType
from typing import Any

from nas.core.errors import ConfigurationError, CorruptError
from nas.core.metric import Metric
from nas.core.reference import references
from nas.core.validation import checked_fields, checked_int, checked_number, checked_numbers, checked_time, short_repr
from nas.storage.verified import digest_of

MAX_HOURS = 1e6
"""Maximum of one session: a century."""
_MAX_PID = 2**31 - 1
_NUMBER = re.compile("[0-9]{1,18}")
_ID = re.compile(r"[A-Za-z0-9-]{1,64}")

_Kinds = Mapping[str, tuple[type, ...]]
_IDENTITY: _Kinds = {
    **dict.fromkeys(("problem", "space", "tuner"), (dict,)),
    "policy": (list,),
    "stopper": (dict, NoneType),
    "seed": (int,),
    "on_missing_weights": (str,),
    "deterministic": (bool,),
}
_SPEC: _Kinds = {"target": (str,), "arguments": (dict,)}
_SESSION: _Kinds = {
    **dict.fromkeys(("host", "boot", "process_started", "machine"), (str,)),
    "pid": (int,),
    "settings": (dict,),
}
_BEST: _Kinds = {
    "point": (dict,),
    "test": (dict, NoneType),
    "ancestors": (list,),
    "export": (str, NoneType),
    "files": (list,),
    "missing": (dict,),
}


def check_header(record: Mapping[str, Any]) -> None:
    """Checks ``search.json``, apart from its format."""
    fields = checked_fields(record, {"identity": (dict,), "metrics": (list,)}, others=True)
    identity = checked_fields(fields["identity"], _IDENTITY, others=True)
    for kind in ("problem", "tuner", "chosen_tuner", "stopper"):
        if identity.get(kind) is not None:
            checked_fields(identity[kind], _SPEC)
    for stage in identity["policy"]:
        known = checked_fields(stage, {"name": (str,), "policies": (list,), "warm": (bool,)}, others=True)
        if not isinstance(known.get("best"), int | float | NoneType):
            raise CorruptError(f"the best of a stage must not be {short_repr(known['best'])}")
    if identity["deterministic"]:
        checked_int(identity.get("slots"), "slots", 1)
        checked_int(identity.get("n_threads"), "n_threads", 1)
    checked_numbers(identity.get("constraints", {}), "constraints")
    if (init := identity.get("init")) is not None:
        checked_fields(init, {"points": (list,), "weights": (str, NoneType)})
    for name in ("data", "about"):
        texts = checked_fields(fields.get(name, {}), {}, others=True)
        checked_fields(texts, dict.fromkeys(texts, (str,)))
    for metric in fields["metrics"]:
        _check_metric(metric)
    if not identity["policy"] or not fields["metrics"]:
        raise CorruptError("policy and metrics must not be empty")


def _check_metric(metric: object) -> None:
    found = checked_fields(metric, {"name": (str,), "direction": (str,)}, others=True)
    reference = found.get("reference")
    if reference is not None:
        checked_numbers({"reference": reference}, "a metric")
    try:
        Metric(found["name"], found["direction"], reference)
    except ConfigurationError as error:
        raise CorruptError(short_repr(str(error))) from error


def check_session(record: Mapping[str, Any]) -> None:
    """Checks ``sessions/0003.json``."""
    checked_int(checked_fields(record, _SESSION, others=True)["pid"], "pid", 1, _MAX_PID)
    if record.get("started") is None:
        raise CorruptError("started must be a time")
    checked_time(record["started"], "started")
    for group, files in checked_fields(record.get("code", {}), {}, others=True).items():
        checked_fields(files, dict.fromkeys(checked_fields(files, {}, others=True), (str,)))
        if group not in ("problem", "tuner", "stopper"):
            raise CorruptError(f"code must not hold {short_repr(group)}")
    for name in ("versions", "files"):
        texts = checked_fields(record.get(name, {}), {}, others=True)
        checked_fields(texts, dict.fromkeys(texts, (str,)))
    if not isinstance(record.get("commit"), str | NoneType):
        raise CorruptError(f"commit must not be {short_repr(record['commit'])}")
    flow_run = record.get("flow_run")
    if flow_run is not None and not (isinstance(flow_run, str) and _ID.fullmatch(flow_run)):
        raise CorruptError(f"flow_run must not be {short_repr(flow_run)}")  # it becomes part of a URL


def code_id(files: Mapping[str, str]) -> str | None:
    """Returns the ``Trial.code`` of a problem, or None if all code is Heirloom's.

    Args:
        files: Digests of the problem's files (``nas.training.code_digests``).
    """
    if not files:
        return None
    text = json.dumps(dict(files), sort_keys=True, separators=(",", ":"))
    return digest_of(text.encode(errors="backslashreplace")).removeprefix("blake3:")[:16]


def check_heartbeat(record: Mapping[str, Any]) -> None:
    """Checks ``sessions/0003.beat``."""
    checked_int(record.get("count"), "count")
    checked_number(record.get("hours"), "hours", 0, MAX_HOURS)
    if record.get("time") is None or type(record.get("ended")) is not bool:
        raise CorruptError("time must be a number, and ended true or false")
    checked_time(record["time"], "time")


def check_test(record: Mapping[str, Any], trial: int) -> None:
    """Checks ``tests/000024.json``."""
    checked_int(record.get("trial"), "trial", trial, trial)
    if "metrics" in record:
        checked_numbers(record["metrics"], "metrics")
    if "error" in record or "metrics" not in record:
        checked_fields(record, {"error": (str,)}, others=True)


def check_collection(record: Mapping[str, Any]) -> frozenset[int]:
    """Checks ``gc/0003.json``. Returns the trials whose weights were deleted."""
    trials = checked_fields(record, {"trials": (dict,)}, others=True)["trials"]
    for number in trials:
        if not _NUMBER.fullmatch(number):
            raise CorruptError(f"trials must not hold {short_repr(number)}")
    return frozenset(map(int, trials))


def check_best(record: Mapping[str, Any], number: int) -> None:
    """Checks ``best-0001.json``."""
    fields = checked_fields(record, _BEST, others=True)
    checked_int(record.get("number"), "number", number, number)
    trial = checked_int(record.get("trial"), "trial")
    checked_numbers(record.get("metrics"), "metrics")
    if fields["test"] is not None:
        check_test(fields["test"], trial)
    for ancestor in fields["ancestors"]:
        checked_int(ancestor, "an ancestor", 0, max(0, trial - 1))
    references(fields["files"])
    for name, reason in fields["missing"].items():
        if not isinstance(reason, str):
            raise CorruptError(f"missing: {short_repr(name)} must not be {short_repr(reason)}")
    remarks = record.get("remarks", [])
    if not isinstance(remarks, list) or not all(isinstance(line, str) for line in remarks):
        raise CorruptError(f"remarks must not be {short_repr(remarks)}")
    checked_time(record.get("time"), "time")
