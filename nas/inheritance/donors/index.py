"""An index of stored checkpoints that finds the one most similar to a new network."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from typing import Any, Literal, final

from nas.core.errors import ConfigurationError, CorruptError, SearchNotFoundError, StorageError
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.trial import Trial
from nas.inheritance.donors.point_entries import PointEntries, architecture_entries
from nas.inheritance.donors.table import BestDonor, DonorTable, score_of
from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.signature import Signature

logger = logging.getLogger(__name__)


@final
class DonorIndex:
    """Finds the stored checkpoint that shares the most with a new network, from the records alone.

        donors = DonorIndex(open_root("heirloom"), "digits-evolution-1a2b3c4d")
        found = donors.best_donor(Signature.of(network))

    Each process keeps its own index; writers need not know of it. The first question loads the search, each later one
    reads the records that have appeared since. Use it in one thread. Tuners use
    ``nas.inheritance.donors.lineage_donors.LineageDonors``, which depends on the lineage alone.

    Args:
        root: The storage root: a folder or URL, or the result of ``open_root`` if it takes options.
        name: The search. Its first metric decides between checkpoints that share as much.
        others: Further searches under the root, or ``"all"`` that can be read. Their points count if the problem is the
            same, their scores if the first metric is the same.
        entries_of: Returns the entries of a point, the most important first. By default all of the architecture, in the
            order of the search's space (`nas.inheritance.donors.point_entries`).

    Raises:
        SearchNotFoundError: the search does not exist.
        CorruptError: its search.json can't be read.
    """

    def __init__(
        self,
        root: BlobStore | str | os.PathLike[str],
        name: str,
        *,
        others: Iterable[str] | Literal["all"] = (),
        entries_of: PointEntries | None = None,
    ) -> None:
        self._root = root = root if isinstance(root, BlobStore) else open_root(root)
        self._own = _View(root, name)
        self._others: dict[str, _View] = {}
        self._uses_all = others == "all"
        self._left_out: set[str] = {name}
        for other in () if self._uses_all else set(others) - {name}:
            self._others[other] = _View(root, other)
        self._table = DonorTable(entries_of or partial(architecture_entries, space=self._own.space))

    def best_donor(self, wanted: Signature | Point) -> BestDonor | None:
        """Returns the checkpoint that shares the most, or None if none shares anything.

        All checkpoints that were committed before the call count. Of equals, the one with the best score wins, then the
        newest. Trials without weights, and those whose weights were deleted, are left out.

        Args:
            wanted: ``Signature.of(network)``, or a point. A point says less: the same point trained under DOWNSCALE is
                another network.

        Raises:
            CorruptError: a record can't be read.
        """
        while True:
            self._refresh()
            found = self._table.best(wanted)
            if found is None:
                return None
            shared, (name, number) = found
            records = self._others[name].records if name else self._own.records
            trial = records.finished_trial(number)
            if trial is None:
                raise CorruptError(f"the result of trial {number} is missing in {records.files.url}/trials")
            if trial.checkpoint is not None:  # else its weights have just been deleted: ask again
                return BestDonor(donor=f"{name}:{number}" if name else number, trial=trial, shared=shared)

    def _refresh(self) -> None:
        """Adds what was committed since the last question."""
        self._update("", self._own)
        if self._uses_all:
            for name in set(self._root.names()) - self._others.keys() - self._left_out:
                with suppress(SearchNotFoundError), self._leaving_out(name):
                    self._others[name] = _View(self._root, name)
        for name in self._others.keys() - self._left_out:
            with self._leaving_out(name):
                self._update(name, self._others[name])

    def _update(self, name: str, view: _View) -> None:
        has_score, has_point = view.metric == self._own.metric, view.problem == self._own.problem
        trials, weights_deleted = view.news()
        for trial in trials:
            score = score_of(trial, view.metric) if has_score else -inf
            self._table.add(trial, (score, trial.finished or 0.0, (name, trial.number)), has_point=has_point)
        if weights_deleted:
            self._table.remove({(name, number) for number in weights_deleted})

    @contextmanager
    def _leaving_out(self, name: str) -> Iterator[None]:
        """Logs and leaves out a search that can't be read, if all searches are used."""
        try:
            yield
        except SearchNotFoundError:
            raise
        except (StorageError, ConfigurationError) as error:
            is_closed = isinstance(error.__cause__, PermissionError)  # lost+found, or another user's search
            is_unreadable = isinstance(error, CorruptError | ConfigurationError)  # corrupt, or of another format
            if not self._uses_all or not (is_unreadable or is_closed):
                raise
            self._left_out.add(name)
            logger.warning("search %s is left out as a donor: %s", name, error)


class _View:
    """The records of one search, read so far."""

    def __init__(self, root: BlobStore, name: str) -> None:
        self.records = Records(root.subfolder(name))
        header = self.records.header()
        if header is None:
            raise SearchNotFoundError(f"no search {name} under {root.url}; the command `report` lists the searches")
        self.metric = Metric(header["metrics"][0]["name"], header["metrics"][0]["direction"])
        self.problem: str = header["identity"]["problem"]["target"]
        self.space: dict[str, Any] = header["identity"]["space"]
        self._n_proposed = 0
        self._unfinished: list[Trial] = []
        self._weights_deleted: frozenset[int] = frozenset()

    def news(self) -> tuple[list[Trial], frozenset[int]]:
        """Returns the trials that finished, and those that lost their weights, since the last call."""
        if self._n_proposed == 0:
            proposed, _ = self.records.load()
            trials = proposed
        else:  # by name, since listing a folder of 300,000 files takes too long
            proposed = list(self._proposed())
            trials = [self.records.result(trial) or trial for trial in (*self._unfinished, *proposed)]
        weights_deleted = self.records.weights_deleted()
        news = [trial for trial in trials if trial.is_finished], weights_deleted - self._weights_deleted
        # last, so that after an error everything is read again
        self._n_proposed += len(proposed)
        self._unfinished = [trial for trial in trials if not trial.is_finished]
        self._weights_deleted = weights_deleted
        return news

    def _proposed(self) -> Iterator[Trial]:
        """Yields the trials proposed since the last call; numbers have no gaps."""
        number = self._n_proposed
        while (trial := self.records.proposed(number)) is not None:
            yield trial
            number += 1
