"""Live progress on standard error."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from nas.core.metric import Metric
from nas.core.ranking import is_better_cut_short, winner_key
from nas.core.redaction import public_line
from nas.core.shared_scores import has_shared_score
from nas.core.supernet import add_shared_epoch
from nas.core.trial import State, Trial
from nas.executors.events import (
    Event,
    ExtraResult,
    Finished,
    JobLeftWorker,
    Notice,
    Proposed,
    Reported,
    Started,
    TrialLost,
    WeightsDeleted,
)
from nas.views.formatting import count, duration, last_line, score, size
from nas.views.report_counter import ReportCounter
from nas.views.trial_summary import SHARED

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAIN_EVERY_S = 10.0
PLAIN_REPORTS_EVERY_S = 60.0
"""Seconds between plain lines on the epochs of finals."""
BAR_WIDTH = 30


class Progress:
    """Progress display: two live lines in a terminal, else plain lines.

    Shows trials done and running, finals with their epochs, the best score and the time left. The mean inherited share
    is that of the stage that runs.

    Args:
        metrics: The problem's metrics; the first is shown.
        wanted: Number of trials per stage, search stage first; None: not known. Without retries and trials of
            ``more_epochs`` that are proposed later.
        known: Trials of earlier sessions, finished or not.
    """

    def __init__(self, metrics: Sequence[Metric], wanted: Mapping[str, int | None], known: list[Trial]) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.spinner import Spinner

        self._metrics = metrics
        self._n_wanted = dict(wanted)
        self._search_stage = next(iter(wanted))
        self._n_done = dict.fromkeys(wanted, 0)
        self._n_known = {stage: sum(trial.stage == stage for trial in known) for stage in wanted}
        self._best: dict[str, tuple[tuple[bool, int, list[float], int], Trial]] = {}  # by stage, with its place
        self._seconds = dict.fromkeys(wanted, 0.0)  # of the trials timed
        self._n_timed = dict.fromkeys(wanted, 0)
        self._shares: dict[str, list[float]] = {stage: [] for stage in wanted}
        self._stage = self._search_stage  # of the newest trial that started or finished
        self._reports = ReportCounter(self._search_stage)
        self._reports.add(known)
        self._finished: dict[int, Trial] = {}
        self._running: set[int] = set()
        self._epochs: dict[int, int] = {}
        self._n_failed = 0
        self._n_slots = 1
        self._began = time.monotonic()
        self._ends = math.inf
        self._last_plain = 0.0
        self._has_late = False
        for trial in known:
            if trial.is_finished:
                self._count(trial, is_new=False)
        self._detail: str | None = ""  # None: show the state of the search
        self._waits_for: str | None = None
        self._console = Console(stderr=True, highlight=False, markup=False)
        self._is_live = self._console.is_terminal
        self._spinner = Spinner("dots" if self._console.encoding.startswith("utf") else "line")
        self._bar = ProgressBar(self.n_total, self.n_done, width=BAR_WIDTH)
        self._live = Live(console=self._console, get_renderable=self._render, refresh_per_second=4)

    def __enter__(self) -> Progress:
        if self._is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stops the live display and leaves its last state on the terminal."""
        self._live.stop()

    def limit_hours(self, hours: float | None) -> None:
        """Sets the hours after which the search ends in any case; None: no limit."""
        self._ends = math.inf if hours is None else time.monotonic() + 3600 * hours

    def say(self, text: str) -> None:
        """Shows the current activity."""
        self._detail = text
        if not self._is_live:
            self.note(text)

    def note(self, text: str) -> None:
        """Prints a line that stays."""
        line = public_line(text)
        if self._is_live:
            self._console.print(line, soft_wrap=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def show_wait(self, what: str | None) -> None:
        """Shows what all trials wait for, until it is None again."""
        self._waits_for = what

    def observe(self, event: Event) -> None:
        """Updates the display after an event of the search."""
        if isinstance(event, Proposed):
            self._expect(event.trial)
            self._reports.add([event.trial])
        match event:
            case Started(trial=number):
                self._running.add(number)
                self._stage = self._reports.stage_of(number)
                self._reports.start(number)
                self._n_slots = max(self._n_slots, len(self._running))
            case Reported(trial=number):
                if not self._reports.report(number):
                    return
                self._show_reports()
            case TrialLost(trial=number, why=why):
                self._running.discard(number)
                self._reports.end(number)
                if why != "interrupted":
                    self.note(f"trial {number} was lost: {why}")
            case JobLeftWorker(job=job, error=error, lost=lost) if error or lost:
                why = lost or str(last_line(error))
                self.note(f"job {job} ended between two trials: {why}")
            case ExtraResult(trial=number):
                if not self._has_late:
                    self.note(
                        f"trial {number} returned a second result: the first counts, later ones are in its log "
                        "(further cases are not printed)"
                    )
                self._has_late = True
            case Finished(trial=trial):
                self._running.discard(trial.number)
                self._count(trial, is_new=True)
                self._detail = None
                self._show(trial)
            case Notice(text=text):
                self.note(text)
                return
            case WeightsDeleted(trials=trials, bytes=freed, over_budget=over_budget):
                if freed:
                    self.note(f"deleted the weights of {count(len(trials), 'trial')}, {size(freed)}")
                if over_budget is not None:
                    self.note(over_budget)
                return
            case Proposed(trial=trial) if not self._running:
                is_search = trial.stage == self._search_stage
                self._detail = "starting the first trials" if is_search else f"starting {self._plural(trial.stage)}"
                return
            case _:
                return
        self._detail = None

    def _expect(self, trial: Trial) -> None:
        n_wanted = self._n_wanted[trial.stage]
        self._n_known[trial.stage] += 1
        if n_wanted is not None and not trial.is_counted:  # retries and more epochs come on top
            self._n_wanted[trial.stage] = n_wanted + 1

    def _count(self, trial: Trial, *, is_new: bool) -> None:
        stage = self._stage = trial.stage
        self._finished[trial.number] = trial
        self._reports.add([trial])
        self._n_done[stage] += 1
        self._n_failed += trial.state == State.FAILED
        if trial.duration_s is not None and is_new:
            self._seconds[stage] += trial.duration_s
            self._n_timed[stage] += 1
        if trial.inherited_share is not None:
            self._shares[stage].append(trial.inherited_share)
        add_shared_epoch(self._epochs, trial)
        place = winner_key(trial, self._metrics, self._epochs)
        if place is not None and (stage not in self._best or place < self._best[stage][0]):
            self._best[stage] = (place, trial)

    def _stage_of_best(self, stages: Sequence[str]) -> str | None:
        """Returns the stage whose best trial would win, as in ``nas.core.ranking.competitors``.

        Args:
            stages: Those with a score, the last one first.
        """
        for place, stage in enumerate(stages):
            key, _ = self._best[stage]
            if not key[0]:  # COMPLETE
                later = [s for s in stages[:place] if is_better_cut_short(self._best[s][0], key)]
                return min(later, key=lambda s: self._best[s][0], default=stage)
        return next(iter(stages), None)

    def _state(self) -> str:
        parts = [f"running {len(self._running)}"] if self._running else []
        if self._n_failed:
            parts.append(f"failed {self._n_failed}")
        if self._stage != self._search_stage or self._reports.goes_on:
            parts += filter(None, [self._later_stage(), self._reports.text()])
        known = [stage for stage in reversed(self._n_wanted) if stage in self._best]
        if stage := self._stage_of_best(known):
            (_, best), kind = self._best[stage], "" if stage == self._search_stage else f"{stage} "
            parts.append(f"best {kind}{self._score(best)} (trial {best.number})")
        if shares := self._shares[self._stage]:
            parts.append(f"mean inherited {fmean(shares):.0%}")
        return ", ".join(parts)

    def _later_stage(self) -> str:
        """Returns the stage's trials that are done: ``finals 1/2``; empty with ``more_epochs``."""
        n_done, n_expected = self._n_done[self._stage], self._expected()[self._stage]
        if n_done == n_expected or self._reports.goes_on:
            return ""
        return f"{self._plural(self._stage)} {n_done}{'' if n_expected is None else f'/{n_expected}'}"

    def _plural(self, stage: str) -> str:
        return "finals" if stage == next(reversed(self._n_wanted)) else f"stage {stage}"

    def _score(self, trial: Trial) -> str:
        """Returns the score of a trial; one of shared weights is marked."""
        name = self._metrics[0].name
        shared = SHARED if has_shared_score(trial, self._finished.get) else ""
        return f"{name} {score(trial.metrics[name])}{shared}"

    def _expected(self) -> dict[str, int | None]:
        """Returns the expected number of trials per stage."""
        return {
            stage: None if n is None else max(n, self._n_known[stage], self._n_done[stage])
            for stage, n in self._n_wanted.items()
        }

    def _left(self) -> str:
        """Returns the time left, from durations so far; only up to a stage without durations."""
        most, seconds, to_come = max(0.0, self._ends - time.monotonic()), 0.0, False
        for stage, n_expected in self._expected().items():
            n_left = (n_expected or 0) - self._n_done[stage]
            if n_expected is None or (n_left and not self._n_timed[stage]):
                plural = self._plural(stage)
                goal = f"the {plural}" if plural == "finals" else plural
                return f"about {duration(min(seconds, most))} to {goal}" if seconds else ""
            if n_left:
                to_come = True
                seconds += n_left * self._seconds[stage] / self._n_timed[stage] / min(self._n_slots, n_left)
        return f"about {duration(min(seconds, most))} left" if to_come else ""

    @property
    def n_done(self) -> int:
        """The number of finished trials."""
        return sum(self._n_done.values())

    @property
    def n_total(self) -> int | None:
        """The expected number of trials, or None."""
        expected = self._expected().values()
        return None if None in expected else sum(n for n in expected if n is not None)

    @property
    def detail(self) -> str:
        """The current activity, or the state of the search with the time left."""
        return ", ".join(filter(None, [public_line(self._shown_detail()), self._left()]))

    def _render(self) -> RenderableType:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        self._bar.update(self.n_done, self.n_total)
        times = [duration(time.monotonic() - self._began), *filter(None, [self._left()])]
        n_trials = f"{self.n_done} trials" if self.n_total is None else f"{self.n_done}/{self.n_total} trials"
        text = ", ".join([n_trials, *times])
        first = Table.grid(padding=(0, 1))
        first.add_row(self._spinner, self._bar, Text(text, overflow="ellipsis", no_wrap=True))
        return Group(first, Text(f"  {public_line(self._shown_detail())}", overflow="ellipsis", no_wrap=True))

    def _shown_detail(self) -> str:
        if self._waits_for is not None:
            return f"waiting for {self._waits_for}"
        return self._state() if self._detail is None else self._detail

    def _show(self, trial: Trial) -> None:
        """Prints failures at once; a plain log also has finals, and others every 10 s."""
        value = trial.value(self._metrics[0].name)
        is_due = time.monotonic() - self._last_plain >= PLAIN_EVERY_S or trial.stage != self._search_stage
        if trial.state != State.FAILED and (self._is_live or not is_due):
            return
        outcome = self._score(trial) if value is not None else str(trial.reason or "without a number")
        text = f"trial {trial.number} ({trial.stage}) {trial.state} {outcome}"
        if trial.state == State.FAILED and (error := last_line(trial.error)):
            text += f": {error}"
        self.note(text if self._is_live else f"{self._done()} {text}; {self._plain_state()}")

    def _show_reports(self) -> None:
        """Prints the epochs of finals now and then in a plain log."""
        if not self._is_live and time.monotonic() - self._last_plain >= PLAIN_REPORTS_EVERY_S:
            self.note(f"{self._done()} {self._plain_state()}")

    def _done(self) -> str:
        return f"[{self.n_done}{'' if self.n_total is None else f'/{self.n_total}'} done]"

    def _plain_state(self) -> str:
        self._last_plain = time.monotonic()
        return "; ".join(filter(None, [self._state(), self._left()]))
