"""Choose donors for points that were not derived from another."""

from __future__ import annotations

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.trial import DONOR_RULES, Donor, DonorRule, Trial
from nas.inheritance.donors.ranking import LineageDonors, to_give
from nas.inheritance.donors.rules import LOCAL, trial_of_source
from nas.spaces.space import Space

CHOICES = ("none", "nearest", "best", "best_donor", *DonorRule)


class DonorChooser:
    """Names the donors of new points.

    Args:
        choice: ``none``: nobody. ``nearest``: the trial with weights whose point is nearest (``Space.distance``).
            ``best``: the best one with weights.
            ``best_donor``: the one whose architecture has most entries from the beginning in common with the new one
            (``nas.inheritance.donors.ranking``). Of equal ones the better. Or a ``DonorRule``, which is applied
            when the trial starts. In any case, as Rafiki wrote them.
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
        if self.choice in DONOR_RULES:
            return (DonorRule(self.choice),)
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
        if self.choice in DONOR_RULES:
            source = DonorRule(self.choice)
            slots = {trial.slot for trial in lineage.finished} if source in LOCAL else {None}
            given = (trial_of_source(source, lineage.finished, self._metric, slot) for slot in slots)
            return tuple(trial.number for trial in given if trial is not None)
        if self.choice == "best_donor":
            return tuple(trial.number for trial in lineage.finished if to_give(trial) is not None)
        return tuple(trial.number for trial in self._able(lineage))

    def _able(self, lineage: Lineage) -> list[Trial]:
        """Returns the trials with weights, the best first; where the best alone is wanted, that one."""
        able = (trial for trial in lineage.ranked(self._metric) if trial.checkpoint is not None)
        return [trial for trial, _ in zip(able, range(1), strict=False)] if self.choice == "best" else list(able)
