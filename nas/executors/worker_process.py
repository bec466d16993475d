"""A worker process, as the driver sees it."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import spawn, util
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from nas.core.errors import ActionError, HeirloomError, StorageError
from nas.core.trial import Reason, Trial, training_cost
from nas.executors.event_queue import MAX_WAIT_S
from nas.executors.events import (
    Action,
    Event,
    ExecutorFailed,
    ExtraResult,
    JobLeftWorker,
    Notice,
    Reported,
    Resumed,
    Started,
    StopKind,
    TrialRequested,
)
from nas.executors.pool import OVERDUE, WorkerLostError
from nas.executors.supervised_process import KILL_TIMEOUT_S, SupervisedProcess
from nas.executors.worker_main import Stop
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.resume_points import ResumePoints
from nas.storage.trial_log import MAX_LOG_BYTES, log_path
from nas.training.messages import Assignment, JobStart, ProxyRequest, RuntimeSpec
from nas.training.temporary_folders import SLOT_FOLDER_VARIABLE

logger = logging.getLogger(__name__)
MAX_SLOT_LOG_BYTES = 16_000_000
"""The size at which the log of a running order is cut to its last ``MAX_LOG_BYTES``."""
CHECK_TIMEOUT_S = 60.0
"""Seconds that the check of the problem's ``export`` may take."""
EARLY_CHECK_TIMEOUT_S = 10.0
"""Seconds that the check of ``export`` before the first trial may take.

After that a trained network is checked.
"""
RESTART_FACTOR, RESTART_MIN_S = 3.0, 30.0
"""Limit of a start for a test or an export.

It is a multiple of the longest start before, at least the second value in seconds. The time budget may be over then.
"""
INTERRUPT_GRACE_S = 2.0
"""Seconds until an interrupted trial that has not ended is killed."""
END_TIMEOUT_S = 2.0
"""Seconds until a worker that was asked to end is killed."""
_PROGRAM = """
import sys
from multiprocessing import connection, spawn
connection = connection.Connection(int(sys.argv[1]))
preparation = connection.recv()
main = {name: preparation.pop(name) for name in [*preparation] if name.startswith("init_main")}
spawn.prepare(preparation)
from nas.executors.worker_main import worker_main
worker_main(connection, main)
"""
"""The program of a worker.

It takes over ``sys.path``, then the main module, as multiprocessing's spawn does.
"""


