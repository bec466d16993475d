"""Tracebacks that start at the user's code, and errors in one line."""

from __future__ import annotations

import contextlib
import traceback
from pathlib import Path

_HERE = str(Path(__file__).parents[1])
_CALLERS = ("<frozen runpy>", contextlib.__file__)
"""Files of frames between Heirloom's code and the user's."""


def traceback_of(error: BaseException) -> str:
    """Returns the traceback without Heirloom's frames above the user's; complete if all are Heirloom's."""
    shown = traceback.TracebackException.from_exception(error)
    is_foreign = [not _is_ours(frame.filename) for frame in shown.stack]
    n_kept = is_foreign[::-1].index(True) if any(is_foreign) else len(is_foreign)
    first_kept = len(is_foreign) - n_kept
    frames = [frame for i, frame in enumerate(shown.stack) if i >= first_kept or is_foreign[i]]
    shown.stack = traceback.StackSummary.from_list(frames)
    return "".join(shown.format())


def error_line(error: BaseException) -> str:
    """Returns the error in one line; a note that names the user's method comes first."""
    name = type(error).__name__
    told = [*getattr(error, "__notes__", ()), f"{name}: {error}"]
    line: str = next(text for text in told if f" raised {name}: " in text or text is told[-1])
    return line.strip().splitlines()[0]


def _is_ours(file: str) -> bool:
    return file in _CALLERS or Path(file).is_relative_to(_HERE)
