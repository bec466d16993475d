"""Asynchronous successive halving (Li et al. 2020, arXiv:1810.05934) and, with brackets, asynchronous Hyperband.

The stopping variant: where the paper pauses a trial and promotes it later, the trial is judged once, when it reaches a
rung, and goes on or ends. Brackets after Li et al. 2018 (Hyperband, arXiv:1603.06560), shared out as theirs.
"""

from __future__ import annotations

from itertools import accumulate

from nas.core.errors import ConfigurationError, check_whole
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Trial
from nas.stoppers.base import Stopper

_GOLDEN = (5**0.5 - 1) / 2


class AshaStopper(Stopper):
    """Ends a trial at a rung unless it is in the top ``1 / reduction`` of those that have reached the rung so far.

    A trial reaches the rung of step 9 with its first report at step 9 or later; that report is compared. Ties go on,
    and so does everybody while fewer than ``reduction`` trials have reached the rung.

    Args:
        metrics: The first one is watched.
        min_steps: The first rung; the others are ``min_steps * reduction ** k``.
        reduction: One of this many goes on.
        brackets: Bracket s begins at rung ``min_steps * reduction ** s``, and its trials compete among themselves: for
            problems whose early reports say little. Which bracket is a trial's follows from its index.
        max_steps: No rung from here on: the step of a full training's last report, so that no trial that has been
            trained in full is STOPPED there. None: rungs without end.

    Raises:
        ConfigurationError: a number that can't be.
    """

    def __init__(
        self,
        metrics: tuple[Metric, ...],
        *,
        min_steps: int = 1,
        reduction: int = 3,
        brackets: int = 1,
        max_steps: int | None = None,
    ) -> None:
        super().__init__(metrics)
        check_whole("min_steps", min_steps, 1)
        check_whole("reduction", reduction, 2)
        check_whole("brackets", brackets, 1)
        if max_steps is not None:
            check_whole("max_steps", max_steps, 1)
        last_start = min_steps * reduction ** (brackets - 1)
        if max_steps is not None and max_steps <= last_start:
            raise ConfigurationError(
                f"max_steps ({max_steps}) must be greater than the first rung of the last bracket ({last_start} = "
                f"min_steps * reduction ** (brackets - 1)); lower brackets or min_steps"
            )
        self.min_steps = min_steps
        self.reduction = reduction
        self.brackets = brackets
        self.max_steps = max_steps
        halvings = range(brackets - 1, -1, -1)
        self._shares = tuple(accumulate(reduction**n / (n + 1) for n in halvings))

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        """Returns whether its last report has reached a rung at which it is not among the best."""
        own, name = self.curve_of(trial), self.metrics[0].name
        if not own.steps or (step := own.steps[-1]) != trial.curve[-1][0] or name not in trial.curve[-1][1]:
            return False
        if any(at >= step and name in metrics for at, metrics in trial.curve[:-1]):  # judged by an earlier attempt
            return False
        bracket = self.bracket_of(trial)
        rung = self._rung(bracket, step)
        if rung is None or (len(own.steps) > 1 and own.steps[-2] >= rung):
            return False
        others = [
            rank
            for other in lineage
            if other.number != trial.number
            and self.bracket_of(other) == bracket
            and (rank := self.curve_of(other).first_from(rung)) is not None
        ]
        n_kept = (len(others) + 1) // self.reduction
        return n_kept > 0 and sum(rank > own.ranks[-1] for rank in others) >= n_kept

    def bracket_of(self, trial: Trial) -> int:
        """Returns the trial's bracket: by its index, spread evenly, each as often as Hyperband would."""
        place = (trial.index + 0.5) * _GOLDEN % 1.0 * self._shares[-1]
        return next(bracket for bracket, share in enumerate(self._shares) if place < share)

    def _rung(self, bracket: int, step: int) -> int | None:
        """Returns the last rung of the bracket up to this step, or None."""
        rung, found = self.min_steps * self.reduction**bracket, None
        while rung <= step and (self.max_steps is None or rung < self.max_steps):
            rung, found = rung * self.reduction, rung
        return found
