"""The results of a search, read from its records."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nas.core.errors import ConfigurationError, SearchNotFoundError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.names import LAST, check_name
from nas.core.trial import Trial
from nas.core.validation import closest_names
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.views.finals_line import better_trial
from nas.views.searches import find_searches
from nas.views.snapshot import Snapshot, read_snapshot
from nas.views.trial_summary import SHARED

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

    from nas.storage.blobs import BlobStore


@dataclass(frozen=True, slots=True)
class Results:
    """Trials, winner and tests of a search, at the time when they were read.

    Attributes:
        snapshot: Everything that the records hold.
    """

    snapshot: Snapshot

    @classmethod
    def read(cls, files: BlobStore) -> Results:
        """Reads the search whose folder is ``files``.

        Raises:
            SearchNotFoundError: there is no search.
            CorruptError: a record can't be read.
        """
        return cls(read_snapshot(files, time.time()))

    @property
    def name(self) -> str:
        """The name of the search."""
        return self.snapshot.name

    @property
    def url(self) -> str:
        """The folder of the search."""
        return self.snapshot.url

    @property
    def standing(self) -> str:
        """``running``, ``finished`` or ``not finished``."""
        return self.snapshot.standing

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The problem's metrics; the first ranks trials."""
        return self.snapshot.metrics

    @property
    def lineage(self) -> Lineage:
        """All trials; finished ones in the order of their numbers."""
        return self.snapshot.lineage

    @property
    def best(self) -> Trial | None:
        """The best finalist so far or, before, the best trial; None without a score."""
        return self.snapshot.winner

    @property
    def winner(self) -> Trial | None:
        """The best trial once it is exported; None while the search has no export."""
        export, best = self.export, self.best
        return best if export is not None and best is not None and export["trial"] == best.number else None

    @property
    def better_in_hand(self) -> Trial | None:
        """The trial whose full score is better than the best final's, or None; ``export="best"`` takes it."""
        return better_trial(self.lineage, self.best, self.metrics[0], self.snapshot.final)

    @property
    def tests(self) -> Mapping[int, Mapping[str, Any]]:
        """Test scores by finalist: ``{"trial": number, "metrics": {...}}``.

        A failed test has ``"error": line`` without metrics, or with those that it found before. Empty if the problem
        has no ``test``.
        """
        return self.snapshot.tests

    @property
    def export(self) -> Mapping[str, Any] | None:
        """The content of the newest ``best-NNNN.json``: the winner and its folder; None before."""
        return self.snapshot.best

    def to_frame(self) -> pd.DataFrame:
        """Returns a table with one row per trial and the columns of ``report``."""
        from nas.views.table import lineage_table

        return lineage_table(self.lineage, self.tests, metrics=self.metrics)

    def plot(self, metric: str | None = None, *, ax: Axes | None = None) -> Axes:
        """Draws the scores of the trials, and the best so far, with Matplotlib.

        Args:
            metric: The metric; by default the one that ranks.
            ax: The axes to draw on; by default new ones.

        Raises:
            ConfigurationError: the problem has no such metric, or Matplotlib is missing.
        """
        from nas.views.plot import plot_scores

        return plot_scores(self.lineage, self._metric(metric), ax)

    def _metric(self, name: str | None) -> Metric:
        if name is None:
            return self.metrics[0]
        found = next((metric for metric in self.metrics if metric.name == name), None)
        if found is None:
            names = closest_names(name, [metric.name for metric in self.metrics])
            raise ConfigurationError(f"metric={name}: must be a metric of the problem. Choose {names}")
        return found

    def __repr__(self) -> str:
        best = self.best
        score = "no score yet" if best is None else f"best trial {best.number} {dict(best.metrics)}"
        if best is not None and best.number in self.snapshot.shared_scores:
            score += SHARED
        if (better := self.better_in_hand) is not None:
            score += f", better in hand: trial {better.number} {dict(better.metrics)}"
        return f"<Results of {self.name}: {self.standing}, {len(self.lineage)} trials, {score}>"

    def _repr_html_(self) -> str:
        """Returns the family tree for a notebook."""
        from nas.views.notebook import results_html

        return results_html(self.snapshot)


def load(name: str, root: str | os.PathLike[str] = "heirloom", *, options: Mapping[str, Any] | None = None) -> Results:
    """Reads the results of a search, also of a running one. Writes nothing.

    Args:
        name: The name of the search; ``last`` is the one with the newest activity.
        root: A folder or an fsspec URL.
        options: The storage options for the URL.

    Raises:
        SearchNotFoundError: there is no such search; the message lists the nearest names.
        CorruptError: a record can't be read.
    """
    folder = open_root(root, options)
    if name == LAST and (found := find_searches(folder, time.time(), lambda line: None)):
        return Results.read(found[0].files)
    files = folder.subfolder(check_name(name))
    if Records(files).header() is None:
        names = [search.name for search in find_searches(folder, time.time(), lambda line: None)]
        there = f"Choose {closest_names(name, names, 5)}" if names else "It holds no search. Choose another root"
        raise SearchNotFoundError(f"name={name}: must be a search under {folder.url}. {there}")
    return Results.read(files)
