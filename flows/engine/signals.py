"""Handling of Ctrl-C and SIGTERM during a whole command."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from nas.core.redaction import one_line
from nas.executors.events import StopRequested

NUMBERS = (signal.SIGINT, signal.SIGTERM)
END_OF_DISPLAY = b"\x1b[?25h\r\n"
"""Shows the cursor, which the live display hides, and begins a line."""
REPEAT_S = 0.2
"""Signals within this time count as one: ``timeout`` signals process and group."""


class SignalHandler:
    """Handler of Ctrl-C and SIGTERM on the main thread.

    * The first signal while trials run is posted as ``StopRequested``: trials are told to stop and records are kept.
    * If no trial runs, the process ends with one line.
    * A second signal ends the process at once. Records are complete at any moment, and workers and the temporary
      server end with their parent.

    Args:
        command: The command line that resumes the search, for that line.
    """

    def __init__(self, command: str) -> None:
        self.signal: int | None = None
        """Number of the first signal, once it was posted."""
        self._command = command
        self._post: Callable[[StopRequested], None] | None = None
        self._told_at = 0.0
        self._is_leaving = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> SignalHandler:
        for number in NUMBERS:
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def posted_to(self, post: Callable[[StopRequested], None]) -> Iterator[None]:
        """Posts the first signal to ``post`` inside the block."""
        self._post = post
        try:
            yield
        finally:
            self._post = None

    @contextmanager
    def ends_block(self) -> Iterator[None]:
        """Lets the first signal end the block, and nothing else, inside the block."""
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
            self._is_leaving, self._told_at = False, time.monotonic()
            raise KeyboardInterrupt
        elif time.monotonic() > self._told_at + REPEAT_S:
            try:
                self._tell(number)
            finally:
                os._exit(128 + number)

    def _tell(self, number: int) -> None:
        """Writes the line that resumes, past Python's buffers, which this thread may be using."""
        what = "no trial was running" if self.signal is None else "at once; finished trials are kept"
        line = f"heirloom: interrupted ({signal.Signals(number).name}): {what}. Resume: {self._command}"
        encoding = getattr(sys.__stderr__, "encoding", None) or "utf-8"  # sys.stderr may be the live display's
        with suppress(OSError):  # standard error may be closed
            ended = END_OF_DISPLAY if os.isatty(2) else b""
            os.write(2, ended + one_line(line).encode(encoding, "backslashreplace") + b"\n")
