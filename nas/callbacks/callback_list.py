"""The calls of a session's callbacks: in order, with warnings in place of exceptions."""

from __future__ import annotations

import copy
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from nas.callbacks.base import Callback, SearchInfo, SearchOutcome
from nas.core.errors import ConfigurationError
from nas.core.tracebacks import error_line
from nas.core.trial import Trial

logger = logging.getLogger(__name__)

END_S = 30.0
"""Seconds that callbacks in the background have at the end of a session."""


def checked_callbacks(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """Returns callbacks that a user gave.

    Raises:
        ConfigurationError: they are no list, or an element is no callback.
    """
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Sequence):
        raise ConfigurationError(f"callbacks={callbacks!r:.200}: must be a list. Write callbacks=[...].")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise ConfigurationError(f"callbacks: {callback!r:.200}: must be an instance of nas.Callback.")
    return tuple(callbacks)


class CallbackList:
    """Calls callbacks, and continues after their exceptions.

    Call all methods on one thread.

    Args:
        callbacks: The callbacks.
        notify: Called with a warning, once for each callback.
        end_s: Seconds that callbacks in the background have at the end of a session.

    Raises:
        ConfigurationError: as ``checked_callbacks``.
    """

    def __init__(
        self, callbacks: Sequence[Callback], notify: Callable[[str], None] = logger.warning, *, end_s: float = END_S
    ) -> None:
        self._callbacks = checked_callbacks(callbacks)
        self._notify = notify
        self._end_s = end_s
        self._callers: list[_Caller] = []

    def start(self, search: SearchInfo) -> None:
        """Calls ``on_search_start``. An exception leaves it; then ``end`` calls only those that have started."""
        for callback in self._callbacks:
            callback.on_search_start(search)
            caller = _Background(callback, self._end_s) if callback.runs_in_background else _Direct(callback)
            self._callers.append(caller)

    def trial_started(self, trial: Trial) -> None:
        """Calls ``on_trial_start``."""
        copied = self._copied(trial)
        self._call("on_trial_start", lambda callback: callback.on_trial_start(copied))

    def trial_reported(self, trial: Trial) -> None:
        """Calls ``on_trial_report`` with the trial's last report."""
        copied, (step, metrics) = self._copied(trial), trial.curve[-1]
        self._call("on_trial_report", lambda callback: callback.on_trial_report(copied, step, dict(metrics)))

    def trial_ended(self, trial: Trial) -> None:
        """Calls ``on_trial_end``."""
        copied = self._copied(trial)
        self._call("on_trial_end", lambda callback: callback.on_trial_end(copied))

    def end(self, outcome_of: Callable[[], SearchOutcome]) -> None:
        """Calls ``on_search_end``, and waits at most ``end_s`` for all callbacks in the background.

        Args:
            outcome_of: Returns the outcome; called if a callback has started.
        """
        if not self._callers:
            return
        outcome = outcome_of()
        self._call("on_search_end", lambda callback: callback.on_search_end(outcome))
        until_s = time.monotonic() + self._end_s
        for caller in self._callers:
            caller.wait(until_s)
        self._show_warnings()
        self._callers.clear()

    def _copied(self, trial: Trial) -> Trial:
        """Returns the trial with a point and metrics of its own, which callbacks may change."""
        if not self._callers:
            return trial
        proposal = replace(trial.proposal, point=copy.deepcopy(trial.point))
        return replace(trial, proposal=proposal, metrics=dict(trial.metrics))

    def _call(self, method: str, call: Callable[[Callback], None]) -> None:
        for caller in self._callers:
            caller.call(method, call)
        self._show_warnings()

    def _show_warnings(self) -> None:
        for caller in self._callers:
            if (warning := caller.take_warning()) is not None:
                self._notify(warning)


class _Caller(Protocol):
    """Calls one callback."""

    def call(self, method: str, call: Callable[[Callback], None]) -> None: ...

    def take_warning(self) -> str | None: ...

    def wait(self, until_s: float) -> None: ...


class _Direct:
    """Calls a callback at once.

    Args:
        callback: The callback.
    """

    def __init__(self, callback: Callback) -> None:
        self._callback = callback
        self._warning: str | None = None
        self._has_failed = False

    def call(self, method: str, call: Callable[[Callback], None]) -> None:
        """Calls a method; an exception becomes a warning."""
        try:
            call(self._callback)
        except Exception as error:
            logger.debug("%s of %r failed", method, self._callback, exc_info=True)
            self._warn(f"{method}: {error_line(error)}")

    def _warn(self, what: str) -> None:
        if not self._has_failed:
            name = type(self._callback).__name__
            self._warning = f"callback {name}: {what}. The search goes on; its further errors are not shown"
        self._has_failed = True

    def take_warning(self) -> str | None:
        """Returns the warning that was not shown yet, or None."""
        if self._warning is None:  # otherwise a warning of the background thread could be lost below
            return None
        warning, self._warning = self._warning, None
        return warning

    def wait(self, until_s: float) -> None:
        """Does nothing: no call is pending."""


class _Background(_Direct):
    """Calls a callback on a thread of its own, in order.

    Args:
        callback: The callback.
        end_s: Seconds that the wait at the end may take, for its warning.
    """

    def __init__(self, callback: Callback, end_s: float) -> None:
        super().__init__(callback)
        self._end_s = end_s
        self._calls: queue.SimpleQueue[tuple[str, Callable[[Callback], None]]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"heirloom-{type(callback).__name__}", daemon=True)
        self._thread.start()

    def call(self, method: str, call: Callable[[Callback], None]) -> None:
        """Queues a call."""
        self._calls.put((method, call))

    def _work(self) -> None:
        method = ""
        while method != "on_search_end":
            method, call = self._calls.get()
            super().call(method, call)

    def wait(self, until_s: float) -> None:
        """Waits until all calls are done, at most until a time of the monotonic clock."""
        self._thread.join(max(0.0, until_s - time.monotonic()))
        if self._thread.is_alive():
            self._has_failed = False
            self._warn(f"{self._calls.qsize() + 1} calls were not done within {self._end_s:g} s of the end")
