"""The output of Prefect and its libraries: into a file, away from the command's standard error."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TextIO

_NOISY_PACKAGES = ("prefect", "anyio", "asyncio", "httpcore", "httpx", "websockets")
_NOISY_LOGGERS = (*_NOISY_PACKAGES, "EventsWorker", "APILogWorker")  # services of Prefect, which log as their class


def silence_prefect(log_path: Path, auth_string: str | None = None) -> None:
    """Redirects the output of Prefect and its libraries to a file: logs, warnings, tracebacks of threads.

    It imports Prefect with the credentials of a temporary server. The last call's path counts. The file is made at the
    first output.
    """
    for folder in (log_path.parent.parent, log_path.parent):  # the import makes PREFECT_HOME, but not its parents
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _credentials(auth_string):
        import prefect.main  # noqa: F401 - sets up Prefect's logging; "import prefect" does not
    from prefect.logging.handlers import APILogHandler, PrefectConsoleHandler, _SafeStreamHandler

    # Hydra flushes all handlers at its end, 5 s if the server hangs. ``drain_prefect`` was called before.
    APILogHandler.flush = logging.Handler.flush  # type: ignore[method-assign]

    consoles = (PrefectConsoleHandler, _SafeStreamHandler)  # on Prefect's loggers, and one on the root logger
    to_file = _NoiseFile(log_path)
    known = [logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    for logger in (logging.root, *known):
        for handler in list(logger.handlers):
            if isinstance(handler, (_NoiseFile, *consoles)):
                logger.removeHandler(handler)
                handler.close()
        if logger.name.startswith("prefect."):
            logger.propagate = True
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).addHandler(to_file)
        logging.getLogger(name).propagate = False
    if not isinstance(getattr(threading.excepthook, "__self__", None), _NoiseHooks):
        _NoiseHooks().install()


def drain_prefect(timeout_s: float) -> None:
    """Waits until Prefect's threads have sent their events and logs."""
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=timeout_s)


@contextlib.contextmanager
def _credentials(auth_string: str | None) -> Iterator[None]:
    """Sets credentials in the environment while Prefect reads its settings, so that no worker inherits them."""
    name = "PREFECT_API_AUTH_STRING"
    before = os.environ.get(name)
    if auth_string is not None:
        os.environ[name] = auth_string
    try:
        yield
    finally:
        if auth_string is not None:
            os.environ.pop(name)
        if before is not None:
            os.environ[name] = before


class _NoiseFile(logging.FileHandler):
    """A log file that prints no traceback if the disk is full."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, delay=True)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(threadName)s %(name)s: %(message)s"))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        pass


class _NoiseHooks:
    """Hooks for warnings and errors that Python prints without logging.

    Those of Prefect are logged; the others go to the hooks that were set before.
    """

    def __init__(self) -> None:
        modules = (sys.modules.get(name) for name in _NOISY_PACKAGES)
        self._folders = tuple(str(Path(module.__file__).parent) for module in modules if module and module.__file__)
        self._logger = logging.getLogger("prefect")

    def install(self) -> None:
        self._showwarning, warnings.showwarning = warnings.showwarning, self.showwarning
        self._excepthook, threading.excepthook = threading.excepthook, self.excepthook
        self._unraisablehook, sys.unraisablehook = sys.unraisablehook, self.unraisablehook

    def showwarning(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if filename.startswith(self._folders):
            self._logger.warning("%s", warnings.formatwarning(message, category, filename, lineno, line).rstrip())
        else:
            self._showwarning(message, category, filename, lineno, file, line)

    def excepthook(self, args: threading.ExceptHookArgs) -> None:
        if self._is_prefects(args.exc_traceback):
            self._log(f"thread {args.thread.name if args.thread else None} died", args.exc_value)
        else:
            self._excepthook(args)

    def unraisablehook(self, args: sys.UnraisableHookArgs) -> None:
        if self._is_prefects(args.exc_traceback):
            self._log(f"{args.err_msg or 'exception ignored in'} {args.object!r}", args.exc_value)
        else:
            self._unraisablehook(args)

    def _is_prefects(self, traceback: TracebackType | None) -> bool:
        while traceback is not None:
            if traceback.tb_frame.f_code.co_filename.startswith(self._folders):
                return True
            traceback = traceback.tb_next
        return False

    def _log(self, message: str, error: BaseException | None) -> None:
        self._logger.error("%s", message, exc_info=error)
