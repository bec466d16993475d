"""Text on standard output and standard error; no other module of the commands prints."""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import Callable

from nas.core.redaction import clean, escape_missing_characters, one_line, without_passwords


def show(text: object = "") -> None:
    """Prints a text on standard output, without what a terminal would obey."""
    print(clean(text))


def show_line(text: object) -> None:
    """Prints a text as one line on standard output."""
    show(one_line(text))


def tell(text: object) -> None:
    """Prints a text on standard error, without passwords and what a terminal would obey."""
    print(clean(without_passwords(str(text))), file=sys.stderr, flush=True)


def print_message(line: str) -> None:
    """Prints one line of Heirloom on standard error."""
    tell("heirloom: " + one_line(line))


def run_printing(body: Callable[[], int]) -> int:
    """Returns the exit status of a body, or 1 if ``| head`` closed standard output."""
    try:
        status = body()
        sys.stdout.flush()
    except BrokenPipeError:
        if not _is_closed():  # a user's code wrote to another pipe
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it again at its end
        return 1
    return status


def _is_closed() -> bool:
    """Returns whether the reader of standard output has ended."""
    output = select.poll()
    output.register(sys.stdout, 0)  # errors are always reported
    return bool(output.poll(0))


def prepare_streams() -> None:
    """Lets a command, and the warnings of Python's last handler, write any text on any terminal."""
    escape_missing_characters()
    if logging.lastResort is not None:  # prints warnings, which may hold text of a problem
        logging.lastResort.setFormatter(_CleanFormatter())


class _CleanFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return clean(super().format(record))