class WorkerProcess:
    """The worker process of one slot.

    One thread at a time runs an attempt; any thread may stop it.
    """

    def __init__(self, spec: RuntimeSpec, environment: Mapping[str, str], log: Path) -> None:
        self._spec = spec
        self._environment = environment
        self._log = log
        self._folder = log.with_suffix("")
        """Holds the worker's temporary folders."""
        self._log_lock = threading.Lock()
        self._process: SupervisedProcess | None = None
        self._connection: Connection | None = None
        self._send_lock = threading.Lock()
        self._running: Trial | None = None
        self._sent_stops: set[StopKind] = set()
        self._is_busy = False
        self._starting_for: int | None = None
        """The trial until its order is sent."""
        self._called: int | None = None
        """The trial whose candidates' proxies are computed, or which is tested or exported."""
        self._job_without_trial: int | None = None
        """The job that is started, or runs without a trial."""
        self._kill_reason: str | None = None
        self._checks_early = spec.checks_export
        self._longest_start_s: float | None = None
        self._unfit: str | None = None
        """Why the process must be replaced after its order."""
        self._told: set[str] = set()
        self._is_closed = False
        self.job: int | None = None
        """The job that is on this worker."""
        self._post: Callable[[Event], None] | None = None

    def run(self, assignment: Assignment, post: Callable[[Event], None], timeout_s: float | None) -> Trial | None:
        """Runs an attempt; see ``WorkerPool.run``. After ``timeout_s`` the worker is killed and the trial is FAILED."""
        trial = assignment.trial
        self._kill_reason = None
        self._starting_for = trial.number
        try:
            self._ensure_started()
            warning = self._check_export(trial)
            if warning is not None:
                post(Notice(warning))
            with self._busy(log_path(trial.number)):
                self._sent_stops = set()
                starts_job = self._spec.jobs_request_trials and self.job != trial.job
                self._send(("start_job", JobStart.of(assignment)) if starts_job else ("run", assignment))
                self._running = trial  # a stop sent from here on arrives after the order
                self._starting_for = None
                self.job = None  # set again if the trial ends and its process does not
                result = self._follow_trial(trial, post, timeout_s)
        finally:
            self._running = self._starting_for = None
        if self._spec.jobs_request_trials:
            self._watch_job(trial.job, post)
        else:
            self._clean_up()
        return result if result is None or warning is None else result.warn(warning)

    def _check_export(self, trial: Trial) -> str | None:
        """Checks the problem's ``export`` before this slot's first trial. Returns a warning or None.

        If that code ends the process or blocks it, another one starts, and only a trained network is checked.
        """
        if not self._checks_early or self._process is None or self.job is not None:
            return None
        self._checks_early = False
        self._send(("check_export", trial))
        try:
            kind, warning = self._receive(EARLY_CHECK_TIMEOUT_S) or ("", None)
        except WorkerLostError:
            if self._kill_reason is not None:
                raise
            kind = ""
        if kind == "done" and self._unfit is None:
            return None if warning is None else str(warning)
        self._process.kill()
        self._ensure_started()
        return None

    def resume(self, job_start: JobStart, post: Callable[[Event], None]) -> None:
        """Starts a job without a trial; see ``WorkerPool.resume``."""
        self._kill_reason, self._job_without_trial = None, job_start.job
        try:
            self._ensure_started()
            self._send(("start_job", job_start))
        except BaseException:
            self._job_without_trial = None
            raise
        self._watch_job(job_start.job, post)

    def dismiss(self, job: int) -> None:
        """Tells the job, if it is on this worker, that there are no more trials."""
        if self.job == job and self._post is not None:
            self._send(("dismiss", None))
            self._watch_job(job, self._post)

    def _watch_job(self, job: int, post: Callable[[Event], None]) -> None:
        """Waits, on a thread of its own, until the job requests a trial or leaves."""
        self.job = self._job_without_trial = job
        self._post = post
        self._is_busy = True
        threading.Thread(target=self._receive_job_event, args=(job, post), name="heirloom-job", daemon=True).start()

    def _receive_job_event(self, job: int, post: Callable[[Event], None]) -> None:
        event: Event
        try:
            kind, content = self._receive(None) or ("", None)
            while isinstance(content, ExtraResult):
                post(content)
                kind, content = self._receive(None) or ("", None)
            if kind == "job_left":
                self.job = None
                self._store_log(log_path(job, "job"))
                event = JobLeftWorker(job, content)
            elif kind == "trial_requested":
                if content and self._process is not None and self._process.order("sweep") != "swept":
                    self._process.kill()
                    raise WorkerLostError("processes that its trial started can't be ended", counts=False)
                event = TrialRequested(job)
            else:
                raise self._failure(kind, content)
        except WorkerLostError as error:
            self.job = None
            event = JobLeftWorker(job, lost=str(error), counts=error.counts)
        except BaseException as error:
            event = ExecutorFailed(error, job)
        self._is_busy, self._job_without_trial = False, None
        if isinstance(event, JobLeftWorker):
            self._clean_up()
        post(event)

    def _follow_trial(self, trial: Trial, post: Callable[[Event], None], timeout_s: float | None) -> Trial | None:
        """Posts the attempt's messages as events until it ends."""
        curve: list[tuple[int, Mapping[str, float]]] = []
        declared: Mapping[str, float] = {}
        began_s: float | None = None
        committed: Trial | None = None
        while True:
            left_s = None if timeout_s is None or began_s is None else began_s + timeout_s - time.monotonic()
            try:
                message = self._receive(left_s)
            except WorkerLostError as error:
                if committed is not None:
                    return self._end_check(committed, str(error)) if error.counts else committed
                if self._kill_reason != OVERDUE or began_s is None:
                    raise
                stopped = trial.stop(Reason.DEADLINE, curve, declared)  # with its last metrics, without weights
                return self._commit_killed(stopped, curve, time.monotonic() - began_s)
            if message is None and committed is not None:
                return self._end_check(committed, f"it ran past {CHECK_TIMEOUT_S:g} s and was killed")
            if message is None:
                return self._timed_out(trial, curve, timeout_s or 0.0)
            kind, content = message
            if kind == "started":
                began_s = time.monotonic()
                post(Started(trial.number, trial.attempt, trial.slot or 0))
            elif kind == "static_metrics":
                known, declared = content
                trial = replace(trial, static_metrics=known)
            elif kind == "reported":
                curve.append(content)
                answer = self._send if self._spec.has_stopper else None
                post(Reported(trial.number, content[0], dict(content[1]), answer))  # stoppers may change it
            elif kind == "committed":
                committed, began_s, timeout_s = content, time.monotonic(), CHECK_TIMEOUT_S
            elif kind == "resumed":
                reports, totals = content
                curve += reports
                trial = replace(trial, **totals)
                post(Resumed(trial.number, trial.cost))
                for step, metrics in reports:
                    post(Reported(trial.number, step, dict(metrics)))
            elif isinstance(content, ExtraResult):  # of an earlier trial of the job
                post(content)
            else:
                result = self._answer(kind, content)
                return result if result is None or isinstance(result, Trial) else None

    def call(self, action: Action, subject: Trial | ProxyRequest, timeout_s: float | None = None) -> Mapping[str, Any]:
        """Tests, exports or computes proxies; see ``WorkerPool.call``. After ``timeout_s`` the worker is killed."""
        self._kill_reason, self._called = None, subject.number
        try:
            self._ensure_started(self._restart_limit_s())
            with self._busy(log_path(subject.number, action)):
                self._send((action, subject))
                if (message := self._receive(timeout_s)) is None:
                    self._kill("timeout")
                    raise WorkerLostError(f"ran past trial_timeout_s ({timeout_s:g} s) and was killed")
                kind, content = message
        except WorkerLostError as error:
            raise ActionError(f"{action} of trial {subject.number}: {error}") from error
        finally:
            self._called = None
        self._clean_up()
        if kind == "error":
            raise ActionError(content)
        answer: Mapping[str, Any] = self._answer(kind, content)
        return answer

    def stop(self, subject: Trial | ProxyRequest, kind: StopKind) -> None:
        """Asks the attempt once to end, or kills what runs; see ``Executor.stop``.

        An interrupted attempt that has not ended after 2 s is killed.

        It may be called repeatedly, since the attempt may not have started yet. Each kind is sent once, so that
        unread messages do not fill the pipe.
        """
        if isinstance(subject, ProxyRequest):
            if kind == "kill" and self._called == subject.number:
                self._kill(OVERDUE)
            return
        running = self._running  # the caller's trial may be an older copy with fewer reports
        if kind in ("interrupt", "kill") and self._starting_for == subject.number:
            self._kill("interrupted")
        if kind == "kill" and self._job_without_trial == subject.job:
            self._kill(OVERDUE)
        if running is None or running.number != subject.number:
            return
        if kind == "kill":
            self._kill(OVERDUE)
            return
        if kind in self._sent_stops:
            return
        self._sent_stops.add(kind)
        self._send(Stop(subject.number, kind))
        if kind == "interrupt":
            timer = threading.Timer(INTERRUPT_GRACE_S, self._kill_if_running, [running, "interrupted"])
            timer.daemon = True
            timer.start()

    def shorten_log(self) -> None:
        """Cuts a long log to its end. What is written meanwhile may be lost."""
        with self._log_lock:
            if self._log.exists() and self._log.stat().st_size > MAX_SLOT_LOG_BYTES:
                text = self._end_of_log()
                self._log.write_bytes(b"")
                with self._log.open("ab") as file:  # the worker appends too
                    file.write(text)

    def ask_to_end(self) -> None:
        """Lets the process end, if it runs nothing. No other is started."""
        self._is_closed = True
        self._kill_reason = self._kill_reason or "interrupted"
        if self._connection is not None and not self._is_busy:
            self._connection.close()

    def close(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Ends the process. No other is started, and an attempt that still runs is interrupted."""
        self.ask_to_end()
        self._terminate(timeout_s)

    def _terminate(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Ends the process: closes its pipe, and kills it if it does not end in time."""
        process = self._process
        if process is None:
            return
        if self._is_busy:
            process.kill()
            for _ in range(500):  # until the thread that waits for its messages has noticed
                if not self._is_busy:
                    break
                time.sleep(0.01)
        if self._connection is not None:
            self._connection.close()
        has_ended = process.wait(0.0 if process.was_killed else timeout_s)
        if not has_ended and not process.was_killed:
            if self._is_closed:  # else a line says why it is replaced
                logger.warning("worker did not end in time and is killed: close, a thread or a child process hangs")
            has_ended = process.kill()
        if not has_ended:
            logger.warning("worker outlives SIGKILL and is abandoned: its slot gets a new one")
        elif process.exit_status == 1 and self._log.exists() and (lines := self._log.read_bytes().splitlines()):
            logger.warning("worker ended with an error: %s", lines[-1].decode(errors="replace"))
        process.close()
        self._process = self._connection = None

    def _clean_up(self) -> None:
        """Ends the processes that an order left behind, or the worker itself if it is unfit."""
        process = self._process
        if process is None or process.was_killed:
            return
        why, self._unfit = self._unfit, None
        if why is None and (answer := process.order("sweep")) != "swept":
            if answer is None and process.wait(1.0):
                return
            why = f"processes that its trial started can't be ended ({answer or 'no answer'})"
        if why is not None:
            kind = why.partition(" (")[0]
            logger.log(logging.DEBUG if kind in self._told else logging.WARNING, "worker replaced: %s", why)
            self._told.add(kind)
            self._terminate()

    def _restart_limit_s(self) -> float | None:
        """Returns the limit of another start, or None before the first."""
        start_s = self._longest_start_s
        return None if start_s is None else max(RESTART_MIN_S, RESTART_FACTOR * start_s)

    def _ensure_started(self, limit_s: float | None = None) -> None:
        """Starts a process, unless one runs.

        Raises:
            WorkerLostError: it ended, or did not start within the limit.
        """
        if self._process is not None and self._process.exit_status is None and not self._process.was_killed:
            return
        self._terminate()
        if self._is_closed:
            raise WorkerLostError("interrupted", counts=False)
        began_s = time.monotonic()
        self._spawn()
        if self._is_closed:  # by another thread, during the start
            self._terminate()
        self.job = None
        message = self._receive(limit_s)
        if message is None and self._process is not None:
            self._process.kill()
            raise WorkerLostError(f"its worker did not start within {limit_s:g} s", counts=False)
        self._longest_start_s = max(self._longest_start_s or 0.0, time.monotonic() - began_s)
        kind, content = message or ("", ("", ""))
        self._log.write_bytes(b"")
        if kind == "build_failed":
            self._terminate()
            if isinstance(content, HeirloomError):
                raise content
            line, frames = content
            error = HeirloomError(f"a worker can't build the problem: {line}")
            error.add_note(frames)  # the command prints it before the line
            raise error
        process = self._process  # what the problem's constructor started stays between trials
        if process is not None and process.order("mark") != "marked" and not process.wait(1.0):
            process.kill()
            raise WorkerLostError("its supervisor does not answer", counts=False)

    def _spawn(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)  # a worker that was killed left its folders
        self._folder.mkdir(exist_ok=True)
        ours, theirs = multiprocessing.Pipe()
        python = [os.fsdecode(spawn.get_executable()), *util._args_from_interpreter_flags()]  # type: ignore[attr-defined]
        with theirs, self._log.open("ab") as log:
            self._process = SupervisedProcess(
                [*python, "-P", "-c", _PROGRAM, str(theirs.fileno())],  # -P: the working folder hides no module
                output=log,
                pass_fds=[theirs.fileno()],
                environment={**os.environ, **self._environment, SLOT_FOLDER_VARIABLE: str(self._folder)},
            )
        self._connection, self._unfit = ours, None
        preparation = spawn.get_preparation_data("heirloom-worker")
        del preparation["authkey"]  # it can't be sent; a worker has its own
        self._send(preparation)
        self._send(pickled(self._spec))

    def _send(self, message: object) -> None:
        with self._send_lock:
            if self._connection is not None:
                try:
                    if isinstance(message, bytes):  # pickled already
                        self._connection.send_bytes(message)
                    else:
                        self._connection.send(message)
                except OSError:
                    return  # the process ended; the thread that receives from it raises

    def _receive(self, timeout_s: float | None) -> tuple[str, Any] | None:
        """Returns the next message, or None after the timeout.

        Raises:
            WorkerLostError: the process ended. It counts unless this driver killed it.
        """
        process, connection = self._process, self._connection
        if process is None or connection is None:
            raise WorkerLostError("interrupted", counts=False)
        wait_s = None if timeout_s is None else min(max(0.0, timeout_s), MAX_WAIT_S)
        ready = wait([connection, process.fileno()], wait_s)
        if not ready:
            left_s = 0.0 if timeout_s is None or wait_s is None else timeout_s - wait_s
            return self._receive(left_s) if left_s > 0.0 else None
        if connection in ready:
            try:
                kind, content = connection.recv()
                if kind != "unfit":
                    return kind, content
                self._unfit = content
                return self._receive(timeout_s)  # the reply follows
            except (EOFError, OSError):
                pass
        if not process.wait(KILL_TIMEOUT_S):  # its pipe closes shortly before its exit status is known
            process.kill()
        why = self._kill_reason or self._unfit or _describe_exit(process.exit_status)
        raise WorkerLostError(why, counts=self._kill_reason is None and self._unfit is None)

    def _answer(self, kind: str, content: Any) -> Any:
        if kind == "done":
            return content
        raise self._failure(kind, content)

    def _failure(self, kind: str, content: Any) -> Exception:
        """Returns the error of a reply. An error outside the problem's code costs the worker."""
        if kind == "store_failed":
            return StorageError(content)
        if self._process is not None:
            self._process.kill()
        return WorkerLostError(f"its worker failed outside the problem's code: {str(content).splitlines()[0]}")

    def _timed_out(self, trial: Trial, curve: list[tuple[int, Mapping[str, float]]], timeout_s: float) -> Trial:
        """Kills the worker and records the trial as FAILED."""
        self._kill("timeout")
        error = f"ran past trial_timeout_s ({timeout_s:g} s) and was killed"
        return self._commit_killed(trial.fail(Reason.TIMEOUT, error), curve, timeout_s)

    def _end_check(self, trial: Trial, why: str) -> Trial:
        """Ends the worker after a failed check of the problem's ``export``.

        The next worker makes none.
        """
        self._spec = replace(self._spec, checks_export=False)
        self._kill(f"export: {why}")
        return trial.warn(f"export: {why}. Correct it, or the winner can't be exported")

    def _commit_killed(self, trial: Trial, curve: list[tuple[int, Mapping[str, float]]], seconds: float) -> Trial:
        """Records a trial whose worker was killed. Returns its own result if that was durable before.

        The seconds of its last attempt are added to its cost so far, that of the attempts that it resumed.
        """
        now = time.time()
        spent = training_cost(seconds, self._spec.n_gpus)
        cost = {name: value + trial.cost.get(name, 0.0) for name, value in spent.items()}
        killed = replace(trial, started=now - seconds).finish(now, cost=cost, curve=curve)
        files = open_root(self._spec.url, self._spec.options)
        committed = Records(files).commit(killed)
        ResumePoints(files, trial.number).delete()
        return committed

    def _kill_if_running(self, trial: Trial, why: str) -> None:
        if self._running is trial:
            self._kill(why)

    def _kill(self, why: str) -> None:
        self._kill_reason = why
        if (process := self._process) is not None:  # another thread may replace it
            process.kill()

    @contextmanager
    def _busy(self, log: str) -> Iterator[None]:
        """Marks the process as busy, and stores its output afterwards."""
        self._is_busy = True
        try:
            yield
        finally:
            try:
                self._store_log(log)
            finally:
                self._is_busy = False

    def _end_of_log(self) -> bytes:
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - MAX_LOG_BYTES))
            return file.read(MAX_LOG_BYTES)

    def _store_log(self, path: str) -> None:
        with self._log_lock:
            text = self._end_of_log()
            if text:
                self._log.write_bytes(b"")
        if text:
            open_root(self._spec.url, self._spec.options).replace(path, text, durable=False)


def pickled(value: object) -> bytes:
    """Returns a value as a worker reads it, with tensors by value.

    multiprocessing sends tensors as shared memory, which needs its authentication key, and a worker has its own.
    """
    return pickle.dumps(value)


def _describe_exit(code: int | None) -> str:
    if code is None:
        return "its worker closed its pipe or can't be killed"
    if code < 0:
        return f"its worker was killed by {signal.Signals(-code).name}"
    return f"its worker ended with exit status {code}"
