"""Workers that are no children of the driver: on other machines, in Slurm's steps. They come to it over HTTP.

A worker takes any trial: slots only say how many trials there may be at a time. A trial that finds no worker waits for
one; a worker that finds no trial waits too. Where a job stays, it stays on its worker.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nas.core.errors import ActionError, SearchFailedError
from nas.core.trial import Trial
from nas.core.validation import check_int, checked_fields, checked_int
from nas.executors.events import (
    Action,
    Event,
    ExtraResult,
    Finished,
    JobLeftWorker,
    Reported,
    Started,
    StopKind,
    TrialLost,
    TrialRequested,
    WorkersBusy,
)
from nas.executors.pool import WorkerLostError, WorkerPool
from nas.executors.remote.protocol import Message, assignment_to_wire, event_from_wire, job_start_to_wire, trial_to_wire
from nas.executors.remote.server import ChannelServer, Outbox, RefusedError, listening_socket
from nas.training.messages import Assignment, JobStart, RuntimeSpec

POLL_S = 5.0
"""How long a worker's question is left open where there is nothing to tell it."""
WATCH_S = 0.5
READY_S = 600.0
"""How long a worker may take to look at what it is to run, on a slow disk."""
CROWDED_S = 1.0
"""How long a job may wait on a worker that others need, before the loop is told: it may have an answer on its way."""
FAREWELL_S = 2.0
CALLS = 3
"""How many workers a test or an export may lose."""
BROKEN = 3
"""How many workers one trial may break before the search ends: the cause is not any one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Where workers come in, and what they must be like.

    Attributes:
        host: The address that the driver listens at.
        port: 0: any that is free.
        token: What a worker must bring.
        version: Heirloom's; a worker must have the same.
        lost_after_s: Driver and worker give one another up when nothing was heard for so long.
        device: What every worker must train on, or None: each on what it has.
        n_threads: Torch threads that every worker must use, or None: as many as each has cores.
    """

    token: str = field(repr=False)
    version: str
    host: str = "127.0.0.1"
    port: int = 0
    lost_after_s: float = 30.0
    device: str | None = None
    n_threads: int | None = None

    def check(self) -> None:
        """Makes sure, before anything is written, that one can listen there.

        Raises:
            ConfigurationError: one can't.
        """
        listening_socket(self.host, self.port).close()


class _Order:
    """What one worker is to do: a trial, a job's stay without one, a test or an export."""

    def __init__(
        self,
        message: Message,
        post: Callable[[Event], None] = lambda event: None,
        *,
        job: int | None = None,
        trial: int | None = None,
    ) -> None:
        self.message = message
        self.post = post
        self.job = job
        self.trial = trial
        self._ended = threading.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def end(self, result: Any = None, error: BaseException | None = None) -> None:
        self._result, self._error = result, error
        self._ended.set()

    def wait(self) -> Any:
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._result


class _Worker:
    """A worker as the driver sees it."""

    def __init__(self, name: str, outbox: Outbox) -> None:
        self.name = name
        self.outbox = outbox
        self.is_ready = False
        """Whether it listens: it has looked at what it is to run, and wants to."""
        self.n_heard = 0
        self.heard_at = time.monotonic()
        self.order: _Order | None = None
        self.job: int | None = None
        """The job that stays there, from its first trial there until it leaves."""
        self.post: Callable[[Event], None] = lambda event: None
        self.asked_at: float | None = None
        """Since when its job waits for an answer."""

    @property
    def is_free(self) -> bool:
        return self.is_ready and self.order is None and self.job is None


