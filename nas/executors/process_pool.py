"""Warm worker processes: one a slot, spawned once, killed when a trial must end, and replaced.

On the standard library's ``multiprocessing`` (docs/decisions/002): slots are addressed one by one, each has a two-way
pipe of its own that dies with its process (a message torn by a kill can't outlive it), and reports and stops need it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from nas.core.errors import ActionError, HeirloomError, StorageError
from nas.core.trial import Reason, Trial, training_cost
from nas.executors.events import (
    Action,
    Event,
    ExecutorFailed,
    ExtraResult,
    JobLeftWorker,
    Reported,
    Started,
    StopKind,
    TrialRequested,
)
from nas.executors.pool import WorkerLostError, WorkerPool
from nas.executors.worker_process import IGNORED, Stop, worker_main
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.resume_points import PartialCheckpoints
from nas.storage.trial_log import MAX_LOG_BYTES, log_path
from nas.training.messages import Assignment, JobStart, RuntimeSpec

logger = logging.getLogger(__name__)
INTERRUPT_GRACE_S = 2.0
OVERDUE = "the hours were spent"


class WarmWorker:
    """One slot's process, on the driver's side. One thread at a time runs an attempt; any thread may stop it."""

    def __init__(
        self, spec: RuntimeSpec, environment: Mapping[str, str], spawner: ThreadPoolExecutor, log: Path
    ) -> None:
        self._spec = spec
        self._environment = environment
        self._spawner = spawner
        self._log = log
        self._process: multiprocessing.process.BaseProcess | None = None
        self._connection: Connection | None = None
        self._send_lock = threading.Lock()
        self._running: Trial | None = None
        self._told: set[StopKind] = set()
        self._is_used = False
        self._booting_for: int | None = None
        self._killed_for: str | None = None
        self._is_closed = False
        self.job: int | None = None
        """The job that stays there."""
        self._post: Callable[[Event], None] | None = None

    def run(self, assignment: Assignment, post: Callable[[Event], None], timeout_s: float | None) -> Trial | None:
        """Runs an attempt; see ``WorkerPool.run``. Past ``timeout_s`` the worker is killed and the trial FAILED."""
        trial = assignment.trial
        self._killed_for = None
        self._booting_for = trial.number
        try:
            self._ensure()
        finally:
            self._booting_for = None
        with self._used(log_path(trial.number)):
            self._told = set()
            try:
                begins = self._spec.jobs_ask and self.job != trial.job
                self._send(("stay", JobStart.of(assignment)) if begins else ("run", assignment))
                self._running = trial  # what it is told from here on arrives after it
                self.job = None  # unless the trial ends, and not its process
                result = self._attend(trial, post, timeout_s)
            finally:
                self._running = None
        if self._spec.jobs_ask:
            self._attend_job(trial.job, post)
        return result

    def resume(self, job_start: JobStart, post: Callable[[Event], None]) -> None:
        """Lets a job begin without a trial; see ``WorkerPool.resume``."""
        self._killed_for = None
        self._ensure()
        self._send(("stay", job_start))
        self._attend_job(job_start.job, post)

    def dismiss(self, job: int) -> None:
        """Tells the job, if it waits here, that there are no more trials."""
        if self.job == job and self._post is not None:
            self._send(("dismiss", None))
            self._attend_job(job, self._post)

    def _attend_job(self, job: int, post: Callable[[Event], None]) -> None:
        """Takes in, on a thread of its own, what a job does between two trials: it asks or leaves."""
        self.job, self._post = job, post
        self._is_used = True
        threading.Thread(target=self._take_in_job, args=(job, post), name="heirloom-job", daemon=True).start()

    def _take_in_job(self, job: int, post: Callable[[Event], None]) -> None:
        event: Event
        try:
            kind, content = self._receive(None) or ("", None)
            while isinstance(content, ExtraResult):
                post(content)
                kind, content = self._receive(None) or ("", None)
            if kind == "left":
                self.job = None
                self._store_log(log_path(job, "job"))
                event = JobLeftWorker(job, content)
            elif kind == "asked":
                event = TrialRequested(job)
            else:
                event = ExecutorFailed(StorageError(content) if kind == "store" else RuntimeError(content), job)
        except WorkerLostError as error:
            self.job = None
            event = JobLeftWorker(job, lost=str(error))
        except BaseException as error:
            event = ExecutorFailed(error, job)
        self._is_used = False
        post(event)

    def _attend(self, trial: Trial, post: Callable[[Event], None], timeout_s: float | None) -> Trial | None:
        """Takes in what the attempt says, until it ends."""
        curve: list[tuple[int, Mapping[str, float]]] = []
        declared: Mapping[str, float] = {}
        began: float | None = None
        while True:
            left = None if timeout_s is None or began is None else began + timeout_s - time.monotonic()
            try:
                message = self._receive(left)
            except WorkerLostError:
                if self._killed_for != OVERDUE or began is None:
                    raise
                return self._overdue(trial, declared, curve, time.monotonic() - began)
            if message is None:
                return self._timed_out(trial, curve, timeout_s or 0.0)
            kind, content = message
            if kind == "started":
                began = time.monotonic()
                post(Started(trial.number, trial.attempt, trial.slot or 0))
            elif kind == "static_metrics":
                known, declared = content
                trial = replace(trial, static_metrics=known)
            elif kind == "reported":
                curve.append(content)
                answer = self._send if self._spec.asks_stopper else None
                post(Reported(trial.number, content[0], content[1], answer))
            elif kind == "resumed":
                curve += content
                for step, metrics in content:
                    post(Reported(trial.number, step, metrics))
            else:
                result = self._outcome(kind, content)
                return result if result is None or isinstance(result, Trial) else None

    def call(self, action: Action, trial: Trial) -> Mapping[str, Any]:
        """Tests or exports; see ``WorkerPool.call``."""
        try:
            self._ensure()
            self._killed_for = None
            with self._used(log_path(trial.number, action)):
                self._send((action, trial))
                kind, content = self._receive(None) or ("", None)
        except WorkerLostError as error:
            raise ActionError(f"{action} of trial {trial.number}: {error}") from error
        if kind == "error":
            raise ActionError(content)
        answer: Mapping[str, Any] = self._outcome(kind, content)
        return answer

    def stop(self, trial: Trial, kind: StopKind) -> None:
        """Tells the attempt once, or kills it; one that is interrupted and has not ended after 2 s is killed.

        May be called again and again, as the attempt may not have been there yet: what it does not read fills no pipe.
        """
        running = self._running  # not the loop's trial, which has gathered reports since
        if kind in ("interrupt", "kill") and self._booting_for == trial.number:
            self._kill("interrupted")
        if running is None or running.number != trial.number:
            return
        if kind == "kill":
            self._kill(OVERDUE)
            return
        if kind in self._told:
            return
        self._told.add(kind)
        self._send(Stop(trial.number, kind))
        if kind == "interrupt":
            timer = threading.Timer(INTERRUPT_GRACE_S, self._kill_if_running, [running, "interrupted"])
            timer.daemon = True
            timer.start()

    def close(self) -> None:
        """Ends the process, for good."""
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        """Ends the process: by closing its pipe, and for certain by a kill."""
        process = self._process
        if process is None:
            return
        if self._is_used:
            process.kill()
            for _ in range(500):  # until the thread that uses it has noticed: it waits at the pipe, and for the process
                if not self._is_used:
                    break
                time.sleep(0.01)
        if self._connection is not None:
            self._connection.close()
        process.join(2.0)
        if process.is_alive():
            process.kill()
            process.join()
        elif process.exitcode == 1 and self._log.exists() and (lines := self._log.read_bytes().splitlines()):
            logger.warning("a worker, as it ended: %s", lines[-1].decode(errors="replace"))
        process.close()
        self._process = self._connection = None

    def _ensure(self) -> None:
        if self._process is not None and self._process.is_alive():
            return
        self._end()
        self._spawner.submit(self._spawn).result()
        if self._is_closed:  # meanwhile
            self._end()
        self.job = None
        kind, content = self._receive(None) or ("", None)
        self._log.write_bytes(b"")
        if kind == "unbuildable":
            self._end()
            raise (
                content
                if isinstance(content, HeirloomError)
                else RuntimeError(f"the problem can't be built:\n{content}")
            )

    def _spawn(self) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        arguments = (theirs, self._spec, self._environment, os.getpid(), str(self._log))
        process = context.Process(target=worker_main, args=arguments, name="heirloom-worker", daemon=True)
        resource_tracker.ensure_running()  # else its start would unblock the signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, IGNORED)  # inherited, until the worker ignores them
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._process, self._connection = process, ours

    def _send(self, message: object) -> None:
        with self._send_lock:
            if self._connection is not None:
                try:
                    self._connection.send(message)
                except OSError:
                    return  # the process is gone: whoever receives from it learns that

    def _receive(self, timeout_s: float | None) -> tuple[str, Any] | None:
        """Returns the next message, or None past the timeout.

        Raises:
            WorkerLostError: the process ended; that counts unless it was killed from here.
        """
        process, connection = self._process, self._connection
        if process is None or connection is None:
            raise WorkerLostError("the worker was closed")
        ready = wait([connection, process.sentinel], None if timeout_s is None else max(0.0, timeout_s))
        if not ready:
            return None
        if connection in ready:
            try:
                return connection.recv()  # type: ignore[no-any-return]
            except (EOFError, OSError):
                pass
        process.join(5.0)  # its pipes close a moment before the system says how it ended
        raise WorkerLostError(self._killed_for or _describe_exit(process.exitcode), counts=self._killed_for is None)

    def _outcome(self, kind: str, content: Any) -> Any:
        if kind == "done":
            return content
        if kind == "store":
            raise StorageError(content)
        raise RuntimeError(content)

    def _timed_out(self, trial: Trial, curve: list[tuple[int, Mapping[str, float]]], timeout_s: float) -> Trial:
        """Kills the worker; the trial is FAILED."""
        self._kill("timeout")
        error = f"ran past trial_timeout_s ({timeout_s:g} s) and was killed"
        return self._commit_killed(trial.fail(Reason.TIMEOUT, error), curve, timeout_s)

    def _overdue(
        self,
        trial: Trial,
        declared: Mapping[str, float],
        curve: list[tuple[int, Mapping[str, float]]],
        seconds: float,
    ) -> Trial:
        """Returns the trial, killed at the deadline: STOPPED with what it has reported, without weights."""
        return self._commit_killed(trial.stop(Reason.DEADLINE, curve, declared), curve, seconds)

    def _commit_killed(self, trial: Trial, curve: list[tuple[int, Mapping[str, float]]], seconds: float) -> Trial:
        """Commits a trial whose worker was killed, or gives its result where it was durable already."""
        now = time.time()
        cost = training_cost(seconds, on_gpu=self._spec.device == "cuda")
        killed = replace(trial, started=now - seconds).finish(now, cost=cost, curve=curve)
        files = open_root(self._spec.url, self._spec.options)
        committed = Records(files).commit(killed)
        PartialCheckpoints(files, trial.number).sweep()
        return committed

    def _kill_if_running(self, trial: Trial, why: str) -> None:
        if self._running is trial:
            self._kill(why)

    def _kill(self, why: str) -> None:
        self._killed_for = why
        if self._process is not None:
            self._process.kill()
            self._process.join(5.0)

    @contextmanager
    def _used(self, log: str) -> Iterator[None]:
        """Meanwhile a thread uses the process; afterwards what was printed is stored."""
        self._is_used = True
        try:
            yield
        finally:
            try:
                self._store_log(log)
            finally:
                self._is_used = False

    def _store_log(self, path: str) -> None:
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - MAX_LOG_BYTES))
            text = file.read()
        if text:
            self._log.write_bytes(b"")
            open_root(self._spec.url, self._spec.options).put(path, text)


def visible_gpu(index: int, environment: Mapping[str, str]) -> str:
    """What ``CUDA_VISIBLE_DEVICES`` says to see only the GPU that this process counts as ``index``.

    Slurm and containers set the variable: torch counts within its list, which may hold other numbers, or UUIDs.
    """
    listed = [name.strip() for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return listed[index] if index < len(listed) else str(index)


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its worker was killed by {signal.Signals(-code).name}"
    return f"its worker ended with exit status {code}"


class ProcessPool(WorkerPool):
    """One warm worker process a slot. Trials can be killed, and a crash ends a trial, never the search.

    Args:
        spec: What each worker builds.
        slots: How many workers; each is spawned when its first trial comes.
        gpus: Slot i sees only GPU ``gpus[i % len(gpus)]``; empty: whatever the driver sees.
        trial_timeout_s: A trial that runs longer is killed and FAILED.
    """

    def __init__(
        self, spec: RuntimeSpec, slots: int, *, gpus: tuple[int, ...] = (), trial_timeout_s: float | None = None
    ) -> None:
        self._timeout_s = trial_timeout_s
        self._logs = tempfile.TemporaryDirectory(prefix="heirloom-logs-")
        # A thread of its own, because PR_SET_PDEATHSIG fires when the *thread* that started a process ends.
        self._spawner = ThreadPoolExecutor(1, thread_name_prefix="heirloom-spawner")
        self._workers: list[WarmWorker] = []
        for slot in range(slots):
            threads = str(spec.n_threads)
            environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
            if gpus:
                environment["CUDA_VISIBLE_DEVICES"] = visible_gpu(gpus[slot % len(gpus)], os.environ)
            log = Path(self._logs.name) / f"slot-{slot}.log"
            self._workers.append(WarmWorker(spec, environment, self._spawner, log))

    def run(self, assignment: Assignment, post: Callable[[Event], None]) -> Trial | None:
        """Runs the attempt on the worker of its slot."""
        return self._worker_of(assignment.trial.slot).run(assignment, post, self._timeout_s)

    def hosts(self, job: int) -> bool:
        """Returns whether it stays on a worker."""
        return any(worker.job == job for worker in self._workers)

    def resume(self, job_start: JobStart, post: Callable[[Event], None]) -> None:
        """Lets the job begin on the worker of its slot."""
        self._worker_of(job_start.slot).resume(job_start, post)

    def dismiss(self, job: int) -> None:
        """Tells the worker where the job waits."""
        for worker in self._workers:
            worker.dismiss(job)

    def stop(self, trial: Trial, kind: StopKind) -> None:
        """Tells the worker of the trial's slot."""
        self._worker_of(trial.slot).stop(trial, kind)

    def call(self, action: Action, trial: Trial) -> Mapping[str, Any]:
        """Tests or exports on the first slot's worker."""
        return self._workers[0].call(action, trial)

    def _worker_of(self, slot: int | None) -> WarmWorker:
        return self._workers[(slot or 0) % len(self._workers)]

    def close(self) -> None:
        """Ends all workers."""
        for worker in self._workers:
            worker.close()
        self._spawner.shutdown()
        self._logs.cleanup()
