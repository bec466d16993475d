"""Chooses donors for points that were not derived from another point (the option ``tuner.donor``)."""

from __future__ import annotations

from itertools import islice

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.trial import DONOR_RULES, Donor, DonorRule, Trial
from nas.core.validation import check_choice
from nas.inheritance.donors.donor_rules import LOCAL, donor_by_rule
from nas.inheritance.donors.lineage_donors import LineageDonors
from nas.inheritance.donors.table import usable_checkpoint
from nas.spaces.space import Space

CHOICES = ("none", "nearest", "best", "best_donor", *DonorRule)


class DonorChooser:
    """The donors of new points, by one choice.

    Args:
        choice: In upper or lower case, one of

            * ``none``: no donor;
            * ``nearest``: the trial with weights that has the nearest point (``Space.distance``), of equals the better;
            * ``best``: the best trial with weights;
            * ``best_donor``: the trial whose architecture has the most first entries in common with the new one
              (`nas.inheritance.donors.lineage_donors`), of equals the better;
            * a ``DonorRule``, which is applied when the trial starts.
        space: The space of the points.
        metric: Compares trials.

    Raises:
        ConfigurationError: the choice is unknown.
    """

    def __init__(self, choice: str, space: Space, metric: Metric) -> None:
        lowered = str(choice).lower()
        self.choice = lowered if lowered in CHOICES else check_choice("tuner.donor", choice, CHOICES)
        self._space = space
        self._metric = metric
        self._lineage_donors = LineageDonors(space, metric)

    def choose(self, lineage: Lineage, point: Point) -> tuple[Donor, ...]:
        """Returns one donor, or none if no trial has weights or shares anything."""
        if self.choice == "none":
            return ()
        if self.choice in DONOR_RULES:
            return (DonorRule(self.choice),)
        if self.choice == "best_donor":
            found = self._lineage_donors.best_donor(lineage, point)
            return () if found is None else (found.trial.number,)
        donors = self._with_weights(lineage)
        if not donors or self.choice == "best":
            return tuple(trial.number for trial in donors)
        features = self._space.features(point)
        nearest = min(
            donors, key=lambda trial: self._space.feature_distance(features, self._space.features(trial.point))
        )
        return (nearest.number,)

    def candidates(self, lineage: Lineage) -> tuple[int, ...]:
        """Returns the trials of the lineage that ``choose`` may give to this or a later point."""
        if self.choice == "none":
            return ()
        if self.choice in DONOR_RULES:
            rule = DonorRule(self.choice)
            slots = {trial.slot for trial in lineage.finished} if rule in LOCAL else {None}
            donors = (donor_by_rule(rule, lineage.finished, self._metric, slot) for slot in slots)
            return tuple(trial.number for trial in donors if trial is not None)
        if self.choice == "best_donor":
            return tuple(trial.number for trial in lineage.finished if usable_checkpoint(trial) is not None)
        return tuple(trial.number for trial in self._with_weights(lineage))

    def _with_weights(self, lineage: Lineage) -> list[Trial]:
        """Returns the trials with weights, best first; with ``best``, the first of them alone."""
        found = (trial for trial in lineage.ranked(self._metric) if trial.checkpoint is not None)
        return list(islice(found, 1 if self.choice == "best" else None))
