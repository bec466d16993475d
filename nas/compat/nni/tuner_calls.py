"""Calls to an experiment's own tuner, and the records from which they are replayed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from msgspec import Struct

from nas.compat.nni.ids import is_job_id
from nas.compat.nni.parameters import to_parameters
from nas.core.errors import CorruptError
from nas.core.lineage import Lineage
from nas.core.trial import State, Trial
from nas.core.validation import path_in_errors, short_repr
from nas.storage.record_values import Whole, checked_as

MAX_LATE_CHARS = 1 << 16
"""Characters of late results in one record. Longer ones are not replayed after an interruption."""


@dataclass(frozen=True, slots=True)
class LateResult:
    """A final result that a trial reported after its first one.

    Attributes:
        id: The parameter_id.
        n_results: Number of results that the tuner had received before.
        text: The result as JSON.
    """

    id: int
    n_results: int
    text: str


@dataclass(slots=True)
class TunerCall:
    """A call for one configuration.

    Attributes:
        id: The parameter_id.
        job: The id of the job that asks, as its trial sees it.
        is_first: Whether it is the job's first configuration.
        n_results: Number of results that the tuner had received before.
        late: Late results that the tuner received between the call before and this one.
    """

    id: int
    job: str
    is_first: bool
    n_results: int
    late: tuple[LateResult, ...] = ()
    has_answer: bool = False
    is_empty: bool = False
    """Whether the tuner raised NoMoreTrialError."""
    parameters: Any = None
    trial: int | None = None
    """Number of the trial that uses the configuration."""

    def to_json(self) -> list[Any]:
        """Returns the entry of a proposal's record."""
        late = [[list(astuple(result)) for result in self.late]] if self.late else []
        return [self.id, self.job, self.is_first, self.n_results, *late]


def derivation_of(call: TunerCall, started: Iterable[TunerCall]) -> dict[str, Any]:
    """Returns the derivation of a proposal: its call, and all calls started since the proposal before."""
    return {"parameter_id": call.id, "trial_job_id": call.job, "calls": [other.to_json() for other in started]}


class _Call(Struct, array_like=True, forbid_unknown_fields=True):
    """An entry of ``calls``."""

    id: Whole
    job: str
    is_first: bool
    n_results: Whole
    late: tuple[tuple[Whole, Whole, str], ...] = ()


class _Derivation(Struct, forbid_unknown_fields=True):
    parameter_id: Whole
    trial_job_id: str
    calls: tuple[_Call, ...]


@dataclass(frozen=True, slots=True)
class CallRecord:
    """The derivation of a proposal, checked, because a shared root can contain anything."""

    id: int
    job: str
    calls: tuple[TunerCall, ...]

    @classmethod
    def of(cls, trial: Trial) -> CallRecord:
        """Returns the record that ``derivation_of`` made.

        Raises:
            CorruptError: the derivation has another form.
        """
        with path_in_errors(f"trials/{trial.number:06d}.proposal.json"):
            found = checked_as(_Derivation, trial.proposal.derivation)
            calls = tuple(map(_recorded_call, found.calls))
            return cls(found.parameter_id, check_job_id(found.trial_job_id), calls)


def _recorded_call(call: _Call) -> TunerCall:
    late = tuple(LateResult(*result) for result in call.late)
    return TunerCall(call.id, check_job_id(call.job), call.is_first, call.n_results, late)


def check_job_id(value: object) -> str:
    """Returns the value if it is a job id; it becomes the name of a folder.

    Raises:
        CorruptError: it is not a job id.
    """
    if not isinstance(value, str) or not is_job_id(value):
        raise CorruptError(f"trial_job_id must not be {short_repr(value)}")
    return value


def parse_result(text: str, number: int) -> Any:
    """Returns the parsed JSON of a trial's result, which may contain NaN.

    Raises:
        CorruptError: the text is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"trials/{number:06d}.result.json: returned is not JSON ({error})") from error


@dataclass(frozen=True, slots=True)
class CallHistory:
    """Calls and results of earlier sessions, in order.

    Attributes:
        calls: By id. Calls without a trial were not used.
        results: The finished trials in the order in which the tuner received their results.
        answered: By number of results received, the calls that were answered by then.
    """

    calls: list[TunerCall]
    results: list[Trial]
    answered: dict[int, list[TunerCall]]

    @classmethod
    def of(cls, lineage: Lineage) -> CallHistory:
        """Returns the history in the records of the search stage.

        Raises:
            CorruptError: the records contradict one another.
        """
        retries = {trial.number for trial in lineage if not trial.is_counted}  # unknown to the tuner
        trials = sorted((t for t in lineage if t.number not in retries), key=lambda trial: trial.index)
        calls: dict[int, TunerCall] = {}
        answered: dict[int, list[TunerCall]] = {}
        n_results = 0
        for trial in trials:
            n_results += len(set(trial.learned) - retries)
            record = CallRecord.of(trial)
            calls |= {call.id: call for call in record.calls if call.id not in calls}
            if (call := calls.get(record.id)) is None or call.job != record.job or call.trial is not None:
                raise CorruptError(f"trials/{trial.number:06d}.proposal.json: no call belongs to it alone")
            call.trial, call.parameters = trial.number, to_parameters(trial.point)
            answered.setdefault(n_results, []).append(call)
        for late in (late for call in calls.values() for late in call.late):
            if late.id not in calls or (number := calls[late.id].trial) is None:
                raise CorruptError(f"a late result is recorded for parameter_id {late.id}, which no trial has")
            parse_result(late.text, number)
        results = [trial for trial in lineage.finished if trial.number not in retries]
        return cls(sorted(calls.values(), key=lambda call: call.id), results, answered)


def result_text(trial: Trial, *, include_intermediate: bool) -> str | None:
    """Returns the JSON that the tuner receives as a finished trial's result, or None.

    Args:
        trial: A finished trial.
        include_intermediate: Whether the last report of a stopped trial is its result.
    """
    has_result = trial.state == State.COMPLETE or (trial.state == State.STOPPED and include_intermediate)
    return trial.returned if has_result else None


def ids_text(calls: Sequence[TunerCall]) -> str:
    """Returns the ids of calls for a message."""
    return ", ".join(str(call.id) for call in calls)
