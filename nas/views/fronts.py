"""Pareto fronts of a search with several objectives, as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nas.core.metric import Metric
from nas.core.pareto import Front, front_of
from nas.core.trial import Trial
from nas.core.validation import first_of
from nas.views.formatting import count, number

_MOST = 12
"""Number of trials that a line lists."""


def fronts_by_stage(trials: Iterable[Trial], metrics: Sequence[Metric]) -> dict[str, Front]:
    """Returns the front of each stage that has one; empty for a single objective."""
    by_stage: dict[str, list[Trial]] = {}
    for trial in sorted(trials, key=lambda trial: trial.number) if len(metrics) > 1 else ():
        by_stage.setdefault(trial.stage, []).append(trial)
    found = ((stage, front_of(in_stage, metrics)) for stage, in_stage in by_stage.items())
    return {stage: front for stage, front in found if front is not None}


def front_lines(trials: Iterable[Trial], metrics: Sequence[Metric]) -> Iterator[str]:
    """Yields one line per stage: trials on the front, hypervolume and reference point."""
    for stage, front in fronts_by_stage(trials, metrics).items():
        listed = first_of([trial.number for trial in front.trials], _MOST)
        yield (
            f"front ({stage}): {count(len(front.trials), 'trial')} ({listed}), "
            f"hypervolume {number(front.hypervolume, 6)} to {reference_text(front)}"
        )


def reference_text(front: Front) -> str:
    """Returns the reference point and its origin: ``accuracy 0.5 (given), flops 1200 (the worst seen)``."""
    return ", ".join(
        f"{name} {number(value)} ({'given' if name in front.given else 'the worst seen'})"
        for name, value in front.reference.items()
    )
