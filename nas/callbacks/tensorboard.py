"""TensorBoard: a folder of event files for each trial, which torch's ``SummaryWriter`` writes."""

from __future__ import annotations

from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING

from nas.callbacks.base import SearchInfo, SearchOutcome
from nas.callbacks.extras import check_extra, check_folder
from nas.callbacks.logger import LoggerCallback
from nas.callbacks.trial_fields import trial_parameters, trial_results
from nas.core.metric import Metric
from nas.core.trial import Trial, trial_name

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

REPORTS, PARTIAL, RESULT = ".reports", ".partial", ".result"
"""Endings of a trial's event files.

A trial with a result is complete. A partial result becomes a result when it is whole.
"""
FLUSH_S = 10


class TensorBoardCallback(LoggerCallback):
    """Writes ``<log_dir>/<search>/trial-0042`` for each trial, and ``<log_dir>/<search>/search``.

    A trial's folder has its reports, ``result/<metric>``, ``result/inherited`` and, for the tab HPARAMS, parent,
    donor, generation and the point. The search's folder has the best score so far and the inherited share, by trial.

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
        self._best: dict[str, float] = {}
        self._earlier: frozenset[int] = frozenset()

    def setup(self, search: SearchInfo) -> None:
        """Creates the search's folder, and writes the search's curves again."""
        self._folder = Path(check_folder("log_dir", search.log_dir))
        self._metric, self._best = search.metrics[0], {}
        self._earlier = frozenset(trial.number for trial in search.lineage if trial.is_finished)
        overview = self._folder / "search"
        _delete(overview, REPORTS)
        self._overview = _writer(overview, REPORTS)
        for trial in sorted(search.lineage, key=lambda trial: trial.finished or 0.0):
            if trial.is_finished:
                self._write_overview(trial)

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
        name = self._metric.name
        if (value := trial.value(name)) is not None and not self.has_shared_score(trial):
            best = self._best.get(trial.stage)
            if best is None or self._metric.rank(value) > self._metric.rank(best):
                self._best[trial.stage] = value
            self._overview.add_scalar(f"best_{name}/{trial.stage}", self._best[trial.stage], trial.number)
        if trial.inherited_share is not None:
            self._overview.add_scalar("inherited", trial.inherited_share, trial.number)

    def log_search_end(self, outcome: SearchOutcome) -> None:
        """Writes test scores, and closes all files."""
        assert self._overview is not None
        for number, test in sorted(outcome.tests.items()):
            for name, value in test.get("metrics", {}).items():
                self._overview.add_scalar(f"test/{name}", value, number)
        for writer in (self._overview, *self._writers.values()):
            writer.close()
        self._writers.clear()


def _writer(folder: Path, ending: str) -> SummaryWriter:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), flush_secs=FLUSH_S, filename_suffix=ending)


def _delete(folder: Path, *endings: str) -> None:
    """Deletes the event files that this logger wrote; a user's own stay."""
    for path in folder.glob("events.out.tfevents.*"):
        if path.name.endswith(endings):
            path.unlink()
