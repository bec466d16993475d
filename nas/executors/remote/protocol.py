"""What travels between a driver and its remote workers: JSON and nothing else, and each field checked on arrival.

Numbers keep their bits (Python writes the shortest text that reads back as the same double); NaN and the infinities
travel as ``NaN`` and ``Infinity``, which only records refuse.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from types import NoneType
from typing import Any

from nas.core.checkpoint import Checkpoint
from nas.core.errors import CorruptError
from nas.core.spec import Spec
from nas.core.trial import DonorWeights, Trial
from nas.core.validation import (
    MAX_RECORD_BYTES,
    MAX_WHOLE,
    checked_fields,
    checked_int,
    checked_number,
    parse_object,
    short_repr,
)
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
from nas.storage.trial_records import checked_donor, trial_from_records
from nas.training.messages import Assignment, JobStart

Message = dict[str, Any]

MAX_BODY_BYTES = 2 * MAX_RECORD_BYTES
"""A trial travels as its two records."""
_DECODER = json.JSONDecoder()  # takes NaN
_TRIAL: Mapping[str, tuple[type, ...]] = {
    "proposal": (dict,),
    "result": (dict, NoneType),
    "swept": (bool,),
    "attempt": (int,),
    "slot": (int, NoneType),
    "resolved_donor": (int, str, NoneType),
    "inheritance": (dict,),
    "code": (str, NoneType),
}
_ASSIGNMENT: Mapping[str, tuple[type, ...]] = {
    "trial": (dict,),
    "donors": (list,),
    "n_finished": (int,),
    "is_last": (bool,),
    "job_index": (int,),
}
_NUMBER: tuple[type, ...] = (int, float)
_WELCOME: Mapping[str, tuple[type, ...]] = {
    "search": (str,),
    "problem": (dict,),
    "session": (int,),
    **dict.fromkeys(("has_stopper", "jobs_request_trials"), (bool,)),
    **dict.fromkeys(("resume_every_s", "lost_after_s", "poll_s"), _NUMBER),
    "trial_timeout_s": (*_NUMBER, NoneType),
    "device": (str, NoneType),
    "n_threads": (int, NoneType),
    "code": (dict,),
}
MAX_LOST_AFTER_S = 3600.0
_MAX_THREADS = 2**16
_JOB_START = ("job", "slot", "n_finished", "job_index")
_STARTED: Mapping[str, tuple[type, ...]] = dict.fromkeys(("trial", "attempt", "slot"), (int,))
_LEFT: Mapping[str, tuple[type, ...]] = {"job": (int,), "error": (str, NoneType), "lost": (str, NoneType)}


def dumps(message: Mapping[str, Any]) -> bytes:
    """The message as bytes; halves of characters survive, too."""
    return json.dumps(message, separators=(",", ":")).encode()


def loads(data: bytes) -> Message:
    """The message in the bytes.

    Raises:
        CorruptError: they hold no JSON object.
    """
    return parse_object(data, _DECODER)


def trial_to_wire(trial: Trial) -> Message:
    """A trial that runs or has finished."""
    return {
        "proposal": trial.proposal_record(),
        "result": trial.result_record() if trial.is_finished else None,
        "swept": trial.weights_deleted,
        "attempt": trial.attempt,
        "slot": trial.slot,
        "resolved_donor": trial.resolved_donor,
        "inheritance": dict(trial.inheritance),
        "code": trial.code,
    }


def trial_from_wire(data: object) -> Trial:
    """The trial of which ``trial_to_wire`` made this.

    Raises:
        CorruptError: it made no such thing.
    """
    fields = checked_fields(data, _TRIAL)
    trial = trial_from_records(fields["proposal"], fields["result"], weights_deleted=fields["swept"])
    if trial.is_finished:
        return trial
    return trial.start(
        attempt=checked_int(fields["attempt"], "attempt"),
        slot=None if fields["slot"] is None else checked_int(fields["slot"], "slot"),
        resolved_donor=checked_donor(fields["resolved_donor"], "resolved_donor"),
        inheritance=fields["inheritance"],
        code=fields["code"],
    )


def assignment_to_wire(assignment: Assignment) -> Message:
    """A trial to run, and whose weights it is given."""
    return {
        "trial": trial_to_wire(assignment.trial),
        "donors": [[d.donor, d.checkpoint.to_json()] for d in assignment.donors],
        "n_finished": assignment.n_finished,
        "is_last": assignment.is_last,
        "job_index": assignment.job_index,
    }


def assignment_from_wire(data: object) -> Assignment:
    """The assignment of which ``assignment_to_wire`` made this.

    Raises:
        CorruptError: it made no such thing.
    """
    fields = checked_fields(data, _ASSIGNMENT)
    donors = tuple(_donor(entry) for entry in fields["donors"])
    n_finished, job_index = (checked_int(fields[key], key) for key in ("n_finished", "job_index"))
    return Assignment(trial_from_wire(fields["trial"]), donors, n_finished, fields["is_last"], job_index)


def _donor(entry: object) -> DonorWeights:
    if not isinstance(entry, list) or len(entry) != 2 or (donor := checked_donor(entry[0], "a donor")) is None:
        raise CorruptError(f"donors must not hold {short_repr(entry)}")
    return DonorWeights(donor, Checkpoint.from_json(entry[1]))


def job_start_to_wire(job_start: JobStart) -> Message:
    """A job that begins without a trial."""
    return {key: getattr(job_start, key) for key in _JOB_START}


def job_start_from_wire(data: object) -> JobStart:
    """The stay of which ``job_start_to_wire`` made this.

    Raises:
        CorruptError: it made no such thing.
    """
    fields = checked_fields(data, dict.fromkeys(_JOB_START, (int,)))
    job, slot, n_finished, job_index = (checked_int(fields[key], key) for key in _JOB_START)
    return JobStart(job, slot, n_finished, job_index=job_index)


def checked_welcome(data: object) -> Message:
    """What a driver says of its search to a worker that joins.

    Raises:
        CorruptError: no driver says that.
    """
    fields = checked_fields(data, _WELCOME)
    checked_int(fields["session"], "session")
    checked_number(fields["lost_after_s"], "lost_after_s", 0.1, MAX_LOST_AFTER_S)
    checked_number(fields["poll_s"], "poll_s", 0.0, fields["lost_after_s"])
    checked_number(fields["resume_every_s"], "resume_every_s", 0.0, math.inf)
    if fields["trial_timeout_s"] is not None:
        checked_number(fields["trial_timeout_s"], "trial_timeout_s", 0.0, math.inf)
    if fields["n_threads"] is not None:
        checked_int(fields["n_threads"], "n_threads", 1, _MAX_THREADS)
    if not all(isinstance(digest, str) for digest in fields["code"].values()):
        raise CorruptError(f"code must not be {short_repr(fields['code'])}")
    return fields


def heard(answer: object, after: int) -> list[Message]:
    """The messages in a driver's answer to one who has those up to number ``after``.

    Raises:
        CorruptError: there is something else in it, or another number.
    """
    messages = []
    for number, entry in enumerate(checked_fields(answer, {"messages": (list,)})["messages"], after + 1):
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], dict):
            raise CorruptError(f"messages must not hold {short_repr(entry)}")
        checked_int(entry[0], "number", number, number)
        messages.append(entry[1])
    return messages


def spec_from_wire(data: object) -> Spec:
    """The spec that ``Spec.to_json`` has described; whether it may be built is for the worker's user to say.

    Raises:
        CorruptError: it has described no such thing.
    """
    fields = checked_fields(data, {"target": (str,), "arguments": (dict,)})
    return Spec(fields["target"], fields["arguments"])


def event_to_wire(event: Event) -> Message:
    """What a worker tells of its trial or its job."""
    match event:
        case Started(trial=trial, attempt=attempt, slot=slot):
            return {"is": "started", "trial": trial, "attempt": attempt, "slot": slot}
        case Reported(trial=trial, step=step, metrics=metrics, answer=answer):
            report = {"trial": trial, "step": step, "metrics": dict(metrics), "asks": answer is not None}
            return {"is": "reported", **report}
        case TrialRequested(job=job):
            return {"is": "asked", "job": job}
        case JobLeftWorker(job=job, error=error, lost=lost):
            return {"is": "left", "job": job, "error": error, "lost": lost}
        case Finished(trial=finished):
            return {"is": "finished", "trial": trial_to_wire(finished)}
        case ExtraResult(trial=trial, result=result):
            return {"is": "late", "trial": trial, "result": result}
        case TrialLost(job=job, trial=trial, why=why, counts=counts):
            return {"is": "lost", "job": job, "trial": trial, "why": why, "counts": counts}
    raise AssertionError(f"no worker says {event!r}")


def event_from_wire(message: Mapping[str, Any]) -> Event:
    """The event of which ``event_to_wire`` made this; a report's ``answer`` is left to whoever takes it in.

    Raises:
        CorruptError: it made no such thing.
    """
    fields = dict(message)
    match fields.pop("is", None):
        case "started":
            checked = checked_fields(fields, _STARTED)
            return Started(**{key: checked_int(value, key) for key, value in checked.items()})
        case "reported":
            kinds = {"trial": (int,), "step": (int,), "metrics": (dict,), "asks": (bool,)}
            checked = checked_fields(fields, kinds)
            step = checked_int(checked["step"], "step", -MAX_WHOLE)
            return Reported(checked_int(checked["trial"], "trial"), step, _metrics(checked["metrics"]))
        case "asked":
            return TrialRequested(checked_int(checked_fields(fields, {"job": (int,)})["job"], "job"))
        case "left":
            checked = checked_fields(fields, _LEFT)
            return JobLeftWorker(checked_int(checked["job"], "job"), checked["error"], checked["lost"])
        case "finished":
            trial = trial_from_wire(checked_fields(fields, {"trial": (dict,)})["trial"])
            if not trial.is_finished:
                raise CorruptError(f"trial {trial.number} has no result")
            return Finished(trial)
        case "late":
            checked = checked_fields(fields, {"trial": (int,), "result": (str,)})
            return ExtraResult(checked_int(checked["trial"], "trial"), checked["result"])
        case "lost":
            checked = checked_fields(fields, {"job": (int,), "trial": (int,), "why": (str,), "counts": (bool,)})
            job, trial_number = checked_int(checked["job"], "job"), checked_int(checked["trial"], "trial")
            return TrialLost(job, trial_number, checked["why"], checked["counts"])
    raise CorruptError(f"no worker says {short_repr(message)}")


def _metrics(data: dict[str, Any]) -> dict[str, float]:
    for name, value in data.items():
        if type(value) not in (int, float):
            raise CorruptError(f"metrics: {short_repr(name)} must not be {short_repr(value)}")
    return data
