"""The index of donors: which checkpoint, among a hundred thousand, shares most with a new network."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, Literal, final

from nas.core.errors import CorruptError, SearchNotFoundError, StorageError
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.trial import Trial
from nas.inheritance.donors.ranking import BestDonor, DonorTable, Unroll, score_of, unroll_by
from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.signature import Measure, Signature, common_prefix

__all__ = ["BestDonor", "DonorIndex"]

logger = logging.getLogger(__name__)


@final
class DonorIndex:
    """Answers which checkpoint shares most with a new network, from the records alone.

        donors = DonorIndex(open_root("heirloom"), "digits-evolution-1a2b3c4d")
        found = donors.best_donor(Signature.of(network))

    A view that each process keeps for itself of records that never change, so that writers need not know of it: the
    first question loads the search, each further one reads the records that have appeared since. For one thread.
    A tuner asks ``nas.inheritance.donors.ranking.LineageDonors``, whose answers do not depend on what has been
    committed meanwhile.

    Args:
        root: The storage root: a folder or URL, or as ``open_root`` gives it where it takes options.
        name: The search. Its first metric decides between checkpoints that share as much.
        others: Further searches under the root whose checkpoints may be named, or ``"all"`` that can be read. Their
            points count where they have the same problem, their scores where they have the same first metric.
        unroll: Gives what of a point counts, one text after the other; by default all but constants and what a
            ``Float`` says, in the order of the search's space.

    Raises:
        SearchNotFoundError: there is no such search.
        CorruptError: its search.json can't be read.
    """

    def __init__(
        self,
        root: BlobStore | str,
        name: str,
        *,
        others: Iterable[str] | Literal["all"] = (),
        unroll: Unroll | None = None,
    ) -> None:
        self._root = root = open_root(root) if isinstance(root, str) else root
        self._own = _View(root, name)
        self._others: dict[str, _View] = {}
        self._takes_all = others == "all"
        self._left_out: set[str] = {name}
        for other in () if self._takes_all else set(others) - {name}:
            self._others[other] = _View(root, other)
        self._table = DonorTable(unroll or unroll_by(self._own.space))

    def best_donor(self, wanted: Signature | Point, *, measure: Measure = common_prefix) -> BestDonor | None:
        """The checkpoint that shares most with a network or a point, of all that were committed before the call.

        Of several that share as much it is the one with the best score, of these the newest. A trial without weights,
        or whose weights were swept, is never the answer.

        Args:
            wanted: ``Signature.of(network)``. Or a point, which tells less: trained under DOWNSCALE, say, the same
                point is another network.
            measure: How much two share: ``common_prefix``, found at once, or any function, asked once for each network
                that differs (``common_layers``: some seconds for 100,000).

        Returns:
            None where no checkpoint shares anything.

        Raises:
            CorruptError: a record can't be read.
        """
        while True:
            self._refresh()
            found = self._table.best(wanted, measure)
            if found is None:
                return None
            shared, (name, number) = found
            records = self._others[name].records if name else self._own.records
            trial = records.finished_trial(number)
            if trial is None:
                raise CorruptError(f"the result of trial {number} has vanished from {records.files.url}/trials")
            if trial.checkpoint is not None:  # else its weights were swept while the answer was sought
                return BestDonor(donor=f"{name}:{number}" if name else number, trial=trial, shared=shared)

    def _refresh(self) -> None:
        """Takes in what was committed since the last question."""
        self._take("", self._own)
        if self._takes_all:
            for name in set(self._root.names()) - self._others.keys() - self._left_out:
                with suppress(SearchNotFoundError), self._leaving_out(name):
                    self._others[name] = _View(self._root, name)
        for name in self._others.keys() - self._left_out:
            with self._leaving_out(name):
                self._take(name, self._others[name])

    def _take(self, name: str, view: _View) -> None:
        has_score, has_point = view.metric == self._own.metric, view.problem == self._own.problem
        trials, weights_deleted = view.news()
        for trial in trials:
            score = score_of(trial, view.metric) if has_score else -inf
            self._table.add(trial, (score, trial.finished or 0.0, (name, trial.number)), has_point=has_point)
        if weights_deleted:
            self._table.remove({(name, number) for number in weights_deleted})

    @contextmanager
    def _leaving_out(self, name: str) -> Iterator[None]:
        """Where all searches are taken, one that can't be read is told, once, and left out."""
        try:
            yield
        except StorageError as error:
            is_closed = isinstance(error.__cause__, PermissionError)  # a disk's lost+found, another user's own
            if not self._takes_all or not (isinstance(error, CorruptError) or is_closed):
                raise
            self._left_out.add(name)
            logger.warning("search %s is left out as a donor: %s", name, error)


class _View:
    """What the records of one search have told so far."""

    def __init__(self, root: BlobStore, name: str) -> None:
        self.records = Records(root.below(name))
        header = self.records.read("search.json")
        if header is None:
            raise SearchNotFoundError(f"no search {name} lies under {root.url}; python -m flows.report lists them")
        try:
            self.metric = Metric(header["metrics"][0]["name"], header["metrics"][0]["direction"])
            self.problem: str = header["identity"]["problem"]["target"]
            self.space: dict[str, Any] = dict(header["identity"]["space"])
        except (IndexError, KeyError, TypeError, ValueError) as error:
            raise CorruptError(f"{self.records.files.url}/search.json can't be read: {error!r}") from error
        self._n_proposed = 0
        self._unfinished: list[Trial] = []
        self._weights_deleted: frozenset[int] = frozenset()

    def news(self) -> tuple[list[Trial], frozenset[int]]:
        """The trials that have finished since the last time, and the numbers of those that have lost their weights."""
        if self._n_proposed == 0:
            proposed, _ = self.records.load()
            trials = proposed
        else:  # by name: listing a folder of 300,000 would take longer than the answer may
            proposed = list(self._proposed())
            trials = [self.records.result(trial) or trial for trial in (*self._unfinished, *proposed)]
        weights_deleted = self.records.weights_deleted()
        news = [trial for trial in trials if trial.is_finished], weights_deleted - self._weights_deleted
        # only now that nothing has failed: what an error interrupts is read again
        self._n_proposed += len(proposed)
        self._unfinished = [trial for trial in trials if not trial.is_finished]
        self._weights_deleted = weights_deleted
        return news

    def _proposed(self) -> Iterator[Trial]:
        """Yields the trials proposed since the last time; numbers have no gaps."""
        number = self._n_proposed
        while (trial := self.records.proposed(number)) is not None:
            yield trial
            number += 1
