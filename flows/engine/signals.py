"""Ctrl-C and SIGTERM, from a command's first moment to its last."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from flows.cli.command import complain
from flows.views.progress import Progress
from nas.executors.events import StopRequested

NUMBERS = (signal.SIGINT, signal.SIGTERM)
SHOW_CURSOR = b"\x1b[?25h\r\n"
ECHO_S = 0.2
"""A repetition that soon is no second one: ``timeout`` and the like signal the process and then its group."""


class Interruption:
    """Takes in Ctrl-C and SIGTERM while it is entered, on the main thread.

    While trials run, the first one is posted to whoever runs them, so that they are told and records are kept. Where
    none do, nothing is to be put in order: the process ends with one line. A second one ends it at once, whatever runs:
    the records are whole at any moment, and workers and the temporary server end with their parent.

    Args:
        command: What goes on with it, for that line.
    """

    def __init__(self, command: str) -> None:
        self.signal: int | None = None
        """The first signal that was posted."""
        self.display: Progress | None = None
        """What must leave the terminal before the line."""
        self._command = command
        self._post: Callable[[StopRequested], None] | None = None
        self._told_at = 0.0
        self._is_leaving = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        for number in NUMBERS:
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def posted_to(self, post: Callable[[StopRequested], None]) -> Iterator[None]:
        """Meanwhile the first signal is posted here."""
        self._post = post
        try:
            yield
        finally:
            self._post = None

    @contextmanager
    def cuts_short(self) -> Iterator[None]:
        """Meanwhile, where nobody was told before, a signal ends what is done here and nothing else: a mere wait."""
        self._is_leaving = True
        with suppress(KeyboardInterrupt):
            try:
                yield
            finally:
                self._is_leaving = False

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None and self._post is not None:
            self.signal, self._told_at = number, time.monotonic()
            self._post(StopRequested(signal.Signals(number).name, number))
        elif self.signal is None and self._is_leaving:
            self._is_leaving = False
            raise KeyboardInterrupt
        elif time.monotonic() > self._told_at + ECHO_S:
            if self.signal is None:
                if self.display is not None:
                    self.display.stop()
                complain(f"interrupted ({signal.Signals(number).name}): no trial was running. Resume: {self._command}")
            elif sys.stderr.isatty():  # the live display has hidden it
                os.write(2, SHOW_CURSOR)
            os._exit(128 + number)
