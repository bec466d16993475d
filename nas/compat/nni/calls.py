"""The calls of an experiment's own tuner: as they go on, and as the records tell them to a later session."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from nas.compat.nni.names import is_job_id
from nas.compat.nni.parameters import parameters_of
from nas.core.errors import CorruptError
from nas.core.lineage import Lineage
from nas.core.trial import State, Trial
from nas.core.validation import checked_fields, checked_int, path_in_errors, short_repr

LATE_CHARS = 1 << 16
"""What a record says of late results; those beyond are not told again after an interruption."""
_DERIVATION = {"parameter_id": (int,), "trial_job_id": (str,), "calls": (list,)}


@dataclass(frozen=True, slots=True)
class LateResult:
    """What a trial reported after its result.

    Attributes:
        id: The parameter_id.
        n_told: How many results the tuner had been told of before.
        text: The result's JSON.
    """

    id: int
    n_told: int
    text: str

    @classmethod
    def of(cls, entry: object) -> LateResult:
        """What a record's list holds.

        Raises:
            CorruptError: it is something else.
        """
        if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[2], str):
            raise CorruptError(f"calls must not hold {short_repr(entry)}")
        return cls(checked_int(entry[0], "calls"), checked_int(entry[1], "calls"), entry[2])


@dataclass(slots=True)
class Call:
    """A configuration that the tuner was asked for.

    Attributes:
        id: The parameter_id.
        job: The id of the job that asks, as its trial is told it.
        is_first: The job begins with it.
        n_told: How many results the tuner had been told of before.
        late: What it was told after the call before this one, beside these.
    """

    id: int
    job: str
    is_first: bool
    n_told: int
    late: tuple[LateResult, ...] = ()
    has_answer: bool = False
    has_nothing: bool = False
    """The tuner raised NoMoreTrialError."""
    parameters: Any = None
    trial: int | None = None
    """The trial that it became."""

    def to_json(self) -> list[Any]:
        """For a proposal's record."""
        late = [[list(astuple(result)) for result in self.late]] if self.late else []
        return [self.id, self.job, self.is_first, self.n_told, *late]


def derivation(call: Call, begun: Iterable[Call]) -> dict[str, Any]:
    """What a proposal's record says of its call, and of those begun since the proposal before."""
    return {"parameter_id": call.id, "trial_job_id": call.job, "calls": [other.to_json() for other in begun]}


@dataclass(frozen=True, slots=True)
class Notice:
    """What a proposal's record says, as a shared root may hold anything: its call, and those begun before it."""

    id: int
    job: str
    calls: tuple[Call, ...]

    @classmethod
    def of(cls, trial: Trial) -> Notice:
        """What ``derivation`` made.

        Raises:
            CorruptError: something else made it.
        """
        with path_in_errors(f"trials/{trial.number:06d}.proposal.json"):
            fields = checked_fields(trial.proposal.derivation, _DERIVATION)
            calls = []
            for entry in fields["calls"]:
                if not isinstance(entry, list) or len(entry) not in (4, 5) or type(entry[2]) is not bool:
                    raise CorruptError(f"calls must not hold {short_repr(entry)}")
                if not isinstance(late := entry[4] if len(entry) == 5 else [], list):
                    raise CorruptError(f"calls must not hold {short_repr(late)}")
                number, n_told = checked_int(entry[0], "calls"), checked_int(entry[3], "calls")
                calls.append(Call(number, checked_job(entry[1]), entry[2], n_told, tuple(map(LateResult.of, late))))
            return cls(
                checked_int(fields["parameter_id"], "parameter_id"), checked_job(fields["trial_job_id"]), tuple(calls)
            )


def checked_job(value: object) -> str:
    """Returns the value, if it is the id of a job, which becomes a folder's name.

    Raises:
        CorruptError: it is not.
    """
    if not isinstance(value, str) or not is_job_id(value):
        raise CorruptError(f"trial_job_id must not be {short_repr(value)}")
    return value


def parsed(text: str, number: int) -> Any:
    """Returns the JSON of a trial's result, in which NaN is a number.

    Raises:
        CorruptError: it is none.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"trials/{number:06d}.result.json: returned is no JSON ({error})") from error


@dataclass(frozen=True, slots=True)
class History:
    """What a session before has asked the tuner, and told it, in order.

    Attributes:
        calls: By id; those without a trial were asked for and not used.
        results: The finished trials in the order in which the tuner learned of them.
        due: By the number of results told: the calls whose answers were there by then.
    """

    calls: list[Call]
    results: list[Trial]
    due: dict[int, list[Call]]

    @classmethod
    def of(cls, lineage: Lineage) -> History:
        """Returns the history that the records of the search stage tell.

        Raises:
            CorruptError: they tell no such thing.
        """
        trials = sorted(lineage, key=lambda trial: trial.index)
        calls: dict[int, Call] = {}
        due: dict[int, list[Call]] = {}
        n_told = 0
        for trial in trials:
            n_told += len(trial.learned)
            noted = Notice.of(trial)
            calls |= {call.id: call for call in noted.calls if call.id not in calls}
            if (call := calls.get(noted.id)) is None or call.job != noted.job or call.trial is not None:
                raise CorruptError(f"trials/{trial.number:06d}.proposal.json: no call was made for it alone")
            call.trial, call.parameters = trial.number, parameters_of(trial.point)
            due.setdefault(n_told, []).append(call)
        for late in (late for call in calls.values() for late in call.late):
            if late.id not in calls or (number := calls[late.id].trial) is None:
                raise CorruptError(f"a late result is recorded of parameter_id {late.id}, which no trial has")
            parsed(late.text, number)
        return cls(sorted(calls.values(), key=lambda call: call.id), list(lineage.finished), due)


def value_of(trial: Trial, *, with_stopped: bool) -> str | None:
    """What the tuner receives as a finished trial's result, as JSON's text; None: nothing."""
    if trial.state == State.COMPLETE:
        return trial.returned
    if trial.state == State.STOPPED and with_stopped and trial.curve:
        last = dict(trial.curve[-1][1])
        return json.dumps(last["default"] if last.keys() == {"default"} else last)
    return None


def numbers_of(calls: Sequence[Call]) -> str:
    """For a message."""
    return ", ".join(str(call.id) for call in calls)
