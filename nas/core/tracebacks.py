"""Tracebacks that start at the user's code, and errors in one line."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

from nas.core.redaction import without_passwords, without_private

_HERE = str(Path(__file__).parents[1])
_FLOWS = str(Path(__file__).parents[2] / "flows")
_SHIPPED = tuple(f"{_HERE}/{package}/" for package in ("problems", "tuners", "stoppers"))
_LIBRARIES = frozenset({"site-packages", "dist-packages"})
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_MAX_LINE = 300
_FRAME = re.compile(r'(?<=File ")/[^"\n]+(?=", line )')


def traceback_of(error: BaseException) -> str:
    """Returns the frames from the user's code on, and then the error in one line."""
    frames, line = frames_of(error), error_line(error)
    return frames if frames.endswith(f"{line}\n") else f"{frames}{line}\n"


def frames_of(error: BaseException) -> str:
    """Returns the traceback without Heirloom's frames above the user's; complete if all are Heirloom's."""
    shown = traceback.TracebackException.from_exception(error)
    files = [frame.filename for frame in shown.stack]
    first = next((place for place, file in enumerate(files) if is_users_file(file)), 0)
    is_foreign = [place >= first and not _is_ours(file) for place, file in enumerate(files)]
    last = max((place for place, found in enumerate(is_foreign) if found), default=-1)
    frames = [frame for place, frame in enumerate(shown.stack) if place > last or is_foreign[place]]
    shown.stack = traceback.StackSummary.from_list(frames)
    return "".join(shown.format())


def error_line(error: BaseException) -> str:
    """Returns ``Class.method raised Type: first line ... last line``.

    The method is that of a note, of the user's first frame, or of a shipped problem, tuner or stopper. Without one,
    Heirloom found the error itself, and no method is named.
    """
    name, notes = type(error).__name__, getattr(error, "__notes__", ())
    if (note := next((note for note in notes if f" raised {name}" in note), None)) is not None:
        return ends_of(note)
    where = _method(error, is_users_file) or _method(error, lambda file: file.startswith(_SHIPPED))
    described = ": ".join(filter(None, [name, ends_of(text_of(error))]))
    return described if where is None else f"{where} raised {described}"


def recorded_error(text: str, private: Mapping[str, str]) -> str:
    """Returns the text of an error for a record: without ``private_texts`` and folders of frames."""
    return without_private(_FRAME.sub(lambda found: _importable(found[0]), text), private)


def _importable(file: str) -> str:
    """Returns a file's path below the longest place of ``sys.path``, else its name."""
    places = [place for place in map(os.path.abspath, sys.path) if file.startswith(f"{place}/")]
    return file[len(max(places, key=len)) + 1 :] if places else os.path.basename(file)


def raise_ctrl_c(error: BaseException) -> None:
    """Raises an error again if it is a Ctrl-C, and not raised by a user's code.

    Commands and workers have handlers of their own for SIGINT, which raise nothing.
    """
    if isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raise error


def is_of_users_code(error: BaseException) -> bool:
    """Returns whether a frame is neither Heirloom's nor a library's."""
    return any(is_users_file(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__))


def _method(error: BaseException, is_shown: Callable[[str], bool]) -> str | None:
    """Returns the first method in these files, else the file of an import."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__) if is_shown(frame.f_code.co_filename)]
    names = [code.co_qualname.rpartition("<locals>.")[2] for code in codes]
    methods = (name for name in names if "." in name and "<" not in name)
    if (found := next(methods, None)) is not None:
        return found
    return Path(codes[0].co_filename).name if names and names[0] == "<module>" else None


def text_of(error: BaseException) -> str:
    """Returns the text of an error, even if its ``__str__`` raises."""
    try:
        return str(error)
    except Exception:
        return "(its text can't be shown)"


def ends_of(text: str) -> str:
    """Returns the ends of a text as one line of bounded length, without passwords."""
    lines = [line.strip() for line in without_passwords(text).splitlines() if line.strip()]
    line = " ... ".join([*lines[:1], *lines[1:][-1:]])
    return line if len(line) <= _MAX_LINE else f"{line[: _MAX_LINE // 2]} ... {line[-_MAX_LINE // 2 :]}"


def is_users_file(file: str) -> bool:
    """Returns whether a file is neither Heirloom's nor a library's."""
    is_library = file.startswith(("<frozen", _STANDARD_LIBRARY)) or not _LIBRARIES.isdisjoint(Path(file).parts)
    return not is_library and not _is_ours(file)


def _is_ours(file: str) -> bool:
    """Returns whether a file is Heirloom's, or lies between its code and the user's."""
    if file == contextlib.__file__ or file.startswith("<frozen"):
        return True
    return Path(file).is_relative_to(_HERE) or Path(file).is_relative_to(_FLOWS)
