"""The errors that Heirloom raises on purpose, and what the loop or a command does about each."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable


class HeirloomError(Exception):
    """Any error that Heirloom raises on purpose; its message is one clear line for a person."""


class ConfigurationError(HeirloomError, ValueError):
    """The user asked for something that can't be: a command prints the line and exits with status 2."""


class PointError(HeirloomError, ValueError):
    """A point does not lie in its space; from a tuner, it ends the search (a failing trial is data, this is a bug)."""


class SpaceExhaustedError(HeirloomError):
    """The space holds no point that differs from those given; a tuner answers STOP or repeats a point."""


class StorageError(HeirloomError, OSError):
    """The store can't keep its promise (full disk, no permission, lost server): the search ends with status 1."""


class AlreadyPublishedError(StorageError, FileExistsError):
    """An exclusive name is taken already; the first record wins and the caller adopts it."""


class MissingError(StorageError, FileNotFoundError):
    """A file that a record names was not found within the bound of the retries."""


class CorruptError(StorageError):
    """A file's bytes are not those that its record promises, or its contents lie about themselves."""


class SearchBusyError(ConfigurationError):
    """Another command drives this search now: exit status 2, naming host, pid and age of its beat."""


class SearchNotFoundError(ConfigurationError, KeyError):
    """No search of that name lies under the root."""

    __str__ = Exception.__str__


class TrialNotFoundError(HeirloomError, KeyError):
    """The lineage holds no trial with that number."""

    __str__ = Exception.__str__


class SearchFailedError(HeirloomError):
    """The search can't go on (a tuner without an answer, too many failures in a row): exit status 1."""


class ActionError(HeirloomError):
    """The problem's ``test`` or ``export`` raised, or ended its process; the message's first line says why."""


class ServerError(HeirloomError):
    """The Prefect server can't be reached or did not start: exit status 1."""


class TrialStopped(Exception):  # noqa: N818 - not an error: a stop that passes through the problem's code
    """Passes through the problem's ``train`` after a stop; a last ``run.save`` is allowed meanwhile."""


class TrialInterrupted(TrialStopped):
    """The session ends (Ctrl-C, SIGTERM, a cancel): the trial gets no result and runs again in the next session."""


class TrialOverdue(TrialStopped):
    """The hours are spent: the trial ends STOPPED with what it reported last."""


class SearchInterruptedError(HeirloomError):
    """The session was asked to stop (its first argument says why); records are kept, the same command resumes.

    Attributes:
        signal: The signal's number, or None for a cancel or a newer session.
    """

    def __init__(self, why: str, signal: int | None = None) -> None:
        super().__init__(why)
        self.signal = signal


def check_whole(name: str, value: object, least: int) -> None:
    """Returns if the value is an int of at least that.

    Raises:
        ConfigurationError: it is not; a bool is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        remedy = f", and written as one: {value:.0f}" if isinstance(value, float) and value.is_integer() else ""
        raise ConfigurationError(f"{name} ({value!r}) must be a whole number of at least {least}{remedy}")


def check_seed(name: str, value: object, n_bits: int = 64) -> None:
    """Returns if the value is an int that a generator takes: of so many bits, without a sign.

    Raises:
        ConfigurationError: it is not; a bool is none.
    """
    check_whole(name, value, 0)
    if isinstance(value, int) and value >= 2**n_bits:
        raise ConfigurationError(f"{name} ({value}) must be a whole number from 0 to below 2 ** {n_bits}")


def check_number(name: str, value: object) -> None:
    """Returns if the value is a finite int or float.

    Raises:
        ConfigurationError: it is not; a bool is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or abs(value) == math.inf:
        raise ConfigurationError(f"{name} ({value!r}) must be a number")


def nearest_first(wrong: str, names: Iterable[str], n: int = 20) -> str:
    """Returns the names that there are, for a message about a wrong one: first those like it, and ``n`` at most."""
    known = list(names)
    near = difflib.get_close_matches(wrong, known, n=3, cutoff=0.5)
    shown = [*near, *(name for name in known if name not in near)]
    return ", ".join(shown[:n]) + (f" and {len(shown) - n} more" if len(shown) > n else "")
