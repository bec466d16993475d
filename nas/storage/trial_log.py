"""Logs: where the store keeps them, and, where trials share a process, what a thread prints and logs."""

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
_install_lock = threading.Lock()


def log_path(number: int, of: str = "") -> str:
    """Where the store keeps the log of a trial's last attempt, or ``of`` its ``test``, ``export``, ``inheritance``."""
    return f"logs/{number:06d}.{of}.log" if of else f"logs/{number:06d}.log"


def earlier_log_path(number: int, attempt: int) -> str:
    """Where the store keeps the log of an attempt that was not the last."""
    return f"logs/{number:06d}-{attempt}.log"


def set_earlier_log_aside(files: BlobStore, number: int, attempt: int) -> None:
    """Gives the log of the attempt before this one, where it left any, the name that it keeps."""
    if attempt > 1 and (log := files.read_if_present(log_path(number))) is not None:
        files.replace(earlier_log_path(number, attempt - 1), log, durable=False)
        files.delete(log_path(number))


class TrialLog:
    """Keeps the last 1 MB of text of one attempt, test or export."""

    def __init__(self) -> None:
        self._parts: deque[str] = deque()
        self._size = 0

    def write(self, text: str) -> None:
        """Adds text, dropping the oldest beyond 1 MB."""
        if not text:
            return
        self._parts.append(text)
        self._size += len(text)
        while self._size > MAX_LOG_BYTES and len(self._parts) > 1:
            self._size -= len(self._parts.popleft())

    def clear(self) -> None:
        """Forgets what was written."""
        self._parts.clear()
        self._size = 0

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Takes what the calling thread prints and logs meanwhile."""
        _install()
        _current.log = self
        try:
            yield
        finally:
            _current.log = None

    def put(self, files: BlobStore, path: str) -> None:
        """Stores the log, where anything was written."""
        if self._parts:
            files.replace(path, "".join(self._parts).encode(errors="replace")[-MAX_LOG_BYTES:], durable=False)


class _ThreadStream:
    """Stands for ``sys.stdout`` or ``sys.stderr``: a thread that trains a trial writes to its log, others pass."""

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
            last.handle(record)  # as Python does where nobody handles it, which this handler hides

    def _is_alone(self, name: str) -> bool:
        """Returns whether nobody else takes what this logger says."""
        logger: logging.Logger | None = logging.getLogger(name)
        while logger is not None:
            if any(handler is not self for handler in logger.handlers):
                return False
            logger = logger.parent if logger.propagate else None
        return True


def _install() -> None:
    with _install_lock:
        if not isinstance(sys.stdout, _ThreadStream):
            sys.stdout = _ThreadStream(sys.stdout)
        if not isinstance(sys.stderr, _ThreadStream):
            sys.stderr = _ThreadStream(sys.stderr)
        root = logging.getLogger()
        if not any(isinstance(handler, _ThreadHandler) for handler in root.handlers):
            handler = _ThreadHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            root.addHandler(handler)
