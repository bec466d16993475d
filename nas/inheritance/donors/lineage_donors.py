"""The best donor among the trials of a lineage, for tuners."""

from __future__ import annotations

from functools import partial

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.trial import Trial
from nas.inheritance.donors.point_entries import PointEntries, architecture_entries
from nas.inheritance.donors.table import BestDonor, DonorTable, score_of
from nas.spaces.space import Space
from nas.storage.signature import Signature


class LineageDonors:
    """Finds the trial of a lineage that shares the most with a new point or network.

    The answer depends on the lineage alone, as a tuner's must. Of equals, the best score wins, then the highest
    number; a trial without a score comes last. Keep the object as an attribute: it reads each trial once, and starts
    over with another lineage.

        self.donors = LineageDonors(space, metrics[0])
        ...
        found = self.donors.best_donor(lineage, point)
        return Proposal(point=point, parents=(parent.number,), donors=() if found is None else (found.donor,))

    Args:
        space: Gives the order of a point's entries.
        metric: Compares trials that share as much.
        entries_of: Returns the entries of a point, the most important first. By default all of the architecture, in the
            order of the space (`nas.inheritance.donors.point_entries`).
    """

    def __init__(self, space: Space, metric: Metric, *, entries_of: PointEntries | None = None) -> None:
        self._metric = metric
        self._entries_of = entries_of or partial(architecture_entries, space=space.to_json())
        self._table = DonorTable(self._entries_of)
        self._known: list[Trial] = []

    def best_donor(self, lineage: Lineage, wanted: Signature | Point) -> BestDonor | None:
        """Returns the trial with weights that shares the most, or None if none shares anything.

        Args:
            lineage: The tuner's lineage.
            wanted: A point, or the signature of a network.
        """
        finished = list(lineage.finished)
        n_known = len(self._known)
        if finished[:n_known] != self._known:
            self._table, n_known = DonorTable(self._entries_of), 0
        for trial in finished[n_known:]:
            self._table.add(trial, (score_of(trial, self._metric), 0.0, ("", trial.number)))
        self._known = finished
        found = self._table.best(wanted)
        if found is None:
            return None
        shared, (_, number) = found
        return BestDonor(donor=number, trial=lineage[number], shared=shared)
