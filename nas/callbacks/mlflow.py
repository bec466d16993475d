"""MLflow: a run for the search, and in it a nested run for each trial."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, Any

from nas.callbacks.base import SearchInfo, SearchOutcome
from nas.callbacks.extras import check_extra, check_server
from nas.callbacks.logger import LoggerCallback
from nas.callbacks.trial_fields import trial_parameters, trial_results
from nas.core.errors import ConfigurationError
from nas.core.tracebacks import error_line
from nas.core.trial import State, Trial, trial_name

if TYPE_CHECKING:
    from mlflow.entities import Run

PAGE = 1000
MAX_PARAMS = 100
"""Parameters of one request."""
STATUS = {State.COMPLETE: "FINISHED", State.STOPPED: "KILLED", State.FAILED: "FAILED"}
MAX_NAME = 250
_ESCAPED = re.compile(r"[^\w\-./ ]|u(?=[0-9a-f]{4})|U(?=[0-9a-f]{8})", re.ASCII)
"""Characters that a name can't have, and letters that would look like an escape."""


class MlflowCallback(LoggerCallback):
    """Writes each trial to a run that is nested in the search's run.

    A trial's run has its reports, metrics and ``inherited``; parent, generation, policies and the point as parameters;
    donor and state as parameters, too, since both are known at its end. A resumed search continues its run.

    Args:
        tracking_uri: The server or store; None: ``MLFLOW_TRACKING_URI``, else MLflow's default ``sqlite:///mlflow.db``.
        experiment: The name of the experiment, which is created.

    Raises:
        ConfigurationError: MLflow is missing.
    """

    def __init__(self, tracking_uri: str | os.PathLike[str] | None = None, experiment: str = "heirloom") -> None:
        super().__init__()
        check_extra("mlflow", "mlflow")
        self._uri = None if tracking_uri is None else os.fspath(tracking_uri)
        self._experiment = experiment
        self._client: Any = None
        self._experiment_id = ""
        self._run = ""
        self._runs: dict[int, str] = {}
        self._session = 0

    def setup(self, search: SearchInfo) -> None:
        """Finds or creates the experiment and the search's run."""
        import mlflow

        uri = self._uri or mlflow.get_tracking_uri()
        option = "logger.mlflow.tracking_uri"
        check_server(option, uri)
        os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")  # MLflow warns if git is missing
        os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # two lines at the end of each run
        self._client, self._session, self._runs = mlflow.MlflowClient(uri), search.session, {}
        try:
            self._experiment_id = self._find_experiment()
            self._run = self._find_run(search)
        except Exception as error:  # of the server, its database, or its answer
            raise ConfigurationError(
                f"{option}={uri}: must be an MLflow server or store that works "
                f"({error_line(error)}). Repair it, choose another, or leave the logger out."
            ) from error

    def _find_experiment(self) -> str:
        if (found := self._client.get_experiment_by_name(self._experiment)) is not None:
            return str(found.experiment_id)
        return str(self._client.create_experiment(self._experiment))

    def _find_run(self, search: SearchInfo) -> str:
        """Returns the search's run, RUNNING again."""
        query = f"tags.`heirloom.id` = '{search.id}'"
        for run in self._client.search_runs([self._experiment_id], query, max_results=1):
            self._client.update_run(run.info.run_id, status="RUNNING")
            return str(run.info.run_id)
        tags = {"heirloom.search": search.name, "heirloom.folder": search.url, "heirloom.id": search.id}
        run = self._client.create_run(self._experiment_id, tags=tags, run_name=search.name)
        identity = search.identity
        fields = {"problem": identity["problem"]["target"], "tuner": identity["tuner"]["target"]}
        self._log(run.info.run_id, {**fields, "seed": identity["seed"]}, {}, 0)
        return str(run.info.run_id)

    def logged_trials(self) -> Set[int]:
        """Returns the trials whose nested run has ended."""
        ended = set()
        for run in self._nested_runs():
            if not (text := run.data.tags.get("heirloom.trial", "")).isdecimal():  # a run of the user's
                continue
            number = int(text)
            self._runs[number] = run.info.run_id
            if run.info.status in STATUS.values():
                ended.add(number)
        return ended

    def _nested_runs(self) -> Iterable[Run]:
        token = None
        while True:
            query = f"tags.`mlflow.parentRunId` = '{self._run}'"
            page = self._client.search_runs([self._experiment_id], query, max_results=PAGE, page_token=token)
            yield from page
            if not (token := page.token):
                return

    def log_trial_start(self, trial: Trial) -> None:
        """Creates the trial's run, and deletes that of an earlier attempt."""
        if (earlier := self._runs.pop(trial.number, None)) is not None:
            self._client.delete_run(earlier)
        tags = {"mlflow.parentRunId": self._run, "heirloom.trial": str(trial.number)}
        name, started_ms = trial_name(trial.number), _ms(trial.started)
        run = self._client.create_run(self._experiment_id, start_time=started_ms, tags=tags, run_name=name)
        self._runs[trial.number] = run.info.run_id
        self._log(run.info.run_id, trial_parameters(trial), {}, 0)

    def log_trial_report(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        """Writes the metrics at the step."""
        self._log(self._runs[trial.number], {}, metrics, step, _ms(trial.finished))

    def log_trial_end(self, trial: Trial) -> None:
        """Writes the result, and ends the run."""
        run, ended_ms = self._runs[trial.number], _ms(trial.finished)
        reported = {name for _, metrics in trial.curve for name in metrics}
        results = {f"result.{n}" if n in reported else n: value for n, value in trial_results(trial).items()}
        self._log(run, self.result_fields(trial), results, 0, ended_ms)
        self._client.set_terminated(run, STATUS[trial.state], ended_ms)

    def log_search_end(self, outcome: SearchOutcome) -> None:
        """Writes the winner and test scores, and ends the search's run."""
        try:
            self._log_tests(outcome)
            self._log_winner(outcome)
        finally:
            self._client.set_terminated(self._run, "FINISHED" if outcome.error is None else "KILLED")

    def _log_tests(self, outcome: SearchOutcome) -> None:
        for number, test in outcome.tests.items():
            if number not in self._runs:  # the server did not answer when it was due
                self.on_trial_end(outcome.lineage[number])
            scores = {f"test.{name}": value for name, value in test.get("metrics", {}).items()}
            known = self._client.get_run(self._runs[number]).data.metrics
            if set(map(_valid_name, scores)) - known.keys():
                self._log(self._runs[number], {}, scores, 0)

    def _log_winner(self, outcome: SearchOutcome) -> None:
        if (winner := outcome.winner) is not None:
            self._client.set_tag(self._run, "heirloom.winner", str(winner.number))
            is_shared = "true" if self.has_shared_score(winner) else "false"  # the winner of a later session may differ
            self._client.set_tag(self._run, "shared_score", is_shared)
            metrics = {f"winner.{name}": value for name, value in winner.metrics.items()}
            self._log(self._run, {}, metrics, self._session)

    def _log(
        self, run: str, parameters: Mapping[str, Any], metrics: Mapping[str, float], step: int, at_ms: int | None = None
    ) -> None:
        from mlflow.entities import Metric, Param

        at_ms = at_ms or _ms(None)
        points = [Metric(_valid_name(name), value, at_ms, step) for name, value in metrics.items()]
        params = [Param(_valid_name(name), str(value)) for name, value in parameters.items()]
        for first in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(run, params=params[first : first + MAX_PARAMS])
        for first in range(0, len(points), PAGE):
            self._client.log_batch(run, metrics=points[first : first + PAGE])


def _valid_name(name: str) -> str:
    """Returns a valid name, with ``u003a`` for a colon; each name has its own."""
    valid = _ESCAPED.sub(_escape, name)
    if len(valid) <= MAX_NAME:
        return valid
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return f"{valid[: MAX_NAME - 17]}-{digest}"


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"u{code:04x}" if code < 0x10000 else f"U{code:08x}"


def _ms(at_s: float | None) -> int:
    """Returns a time in milliseconds; now, if it is None."""
    return int(1000 * (time.time() if at_s is None else at_s))
