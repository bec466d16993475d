"""The program of a worker process: builds a problem once and runs orders from its pipe."""

from __future__ import annotations

import ctypes
import faulthandler
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, cast

from nas.core.errors import HeirloomError, StorageError
from nas.core.tracebacks import error_line, frames_of, raise_ctrl_c, traceback_of
from nas.core.trial import Trial
from nas.executors.controller_channel import raise_if_stopped
from nas.executors.events import ExtraResult, StopKind
from nas.training.messages import Assignment, RuntimeSpec
from nas.training.runtime import TrialRuntime

if TYPE_CHECKING:
    from nas.executors.process_state import ProcessState

PARENT_POLL_S = 0.5
IGNORED = (signal.SIGINT, signal.SIGTERM)
"""Signals that workers ignore: the driver decides when trials end."""
DECISION_S = 5.0
"""The longest that a trial waits for the driver's decision after such a signal."""
_signaled_s = -math.inf


@dataclass(frozen=True, slots=True)
class Stop:
    """Asks the running trial of this number to end."""

    number: int
    kind: StopKind


class _PipeTrialChannel:
    """The channel from a running attempt to the driver, on the worker's side."""

    def __init__(self, connection: Connection, trial: Trial, has_stopper: bool) -> None:
        self._connection = connection
        self._number = trial.number
        self._has_stopper = has_stopper
        self._stop_kind: StopKind | None = None
        """Sent once by the driver; raised at every report, since some code catches it and continues."""

    def started(self) -> None:
        self._connection.send(("started", None))

    def static_metrics(self, known: Mapping[str, float], declared: Mapping[str, float]) -> None:
        self._send("static_metrics", (dict(known), dict(declared)))

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        try:
            if self._stop_kind is None:
                self._exchange(step, metrics)
        except (EOFError, OSError):
            os._exit(1)  # the driver has ended; an exception would be recorded as a failure of the trial
        self.raise_if_stopped()

    def raise_if_stopped(self) -> None:
        try:
            while self._stop_kind is None and self._connection.poll(_decision_left_s()):
                self._receive()
        except (EOFError, OSError):
            os._exit(1)  # as in report
        raise_if_stopped(self._stop_kind)

    def was_signaled(self) -> bool:
        return _decision_left_s() > 0

    def resumed(self, curve: Sequence[tuple[int, Mapping[str, float]]], totals: Mapping[str, Any]) -> None:
        self._send("resumed", (list(curve), dict(totals)))

    def extra_result(self, result: str) -> None:
        self._send("extra_result", ExtraResult(self._number, result))

    def committed(self, trial: Trial) -> None:
        self._send("committed", trial)

    def _send(self, kind: str, content: object) -> None:
        try:
            self._connection.send((kind, content))
        except OSError:
            os._exit(1)  # as in report

    def _exchange(self, step: int, metrics: Mapping[str, float]) -> None:
        self._connection.send(("reported", (step, dict(metrics))))
        while self._has_stopper and self._stop_kind is None:
            if isinstance(decision := self._receive(), bool):
                self._stop_kind = "stop" if decision else None
                return

    def _receive(self) -> object:
        message = self._connection.recv()
        if isinstance(message, Stop) and message.number == self._number:
            self._stop_kind = message.kind
        return message


class _PipeJobChannel:
    """The channel from a job to the driver, on the worker's side."""

    def __init__(self, connection: Connection, has_stopper: bool, clean_up: Callable[[], None] | None) -> None:
        self._connection = connection
        self._has_stopper = has_stopper
        self._clean_up = clean_up
        """Called between two trials. None: the job's code may keep processes and state."""

    def trial_channel(self, trial: Trial) -> _PipeTrialChannel:
        return _PipeTrialChannel(self._connection, trial, self._has_stopper)

    def trial_ended(self, trial: Trial | None) -> None:
        _flush()
        self._connection.send(("done", trial))

    def next_trial(self) -> Assignment | None:
        if self._clean_up is not None:
            self._clean_up()
        try:
            self._connection.send(("trial_requested", self._clean_up is not None))
            while True:
                message = self._connection.recv()
                if not isinstance(message, Stop | bool):  # those are for the previous trial, which has ended
                    _, assignment = message
                    return cast("Assignment | None", assignment)
        except (EOFError, OSError):
            os._exit(1)  # the driver has ended


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _ignore(number: int, frame: object) -> None:
    """Notes a signal and goes on: the driver decides when trials end.

    Batch systems signal data loaders and programs of the trial, too, which end. Their end is no failure of the trial.
    Programs that the worker starts do not inherit a handler, in contrast to ``SIG_IGN``.
    """
    global _signaled_s
    _signaled_s = time.monotonic()


