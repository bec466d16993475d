"""What a worker process does: it builds a problem once, and runs what it is told through its pipe (processes.py)."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import cast

from nas.core.errors import HeirloomError, StorageError
from nas.core.tracebacks import traceback_of
from nas.core.trial import Trial
from nas.executors.events import ExtraResult, StopKind
from nas.executors.pool import raise_stop
from nas.training.messages import Assignment, RuntimeSpec
from nas.training.runtime import TrialRuntime

PARENT_POLL_S = 0.5
IGNORED = (signal.SIGINT, signal.SIGTERM)
"""The driver decides when trials end."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Asks the running trial of this number to end."""

    number: int
    kind: StopKind


class _PipeChannel:
    """A running attempt's line to the driver, on the worker's side."""

    def __init__(self, connection: Connection, trial: Trial, asks_stopper: bool) -> None:
        self._connection = connection
        self._number = trial.number
        self._asks_stopper = asks_stopper
        self._asked_to: StopKind | None = None
        """It is told once, and raised again at each report of code that goes on all the same."""

    def started(self) -> None:
        self._connection.send(("started", None))

    def static_metrics(self, known: Mapping[str, float], declared: Mapping[str, float]) -> None:
        try:
            self._connection.send(("static_metrics", (dict(known), dict(declared))))
        except OSError:
            os._exit(1)  # the driver is gone

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        try:
            if self._asked_to is None:
                self._exchange(step, metrics)
        except (EOFError, OSError):
            os._exit(1)  # the driver is gone: that is no failure of the trial's, which must not be recorded as one
        self.heed()

    def heed(self) -> None:
        try:
            while self._connection.poll():
                self._receive()
        except (EOFError, OSError):
            os._exit(1)  # as above
        raise_stop(self._asked_to)

    def resumed(self, curve: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        try:
            self._connection.send(("resumed", list(curve)))
        except OSError:
            os._exit(1)  # as above

    def late(self, result: str) -> None:
        try:
            self._connection.send(("late", ExtraResult(self._number, result)))
        except OSError:
            os._exit(1)  # as above

    def _exchange(self, step: int, metrics: Mapping[str, float]) -> None:
        self._connection.send(("reported", (step, dict(metrics))))
        while self._asks_stopper and self._asked_to is None:
            if isinstance(verdict := self._receive(), bool):
                self._asked_to = "stop" if verdict else None
                return

    def _receive(self) -> object:
        answer = self._connection.recv()
        if isinstance(answer, Stop) and answer.number == self._number:
            self._asked_to = answer.kind
        return answer


class _PipeLine:
    """A job's line to the driver, on the worker's side."""

    def __init__(self, connection: Connection, asks_stopper: bool) -> None:
        self._connection = connection
        self._asks_stopper = asks_stopper

    def channel(self, trial: Trial) -> _PipeChannel:
        return _PipeChannel(self._connection, trial, self._asks_stopper)

    def finished(self, trial: Trial | None) -> None:
        _flush()
        self._connection.send(("done", trial))

    def ask(self) -> Assignment | None:
        try:
            self._connection.send(("asked", None))
            while True:
                answer = self._connection.recv()
                if not isinstance(answer, Stop | bool):  # meant for the trial before, which had ended
                    _, assignment = answer
                    return cast("Assignment | None", assignment)
        except (EOFError, OSError):
            os._exit(1)  # the driver is gone


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _end_with_parent(parent: int) -> None:
    """Ends this process when its parent is gone: at once on Linux, within half a second elsewhere.

    The kernel's signal also ends code that holds the interpreter's lock; the thread serves where it does not exist.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        os._exit(1)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


def _write_output_to(log: str) -> None:
    """Appends standard output and error of Python and C to a file, line by line: a kill loses nothing."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    libc = ctypes.CDLL(None)
    stdout = ctypes.c_void_p.in_dll(libc, "__stdoutp" if sys.platform == "darwin" else "stdout")
    libc.setvbuf(stdout, None, 1, 0)  # _IOLBF


def worker_main(
    connection: Connection, spec: RuntimeSpec, environment: Mapping[str, str], parent: int, log: str
) -> None:
    """What a worker process does until its pipe closes."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED)
    _end_with_parent(parent)
    os.environ.update(environment)  # before torch is imported
    # A daemon, so that the driver's exit does not wait for it; but a problem's data loader may start processes.
    multiprocessing.process.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    _write_output_to(log)
    faulthandler.enable()
    import logging

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        runtime = TrialRuntime(spec)
    except BaseException as error:
        connection.send(("unbuildable", error if isinstance(error, HeirloomError) else traceback.format_exc()))
        return
    connection.send(("ready", None))
    while True:
        try:
            message = connection.recv()
        except EOFError:
            sys.exit(runtime.close())  # a line that it gives is the log's last, and tells the driver by the status
        if isinstance(message, Stop | bool):  # meant for the trial before, which had ended
            continue
        order, argument = message
        try:
            if order == "run":
                channel = _PipeChannel(connection, argument.trial, spec.asks_stopper)
                connection.send(("done", runtime.run(argument, channel)))
            elif order == "stay":
                connection.send(("left", runtime.job_start(argument, _PipeLine(connection, spec.asks_stopper))))
            elif order == "test":
                connection.send(("done", runtime.test(argument)))
            elif order == "export":
                connection.send(("done", runtime.export(argument)))
        except StorageError as error:
            connection.send(("store", str(error)))
        except (Exception, SystemExit) as error:
            text = traceback_of(error)
            print(text, end="", file=sys.stderr)
            connection.send(("error", f"{type(error).__name__}: {error}\n{text}"))
        finally:
            _flush()
