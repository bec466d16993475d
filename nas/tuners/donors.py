"""Whose weights a trial takes that was not derived from another, for tuners that draw from a model or at random."""

from __future__ import annotations

import random
from collections.abc import Collection

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.trial import SOURCES, Donor, ParameterSource, Proposal, Trial
from nas.donors import LineageDonors, to_give
from nas.sources import LOCAL, trial_of_source
from nas.spaces.space import Space
from nas.tuners.base import STOP, Answer, Tuner
from nas.tuners.founders import draw_new_point

CHOICES = ("none", "nearest", "best", "best_donor", *ParameterSource)


class DonorChooser:
    """Names the donors of new points.

    Args:
        choice: ``none``: nobody. ``nearest``: the trial with weights whose point is nearest (``Space.distance``).
            ``best``: the best one with weights.
            ``best_donor``: the one whose architecture has most entries from the beginning in common with the new one
            (``nas.donors``). Of equal ones the better. Or a ``ParameterSource``, which is applied when the trial
            starts. In any case, as Rafiki wrote them.
        space: Where points lie.
        metric: What makes a trial better.

    Raises:
        ConfigurationError: there is no such choice.
    """

    def __init__(self, choice: str, space: Space, metric: Metric) -> None:
        self.choice = str(choice).lower()
        if self.choice not in CHOICES:
            raise ConfigurationError(f"tuner.donor ({choice!r}) must be one of {', '.join(CHOICES)}")
        self._space = space
        self._metric = metric
        self._most_in_common = LineageDonors(space, metric)

    def choose(self, lineage: Lineage, point: Point) -> tuple[Donor, ...]:
        """One donor, or none where nobody has weights (or shares anything)."""
        if self.choice == "none":
            return ()
        if self.choice in SOURCES:
            return (ParameterSource(self.choice),)
        if self.choice == "best_donor":
            found = self._most_in_common.best_donor(lineage, point)
            return () if found is None else (found.trial.number,)
        able = self._able(lineage)
        if not able or self.choice == "best":
            return tuple(trial.number for trial in able)
        here = self._space.outline(point)
        return (min(able, key=lambda trial: self._space.apart(here, self._space.outline(trial.point))).number,)

    def possible(self, lineage: Lineage) -> tuple[int, ...]:
        """Whom ``choose`` may give for this or a later point, of those in the lineage."""
        if self.choice == "none":
            return ()
        if self.choice in SOURCES:
            source = ParameterSource(self.choice)
            slots = {trial.slot for trial in lineage.finished} if source in LOCAL else {None}
            given = (trial_of_source(source, lineage.finished, self._metric, slot) for slot in slots)
            return tuple(trial.number for trial in given if trial is not None)
        if self.choice == "best_donor":
            return tuple(trial.number for trial in lineage.finished if to_give(trial) is not None)
        return tuple(trial.number for trial in self._able(lineage))

    def _able(self, lineage: Lineage) -> list[Trial]:
        """The trials with weights, the best first; where the best alone is wanted, that one."""
        able = (trial for trial in lineage.ranked(self._metric) if trial.checkpoint is not None)
        return [trial for trial, _ in zip(able, range(1), strict=False)] if self.choice == "best" else list(able)


class DonorTuner(Tuner):
    """A tuner that derives no point from another; ``donor`` says whose weights a point takes.

    Args:
        space: Where points lie.
        metrics: The first one makes a trial better.
        seed: Seeds every ask together with its number.
        donor: See ``DonorChooser``.
    """

    def __init__(self, space: Space, metrics: tuple[Metric, ...], *, seed: int, donor: str) -> None:
        super().__init__(space, metrics, seed=seed)
        self.donors = DonorChooser(donor, space, metrics[0])

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Whom ``donor`` may name."""
        return self.donors.possible(lineage)

    def propose(self, lineage: Lineage, point: Point, reason: str, derivation: object = None) -> Proposal:
        """The point, with its donor."""
        return Proposal(point=point, donors=self.donors.choose(lineage, point), derivation=derivation, reason=reason)

    def propose_new(self, lineage: Lineage, rng: random.Random, reason: str) -> Proposal | Answer:
        """A random point that no trial has, with its donor; STOP where the space has none left."""
        point = draw_new_point(self.space, lineage, rng)
        return STOP if point is None else self.propose(lineage, point, reason)
