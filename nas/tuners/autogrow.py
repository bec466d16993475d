"""AutoGrow: a network that grows during its training (Wen et al. 2020, arXiv:1906.02909).

A training is a chain of segments, each a trial with a share of a full training. Its gain a second is the improvement of
the score over its parent's, divided by its duration. If the gain of the present size has slowed down, the next segment
tries a larger size from the same weights. The larger size stays if it gains as much a second as its parent did.

Differs: transformers grow instead of convolutional networks, by operations that keep the function. Gains a second time
the growth instead of a fixed number of epochs, since a step of a larger network takes longer.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from nas.core.errors import ConfigurationError, SpaceExhaustedError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.trial import Proposal, Trial
from nas.core.validation import check_int, check_number
from nas.spaces.space import Space, Variation
from nas.spaces.transformer import TransformerSpace
from nas.tuners.base import WAIT, Answer, StartupTrials, Tuner

_STEP, _GROW, _CONTINUE = "step", "grow", "continue"
_MAX_REFUSED = 16  # refused larger sizes before the present size continues
_MIN_SECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class Growing:
    """The state of a growing network.

    Attributes:
        trial: The trial that the next segment continues, or None.
        gain: The gain a second of the last segment; None: of the present size there is none.
        reference: The gain with which the next ones are compared: of the first segment after a decision to grow or not.
    """

    trial: Trial | None = None
    gain: float | None = None
    reference: float | None = None

    @classmethod
    def of(cls, trials: Iterable[Trial], metric: Metric) -> Growing:
        """Returns the state after finished trials, in the order in which they are given."""
        state = cls()
        for trial in trials:
            state = state.after(trial, metric)
        return state

    def after(self, trial: Trial, metric: Metric) -> Growing:
        """Returns the state after one more finished trial. A trial without a score gains nothing.

        A retry counts only if it continues the present trial: a late one must not replace newer segments.
        """
        if trial.retry_of is not None and self.trial is not None:
            continued = (self.trial.number,) if trial.parents else self.trial.parents  # none before the first segment
            if trial.parents != continued:
                return self
        step = _step_of(trial)
        score = trial.value(metric.name)
        if step is None or self.trial is None:
            return replace(self, trial=trial) if score is not None and self._is_first_or_better(score, metric) else self
        if score is None:
            return replace(self, reference=self.gain) if step == _GROW else self
        gain = (metric.rank(score) - metric.rank(self.trial.metrics[metric.name])) / _training_s(trial)
        if step == _CONTINUE:
            return Growing(trial, gain, gain if self.reference is None else self.reference)
        if self.gain is not None and gain < self.gain:
            return replace(self, reference=self.gain)
        return Growing(trial, gain, gain)

    def has_slowed_down(self, slowdown: float) -> bool:
        """Returns whether the gain has fallen to a share of its reference, or to nothing."""
        if self.gain is None or self.reference is None:
            return False
        return self.gain <= slowdown * max(self.reference, 0.0)

    def _is_first_or_better(self, score: float, metric: Metric) -> bool:
        return self.trial is None or metric.rank(score) > metric.rank(self.trial.metrics[metric.name])


class AutoGrowTuner(Tuner):
    """Trains the smallest transformer of a space in segments, and grows it by its gains.

    One trial runs at a time, but for the first ones. With ``policy=warm_final`` the final continues the best trial.

    Args:
        space: A ``TransformerSpace``.
        metrics: The first one decides.
        seed: Seeds every ask, together with its number.
        segment: The share of a full training that a trial trains, as its fidelity.
        slowdown: The share of the gain at the last decision at which a larger size is tried.
        n_starts: The number of first trials. They have the smallest sizes and different parameters; the best continues.

    Raises:
        ConfigurationError: the space is another one, or a number is out of range.
    """

    uses_durations = True

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        segment: float = 0.1,
        slowdown: float = 0.25,
        n_starts: int = 3,
    ) -> None:
        super().__init__(space, metrics, seed=seed)
        if space.to_json().get("type") != "TransformerSpace":
            raise ConfigurationError(
                f"tuner=autogrow: the space must be a TransformerSpace, not {type(space).__name__}. "
                "Choose problem=language"
            )
        for name, value in (("segment", segment), ("slowdown", slowdown)):
            check_number(f"tuner.{name}", value)
            if not 0 < value < 1:
                raise ConfigurationError(f"tuner.{name}={value}: must be between 0 and 1")
        check_int("tuner.n_starts", n_starts, 1)
        self.segment, self.slowdown, self.n_starts = segment, slowdown, n_starts
        self.startup_trials = StartupTrials(n_starts, "n_starts")

    @property
    def _sizes(self) -> TransformerSpace:
        assert isinstance(self.space, TransformerSpace)  # garbage collection asks nothing, and gives its record
        return self.space

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the next segment: of a first, the same, or a larger size."""
        rng = self.rng(number)
        first = [trial for trial in lineage if _step_of(trial) is None]
        n_first = sum(not trial.is_finished or trial.value(self.metrics[0].name) is not None for trial in first)
        if n_first < self.n_starts:
            return Proposal(point=self._sizes.smallest(rng), fidelity=self.segment, reason="smallest sizes")
        if lineage.pending:
            return WAIT
        state = self._state(lineage)
        assert state.trial is not None  # the first trials have scores
        larger = self._larger(state.trial.point, rng) if state.has_slowed_down(self.slowdown) else None
        if larger is None:
            return self._segment(state.trial, Variation.of(state.trial.point), _CONTINUE)
        return self._segment(state.trial, larger, _GROW)

    def propose_given(self, point: Point, lineage: Lineage, number: int) -> Proposal:
        """Returns a first segment of the given point."""
        return Proposal(point=point, fidelity=self.segment, reason="given initial point")

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Returns the trial that the next segment continues. Rejected sizes are never parents."""
        trial = self._state(lineage).trial
        return () if trial is None else (trial.number,)

    def _state(self, lineage: Lineage) -> Growing:
        return Growing.of((trial for trial in lineage if trial.is_finished), self.metrics[0])

    def _larger(self, point: Point, rng: random.Random) -> Variation | None:
        """Returns a larger point, or None if there is none within the bounds and constraints."""
        if self.n_refused >= _MAX_REFUSED:
            return None
        try:
            return self._sizes.grow(Variation.of(point), rng)
        except SpaceExhaustedError:
            return None

    def _segment(self, parent: Trial, variation: Variation, step: str) -> Proposal:
        """Returns the segment that continues a trial with the same or another point."""
        return Proposal(
            point=variation.point,
            parents=(parent.number,),
            fidelity=self.segment,
            derivation={**self.space.derivation(variation), _STEP: step},
            reason=f"{step} from {parent.number}",
        )


def _training_s(trial: Trial) -> float:
    """Returns the seconds of a trial after its setup."""
    return max((trial.duration_s or 0.0) - trial.cost.get("setup_seconds", 0.0), _MIN_SECONDS)


def _step_of(trial: Trial) -> str | None:
    """Returns ``grow``, ``continue``, or None for a first trial."""
    derivation = trial.proposal.derivation
    return derivation.get(_STEP) if isinstance(derivation, dict) else None
