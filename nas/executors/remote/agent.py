"""A remote worker: runs what its driver orders at a pool of this machine, and tells the driver what comes of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast, get_args

from nas.core.errors import ActionError, ConfigurationError, CorruptError, HeirloomError
from nas.core.trial import Trial
from nas.core.validation import checked_fields, checked_int, short_repr
from nas.executors.events import Action, Event, ExecutorFailed, Finished, Notice, Reported, StopKind, TrialLost
from nas.executors.pool import WorkerPool, resume_job, run_attempt
from nas.executors.remote.client import ChannelClient, DriverLostError, GivenUpError
from nas.executors.remote.protocol import (
    Message,
    assignment_from_wire,
    event_to_wire,
    job_start_from_wire,
    trial_from_wire,
)

GRACE_S = 5.0
"""How long a trial may take to end where its worker leaves: at its next report, or, in a process, killed after 2 s."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a worker ends.

    Attributes:
        status: The exit status.
        is_told: The driver need not be told.
        is_broken: It can't go on with what it was to do, and others may not, either; nobody asked it to leave.
    """

    why: str
    status: int
    is_told: bool = False
    is_broken: bool = False


class Agent:
    """One worker; it runs one trial at a time.

    Args:
        client: Has joined.
        pool: Where trials run; it is closed in the end.
        check: Called with the number of a trial before the first order is carried out.
            Raises ConfigurationError where this worker does not see the driver's records.
    """

    def __init__(
        self, client: ChannelClient, pool: WorkerPool, check: Callable[[int], None] = lambda number: None
    ) -> None:
        self._client = client
        self._pool = pool
        self._check: Callable[[int], None] | None = check
        self._inbox: queue.SimpleQueue[Message | Ending] = queue.SimpleQueue()
        self._running: Trial | None = None
        self._work: threading.Thread | None = None
        self._answer: tuple[int, int, Callable[[bool], None]] | None = None
        self._is_leaving = False
        self._is_cut_off = False
        self._listener = threading.Thread(target=self._listen, name="heirloom-listen", daemon=True)

    def end(self, ending: Ending) -> None:
        """Ends ``serve``; any thread and a signal handler may call it."""
        self._inbox.put(ending)

    def serve(self) -> Ending:
        """Carries out orders until the driver says that it is over, or is gone, or ``end`` is called."""
        self._listener.start()
        while True:
            message = self._inbox.get()
            if isinstance(message, Ending):
                return self._leave(message)
            try:
                self._carry_out(message)
            except Exception as error:
                self.end(Ending(_nonsense(error), 1, is_broken=True))

    def _listen(self) -> None:
        while not self._is_leaving:
            try:
                messages = self._client.listen()
            except Exception as error:  # whatever it is: without a listener this would be a worker that hears nothing
                self._cut_off(error)
                return
            for message in messages:
                self._inbox.put(message)
            if any(message.get("do") == "leave" for message in messages):
                self._client.confirm()
                return

    def _carry_out(self, message: Message) -> None:
        fields = dict(message)
        match fields.pop("do", None):
            case "run":
                assignment = assignment_from_wire(fields.get("assignment"))
                self._running = trial = assignment.trial
                self._begin(trial.number, lambda: self._post(run_attempt(self._pool, assignment, self._post)))
            case "resume":
                job_start = job_start_from_wire(fields.get("stay"))
                self._begin(job_start.job, lambda: resume_job(self._pool, job_start, self._post))
            case "test" | "export" as action:
                trial = trial_from_wire(fields.get("trial"))
                self._begin(trial.number, lambda: self._call(action, trial))
            case "dismiss":
                self._pool.dismiss(checked_int(fields.get("job"), "job"))
            case "stop":
                kind, running = fields.get("kind"), self._running
                if kind in get_args(StopKind) and running is not None and running.number == fields.get("trial"):
                    self._pool.stop(running, cast("StopKind", kind))
            case "verdict":
                checked = checked_fields(fields, {"trial": (int,), "step": (int,), "stop": (bool,)})
                if self._answer is not None and self._answer[:2] == (checked["trial"], checked["step"]):
                    self._answer[2](checked["stop"])
            case "leave":
                self.end(Ending(str(fields.get("why"))[:1000], 0, is_told=True))
            case other:
                raise CorruptError(f"an order to {short_repr(other)}")

    def _begin(self, number: int, work: Callable[[], None]) -> None:
        """Does the work on a thread of its own, once this worker was seen to share the driver's records."""

        def body() -> None:
            try:
                if self._check is not None:
                    self._check(number)
                    self._check = None
            except BaseException as error:
                self._post(ExecutorFailed(error))
            else:
                work()

        self._work = threading.Thread(target=body, name="heirloom-work", daemon=True)
        self._work.start()

    def _call(self, action: Action, trial: Trial) -> None:
        try:
            answer = dict(self._pool.call(action, trial))
        except ActionError as error:
            self._say({"is": "refused", "error": str(error)})
        except BaseException as error:
            self._post(ExecutorFailed(error))
        else:
            self._say({"is": "answered", "answer": answer})

    def _post(self, event: Event) -> None:
        """Tells the driver; what breaks a session on one machine makes a worker leave."""
        if isinstance(event, ExecutorFailed):
            status = 2 if isinstance(event.error, ConfigurationError) else 1
            self.end(Ending(str(event.error) or type(event.error).__name__, status, is_broken=True))
            return
        if isinstance(event, Notice):  # the trial's warnings hold it too
            return
        if isinstance(event, Finished | TrialLost):
            self._running = None
        if (
            isinstance(event, TrialLost) and self._is_leaving
        ):  # the driver learns that the worker has left, not its trial
            return
        if isinstance(event, Reported) and event.answer is not None:
            self._answer = (event.trial, event.step, event.answer)
        self._say(event_to_wire(event))

    def _say(self, message: Message) -> None:
        if self._is_cut_off:
            return
        try:
            self._client.say(message)
        except HeirloomError as error:
            self._cut_off(error)

    def _cut_off(self, error: Exception) -> None:
        """Ends what runs here: nobody wants it any more."""
        if self._is_cut_off or self._is_leaving:
            return
        self._is_cut_off = True
        if isinstance(error, DriverLostError):
            self.end(Ending(str(error), 0, is_told=True))
        elif isinstance(error, GivenUpError):
            self.end(Ending(f"the driver has given this worker up: {error}", 1, is_told=True))
        elif isinstance(error, HeirloomError) and not isinstance(error, CorruptError):
            self.end(Ending(str(error), 2 if isinstance(error, ConfigurationError) else 1, is_told=True))
        else:
            self.end(Ending(_nonsense(error), 1, is_told=True))

    def _leave(self, ending: Ending) -> Ending:
        self._is_leaving = True
        if ending.is_told:
            self._is_cut_off = True
            self._client.give_up()
        if self._running is not None:
            self._pool.stop(self._running, "interrupt")
        if self._work is not None:
            self._work.join(GRACE_S)
        if not ending.is_told:
            self._client.retry_s = min(self._client.retry_s, GRACE_S)
            self._say({"is": "leaving", "why": ending.why, "broke": ending.is_broken})
        self._is_cut_off = True
        self._pool.close()
        self._listener.join(GRACE_S)
        if not self._listener.is_alive():
            self._client.close()
        return ending


def _nonsense(error: Exception) -> str:
    what = str(error) if isinstance(error, HeirloomError) else f"{type(error).__name__}: {error}"
    return f"the driver said what makes no sense: {what}"
