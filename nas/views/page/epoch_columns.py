"""Places of a supernet's trials: a line of epochs, each above its subnets.

The shared scores in a column compare, since the same weights gave them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nas.core.supernet import epoch_of
from nas.core.trial import Trial
from nas.views.page.layout import Column, Layout

if TYPE_CHECKING:
    from nas.core.lineage import Lineage

_LEAST_ROWS = 10
_LATER_STEP = 1.7
"""Rows between two trials of a later stage: the winner's star is larger than other marks."""
_OTHER = "other"
"""The heading of the search's trials that have no weights of an epoch."""


def lay_out_epochs(lineage: Lineage) -> Layout:
    """Returns places for a search with supernet epochs: epochs, then others, then later stages.

    Of several trials of one epoch, the newest is in the line, and the others are below it.
    """
    trials = sorted(lineage, key=lambda trial: trial.number)
    epoch_by_trial = {trial.number: epoch for trial in trials if (epoch := epoch_of(trial.point)) is not None}
    line = {str(epoch): number for number, epoch in sorted(epoch_by_trial.items(), key=lambda item: item[::-1])}
    below: dict[str, list[int]] = {heading: [] for heading in line}
    for trial in sorted(trials, key=lambda trial: trial.stage != trials[0].stage):
        heading = _heading(trial, epoch_by_trial, trials[0].stage)
        if line.get(heading) != trial.number:
            below.setdefault(heading, []).append(trial.number)
    n_rows = max(_LEAST_ROWS, math.ceil(math.sqrt(len(trials))))
    places: dict[int, tuple[int, float]] = dict.fromkeys(line.values(), (0, 0.0))
    columns: list[Column] = []
    start = 0
    for heading, numbers in below.items():
        columns.append(Column(heading, start, max(1, math.ceil(len(numbers) / n_rows))))
        places |= {line[heading]: (start, 0.0)} if heading in line else {}
        step = 1.0 if heading in line or heading == _OTHER else _LATER_STEP
        places |= {number: (start + i // n_rows, 1.0 + step * (i % n_rows)) for i, number in enumerate(numbers)}
        start += columns[-1].width
    bottom = max((row for _, row in places.values()), default=-1.0)
    return Layout(places, (), None, n_columns=start, n_rows=bottom + 1, columns=tuple(columns))


def _heading(trial: Trial, epoch_by_trial: Mapping[int, int], first_stage: str) -> str:
    """Returns the heading of the trial's column: a supernet epoch, a later stage, or neither."""
    if trial.stage != first_stage:
        return trial.stage
    sources = (trial.number, trial.donor, trial.resolved_donor, *trial.proposal.weight_donors)
    epochs = (epoch_by_trial[source] for source in sources if isinstance(source, int) and source in epoch_by_trial)
    return str(next(epochs, _OTHER))
