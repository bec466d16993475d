"""Exceptions of Heirloom, each with the reaction of the controller or the command."""

from __future__ import annotations

from nas.core.redaction import without_passwords


class HeirloomError(Exception):
    """Base class of Heirloom's errors; the message is one line, without passwords of URLs."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(without_passwords(a) if isinstance(a, str) else a for a in arguments))


class ConfigurationError(HeirloomError, ValueError):
    """An invalid option, argument or file of the user. A command exits with status 2."""


class PointError(HeirloomError, ValueError):
    """A point is not in its space. A tuner that proposes it ends the search."""


class SpaceExhaustedError(HeirloomError):
    """All points of the space are known. A tuner answers STOP or repeats a point."""


class StorageError(HeirloomError, OSError):
    """Storage failed (full disk, no permission, no connection). The search ends with status 1."""


class AlreadyPublishedError(StorageError, FileExistsError):
    """An exclusive name is taken. The caller uses the record that was published first."""


class MissingError(StorageError, FileNotFoundError):
    """A file named by a record was not found, after all retries."""


class CorruptError(StorageError):
    """The content of a file differs from its digest or size, or is not valid."""


class SearchBusyError(ConfigurationError):
    """Another command runs this search. Exit status 2, with its host, pid and last heartbeat."""


class SearchNotFoundError(ConfigurationError, KeyError):
    """The root has no search with that name."""

    __str__ = Exception.__str__


class TrialNotFoundError(HeirloomError, KeyError):
    """The lineage has no trial with that number."""

    __str__ = Exception.__str__


class SearchFailedError(HeirloomError):
    """The search cannot continue (tuner failure, too many failed trials in a row). Exit status 1."""


class ActionError(HeirloomError):
    """The problem's ``test`` or ``export`` raised or ended its process; the first line says why."""


class ServerError(HeirloomError):
    """The Prefect server did not start or does not respond. Exit status 1."""


class TrialStopped(Exception):  # noqa: N818 - not an error: a stop that passes through the problem's code
    """Raised inside the problem's ``train`` to stop the trial; a last ``run.save`` is allowed."""


class TrialInterrupted(TrialStopped):
    """The session ends (Ctrl-C, SIGTERM, cancellation). The next session runs the trial again."""


class TrialDeadlineExceeded(TrialStopped):
    """The time budget is used up. The trial is STOPPED with its last report."""


class SearchInterruptedError(HeirloomError):
    """The session was asked to stop. All records are kept, and the same command resumes.

    Attributes:
        signal: The number of the signal, or None for a cancellation or a takeover by another session.
    """

    def __init__(self, why: str, signal: int | None = None) -> None:
        super().__init__(why)
        self.signal = signal
