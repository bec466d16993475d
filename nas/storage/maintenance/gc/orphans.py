"""What lies in a search's folder although no record names it: left by swept trials, lost attempts, crashed writers.

Records and logs are never touched, nor is any file of a kind that Heirloom does not write.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass

from nas.core.reference import TEMPORARY, is_path
from nas.core.trial import State, Trial
from nas.storage.blobs import BlobInfo

LONG_GRACE_S = 3600.0
"""How old a file must be where a process that writes it may live, though none is known to."""
SHORT_GRACE_S = 60.0
"""The same where every session has certainly ended: its workers outlive it by seconds at the most."""

_WEIGHTS = re.compile(r"(?:packs|manifests|files)/(\d{6,})-[^/]+")
_PARTIAL = re.compile(r"resume/(\d{6,})/")
_ORPHANS = re.compile(r"best/|check-[0-9a-f]{16}$")
"""Exports that no record of a winner names, and what a crash leaves of the proof that a root can be written."""


@dataclass(frozen=True, slots=True)
class Orphans:
    """A file that goes.

    Attributes:
        why: In a few words.
        trial: Whose weights it held, where they are given up; else None.
    """

    file: BlobInfo
    why: str
    trial: int | None = None


def find_orphans(
    stored: Iterable[BlobInfo],
    trials: Sequence[Trial],
    named: Container[str],
    *,
    before: float,
) -> Iterator[Orphans]:
    """Yields the files that no record names, and that nobody will name any more.

    A file of a finished trial that its result does not name goes at once, as the first result stands: a later writer
    adopts it. One of an unfinished trial may still be named: it goes where it is old and the trial does not run.

    Args:
        stored: What lies there.
        trials: All of the search, by number.
        named: What checkpoints name, whole folders of saved files among it.
        before: What was changed before this moment is old.
    """
    for file in stored:
        is_old = file.modified is not None and file.modified < before
        if not is_path(file.path, unfinished=True):
            continue
        if file.path.rpartition("/")[2].startswith(TEMPORARY):
            if is_old:
                yield Orphans(file, "left unfinished by a crashed writer")
        elif file.path in named:
            continue
        elif found := _WEIGHTS.match(file.path):
            if (why := _judge_weights(int(found[1]), trials, is_old=is_old)) is not None:
                yield Orphans(file, why)
        elif found := _PARTIAL.match(file.path):
            number = int(found[1])
            if number < len(trials) and trials[number].is_finished:
                yield Orphans(file, f"partial weights of trial {number}, which has finished")
        elif _ORPHANS.match(file.path) and is_old:
            yield Orphans(file, "named by no record, left by a crashed writer")


def _judge_weights(number: int, trials: Sequence[Trial], *, is_old: bool) -> str | None:
    """Why a file of this trial goes, or None: it may still be named."""
    trial = trials[number] if number < len(trials) else None
    if trial is not None and trial.weights_deleted:
        return f"trial {number} was swept, and this was left"
    if trial is not None and trial.is_finished:
        return f"left by an attempt of trial {number} that did not count"
    is_running = trial is not None and trial.state == State.RUNNING
    return "named by no record, left by a crashed writer" if is_old and not is_running else None
