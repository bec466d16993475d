"""Client of the process of an experiment's own tuner."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nas.compat.nni.tuner_calls import TunerCall, ids_text
from nas.compat.nni.tuner_process import TunerProcess
from nas.core.errors import SearchFailedError
from nas.core.redaction import clean

BUSY_SHARE = 0.05
"""A tuner is busy if it uses more than this share of a core."""
WATCH_S = 0.5


class TunerClient:
    """Sends calls to the tuner's process, receives the replies, and detects a tuner that waits forever.

    Args:
        name: The tuner's class, for messages.
        folder: The working folder of the process.
        environment: See ``TunerProcess``.
        wait_timeout_s: Seconds that an idle tuner may wait while no trial runs.
        remedy: The last sentence of the error after that time.
        wake: Called when a call is answered.
        fail: Called with the error that ends the experiment.

    Attributes:
        calls: Calls for a configuration without an answer, or with one that was not taken yet, by id.
        differing: Replayed calls whose answer differs from the record.
        n_pending: Number of results that the tuner may still receive.
        last_failure: The last trial without a result, for messages.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        environment: Mapping[str, str],
        *,
        wait_timeout_s: float,
        remedy: str,
        wake: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.calls: dict[int, TunerCall] = {}
        self.differing: list[TunerCall] = []
        self.n_pending = 0
        self.last_failure = ""
        self._name = name
        self._wait_timeout_s = wait_timeout_s
        self._remedy = remedy
        self._wake = wake
        self._fail = fail
        self._changed = threading.Condition()
        self._by_number: dict[int, TunerCall] = {}
        self._empty: dict[int, TunerCall] = {}
        """Calls without a configuration, which the tuner may give later (``st_callback``)."""
        self._telling: set[int] = set()
        """Numbers of ``tell`` calls that the tuner has not processed yet."""
        self._names: dict[int, str] = {}
        """Names of open calls for messages, by number."""
        self._error: SearchFailedError | None = None
        self._is_ending = False
        self._last_activity_s = time.monotonic()
        self._process = TunerProcess(folder, environment, self._receive)
        threading.Thread(target=self._watch, name="heirloom-nni-tuner-watch", daemon=True).start()

    @property
    def is_thinking(self) -> bool:
        """Whether a call has no answer yet, or ``fail`` was called."""
        return self._error is not None or any(not call.has_answer for call in list(self.calls.values()))

    def ask(self, call: TunerCall, job: str | None, **recorded: Any) -> TunerCall:
        """Asks for a configuration and returns the call.

        Args:
            call: The call to send.
            job: The job id that the tuner is given.
            recorded: ``recorded``, the answer in the record, which takes precedence over the new answer.
        """
        with self._changed:
            self.calls[call.id] = call
            self._last_activity_s = time.monotonic()
            number = self._process.call("generate", id=call.id, job=job, is_first=call.is_first, **recorded)
            self._by_number[number] = call
            self._names[number] = f"generate_parameters({call.id})"
        return call

    def tell(self, method: str, name: str, **arguments: Any) -> None:
        """Sends a call that returns nothing; ``flush`` waits until the tuner has processed it.

        Args:
            method: The method of the tuner's process.
            name: The name of the call in messages.
            arguments: Arguments of the method.
        """
        with self._changed:
            self._last_activity_s = time.monotonic()
            number = self._process.call(method, **arguments)
            self._telling.add(number)
            self._names[number] = name

    def flush(self, timeout_s: float | None = None) -> None:
        """Waits until the tuner has processed all ``tell`` calls.

        Raises:
            SearchFailedError: the tuner has failed.
        """
        self._wait(lambda: not self._telling, timeout_s)

    def wait_for(self, calls: Sequence[TunerCall], timeout_s: float) -> None:
        """Waits until these calls are answered, at most ``timeout_s``."""
        self._wait(lambda: all(call.has_answer for call in calls), timeout_s)

    def _wait(self, is_done: Callable[[], bool], timeout_s: float | None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or is_done(), timeout_s)
            self.check()

    def check(self) -> None:
        """Raises the error that ended the tuner, if there is one.

        Raises:
            SearchFailedError: the tuner raised, its process ended, or its wait timed out.
        """
        if self._error is not None:
            raise self._error

    def _receive(self, reply: dict[str, Any] | None) -> None:
        """Processes a reply of the process, on the thread that reads."""
        with self._changed:
            if self._is_ending:
                return
            self._last_activity_s = time.monotonic()
            if reply is None:
                self._end_with(
                    f"the tuner's process has ended; its output is in {self._process.log}. "
                    "Run the same command to continue"
                )
                return
            name = self._names.pop(reply.get("call", -1), "")
            if "error" in reply:
                print(clean(reply["error"]), file=sys.stderr, flush=True)
                self._end_with(f"the tuner {self._name} failed in {name}: {reply['last']}")
                return
            if "later" in reply:
                call = self._take_late_answer(reply)
            else:
                self._telling.discard(reply["call"])
                call = self._by_number.pop(reply["call"], None)
                if call is not None:
                    self._take_answer(call, reply)
            self._changed.notify_all()
        if call is not None:
            self._wake()

    def _take_answer(self, call: TunerCall, reply: Mapping[str, Any]) -> None:
        if call.has_answer:  # by st_callback, before the call returned
            return
        call.has_answer = True
        if "none" in reply:
            call.is_empty = True
        if call.trial is not None:  # replayed
            self.calls.pop(call.id, None)
            if call.is_empty:
                self._empty[call.id] = call
            elif reply.get("differs"):
                self.differing.append(call)
        elif not call.is_empty:
            call.parameters = reply["parameters"]

    def _take_late_answer(self, reply: Mapping[str, Any]) -> TunerCall | None:
        """Takes the configuration of an earlier call, and returns the call."""
        call = self._empty.pop(reply["later"], None) or self.calls.get(reply["later"])
        if call is None:
            return None
        call.has_answer, call.is_empty = True, False
        if call.trial is None:
            call.parameters = reply["parameters"]
            self.calls[call.id] = call
        else:  # replayed
            self.calls.pop(call.id, None)
            if reply.get("differs"):
                self.differing.append(call)
        return call

    def put_aside(self, call: TunerCall) -> bool:
        """Removes a call without a configuration. Returns False if it has got one."""
        with self._changed:
            if call.is_empty:
                self._empty[call.id] = self.calls.pop(call.id)
            return call.is_empty

    def end_replay(self) -> None:
        """Counts replayed calls as different if the tuner gave them no configuration."""
        with self._changed:
            self.differing += [call for call in self._empty.values() if call.trial is not None]

    def _end_with(self, why: str) -> None:
        if self._error is None:
            self._error = SearchFailedError(why)
            self._changed.notify_all()
            self._fail(self._error)

    def end(self) -> None:
        """Ends the process."""
        self._is_ending = True
        self._process.close()

    def _watch(self) -> None:
        """Ends the experiment if the tuner waits and is idle while no result can arrive."""
        idle_s, before = 0.0, (time.monotonic(), self._process.cpu_s())
        while not self._is_ending and self._error is None:
            time.sleep(WATCH_S)
            now = (time.monotonic(), self._process.cpu_s())
            is_busy = (now[1] - before[1]) > BUSY_SHARE * (now[0] - before[0])
            waiting = [call for call in list(self.calls.values()) if not call.has_answer]
            with self._changed:
                is_quiet = now[0] - self._last_activity_s > WATCH_S
                is_stuck = (waiting or self._telling) and self.n_pending <= 0 and is_quiet
                seconds = min(now[0] - before[0], 2 * WATCH_S)  # this process may have been stopped: Ctrl-Z
                idle_s = idle_s + seconds if is_stuck and not is_busy else 0.0
                before = now
                if idle_s > self._wait_timeout_s:
                    self._end_with(self._timeout_message(waiting))

    def _timeout_message(self, waiting: list[TunerCall]) -> str:
        cause = f"; {self.last_failure}" if self.last_failure else ""
        calls = f"generate_parameters({ids_text(waiting)})" if waiting else "; ".join(self._names.values())
        return (
            f"the tuner {self._name} waits in {calls}, but no trial runs "
            f"(timeout: --patience {self._wait_timeout_s:g} s){cause}{self._remedy}"
        )
