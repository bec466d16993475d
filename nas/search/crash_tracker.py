"""Detection of trials whose code seems to end the driver's process (docs/decisions/007).

In a worker process a crash ends one attempt. With ``runner=debug`` or ``threads`` it ends the driver and its session.
Without this module every later session would run the same trial again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nas.search.host_process import HostProcess
from nas.search.lease import IN_PROCESS, SearchLease
from nas.storage.records import Records, StartedAttempts
from nas.storage.sessions import past_sessions, read_heartbeat

ISOLATE_AFTER = 2
FAIL_AFTER = 3


@dataclass(frozen=True, slots=True)
class CrashTracker:
    """Counts, by trial, the crashes of the driver's process in the trial's last attempts.

    After two crashes in a row a trial runs alone, which shows whether it is the cause. After three it fails.

    Attributes:
        crashes: By trial, the number of its last attempts in a row that ended with a crash of the driver.
        max_attempts: A trial fails after this many crashes, if more than three.
    """

    crashes: Mapping[int, int] = field(default_factory=dict)
    max_attempts: int = 0

    @classmethod
    def of(
        cls, records: Records, starts: Mapping[int, StartedAttempts], lease: SearchLease, max_attempts: int
    ) -> CrashTracker:
        """Returns the tracker of the unfinished trials; an empty one if trials run in worker processes."""
        if not lease.is_in_process or not starts:
            return cls()
        used = {number for found in starts.values() for number in found.sessions}
        sessions = past_sessions(records)
        crashed = {number for number in used & sessions.keys() if _has_crashed(records, number, sessions[number])}
        crashes = {}
        for trial, found in starts.items():
            in_a_row = list(itertools.takewhile(crashed.__contains__, reversed(found.sessions)))
            if in_a_row:
                crashes[trial] = len(in_a_row)
        return cls(crashes, max_attempts)

    def to_isolate(self, trials: Iterable[int]) -> list[int]:
        """Returns those of the trials that must run alone."""
        return [number for number in trials if self.crashes.get(number, 0) >= ISOLATE_AFTER] if self.crashes else []

    def must_fail(self, trial: int) -> bool:
        """Returns whether the trial has used its attempts, the last one alone."""
        return self.crashes.get(trial, 0) >= max(FAIL_AFTER, self.max_attempts)

    def error(self, trial: int) -> str:
        """Returns the error of a trial that must fail."""
        return (
            f"the driver's process died in each of the trial's last {self.crashes[trial]} attempts, the last time with "
            "no other trial running. With runner=processes a crash ends only the trial's worker"
        )


def _has_crashed(records: Records, number: int, session: Mapping[str, Any]) -> bool:
    """Returns whether the session's process ended under its trials, by itself or by ``kill -9``.

    Returns False if the session ended regularly or was asked to stop (Ctrl-C, SIGTERM). Also returns False if its
    process ran on another host, or before the last boot.
    """
    heartbeat = read_heartbeat(records, number) or {}
    if session["settings"].get("runner") not in IN_PROCESS or heartbeat.get("ended") or heartbeat.get("stopping"):
        return False
    return HostProcess.of_session(session).is_gone()
