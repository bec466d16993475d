"""Live progress on standard error, and the summary on standard output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from nas.executors.base import Event, Finished, Lost, Proposed, Started
from nas.metric import Metric
from nas.program import Summary
from nas.trial import State, Trial

PLAIN_EVERY_S = 10.0


class Progress:
    """Trials done, running, best so far, share inherited, time left: a live line in a terminal, else plain lines.

    Args:
        metric: Ranks trials.
        n_trials: Trials that the budget allows in the search stage, or None.
        n_finals: Finalists, 0 where there is no final stage.
    """

    def __init__(self, metric: Metric, n_trials: int | None, n_finals: int, done: list[Trial]) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._metric = metric
        self._n_trials = n_trials
        self._n_finals = n_finals
        self._running: set[int] = set()
        self._best: Trial | None = None
        self._shares: list[float] = []
        self._durations: dict[str, list[float]] = {"search": [], "final": []}
        self._n_done = {"search": 0, "final": 0}
        self._n_failed = 0
        self._n_slots = 1
        console = Console(stderr=True)
        self._is_live = console.is_terminal
        self._last_plain = 0.0
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[detail]}"),
            TimeElapsedColumn(),
        )
        self._bar = Progress(*columns, console=console, disable=not self._is_live, refresh_per_second=4)
        total = None if n_trials is None else n_trials + n_finals
        self._task = self._bar.add_task("trials", total=total, detail="starting")
        for trial in done:
            self._count(trial, is_new=False)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """What goes on besides trials."""
        if self._is_live:
            self._bar.update(self._task, detail=text)
        else:
            print(text, file=sys.stderr, flush=True)

    def observe(self, event: Event) -> None:
        """Takes in an event of the loop."""
        match event:
            case Started(trial=number):
                self._running.add(number)
                self._n_slots = max(self._n_slots, len(self._running))
            case Lost(job=job):
                self._running.discard(job)
            case Finished(trial=trial):
                self._running.discard(trial.number)
                self._count(trial, is_new=True)
                self._show(trial)
            case Proposed():
                return
        if self._is_live:
            n_done = sum(self._n_done.values())
            self._bar.update(self._task, completed=n_done, detail=self._detail())

    def _count(self, trial: Trial, *, is_new: bool) -> None:
        kind = "search" if trial.stage == "search" else "final"
        self._n_done[kind] += 1
        self._n_failed += trial.state == State.FAILED
        if trial.duration_s is not None and is_new:
            self._durations[kind].append(trial.duration_s)
        if trial.inherited is not None and trial.donor is not None:
            self._shares.append(trial.inherited)
        value = trial.value(self._metric.name)
        best = None if self._best is None else self._best.value(self._metric.name)
        if value is not None and (best is None or self._metric.is_better(value, best)):
            self._best = trial

    def _detail(self) -> str:
        parts = [f"running {len(self._running)}"]
        if self._n_failed:
            parts.append(f"failed {self._n_failed}")
        if self._best is not None:
            parts.append(
                f"best {self._metric.name} {self._best.metrics[self._metric.name]:.4f} (trial {self._best.number})"
            )
        if self._shares:
            parts.append(f"inherited {sum(self._shares) / len(self._shares):.0%}")
        left = self._left_s()
        if left is not None:
            parts.append(f"about {left / 60:.0f} min left" if left >= 90 else f"about {left:.0f} s left")
        return ", ".join(parts)

    def _left_s(self) -> float | None:
        """Seconds left, from the durations seen; None while a kind of trial that is to come has not been seen."""
        if self._n_trials is None:
            return None
        left = 0.0
        for kind, n_wanted in (("search", self._n_trials), ("final", self._n_finals)):
            n_left = max(0, n_wanted - self._n_done[kind])
            if n_left and not self._durations[kind]:
                return None
            if n_left:
                left += n_left * sum(self._durations[kind]) / len(self._durations[kind]) / self._n_slots
        return left

    def _show(self, trial: Trial) -> None:
        """In a plain log: a line at most every 10 s, and one for each failure and final."""
        if self._is_live:
            return
        now = time.monotonic()
        is_loud = trial.state == State.FAILED or trial.stage != "search"
        if is_loud or now - self._last_plain >= PLAIN_EVERY_S:
            self._last_plain = now
            total = "" if self._n_trials is None else f"/{self._n_trials + self._n_finals}"
            value = trial.value(self._metric.name)
            score = f"{self._metric.name} {value:.4f}" if value is not None else str(trial.reason)
            n_done = sum(self._n_done.values())
            print(
                f"[{n_done}{total}] trial {trial.number} ({trial.stage}) {trial.state} {score}; {self._detail()}",
                file=sys.stderr,
                flush=True,
            )


def print_summary(
    summary: Summary, metric: Metric, root: str, *, data: str = "", write: Callable[[str], object] = print
) -> None:
    """The best trial, its test score, its ancestors, where everything lies, and the three commands to go on with.

    Args:
        summary: What was found.
        metric: The first of the problem's.
        root: The storage root, as the user named it.
        data: The overrides that say where the problem's data lies, which no record keeps.
        write: Takes the lines.
    """
    lineage, winner = summary.lineage, summary.winner
    states = ", ".join(f"{n} {s}" for s in State if (n := lineage.n_in_state(s)))
    write(f"search {summary.name}: {len(lineage)} trials ({states})")
    shares = [t.inherited for t in lineage if t.inherited is not None and t.donor is not None]
    if shares:
        write(f"inherited: {len(shares)} trials took {sum(shares) / len(shares):.0%} of their parameters from a donor")
    if winner is None:
        write("no trial has a score: see the errors in the report")
    else:
        line = " <- ".join(str(t.number) for t in [winner, *lineage.ancestors(winner.number)])
        write(
            f"best: trial {winner.number} ({winner.stage}), validation {metric.name} {winner.metrics[metric.name]:.4f}"
        )
        test = summary.tests.get(winner.number, {})
        if "metrics" in test:
            write("test: " + ", ".join(f"{name} {value:.4f}" for name, value in test["metrics"].items()))
        elif "error" in test:
            write(f"test: failed: {test['error']}")
        write(f"ancestors: {line}")
        write("point: " + ", ".join(f"{key}={_short(value)}" for key, value in winner.point.items()))
    write(f"records and weights: {summary.url}")
    if summary.best is not None:
        write(f"export: {summary.url}/{summary.best['export']}")
        for name, why in summary.best.get("missing", {}).items():
            write(f"  without {name}: {why}")
    where = "" if root == "heirloom" else f" storage.root={root}"
    write("next:")
    write(f"  python -m flows.report name={summary.name}{where} format=html")
    write(f"  python -m flows.report name={summary.name}{where} trial={winner.number if winner else 0}")
    write(f"  python -m flows.final name={summary.name}{where}{data} finalists=4")


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
