"""Weights & Biases: a run for each trial and one for the search, in a group."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from nas.callbacks.base import SearchInfo, SearchOutcome
from nas.callbacks.extras import check_extra, check_folder, check_server
from nas.callbacks.logger import LoggerCallback
from nas.callbacks.trial_fields import trial_parameters, trial_results
from nas.core.errors import ConfigurationError
from nas.core.trial import State, Trial, trial_name
from nas.core.validation import check_choice

if TYPE_CHECKING:
    import wandb

Mode = Literal["online", "offline"]
COMPLETE = "complete"
"""A file in the folder of a run that has ended."""


class WandbCallback(LoggerCallback):
    """Writes each trial as a run; runs of a search share a group.

    The stage is the type of the job. A run of the type ``result`` has the winner, and the test scores by trial.

    Files are in ``<log_dir>/<search>/wandb``. Offline runs are sent by ``wandb sync`` later.

    Args:
        project: The project.
        entity: The user or team; None: your default.
        mode: ``online`` or ``offline``; None: ``WANDB_MODE``, else ``online``.

    Raises:
        ConfigurationError: an argument is invalid, or W&B is missing.
    """

    def __init__(self, project: str = "heirloom", entity: str | None = None, mode: Mode | None = None) -> None:
        super().__init__()
        mode_name = mode or os.environ.get("WANDB_MODE") or "online"
        check_choice("logger.wandb.mode", mode_name, get_args(Mode))
        check_extra("wandb", "wandb")
        self._project = project
        self._entity = entity
        self._mode: Any = mode_name
        self._folder = Path()
        self._group = ""
        self._search_id = ""
        self._runs: dict[int, wandb.Run] = {}

    def setup(self, search: SearchInfo) -> None:
        """Creates the folder; online, checks the key and the server."""
        self._folder = Path(check_folder("log_dir", search.log_dir))
        self._group = search.name
        self._search_id = search.id
        self._runs.clear()
        if self._mode == "online":
            _check_account()

    def _id(self, number: int) -> str:
        """Returns the id of a trial's run, the same in each session."""
        return f"{self._search_id}-{number:06d}"

    def _open(self, id: str, name: str, kind: str, config: Mapping[str, Any]) -> wandb.Run:
        """Opens a run, which replaces an earlier one with its id."""
        import wandb

        for folder in self._folder.glob(f"wandb/*run-*-{id}"):
            shutil.rmtree(folder)
        return wandb.init(
            project=self._project,
            entity=self._entity,
            mode=self._mode,
            dir=str(self._folder),
            id=id,
            name=name,
            group=self._group,
            job_type=kind,
            config=dict(config),
            reinit="create_new",  # several trials run at a time
            settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
        )

    def logged_trials(self) -> Set[int]:
        """Returns the trials whose run's folder says that it has ended."""
        found = self._folder.glob(f"wandb/*run-*-{self._search_id}-*/{COMPLETE}")
        numbers = (path.parent.name.rpartition("-")[2] for path in found)
        return {int(number) for number in numbers if number.isdecimal()}

    def log_trial_start(self, trial: Trial) -> None:
        """Starts the trial's run; that of an earlier attempt, which has the same id, is overwritten."""
        if (earlier := self._runs.pop(trial.number, None)) is not None:
            earlier.finish(exit_code=1)
        run = self._open(self._id(trial.number), trial_name(trial.number), trial.stage, trial_parameters(trial))
        run.define_metric("*", step_metric="step")
        self._runs[trial.number] = run

    def log_trial_report(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics, with their step as a metric: an earlier step may come later."""
        self._runs[trial.number].log({"step": step, **metrics})

    def log_trial_end(self, trial: Trial) -> None:
        """Writes the result to the run's summary, and ends the run."""
        run = self._runs.pop(trial.number)
        run.config.update(self.result_fields(trial))
        run.summary.update(trial_results(trial))
        folder = Path(run.dir).parent
        run.finish(exit_code=int(trial.state == State.FAILED))
        (folder / COMPLETE).touch()

    def log_search_end(self, outcome: SearchOutcome) -> None:
        """Ends the runs of trials that did not finish, and writes the search's result."""
        for run in self._runs.values():
            run.finish(exit_code=1)
        self._runs.clear()
        if (winner := outcome.winner) is not None and outcome.error is None:  # otherwise tests are missing
            self._log_result(winner, outcome)

    def _log_result(self, winner: Trial, outcome: SearchOutcome) -> None:
        """Writes a run of the winner, and of test scores in a row for each finalist."""
        run = self._open(f"{self._search_id}-result", self._group, "result", {})
        run.define_metric("test.*", step_metric="trial", summary="none")
        run.define_metric("shared_score", summary="none")
        tests = {
            number: {f"test.{name}": value for name, value in test.get("metrics", {}).items()}
            for number, test in sorted(outcome.tests.items())
        }
        for number, scores in tests.items():
            run.log({"trial": number, **scores, **self.shared_mark(outcome.lineage[number])})
        found = {f"winner.{name}": value for name, value in winner.metrics.items()}
        run.summary.update(
            {"winner": winner.number, **found, **self.shared_mark(winner), **tests.get(winner.number, {})}
        )
        run.finish()


def _check_account() -> None:
    """Checks that W&B finds a key in its variables, settings or netrc, and its server.

    Raises:
        ConfigurationError: one is missing.
    """
    import wandb
    from wandb.errors import AuthenticationError
    from wandb.sdk.lib.wbauth import authenticate_session

    url = wandb.setup().settings.base_url
    try:
        found = authenticate_session(host=url, source="logger=wandb", prompt=False, update_session=False)
        what = "a key. Run `wandb login`"
    except AuthenticationError as error:
        found, what = None, f"another key ({error}). Correct or unset its variable"
    if found is None:
        raise ConfigurationError(f"logger.wandb.mode=online: needs {what}, or choose logger.wandb.mode=offline.")
    check_server("W&B's base_url", url)
