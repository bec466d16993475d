"""Orphans: files without a record, left by lost attempts and crashed writers.

Records, logs and files that Heirloom does not write are never orphans.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from nas.core.reference import TEMPORARY, is_path
from nas.core.trial import State, Trial
from nas.storage.blobs import BlobInfo

LONG_GRACE_S = 3600.0
"""Minimum age of an orphan if an unknown process may still write it."""
SHORT_GRACE_S = 60.0
"""Minimum age of an orphan if all sessions have ended: their workers end seconds later."""

_WEIGHTS = re.compile(r"(?:packs|manifests|files)/(\d{6,})-[^/]+")
_RESUME = re.compile(r"resume/(\d{6,})/")
_OTHERS = re.compile(r"best/|check-[0-9a-f]{16}$")
"""Exports without a record, and files of a write check that crashed."""


@dataclass(frozen=True, slots=True)
class GarbageFile:
    """A file to delete.

    Attributes:
        file: The file.
        reason: Why it is deleted, in a few words.
        trial: The trial whose deleted weights it holds, or None: an orphan.
    """

    file: BlobInfo
    reason: str
    trial: int | None = None


def find_orphans(
    stored: Iterable[BlobInfo],
    trials: Sequence[Trial],
    named: Container[str],
    *,
    before: float,
) -> Iterator[GarbageFile]:
    """Yields the files that no record names, and that no record will name.

    A file of a finished trial is an orphan at once: the first result counts, and a later writer adopts it. A record may
    still name a file of an unfinished trial. It is an orphan if it is old and the trial does not run.

    Args:
        stored: All files of the search.
        trials: All trials of the search, by number.
        named: Paths that checkpoints name, those in the folders of a ``save_dir`` included.
        before: A file last changed before this time is old.
    """
    for file in stored:
        is_old = file.modified is not None and file.modified < before
        if not is_path(file.path, unfinished=True):
            continue
        if file.path.rpartition("/")[2].startswith(TEMPORARY):
            if is_old:
                yield GarbageFile(file, "unfinished file of a crashed writer")
        elif file.path in named:
            continue
        elif found := _WEIGHTS.match(file.path):
            if (reason := _judge_weights(int(found[1]), trials, is_old=is_old)) is not None:
                yield GarbageFile(file, reason)
        elif found := _RESUME.match(file.path):
            number = int(found[1])
            if number < len(trials) and trials[number].is_finished:
                yield GarbageFile(file, f"resume point of trial {number}, which is finished")
        elif _OTHERS.match(file.path) and is_old:
            yield GarbageFile(file, _CRASHED)


def _judge_weights(number: int, trials: Sequence[Trial], *, is_old: bool) -> str | None:
    """Returns the reason to delete a trial's file, or None: a record may still name it."""
    trial = trials[number] if number < len(trials) else None
    if trial is not None and trial.weights_deleted:
        return f"left from the deleted weights of trial {number}"
    if trial is not None and trial.is_finished:
        return f"left by an attempt of trial {number} that did not count"
    is_running = trial is not None and trial.state == State.RUNNING
    return _CRASHED if is_old and not is_running else None


_CRASHED = "not named by any record, left by a crashed writer"
