"""Logs of trials: their paths, and the capture of output if trials share a process."""

from __future__ import annotations

import logging
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from nas.storage.blobs import BlobStore

MAX_LOG_BYTES = 1_000_000

_current = threading.local()
_lock = threading.Lock()
_n_captures = 0


def log_path(number: int, of: str = "") -> str:
    """Returns the path of a trial's last log, or of its ``test``, ``export`` or ``inheritance``."""
    return f"logs/{number:06d}.{of}.log" if of else f"logs/{number:06d}.log"


def earlier_log_path(number: int, attempt: int) -> str:
    """Returns the path of the log of an attempt before the last."""
    return f"logs/{number:06d}-{attempt}.log"


def move_earlier_log(files: BlobStore, number: int, attempt: int) -> None:
    """Moves the log of the attempt before this one, if any, to its own path."""
    if attempt > 1 and (log := files.read_if_present(log_path(number))) is not None:
        files.replace(earlier_log_path(number, attempt - 1), log, durable=False)
        files.delete(log_path(number))


class TrialLog:
    """The last 1 MB of text of one attempt, test or export."""

    def __init__(self) -> None:
        self._parts: deque[str] = deque()
        self._size = 0

    def write(self, text: str) -> None:
        """Adds text and drops the oldest text beyond 1 MB."""
        if not text:
            return
        self._parts.append(text)
        self._size += len(text)
        while self._size > MAX_LOG_BYTES and len(self._parts) > 1:
            self._size -= len(self._parts.popleft())

    def clear(self) -> None:
        """Drops all text."""
        self._parts.clear()
        self._size = 0

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Captures what the calling thread prints and logs in the ``with`` block."""
        with _installed():
            _current.log = self
            try:
                yield
            finally:
                _current.log = None

    def put(self, files: BlobStore, path: str) -> None:
        """Writes the log to the storage, unless it is empty."""
        if self._parts:
            files.replace(path, "".join(self._parts).encode(errors="replace")[-MAX_LOG_BYTES:], durable=False)


class _ThreadStream:
    """Replacement of ``sys.stdout`` or ``sys.stderr`` that writes the output of a trial's thread to its log."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        log = getattr(_current, "log", None)
        if log is None:
            return self.stream.write(text)
        log.write(text)
        return len(text)

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)


class _ThreadHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        log = getattr(_current, "log", None)
        if log is not None:
            log.write(self.format(record) + "\n")
        elif (last := logging.lastResort) is not None and record.levelno >= last.level and self._is_alone(record.name):
            last.handle(record)  # Python would, without this handler

    def _is_alone(self, name: str) -> bool:
        """Returns whether the logger has no other handler."""
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True


@contextmanager
def _installed() -> Iterator[None]:
    """Installs the streams and the handler, and removes them after the last capture."""
    global _n_captures
    with _lock:
        _n_captures += 1
        if not isinstance(sys.stdout, _ThreadStream):
            sys.stdout = _ThreadStream(sys.stdout)
        if not isinstance(sys.stderr, _ThreadStream):
            sys.stderr = _ThreadStream(sys.stderr)
        root = logging.getLogger()
        if not any(isinstance(handler, _ThreadHandler) for handler in root.handlers):
            handler = _ThreadHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            root.addHandler(handler)
    try:
        yield
    finally:
        with _lock:
            _n_captures -= 1
            if not _n_captures:
                _remove()


def _remove() -> None:
    """Removes what is still installed; the caller's code may have replaced it."""
    if isinstance(sys.stdout, _ThreadStream):
        sys.stdout = sys.stdout.stream
    if isinstance(sys.stderr, _ThreadStream):
        sys.stderr = sys.stderr.stream
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _ThreadHandler)]:
        root.removeHandler(handler)
