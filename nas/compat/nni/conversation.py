"""The talk with the process of an experiment's own tuner: what was asked and told, and no waiting in vain."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nas.compat.nni.calls import Call, numbers_of
from nas.compat.nni.host import Host
from nas.core.errors import SearchFailedError

BUSY = 0.05
"""The share of a core that a tuner takes which is not idle."""
WATCH_S = 0.5


class Conversation:
    """Asks and tells, and takes in the answers on a thread of its own.

    Args:
        name: Of the tuner's class, for messages.
        folder: Where the process runs.
        environment: See ``Host``.
        patience_s: How long the tuner may wait, and do nothing, while nothing runs that it could wait for.
        remedy: What to do against that.
        wake: Called when a call has its answer.
        fail: Called with the error that ends it all.

    Attributes:
        calls: Those that have no answer yet, or whose answer was not taken, by id.
        differing: Calls that were repeated, and have another answer than before.
        n_out: How many results may still come, from which the tuner could learn.
        last_failure: Of which trial nothing could be learned, for messages.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        environment: Mapping[str, str],
        *,
        patience_s: float,
        remedy: str,
        wake: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.calls: dict[int, Call] = {}
        self.differing: list[Call] = []
        self.n_out = 0
        self.last_failure = ""
        self._name = name
        self._patience_s = patience_s
        self._remedy = remedy
        self._wake = wake
        self._fail = fail
        self._changed = threading.Condition()
        self._by_number: dict[int, Call] = {}
        self._telling: set[int] = set()
        """What was told and is not taken in yet, by the number of its call."""
        self._what: dict[int, str] = {}
        self._error: SearchFailedError | None = None
        self._is_ending = False
        self._moved_s = time.monotonic()
        self._host = Host(folder, environment, self._take)
        threading.Thread(target=self._watch, name="heirloom-nni-patience", daemon=True).start()

    @property
    def is_thinking(self) -> bool:
        """Whether a call has no answer yet, or an error was told to ``fail``."""
        return self._error is not None or any(not call.has_answer for call in list(self.calls.values()))

    def ask(self, call: Call, job: str | None, **recorded: Any) -> Call:
        """Asks for a configuration; gives the call back.

        Args:
            call: What is asked for.
            job: Which job the tuner is told that asks.
            recorded: ``recorded``, the answer that stands whatever the tuner answers now.
        """
        with self._changed:
            self.calls[call.id] = call
            self._moved_s = time.monotonic()
            number = self._host.call("generate", id=call.id, job=job, is_first=call.is_first, **recorded)
            self._by_number[number] = call
            self._what[number] = f"generate_parameters({call.id})"
        return call

    def tell(self, do: str, what: str, **content: Any) -> None:
        """Tells something; ``settle`` waits until it is taken in.

        Args:
            do: What the process is to do.
            what: How a message names that.
            content: What it needs for that.
        """
        with self._changed:
            self._moved_s = time.monotonic()
            number = self._host.call(do, **content)
            self._telling.add(number)
            self._what[number] = what

    def settle(self, timeout_s: float | None = None) -> None:
        """Waits until what was told is taken in.

        Raises:
            SearchFailedError: the tuner has failed.
        """
        self._wait(lambda: not self._telling, timeout_s)

    def wait_for(self, calls: Sequence[Call], timeout_s: float) -> None:
        """Waits for the answers of these calls, for so long at most."""
        self._wait(lambda: all(call.has_answer for call in calls), timeout_s)

    def _wait(self, holds: Callable[[], bool], timeout_s: float | None) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or holds(), timeout_s)
            self.check()

    def check(self) -> None:
        """Raises what has ended it.

        Raises:
            SearchFailedError: the tuner has raised, died, or waits in vain.
        """
        if self._error is not None:
            raise self._error

    def _take(self, answer: dict[str, Any] | None) -> None:
        """Takes in what the process says; called by the thread that reads."""
        with self._changed:
            if self._is_ending:
                return
            self._moved_s = time.monotonic()
            if answer is None:
                log = f"what it printed stands in {self._host.log}"
                self._give_up(f"the tuner's process has ended; {log}. The same command goes on")
                return
            what = self._what.pop(answer["call"], "")
            if "error" in answer:
                print(answer["error"], file=sys.stderr, flush=True)
                self._give_up(f"the tuner {self._name} raised in {what}: {answer['last']}")
                return
            self._telling.discard(answer["call"])
            call = self._by_number.pop(answer["call"], None)
            if call is not None:
                self._take_answer(call, answer)
            self._changed.notify_all()
        if call is not None:
            self._wake()

    def _take_answer(self, call: Call, answer: Mapping[str, Any]) -> None:
        call.has_answer = True
        if call.trial is not None:  # asked again
            if answer.get("differs") or "none" in answer:
                self.differing.append(call)
            self.calls.pop(call.id, None)
        elif "none" in answer:
            call.has_nothing = True
        else:
            call.parameters = answer["parameters"]

    def _give_up(self, why: str) -> None:
        if self._error is None:
            self._error = SearchFailedError(why)
            self._changed.notify_all()
            self._fail(self._error)

    def end(self) -> None:
        """Ends the process."""
        self._is_ending = True
        self._host.close()

    def _watch(self) -> None:
        """Ends the experiment where the tuner waits, and nothing runs that it could wait for."""
        idle_s, before = 0.0, (time.monotonic(), self._host.cpu_s())
        while not self._is_ending and self._error is None:
            time.sleep(WATCH_S)
            now = (time.monotonic(), self._host.cpu_s())
            is_busy = (now[1] - before[1]) > BUSY * (now[0] - before[0])
            waits = [call for call in list(self.calls.values()) if not call.has_answer]
            with self._changed:
                is_in_vain = (waits or self._telling) and self.n_out <= 0 and now[0] - self._moved_s > WATCH_S
                idle_s = idle_s + now[0] - before[0] if is_in_vain and not is_busy else 0.0
                before = now
                if idle_s > self._patience_s:
                    self._give_up(self._in_vain(waits))

    def _in_vain(self, waits: list[Call]) -> str:
        why = f"; {self.last_failure}" if self.last_failure else ""
        where = f"generate_parameters({numbers_of(waits)})" if waits else "; ".join(self._what.values())
        return (
            f"the tuner {self._name} waits in {where}, and nothing runs that it could wait for "
            f"(patience {self._patience_s:g} s){why}{self._remedy}"
        )
