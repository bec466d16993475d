"""The calls of an experiment's own tuner: as they go on, and as the records tell them to a later session."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nas.compat.nni.parameters import parameters_of
from nas.lineage import Lineage
from nas.trial import State, Trial


@dataclass(slots=True)
class Call:
    """A configuration that the tuner was asked for.

    Attributes:
        id: The parameter_id.
        job: The id of the job that asks, as its trial is told it.
        is_first: The job begins with it.
        n_told: How many results the tuner had been told of before.
    """

    id: int
    job: str
    is_first: bool
    n_told: int
    number: int = -1
    """Of the call to the process."""
    has_answer: bool = False
    has_nothing: bool = False
    """The tuner raised NoMoreTrialError."""
    parameters: Any = None
    trial: int | None = None
    """The trial that it became."""
    is_listed: bool = False
    """A proposal's record lists it."""

    def to_json(self) -> list[Any]:
        """For a proposal's record."""
        return [self.id, self.job, self.is_first, self.n_told]


def derivation(call: Call, begun: Iterable[Call]) -> dict[str, Any]:
    """What a proposal's record says of its call, and of those begun since the proposal before."""
    return {"parameter_id": call.id, "trial_job_id": call.job, "calls": [other.to_json() for other in begun]}


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
        """The history that the records of the search stage tell."""
        trials = sorted(lineage, key=lambda trial: trial.index)
        calls: dict[int, Call] = {}
        due: dict[int, list[Call]] = {}
        n_told = 0
        for trial in trials:
            n_told += len(trial.learned)
            for number, job, is_first, told in trial.proposal.derivation["calls"]:
                calls[number] = Call(number, job, is_first, told, is_listed=True)
            call = calls[trial.proposal.derivation["parameter_id"]]
            call.trial, call.parameters = trial.number, parameters_of(trial.point)
            due.setdefault(n_told, []).append(call)
        return cls(sorted(calls.values(), key=lambda call: call.id), list(lineage.finished), due)


def value_of(trial: Trial, *, with_stopped: bool) -> Any:
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
