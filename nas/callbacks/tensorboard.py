"""TensorBoard: a folder of event files for each trial, which torch's ``SummaryWriter`` writes."""

from __future__ import annotations

import fcntl
from collections.abc import Mapping, Set
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from nas.callbacks.base import SearchInfo, SearchOutcome
from nas.callbacks.extras import check_extra, check_folder
from nas.callbacks.logger import LoggerCallback
from nas.callbacks.trial_fields import trial_parameters, trial_results
from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.core.ranking import WinnerKey, winner_key
from nas.core.trial import Trial, trial_name

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

REPORTS, PARTIAL, RESULT, TESTS = ".reports", ".partial", ".result", ".tests"
"""Endings of event files.

A trial with a result is complete. A partial result becomes a result when it is whole. Test scores are the search's.
"""
SEARCH_ID = ".search_id"
"""The file with the id of the search whose event files are in the folder.

It is locked while the search runs.
"""
FLUSH_S = 10


class TensorBoardCallback(LoggerCallback):
    """Writes ``<log_dir>/<search>/trial-0042`` for each trial, and ``<log_dir>/<search>/search``.

    A trial's folder has its reports, ``result/<metric>``, ``result/inherited`` and, for the tab HPARAMS, parent,
    donor, generation and the point. The search's folder has the best score so far and the inherited share, by the
    number of finished trials.

    Raises:
        ConfigurationError: the package tensorboard is missing.
    """

    def __init__(self) -> None:
        super().__init__()
        check_extra("tensorboard", "tensorboard")
        self._folder = Path()
        self._metric: Metric | None = None
        self._writers: dict[int, SummaryWriter] = {}
        self._overview: SummaryWriter | None = None
        self._best: dict[str, WinnerKey] = {}  # by stage
        self._n_finished = 0
        self._earlier: frozenset[int] = frozenset()
        self._lock: IO[str] | None = None

    def setup(self, search: SearchInfo) -> None:
        """Creates the search's folder, and writes the search's curves again."""
        self._folder = Path(check_folder("log_dir", search.log_dir))
        self._delete_other_search(search.id)
        self._metric, self._best, self._n_finished = search.metrics[0], {}, 0
        self._earlier = frozenset(trial.number for trial in search.lineage if trial.is_finished)
        overview = self._folder / "search"
        _delete(overview, REPORTS)
        self._overview = _writer(overview, REPORTS)
        for trial in sorted(search.lineage, key=lambda trial: trial.finished or 0.0):
            if trial.is_finished:
                self._write_overview(trial)

    def _delete_other_search(self, search: str) -> None:
        """Deletes trials and test scores of another search with this name, and writes the search's id.

        Raises:
            ConfigurationError: the other search still runs.
        """
        self._lock = (self._folder / SEARCH_ID).open("a+")
        is_free = _lock(self._lock)
        self._lock.seek(0)
        if self._lock.read() == search:
            return
        if not is_free:
            self._lock.close()
            raise ConfigurationError(
                f"log_dir={self._folder.parent}: must be one that no other search named {self._folder.name} writes to "
                "now. Choose another log_dir, or another name."
            )
        _delete(self._folder / "search", TESTS)
        for folder in self._folder.glob("trial-*"):
            _delete(folder, REPORTS, PARTIAL, RESULT)
        self._lock.truncate(0)
        self._lock.write(search)
        self._lock.flush()

    def logged_trials(self) -> Set[int]:
        """Returns the trials that have a result file."""
        found = self._folder.glob(f"trial-*/events.out.tfevents.*{RESULT}")
        numbers = (path.parent.name.removeprefix("trial-") for path in found)
        return {int(number) for number in numbers if number.isdecimal()}

    def log_trial_start(self, trial: Trial) -> None:
        """Opens the trial's event file, and deletes those of an earlier attempt."""
        if (earlier := self._writers.pop(trial.number, None)) is not None:
            earlier.close()
        folder = self._folder / trial_name(trial.number)
        _delete(folder, REPORTS, PARTIAL, RESULT)
        self._writers[trial.number] = _writer(folder, REPORTS)

    def log_trial_report(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        """Writes a point of each curve."""
        for name, value in metrics.items():
            self._writers[trial.number].add_scalar(name, value, step)

    def log_trial_end(self, trial: Trial) -> None:
        """Writes the result to a file of its own."""
        from torch.utils.tensorboard.summary import hparams

        self._writers.pop(trial.number).close()
        results = {f"result/{name}": value for name, value in trial_results(trial).items()}
        step = trial.curve[-1][0] if trial.curve else 0
        parameters = {**trial_parameters(trial), **self.result_fields(trial)}
        folder = self._folder / trial_name(trial.number)
        with _writer(folder, PARTIAL) as writer:
            for summary in hparams(parameters, results):
                writer._get_file_writer().add_summary(summary)
            for name, value in results.items():
                writer.add_scalar(name, value, step)
        for path in folder.glob(f"events.out.tfevents.*{PARTIAL}"):
            path.rename(path.with_name(path.name.removesuffix(PARTIAL) + RESULT))
        if trial.number not in self._earlier:
            self._write_overview(trial)

    def _write_overview(self, trial: Trial) -> None:
        """Writes the best score so far and the inherited share to the search's folder."""
        assert self._overview is not None and self._metric is not None
        self._n_finished += 1
        key = winner_key(trial, (self._metric,))
        if key is not None and not self.has_shared_score(trial):
            best = self._best[trial.stage] = min(key, self._best.get(trial.stage, key))
            value = self._metric.rank(-best[2][0])  # of its loss
            self._overview.add_scalar(f"best_{self._metric.name}/{trial.stage}", value, self._n_finished)
        if trial.inherited_share is not None:
            self._overview.add_scalar("inherited", trial.inherited_share, self._n_finished)

    def log_search_end(self, outcome: SearchOutcome) -> None:
        """Writes test scores, unless an error hides them, and closes all files."""
        assert self._overview is not None
        try:
            for writer in (self._overview, *self._writers.values()):
                writer.close()
            self._writers.clear()
            if outcome.error is None:
                self._write_tests(outcome)  # last: TensorBoard reads no older file after a newer one
        finally:
            if self._lock is not None:
                self._lock.close()

    def _write_tests(self, outcome: SearchOutcome) -> None:
        """Writes test scores in place of earlier ones, to a file that errors leave alone."""
        folder = self._folder / "search"
        _delete(folder, TESTS)
        if not outcome.tests:
            return
        with _writer(folder, TESTS) as writer:
            for number, test in sorted(outcome.tests.items()):
                is_shared = self.has_shared_score(outcome.lineage[number])
                for name, value in test.get("metrics", {}).items():
                    tag = f"test_with_shared_weights/{name}" if is_shared else f"test/{name}"
                    writer.add_scalar(tag, value, number)


def _writer(folder: Path, ending: str) -> SummaryWriter:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), flush_secs=FLUSH_S, filename_suffix=ending)


def _lock(file: IO[str]) -> bool:
    """Locks a file until it is closed, and returns whether no other search has it.

    On a file system without locks, no other has.
    """
    with suppress(OSError):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _delete(folder: Path, *endings: str) -> None:
    """Deletes the event files that this logger wrote; a user's own stay."""
    for path in folder.glob("events.out.tfevents.*"):
        if path.name.endswith(endings):
            path.unlink()
