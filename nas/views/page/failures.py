"""The errors of failed trials, equal ones together."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nas.core.redaction import without_passwords
from nas.core.trial import State
from nas.views.formatting import last_line

if TYPE_CHECKING:
    from nas.views.snapshot import Snapshot

MAX_TEXT = 6_000
MAX_GROUPS = 50
MAX_LINKS = 30


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of one or more trials.

    Attributes:
        reason: The reason of the failures, such as ``exception`` or ``timeout``; ``test`` for a failed test.
        message: The last line of the newest trial's error.
        trials: The trials, newest first.
        text: The error of the newest one.
    """

    reason: str
    message: str
    trials: tuple[int, ...]
    text: str


def failures(snapshot: Snapshot) -> list[Failure]:
    """Returns the errors by the number of their trials, the most frequent first.

    Errors that differ only in numbers are together.
    """
    errors = [
        (trial.number, str(trial.reason or "failed"), trial.error or "")
        for trial in snapshot.lineage
        if trial.state == State.FAILED
    ]
    errors += [(number, "test", str(test["error"])) for number, test in snapshot.tests.items() if test.get("error")]
    groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for number, reason, error in sorted(errors, key=lambda entry: -entry[0]):
        message = last_line(error) or "no message"
        groups.setdefault((reason, re.sub(r"\d+", "0", message)), []).append((number, error))
    ranked = sorted(groups.items(), key=lambda group: -len(group[1]))
    return [_failure(reason, members) for (reason, _), members in ranked]


def error_text(error: str | None) -> str:
    """Returns the end of an error without passwords, as long as the page shows it."""
    text = without_passwords((error or "").strip())
    return text if len(text) <= MAX_TEXT else f"...\n{text[-MAX_TEXT:]}"


def _failure(reason: str, members: list[tuple[int, str]]) -> Failure:
    text = error_text(members[0][1])
    return Failure(reason, last_line(text) or "no message", tuple(number for number, _ in members), text)
