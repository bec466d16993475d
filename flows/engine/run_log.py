"""Log of a flow run and of its task runs on the user's own Prefect server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

from nas.core.redaction import clean, without_passwords
from nas.core.trial import State, Trial
from nas.executors.events import Event, Finished, Notice, TrialLost
from nas.views.formatting import failure_line, number

SEND_EVERY_S = 2.0
BATCH = 200
"""Lines per request."""
N_LINES = 50
"""Lines of a FAILED trial's log."""
MAX_LINE = 2_000

Line = Mapping[str, object]


class RunLog:
    """Lines for Prefect's log pages, sent in batches.

    Prefect's own log handler costs 1 ms a task run. Only the thread of ``RunArtifacts`` uses this class.

    Args:
        flow_run: Id of the flow run.
        log_of: Reads the log of a trial.
        send: Sends lines to the server.
    """

    def __init__(self, flow_run: str, log_of: Callable[[int], str], send: Callable[[Sequence[Line]], object]) -> None:
        self._flow_run = flow_run
        self._log_of = log_of
        self._send = send
        self._lines: list[Line] = []
        self._next_s = time.monotonic()
        self._last = datetime.now(UTC)

    def add(self, event: Event, task_run: str | None) -> None:
        """Adds the end of a FAILED trial's log, or one line of another event."""
        match event:
            case Finished(trial=trial) if trial.state == State.FAILED:
                lines = [line for line in self._log_of(trial.number).splitlines() if line.strip()]
                for line in lines[-N_LINES:]:
                    self.say(line, logging.INFO, task_run)
                self.say(f"trial {trial.number} FAILED: {failure_line(trial)}", logging.ERROR, task_run)
            case Finished(trial=trial):
                self.say(_result(trial), logging.INFO, task_run)
            case TrialLost(trial=lost, why=why):
                self.say(f"an attempt of trial {lost} was lost: {why}", logging.WARNING, task_run)
            case Notice(text=text):
                self.say(text, logging.WARNING)

    def say(self, text: str, level: int, task_run: str | None = None) -> None:
        """Adds one line, to the flow run and perhaps to a task run."""
        self._last = max(datetime.now(UTC), self._last + timedelta(microseconds=1))  # the server sorts by time
        line = {
            "name": "heirloom",
            "level": level,
            "message": clean(without_passwords(text))[:MAX_LINE],
            "timestamp": self._last.isoformat(),
            "flow_run_id": self._flow_run,
        }
        self._lines.append(line if task_run is None else {**line, "task_run_id": task_run})

    def send_due(self, *, everything: bool = False) -> None:
        """Sends whole batches, and every few seconds the rest."""
        is_due = everything or time.monotonic() >= self._next_s
        while len(self._lines) >= BATCH or (is_due and self._lines):
            batch, self._lines = self._lines[:BATCH], self._lines[BATCH:]  # dropped even if the server refuses them
            self._next_s = time.monotonic() + SEND_EVERY_S
            self._send(batch)


def _result(trial: Trial) -> str:
    parts = [str(trial.state), *filter(None, [trial.reason and str(trial.reason)])]
    parts += [f"{name} {number(value)}" for name, value in trial.metrics.items()]
    return f"trial {trial.number} {', '.join(parts)}"
