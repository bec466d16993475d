"""Arguments of commands that take no configuration."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable
from typing import NoReturn

from flows.cli.output import prepare_streams, print_message, run_printing
from nas.core.errors import ConfigurationError, HeirloomError


class CommandParser(ArgumentParser):
    """A parser whose mistakes are errors of the configuration, each in one line."""

    def error(self, message: str) -> NoReturn:
        """Raises the mistake with the command line that is expected."""
        usage = " ".join(self.format_usage().removeprefix("usage: ").split())
        raise ConfigurationError(f"{message}. Write {usage}")


def run_plain(body: Callable[[], int]) -> int:
    """Runs a command without a configuration; returns its exit status, 2 for a mistake."""
    prepare_streams()
    try:
        return run_printing(body)
    except ConfigurationError as error:
        print_message(str(error))
        return 2
    except HeirloomError as error:
        print_message(str(error))
        return 1
