"""Asynchronous successive halving (Li et al. 2020, arXiv:1810.05934) and asynchronous Hyperband.

Differs: the stopping variant. The paper pauses trials and promotes them later. Here each trial is judged once per rung,
and continues or stops. Brackets and their shares follow Hyperband (Li et al. 2018, arXiv:1603.06560).
"""

from __future__ import annotations

from itertools import accumulate

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Trial
from nas.core.validation import check_int
from nas.stoppers.base import Stopper

_GOLDEN = (5**0.5 - 1) / 2


class AshaStopper(Stopper):
    """Stops a trial at a rung unless it is in the top ``1 / reduction`` there.

    A trial reaches the rung of step 9 with its first report at step 9 or later. This report is compared. Ties continue.
    All trials continue until ``reduction`` trials have reached the rung.

    Args:
        metrics: The stopper uses the first one.
        min_steps: The step of the first rung. Rung k is at ``min_steps * reduction ** k``.
        reduction: One of ``reduction`` trials continues at each rung.
        brackets: The number of brackets. Bracket s starts at rung ``min_steps * reduction ** s``, and its trials
            compete only with one another. Use more than 1 if early reports predict little. The index of a trial
            determines its bracket.
        max_steps: The step of a full training's last report. Rungs are below it, so that no full training is STOPPED.
            None: no limit.

    Raises:
        ConfigurationError: a number is out of range.
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
        check_int("stopper.min_steps", min_steps, 1)
        check_int("stopper.reduction", reduction, 2)
        check_int("stopper.brackets", brackets, 1)
        if max_steps is not None:
            check_int("stopper.max_steps", max_steps, 1)
        last_start = min_steps * reduction ** (brackets - 1)
        if max_steps is not None and max_steps <= last_start:
            raise ConfigurationError(
                f"stopper.max_steps={max_steps}: must be greater than the first rung of the last bracket ("
                f"{last_start} = min_steps * reduction ** (brackets - 1)). Lower stopper.brackets or stopper.min_steps"
            )
        self.min_steps = min_steps
        self.reduction = reduction
        self.brackets = brackets
        self.max_steps = max_steps
        halvings = range(brackets - 1, -1, -1)
        self._shares = tuple(accumulate(reduction**n / (n + 1) for n in halvings))

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        """Returns whether the last report reached a rung and is not among the best there."""
        own, name = self.curve_of(trial), self.metrics[0].name
        if not own.steps or (step := own.steps[-1]) != trial.curve[-1][0] or name not in trial.curve[-1][1]:
            return False
        if any(at >= step and name in metrics for at, metrics in trial.curve[:-1]):  # an earlier attempt was judged
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
        """Returns the bracket of a trial by its index, with the shares of Hyperband."""
        place = (trial.index + 0.5) * _GOLDEN % 1.0 * self._shares[-1]
        return next(bracket for bracket, share in enumerate(self._shares) if place < share)

    def _rung(self, bracket: int, step: int) -> int | None:
        """Returns the last rung of the bracket at or below this step, or None."""
        rung, found = self.min_steps * self.reduction**bracket, None
        while rung <= step and (self.max_steps is None or rung < self.max_steps):
            rung, found = rung * self.reduction, rung
        return found