def _decision_left_s() -> float:
    """Returns the seconds for which a trial waits for the driver's decision."""
    return max(0.0, _signaled_s + DECISION_S - time.monotonic())


def _set_up_fork() -> None:
    """Prepares a forked child, such as a data loader's process.

    It gets the signals' default handlers, so that ``Process.terminate`` ends it. It gets one torch thread, because
    libgomp hangs in a child that computes with more, if its parent has done so before.
    """
    for number in IGNORED:
        if signal.getsignal(number) is _ignore:
            signal.signal(number, signal.SIG_DFL)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


def _end_with_parent() -> None:
    """Ends this process group when the supervisor ends. On Linux the kernel does it."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os.killpg(0, signal.SIGKILL)

    if sys.platform != "linux":
        threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _limit_gpu_memory(spec: RuntimeSpec) -> None:
    """Lets torch take at most the trial's share of a GPU's memory, if trials share it."""
    if spec.device != "cuda" or spec.gpus_per_trial >= 1:
        return
    import torch

    if torch.cuda.is_available():  # else the problem's own code says what it misses
        torch.cuda.set_per_process_memory_fraction(spec.gpus_per_trial)


def _buffer_lines() -> None:
    """Makes Python and C code write their output line by line."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    libc = ctypes.CDLL(None)
    stdout = ctypes.c_void_p.in_dll(libc, "__stdoutp" if sys.platform == "darwin" else "stdout")
    libc.setvbuf(stdout, None, 1, 0)  # _IOLBF


def worker_main(connection: Connection, main: dict[str, Any]) -> None:
    """Runs a worker process until its pipe closes.

    Args:
        connection: The pipe to the driver.
        main: The driver's main module, as multiprocessing's spawn describes it.
    """
    for number in IGNORED:
        signal.signal(number, _ignore)
    os.register_at_fork(after_in_child=_set_up_fork)
    _end_with_parent()
    _buffer_lines()
    faulthandler.enable()
    import logging

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        spawn.prepare(main)  # runs the driver's script, which may hold the problem's class
        spec = connection.recv()
        runtime = TrialRuntime(spec)
        if not runtime.problem.is_apart:  # its trials have processes of their own
            _limit_gpu_memory(spec)
    except BaseException as error:
        described = error if isinstance(error, HeirloomError) else (error_line(error), frames_of(error))
        connection.send(("build_failed", described))
        return
    from nas.executors.process_state import ProcessState  # imports torch, in contrast to the driver

    state = ProcessState(connection.fileno())
    runtime.restore_process = state.restore
    connection.send(("ready", None))
    while True:
        try:
            message = connection.recv()
        except EOFError:
            sys.exit(runtime.close())  # an error line is printed, and the exit status tells the driver of it
        if isinstance(message, Stop | bool):  # those are for the previous trial, which has ended
            continue
        reply = _run_order(runtime, state, connection, *message)
        if _is_unfit(runtime, state, connection):
            reply = ("error" if reply[0] == "store_failed" else reply[0], reply[1])  # the storage may be in order
        connection.send(reply)


def _is_unfit(runtime: TrialRuntime, state: ProcessState, connection: Connection) -> bool:
    """Restores the process. Tells the driver, and returns, whether it must be replaced."""
    state.check()
    _flush()
    if not state.has_pipe:
        sys.exit("the problem's code has closed the worker's pipe")
    unfit = runtime.device_error or state.unfit
    if unfit is not None:
        connection.send(("unfit", unfit))
    return unfit is not None


def _run_order(
    runtime: TrialRuntime, state: ProcessState, connection: Connection, order: str, argument: Any
) -> tuple[str, Any]:
    """Runs one order and returns the reply: its result or its error."""
    has_stopper = runtime.spec.has_stopper

    def clean_up() -> None:
        if _is_unfit(runtime, state, connection):
            os._exit(0)  # the job starts again on another worker

    try:
        if order == "run":
            return "done", runtime.run(argument, _PipeTrialChannel(connection, argument.trial, has_stopper))
        if order == "start_job":
            channel = _PipeJobChannel(connection, has_stopper, None if runtime.keeps_jobs_state else clean_up)
            return "job_left", runtime.run_job(argument, channel)
        if order == "check_export":
            return "done", runtime.check_untrained_export(argument)
        return "done", runtime.call(order, argument)
    except StorageError as error:
        return "store_failed", str(error)
    except BaseException as error:
        raise_ctrl_c(error)
        text = traceback_of(error)
        print(text, end="", file=sys.stderr)
        return "error", f"{error_line(error)}\n{text}"
