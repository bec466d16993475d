"""The events that the loop reacts to, and what it needs of whatever runs trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from nas.core.trial import Trial

if TYPE_CHECKING:
    from nas.training.messages import Assignment, JobStart

Action = Literal["test", "export"]
StopKind = Literal["stop", "deadline", "kill", "interrupt"]
"""Why a trial is asked to end: a stopper says so; the hours are spent; they are, and it did not listen: end it now; the
session ends, and the trial gets no result."""


@dataclass(frozen=True, slots=True)
class Proposed:
    """A proposal is durable; for observers only."""

    trial: Trial


@dataclass(frozen=True, slots=True)
class Started:
    """The problem's code starts on a trial."""

    trial: int
    attempt: int
    slot: int


@dataclass(frozen=True, slots=True)
class Reported:
    """A trial reported intermediate metrics; ``answer(True)`` tells it to stop, and must be called where given."""

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
    """A trial that has its result gave another one, which changes nothing; its ``Finished`` may come later."""

    trial: int
    result: str


@dataclass(frozen=True, slots=True)
class WeightsDeleted:
    """Weights were deleted to make room, or the disk budget can't be kept; for observers only."""

    trials: tuple[int, ...]
    bytes: int
    unmet: str | None = None
    """Why the disk budget can't be kept, in one line."""


@dataclass(frozen=True, slots=True)
class TrialRequested:
    """A job wants its next trial; it keeps its slot, and waits for ``submit`` or ``dismiss``."""

    job: int


@dataclass(frozen=True, slots=True)
class JobLeftWorker:
    """A job's stay has ended between two trials, or before its first; its last ``Finished`` may come later."""

    job: int
    error: str | None = None
    """The traceback of its code, where that raised."""
    lost: str | None = None
    """Why, where its worker died: it should begin anew."""


@dataclass(frozen=True, slots=True)
class TrialLost:
    """A job was ended from outside (worker killed, machine lost, interrupted); its trial has no result."""

    job: int
    trial: int
    why: str
    counts: bool = True
    """Whether it counts against ``max_attempts``; not where its worker has left by itself, as all of a machine's do."""


@dataclass(frozen=True, slots=True)
class WorkersBusy:
    """Trials wait for workers, of which there are fewer than slots, while jobs wait on workers for an answer."""

    n_waiting: int
    is_stuck: bool
    """Every worker there is has such a job: nothing happens before one is dismissed."""


@dataclass(frozen=True, slots=True)
class ExecutorFailed:
    """What runs trials can't go on (full disk, a problem that can't be built): the search ends with this error."""

    error: BaseException
    job: int | None = None
    """The job that broke, where it was one; it runs no more."""


@dataclass(frozen=True, slots=True)
class TunerReady:
    """A tuner that lives in a process of its own may have another answer than WAIT."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """Ctrl-C, SIGTERM, a cancel, a newer session: end the session, keep all records."""

    why: str
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """What a person should know; for observers only."""

    text: str


Event = (
    Proposed
    | Started
    | Reported
    | Finished
    | ExtraResult
    | TrialRequested
    | JobLeftWorker
    | WeightsDeleted
    | TrialLost
    | WorkersBusy
    | ExecutorFailed
    | TunerReady
    | StopRequested
    | Notice
)


class Executor(Protocol):
    """Runs trials on slots. All methods are called by the loop's thread, but for ``post``."""

    slots: int

    def now_s(self) -> float:
        """Seconds on the clock that deadlines are kept by; only differences count."""

    def submit(self, assignment: Assignment) -> None:
        """Runs the attempt of a trial whose parents and donors have finished: by its job, if that stays on the slot."""

    def resume(self, job_start: JobStart) -> None:
        """Lets a job that ran before begin a stay without a trial; it asks for one, or leaves."""

    def dismiss(self, job: int) -> None:
        """Tells a job that has asked that there are no more trials; it leaves."""

    def stop(self, trial: Trial, why: StopKind) -> None:
        """Asks a running trial to end: with a result, or, within seconds, without one (``interrupt``).

        A trial that ignores it is ended by ``kill`` where it can be: in a process of its own.
        """

    def next_event(self, until_s: float | None) -> Event | None:
        """Returns the next event, or None at ``until_s``."""

    def call(self, action: Action, trial: Trial) -> Mapping[str, Any]:
        """Tests or exports a finished trial where trials run, and waits for the answer.

        Raises:
            ActionError: the problem's code raised.
            SearchInterruptedError: a stop was asked for meanwhile.
        """

    def post(self, event: Event) -> None:
        """Queues an event; any thread and a signal handler may call it."""

    def close(self) -> None:
        """Ends whatever still runs and frees what is held."""
