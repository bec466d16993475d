"""The slots over time: what each trained, and when it was idle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nas.core.trial import State, Trial
from nas.views.formatting import count, duration, number
from nas.views.page.chart import Chart, Frame, Mark, Text, ticks
from nas.views.page.dots import MAX_MARKS
from nas.views.page.legend import LegendItem, Path

if TYPE_CHECKING:
    from nas.core.lineage import Lineage
    from nas.core.metric import Metric

MAX_SLOTS = 64
_WIDTH, _LEFT, _RIGHT, _TOP = 1180.0, 78.0, 1090.0, 26.0
_SHORTEST_PAUSE_S = 60.0
_PAUSE_SHARE = 0.2
"""A longer time without a trial is a pause, as a share of all other times."""
_PAUSE_WIDTH = 26.0
_KINDS = ("complete", "stopped", "failed", "running", "final")


class _Job(NamedTuple):
    """The last attempt of a trial, in seconds since 1970."""

    trial: Trial
    start: float
    end: float


class _Span(NamedTuple):
    """A time between two pauses."""

    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """A chart with a row for each slot, and a text about idle time."""

    chart: Chart
    summary: str


def slot_timeline(lineage: Lineage, metric: Metric, *, now: float) -> Timeline | None:
    """Returns the timeline, or None if no trial has started.

    Args:
        lineage: The trials.
        metric: The score in the summaries.
        now: The end of running trials.
    """
    jobs = [
        _Job(trial, trial.started, max(trial.started, now if trial.finished is None else trial.finished))
        for trial in lineage
        if trial.started is not None and (trial.finished is not None or trial.state == State.RUNNING)
    ]
    if not jobs:
        return None
    first_stage = min(lineage, key=lambda trial: trial.number).stage
    return _Timeline(sorted(jobs, key=lambda job: job.start), metric, first_stage).timeline()


def _spans(jobs: Sequence[_Job]) -> list[_Span]:
    """Returns the times between pauses; ``jobs`` are in order of their start."""
    spans = [_Span(jobs[0].start, jobs[0].end)]
    for job in jobs[1:]:
        if job.start <= spans[-1].end:
            spans[-1] = _Span(spans[-1].start, max(spans[-1].end, job.end))
        else:
            spans.append(_Span(job.start, job.end))
    busy = sum(span.end - span.start for span in spans)
    limit = max(_SHORTEST_PAUSE_S, _PAUSE_SHARE * busy)
    joined = spans[:1]
    for span in spans[1:]:
        if span.start - joined[-1].end < limit:
            joined[-1] = _Span(joined[-1].start, span.end)
        else:
            joined.append(span)
    return joined


class _Timeline:
    """Places of trials: a row for each slot, time from left to right without pauses."""

    def __init__(self, jobs: Sequence[_Job], metric: Metric, first_stage: str) -> None:
        self.jobs, self.metric, self.first_stage = jobs, metric, first_stage
        self.spans = _spans(jobs)
        self.seconds = sum(span.end - span.start for span in self.spans)
        slots = sorted({-1 if job.trial.slot is None else job.trial.slot for job in jobs})
        self.rows = {slot: row for row, slot in enumerate(slots[:MAX_SLOTS])}
        self.n_hidden = len(slots) - len(self.rows)
        self.step = max(8.0, min(26.0, 420 / len(self.rows)))
        room = _RIGHT - _LEFT - _PAUSE_WIDTH * (len(self.spans) - 1)
        self.scale = max(1.0, room) / (self.seconds or 1.0)
        bottom = _TOP + self.step * len(self.rows)
        self.frame = Frame(_WIDTH, bottom + 48, _LEFT, _RIGHT, _TOP, bottom)

    def x(self, time: float) -> float:
        left, end = _LEFT, _LEFT
        for span in self.spans:
            if time <= span.end:
                return left + max(0.0, time - span.start) * self.scale
            end = left + (span.end - span.start) * self.scale
            left = end + _PAUSE_WIDTH
        return end

    def timeline(self) -> Timeline:
        busy = self.busy()
        share = sum(busy.values()) / (self.seconds * len(busy)) if self.seconds else 1.0
        slots = count(len(busy), "slot") + (f" of {len(busy) + self.n_hidden}" if self.n_hidden else "")
        summary = f"{slots} trained {share:.0%} of {duration(self.seconds)}, and {'was' if len(busy) == 1 else 'were'}"
        summary += f" idle {1 - share:.0%}. Of a repeated trial the last attempt counts."
        return Timeline(self.chart(busy), summary)

    def busy(self) -> dict[int, float]:
        """Returns the seconds in which each slot trained; trials that overlap in a slot count once."""
        found = dict.fromkeys(self.rows, 0.0)
        ends = dict.fromkeys(self.rows, 0.0)
        for job in self.jobs:
            slot = -1 if job.trial.slot is None else job.trial.slot
            if slot in found:
                found[slot] += max(0.0, job.end - max(job.start, ends[slot]))
                ends[slot] = max(ends[slot], job.end)
        return found

    def chart(self, busy: dict[int, float]) -> Chart:
        rows = [self.frame.top + self.step * row for row in range(len(self.rows) + 1)]
        many = len(self.jobs) > MAX_MARKS
        return Chart(
            frame=self.frame,
            label="Trials of each slot over time",
            grid=self.frame.lines(rows),
            ticks=(*self.slots(busy), *self.times()),
            lines=(*self.pauses(), *(self.bars() if many else ())),
            marks=() if many else tuple(self.marks()),
            x_name="time, without pauses between sessions" if len(self.spans) > 1 else "time since the first trial",
            legend=tuple(self.legend()),
        )

    def slots(self, busy: dict[int, float]) -> Iterator[Text]:
        """Yields the names of slots, and the idle share of each on the right."""
        every = 1 if self.step >= 13 else 2
        yield Text(_RIGHT + 10, _TOP - 8, "idle", "start")
        for slot, row in self.rows.items():
            if row % every == 0:
                y = _TOP + self.step * (row + 0.5) + 4
                yield Text(_LEFT - 8, y, "no slot" if slot < 0 else f"slot {slot}", "end")
                idle = 1 - busy[slot] / self.seconds if self.seconds else 0.0
                yield Text(_RIGHT + 10, y, f"{max(0.0, idle):.0%}", "start")

    def times(self) -> Iterator[Text]:
        """Yields the times since the first trial, pauses left out."""
        marks = ticks(0.0, self.seconds, 8)
        for seconds in marks:
            left = seconds
            for i, span in enumerate(self.spans):
                if left <= span.end - span.start or i == len(self.spans) - 1:
                    yield Text(self.x(span.start + left), self.frame.bottom + 18, duration(seconds))
                    break
                left -= span.end - span.start

    def pauses(self) -> Iterator[Path]:
        """Yields a dashed line in the middle of each pause."""
        for span in self.spans[:-1]:
            yield Path("pause", f"M{self.x(span.end) + _PAUSE_WIDTH / 2:.1f} {_TOP}V{self.frame.bottom:.1f}")

    def kind(self, trial: Trial) -> str:
        is_final = trial.stage != self.first_stage and trial.state == State.COMPLETE
        return "final" if is_final else str(trial.state).lower()

    def marks(self) -> Iterator[Mark]:
        for job in self.jobs:
            row = self.rows.get(-1 if job.trial.slot is None else job.trial.slot)
            if row is not None:
                x, width, height = self.x(job.start), self.width(job), self.step - 4
                shape = f"M0 0h{width:.1f}v{height:.1f}h-{width:.1f}Z"
                place = f"{x:.1f} {_TOP + self.step * row + 2:.1f}"
                yield Mark(job.trial.number, f"bar {self.kind(job.trial)}", place, shape, self.title(job))

    def width(self, job: _Job) -> float:
        """Returns the width of a bar, with a gap to the next one."""
        return max(1.0, self.x(job.end) - self.x(job.start) - 0.6)

    def title(self, job: _Job) -> str:
        value = job.trial.value(self.metric.name)
        score = "" if value is None else f", {self.metric.name} {number(value)}"
        return f"trial {job.trial.number}: {job.trial.state} after {duration(job.end - job.start)}{score}"

    def bars(self) -> Iterator[Path]:
        """Yields the bars of each state as one path; bars that touch are joined."""
        for kind in _KINDS:
            ends: dict[int, int] = {}
            path = []
            for job in self.jobs:
                row = self.rows.get(-1 if job.trial.slot is None else job.trial.slot)
                if row is None or self.kind(job.trial) != kind:
                    continue
                start, end = round(self.x(job.start)), round(self.x(job.end)) + 1
                start = max(start, ends.get(row, 0))
                if end > start:
                    path.append(f"M{start} {_TOP + self.step * (row + 0.5):.0f}h{end - start}")
                    ends[row] = end
            if path:
                yield Path(f"bars {kind}", "".join(path))

    def legend(self) -> Iterator[LegendItem]:
        kinds = {self.kind(job.trial) for job in self.jobs}
        bar = "M0 -5h16v10h-16Z"
        names = {"final": "complete, later stages"}
        for kind in _KINDS:
            if kind in kinds:
                yield LegendItem(names.get(kind, kind), 18, (Path(f"score bar {kind}", bar),))
        if len(self.spans) > 1:
            yield LegendItem("pause: no trial ran", 12, (Path("pause", "M6 -7V7"),))
