"""Errors of users' code: their frames, and one line that names the method."""

from __future__ import annotations

import importlib
import json
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from nas.core.spec import Spec
from nas.core.tracebacks import error_line, frames_of, is_of_users_code, raise_ctrl_c, traceback_of


class Wordy:
    """Raises errors of one line, of many, and from libraries."""

    def __init__(self, text: str = "") -> None:
        self.text = text

    def train(self) -> None:
        raise ValueError(self.text)

    def decode(self) -> None:
        json.loads("{")

    def ask(self) -> None:
        [(lambda: int(self.text))() for _ in range(1)]


def raised(call: Callable[[], object]) -> Exception:
    with ThreadPoolExecutor(1) as pool:  # as the commands do: frames of a library lie above the user's
        error = pool.submit(call).exception()
    assert isinstance(error, Exception)
    return error


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (Wordy("the cause\n\nsee the manual\n").train, "Wordy.train raised ValueError: the cause ... see the manual"),
        (Wordy("width 8").train, "Wordy.train raised ValueError: width 8"),
        (Wordy().train, "Wordy.train raised ValueError"),
        (Wordy().decode, "Wordy.decode raised JSONDecodeError: Expecting property name"),
        (Wordy("zwei").ask, "Wordy.ask raised ValueError: invalid literal for int() with base 10: 'zwei'"),
        (lambda: Spec("no_such_module.Thing").find(), "ConfigurationError: _target_=no_such_module.Thing"),
    ],
)
def test_line_names_method_type_and_both_ends(call: Callable[[], object], line: str) -> None:
    """The line has the user's first method, the type, and the first and last line of the message."""
    error = raised(call)

    assert error_line(error).startswith(line)
    assert traceback_of(error).splitlines()[-1].endswith(error_line(error))
    assert "concurrent/futures" not in frames_of(error)


def test_errors_of_an_import_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of the user's that can't be imported is named by its file; import's own frames are left out."""
    (tmp_path / "broken_problem.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    error = raised(partial(importlib.import_module, "broken_problem"))
    text = frames_of(error)

    assert is_of_users_code(error)
    assert error_line(error) == "broken_problem.py raised ModuleNotFoundError: No module named 'no_such_library'"
    assert "broken_problem.py" in text
    assert "importlib" not in text


def test_errors_of_libraries_are_not_the_users() -> None:
    """An error without a frame of the user's keeps its whole traceback."""
    error = raised(Path("/no/such/file").read_text)

    assert not is_of_users_code(error)
    assert "pathlib" in frames_of(error)
    assert error_line(error).startswith("FileNotFoundError: ")


def test_a_long_message_keeps_both_ends() -> None:
    """A line of any length is bounded."""
    line = error_line(raised(Wordy("first" + "x" * 100_000 + "last").train))

    assert len(line) < 400
    assert line.endswith("last")


def test_text_that_can_not_be_shown() -> None:
    """An error whose text raises is still named."""

    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    def fail() -> None:
        raise OddError

    assert "OddError" in error_line(raised(fail))


def test_ctrl_c_is_no_error_of_code() -> None:
    """KeyboardInterrupt passes through where Ctrl-C raises it, and counts as an error where it does not."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            raise_ctrl_c(KeyboardInterrupt())
        signal.signal(signal.SIGINT, lambda *_: None)
        raise_ctrl_c(KeyboardInterrupt())
    finally:
        signal.signal(signal.SIGINT, handler)
