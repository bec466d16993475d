"""The events that the search controller reacts to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nas.core.trial import Trial
from nas.training.messages import ProxyRequest

Action = Literal["test", "export", "proxies"]
StopKind = Literal["stop", "deadline", "kill", "interrupt"]
"""Why a trial is asked to end.

``stop``: the stopper decided it. ``deadline``: the time budget is used up. ``kill``: the same, and the trial did not
react. ``interrupt``: the session ends; the trial gets no result.
"""


@dataclass(frozen=True, slots=True)
class Proposed:
    """A proposal is durable. For observers only."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class Started:
    """The problem's code starts on a trial."""

    trial: int
    attempt: int
    slot: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """A trial continues from a resume point. Its ``Started`` came before.

    Attributes:
        cost: The cost of the attempts that it continues.
    """

    trial: int
    cost: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Reported:
    """A trial reported intermediate metrics.

    Attributes:
        answer: If given, must be called once; ``answer(True)`` tells the trial to stop.
    """

    trial: int
    step: int
    metrics: Mapping[str, float]
    answer: Callable[[bool], None] | None = None


@dataclass(frozen=True, slots=True)
class Finished:
    """A trial's result record is durable."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class ExtraResult:
    """A finished trial gave another result, which is ignored. Its ``Finished`` may come later."""

    trial: int
    result: str


@dataclass(frozen=True, slots=True)
class WeightsDeleted:
    """Weights were deleted, or the disk budget is exceeded. For observers only."""

    trials: tuple[int, ...]
    bytes: int
    over_budget: str | None = None
    """A message if the disk budget is exceeded, else None."""


@dataclass(frozen=True, slots=True)
class TrialRequested:
    """A job requests its next trial. It keeps its slot and waits for ``submit`` or ``dismiss``."""

    job: int


@dataclass(frozen=True, slots=True)
class JobLeftWorker:
    """A job ended between two trials, or before its first. Its last ``Finished`` may come later."""

    job: int
    error: str | None = None
    """The traceback, if the job's code raised."""
    lost: str | None = None
    """The reason, if its worker ended. The job should start again."""
    counts: bool = True
    """Whether a lost worker counts against ``max_attempts``."""


@dataclass(frozen=True, slots=True)
class TrialLost:
    """A job was ended from outside: worker killed, machine lost, interrupted. Its trial has no result."""

    job: int
    trial: int
    why: str
    counts: bool = True
    """Whether it counts against ``max_attempts``.

    False if the worker left by itself, as in a planned shutdown.
    """


@dataclass(frozen=True, slots=True)
class WorkersBusy:
    """Trials wait for workers, while jobs keep workers and wait for their next trial."""

    n_waiting: int
    is_stuck: bool
    """Whether every worker has such a job: nothing happens until one is dismissed."""


@dataclass(frozen=True, slots=True)
class ExecutorFailed:
    """The executor can't continue (full disk, the problem can't be built).

    The search ends with this error.
    """

    error: BaseException
    job: int | None = None
    """The job that caused it, if any. It has ended."""


@dataclass(frozen=True, slots=True)
class ProxiesComputed:
    """A worker has answered a request for proxies.

    Attributes:
        request: The request.
        values: The proxies of each point, or None.
        error: The error of a point, if there are values, else the error of the request.
        is_lost: Whether there are no values because the worker ended.
    """

    request: ProxyRequest
    values: Sequence[Mapping[str, float]] | None = None
    error: str | None = None
    is_lost: bool = False


@dataclass(frozen=True, slots=True)
class TunerReady:
    """A tuner in a process of its own may now answer something other than WAIT."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Ctrl-C, SIGTERM, a cancel or a newer session: end the session and keep all records."""

    why: str
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """A message for the user. For observers only."""

    text: str


Event = (
    Proposed
    | Started
    | Resumed
    | Reported
    | Finished
    | ExtraResult
    | TrialRequested
    | JobLeftWorker
    | WeightsDeleted
    | TrialLost
    | WorkersBusy
    | ExecutorFailed
    | ProxiesComputed
    | TunerReady
    | StopRequested
    | Notice
)
