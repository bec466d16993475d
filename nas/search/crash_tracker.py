"""Suspects: trials whose code seems to end the process that drives the search (docs/decisions/007).

Where trials run in worker processes, a crash ends an attempt. Where they run in the driver's own process
(``runner=debug|threads``), it ends the session, and the next session would run the same trial again, for ever.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nas.search.lease import IN_PROCESS, Driver, Session, driver_of
from nas.storage.records import Records, Starts
from nas.storage.sessions import past_sessions, read_heartbeat

ALONE_AFTER = 2
LOST_AFTER = 3


@dataclass(frozen=True, slots=True)
class CrashTracker:
    """How often in a row a trial's driver died under it.

    Attributes:
        deaths: By trial, its last attempts that ended with their driver's death.
        max_attempts: More than three attempts, where the user allows more.
    """

    deaths: Mapping[int, int] = field(default_factory=dict)
    max_attempts: int = 0

    @classmethod
    def of(cls, records: Records, starts: Mapping[int, Starts], session: Session, max_attempts: int) -> CrashTracker:
        """The suspects among the unfinished trials; none where the session's trials have processes of their own."""
        if not session.is_in_process or not starts:
            return cls()
        named = {number for found in starts.values() for number in found.sessions}
        sessions = past_sessions(records)
        died = {number for number in named & sessions.keys() if _died(records, number, sessions[number])}
        deaths = {n: len(list(itertools.takewhile(died.__contains__, reversed(s.sessions)))) for n, s in starts.items()}
        return cls({number: n_deaths for number, n_deaths in deaths.items() if n_deaths}, max_attempts)

    def among(self, numbers: Iterable[int]) -> list[int]:
        """Those of these trials beside which no other may run, so that their guilt or innocence shows."""
        return [number for number in numbers if self.deaths.get(number, 0) >= ALONE_AFTER] if self.deaths else []

    def is_guilty(self, number: int) -> bool:
        """Returns whether it has had its attempts, the last one alone."""
        return self.deaths.get(number, 0) >= max(LOST_AFTER, self.max_attempts)

    def charge(self, number: int) -> str:
        """What a guilty one's record says."""
        return (
            f"the process that drives the search died in each of its last {self.deaths[number]} attempts, "
            "the last time with no other trial running; runner=processes survives what its code does"
        )


def _died(records: Records, number: int, session: Mapping[str, Any]) -> bool:
    """Returns whether this session's process died, by itself or by ``kill -9``, under its trials.

    Not where it ended, was asked to stop (Ctrl-C, SIGTERM), ran elsewhere, or its machine was started anew since.
    """
    beat = read_heartbeat(records, number) or {}
    if session["settings"].get("runner") not in IN_PROCESS or beat.get("ended") or beat.get("stopping"):
        return False
    driver, here = driver_of(session), Driver.this()
    return driver.is_beside(here) and driver.boot == here.boot and driver.is_gone()