class RemotePool(WorkerPool):
    """Executes attempts on workers that come over HTTP (``flows.worker``); they may come late, leave and be lost.

    Args:
        spec: Of the search; its ``url`` and ``options`` do not travel, each worker has its own.
        name: The search's.
        gate: Where workers come in.
        slots: How many trials there may be at a time; for people.
        trial_timeout_s: A trial that runs longer is killed and FAILED.
        note: Takes a line for a person: a worker has joined, or has left, and why.
        show_wait: Takes what all trials wait for, or None: they don't.

    Raises:
        ConfigurationError: it can't listen there.
    """

    def __init__(
        self,
        spec: RuntimeSpec,
        name: str,
        gate: Gate,
        *,
        slots: int = 1,
        trial_timeout_s: float | None = None,
        note: Callable[[str], None] = lambda line: None,
        show_wait: Callable[[str | None], None] = lambda what: None,
    ) -> None:
        check_int("slots", slots, 1)
        self._spec = spec
        self._name = name
        self._gate = gate
        self._slots = slots
        self._timeout_s = trial_timeout_s
        self._note = note
        self._show_wait = show_wait
        self._lock = threading.RLock()
        self._workers: dict[str, _Worker] = {}
        self._given_up: dict[str, str] = {}
        self._homeless: dict[int, Callable[[Event], None]] = {}
        """Jobs that wait for an answer, and whose worker is gone; with whom they speak."""
        self._queue: deque[_Order] = deque()
        self._n_broken: Counter[int] = Counter()
        """By trial, how many workers left as they could not go on with it."""
        self._is_closed = threading.Event()
        self._poll_s = min(POLL_S, gate.lost_after_s / 3)
        self._server = ChannelServer(gate.host, gate.port, gate.token)
        self._server.start({"/join": self._join, "/say": self._say, "/listen": self._listen})
        self._show_wait("a worker to join")
        threading.Thread(target=self._watch, name="heirloom-channel-watch", daemon=True).start()

    @property
    def port(self) -> int:
        """Where workers find the driver."""
        return self._server.port

    # ---- what the driver wants

    def run(self, assignment: Assignment, post: Callable[[Event], None]) -> Trial | None:
        """Runs the attempt on the worker where its job stays, or on the next that is free."""
        trial = assignment.trial
        message = {"do": "run", "assignment": assignment_to_wire(assignment)}
        order = _Order(message, post, job=trial.job, trial=trial.number)
        with self._lock:
            host = self._host_of(trial.job)
            self._homeless.pop(trial.job, None)
            self._enqueue(order) if host is None else self._hand(host, order)
        found: Trial | None = order.wait()
        return found

    def has_job(self, job: int) -> bool:
        """Whether it stays on a worker."""
        with self._lock:
            return self._host_of(job) is not None

    def resume(self, job_start: JobStart, post: Callable[[Event], None]) -> None:
        """Lets the job begin on the next worker that is free."""
        with self._lock:
            self._enqueue(_Order({"do": "resume", "stay": job_start_to_wire(job_start)}, post, job=job_start.job))

    def dismiss(self, job: int) -> None:
        """Tells the worker where the job waits; where that is gone, the job has left."""
        with self._lock:
            if (worker := self._host_of(job)) is not None:
                worker.asked_at = None
                worker.outbox.put({"do": "dismiss", "job": job})
            elif (post := self._homeless.pop(job, None)) is not None:
                post(JobLeftWorker(job))

    def stop(self, trial: Trial, kind: StopKind) -> None:
        """Tells the worker that runs the trial; one that still waits for a worker is taken back."""
        with self._lock:
            waiting = next((order for order in self._queue if order.trial == trial.number), None)
            if waiting is not None and kind != "stop":
                self._queue.remove(waiting)
                waiting.end()
            for worker in self._workers.values():
                if worker.order is not None and worker.order.trial == trial.number:
                    worker.outbox.put({"do": "stop", "trial": trial.number, "kind": kind})

    def call(self, action: Action, trial: Trial) -> Mapping[str, Any]:
        """Tests or exports on the next worker that is free, and on another where that one is lost."""
        for n_left in reversed(range(CALLS)):
            order = _Order({"do": action, "trial": trial_to_wire(trial)})
            with self._lock:
                self._enqueue(order)
            try:
                answer: Mapping[str, Any] = order.wait()
                return answer
            except WorkerLostError as error:
                if not n_left or self._is_closed.is_set():
                    raise ActionError(f"{action} of trial {trial.number}: {error}") from error
        raise AssertionError("the last call returns or raises")

    def close(self) -> None:
        """Tells all workers that the session has ended; they leave by themselves."""
        with self._lock:
            if self._is_closed.is_set():
                return
            self._is_closed.set()
            workers = list(self._workers.values())
            for worker in workers:
                worker.outbox.put({"do": "leave", "why": "the driver has ended the session"})
            for order in self._queue:
                order.end(error=WorkerLostError("the session has ended"))
            self._queue.clear()
        until_s = time.monotonic() + FAREWELL_S
        for worker in (worker for worker in workers if worker.is_ready):
            worker.outbox.has_delivered.wait(max(0.0, until_s - time.monotonic()))
        self._server.close()
        with self._lock:
            for worker in self._workers.values():
                if worker.order is not None:
                    worker.order.end(error=WorkerLostError("the session has ended"))
            self._workers.clear()

    # ---- who does what; with the lock held

    def _host_of(self, job: int) -> _Worker | None:
        return next((worker for worker in self._workers.values() if worker.job == job), None)

    def _enqueue(self, order: _Order) -> None:
        if self._is_closed.is_set():
            order.end(error=WorkerLostError("the session has ended"))
            return
        self._queue.append(order)
        self._dispatch()

    def _dispatch(self) -> None:
        """Gives the orders that wait, the oldest first, to workers that are free."""
        for worker in self._workers.values():
            if not self._queue:
                return
            if worker.is_free:
                self._hand(worker, self._queue.popleft())

    def _hand(self, worker: _Worker, order: _Order) -> None:
        worker.asked_at = None
        if order.trial is not None or order.job is None:
            worker.order = order
        if self._spec.jobs_request_trials and order.job is not None:
            worker.job, worker.post = order.job, order.post
        worker.outbox.put(order.message)

    def _drop(self, key: str, why: str, *, counts: bool, is_broken: bool = False) -> None:
        """Lets a worker go; what it did is done again elsewhere.

        Args:
            key: Its id.
            why: For people.
            counts: It was lost, and has not left by itself: the trial may have had to do with it.
            is_broken: It left as it can't go on.
        """
        worker = self._workers.pop(key)
        worker.outbox.ring()
        self._given_up[key] = why
        if not worker.is_ready:
            return
        self._note(f"worker {worker.name} {'was lost' if counts else 'left'}: {why}; {self._census()}")
        if not any(other.is_ready for other in self._workers.values()):
            self._show_wait("a worker to join: the last one left")
        lost = f"its worker {worker.name} {'was lost' if counts else 'left'}: {why}"
        if worker.order is not None:
            worker.order.end(error=self._failure(worker, why, is_broken) or WorkerLostError(lost, counts=counts))
        elif worker.job is not None and worker.asked_at is None:
            worker.post(JobLeftWorker(worker.job, lost=lost))
        elif worker.job is not None:
            # Not told: the answer may be on its way, and would begin a stay that the loop took for the lost one.
            self._homeless[worker.job] = worker.post

    def _failure(self, worker: _Worker, why: str, is_broken: bool) -> SearchFailedError | None:
        """What ends the search, where as many workers broke over the same trial as may."""
        number = None if worker.order is None else worker.order.trial
        if number is None or not is_broken:
            return None
        self._n_broken[number] += 1
        if self._n_broken[number] < BROKEN:
            return None
        return SearchFailedError(
            f"trial {number}: {BROKEN} workers in turn could not go on with it; the last, {worker.name}: {why}"
        )

    def _census(self) -> str:
        n = sum(worker.is_ready for worker in self._workers.values())
        return f"{n} worker{'s' * (n != 1)} for {self._slots} slot{'s' * (self._slots != 1)}"

    # ---- what workers say; on the server's thread

    async def _join(self, greeting: Message) -> Message:
        kinds = {"worker": (str,), "version": (str,), "host": (str,), "pid": (int,)}
        fields = checked_fields(greeting, kinds)
        key, gate, spec = fields["worker"], self._gate, self._spec
        if fields["version"] != gate.version:
            raise RefusedError(
                409, f"this driver is Heirloom {gate.version}, the worker is {fields['version']}: install the same"
            )
        with self._lock:
            if self._is_closed.is_set():
                raise RefusedError(410, "the driver has ended the session")
            if key not in self._workers and key not in self._given_up:
                name = f"{fields['host'][:100]} (pid {fields['pid']})"
                self._workers[key] = _Worker(name, Outbox(self._server.loop))
        return {
            "search": self._name,
            "problem": spec.problem.to_json(),
            "session": spec.session,
            "has_stopper": spec.has_stopper,
            "jobs_request_trials": spec.jobs_request_trials,
            "resume_every_s": spec.resume_every_s,
            "trial_timeout_s": self._timeout_s,
            "device": gate.device,
            "n_threads": gate.n_threads,
            "code": dict(spec.code),
            "lost_after_s": gate.lost_after_s,
            "poll_s": self._poll_s,
        }

    def _known(self, body: Message) -> _Worker:
        key = body.get("worker")
        worker = self._workers.get(key) if isinstance(key, str) else None
        if worker is None:
            raise RefusedError(410, self._given_up.get(str(key), "the driver does not know this worker"))
        worker.heard_at = time.monotonic()
        return worker

    async def _listen(self, body: Message) -> Message:
        with self._lock:
            worker = self._known(body)
            if not worker.is_ready:
                worker.is_ready = True
                self._note(f"worker {worker.name} joined; {self._census()}")
                self._show_wait(None)
                self._dispatch()
        after = checked_int(body.get("after"), "after")
        messages = await worker.outbox.after(after, 0.0 if self._is_closed.is_set() else self._poll_s)
        return {"messages": messages}

    async def _say(self, body: Message) -> Message:
        """Takes in a message, once."""
        kinds = {"worker": (str,), "number": (int,), "message": (dict,)}
        fields = checked_fields(body, kinds)
        with self._lock:
            worker = self._known(fields)
            number = checked_int(fields["number"], "number", 1)
            if number > worker.n_heard + 1:
                raise RefusedError(400, f"message {number} came before message {worker.n_heard + 1}")
            if number == worker.n_heard + 1:
                self._take(fields["worker"], worker, fields["message"])
                worker.n_heard = number
        return {}

    def _take(self, key: str, worker: _Worker, message: Message) -> None:
        order = worker.order
        match message.get("is"):
            case "leaving":
                fields = checked_fields(message, {"is": (str,), "why": (str,), "broke": (bool,)})
                self._drop(key, fields["why"][:1000], counts=False, is_broken=fields["broke"])
                return
            case "answered" if order is not None and order.trial is None:
                answer = checked_fields(message, {"is": (str,), "answer": (dict,)})["answer"]
                self._end(worker, None, answer)
                return
            case "refused" if order is not None and order.trial is None:
                why = checked_fields(message, {"is": (str,), "error": (str,)})["error"]
                self._end(worker, None, error=ActionError(why))
                return
        event = event_from_wire(message)
        match event:
            case Started(trial=number) | Reported(trial=number):
                if order is not None and order.trial == number:
                    order.post(self._answerable(worker, event) if message.get("asks") else event)
            case ExtraResult():
                worker.post(event)
            case Finished(trial=trial):
                self._end(worker, trial.number, trial)
            case TrialLost(trial=number, why=why, counts=counts):
                worker.job = None
                error = None if why == "interrupted" else WorkerLostError(f"{why} (on {worker.name})", counts=counts)
                self._end(worker, number, error=error)
            case TrialRequested(job=job) | JobLeftWorker(job=job) if job == worker.job:
                worker.asked_at = time.monotonic() if isinstance(event, TrialRequested) else None
                if isinstance(event, JobLeftWorker):
                    worker.job = None
                worker.post(event)
                self._dispatch()

    def _end(self, worker: _Worker, number: int | None, result: Any = None, error: BaseException | None = None) -> None:
        order = worker.order
        if order is not None and order.trial == number:
            worker.order = None
            order.end(result, error)
            self._dispatch()

    def _answerable(self, worker: _Worker, event: Event) -> Event:
        assert isinstance(event, Reported)

        def answer(stop: bool) -> None:
            worker.outbox.put({"do": "verdict", "trial": event.trial, "step": event.step, "stop": stop})

        return Reported(event.trial, event.step, event.metrics, answer)

    # ---- who has fallen silent

    def _watch(self) -> None:
        looked_at = time.monotonic()
        while not self._is_closed.wait(WATCH_S):
            now = time.monotonic()
            with self._lock:
                if now - looked_at > 4 * WATCH_S:  # this process stood still, and so did its ears
                    for worker in self._workers.values():
                        worker.heard_at += now - looked_at
                for key, worker in list(self._workers.items()):
                    retry_s = self._gate.lost_after_s if worker.is_ready else READY_S
                    if now - worker.heard_at > retry_s:
                        self._drop(key, f"not heard of for {retry_s:g} s", counts=True)
                self._tell_crowded(now)
            looked_at = now

    def _tell_crowded(self, now: float) -> None:
        """Tells the loop of orders that wait for a worker while jobs wait on workers, which only it can end."""
        workers = [worker for worker in self._workers.values() if worker.is_ready]
        if not self._queue or any(worker.is_free for worker in workers):
            return
        waiting = [w for w in workers if w.asked_at is not None and now - w.asked_at > CROWDED_S]
        if waiting:
            is_stuck = len(waiting) == len(workers)
            waiting[0].post(WorkersBusy(len(self._queue), is_stuck))
