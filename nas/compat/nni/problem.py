"""The trial code of an NNI experiment as a problem."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from nas.compat.nni.code_folder import files_under
from nas.compat.nni.ids import experiment_id, job_id
from nas.compat.nni.parameters import to_parameters
from nas.compat.nni.sdk import SDK
from nas.compat.nni.trial_process import TrialProcess
from nas.compat.nni.tuner_calls import check_job_id
from nas.compat.nni.unrestricted_space import UnrestrictedSpace
from nas.core.errors import ConfigurationError, TrialStopped
from nas.core.metric import Direction, Metric, finite_metrics, plain_metrics
from nas.core.validation import check_bool, short_repr
from nas.spaces.parameters.nni_json import load_nni_space
from nas.training.job import Job
from nas.training.problem import Problem
from nas.training.trial_run import TrialRun

POLL_S = 0.2
logger = logging.getLogger(__name__)


class TrialProcessError(Exception):
    """The trial command failed before its trial had a result."""


class NniProblem(Problem):
    """Starts the trial command once per job and sends it configurations when it asks for them.

    A trial is finished when its process reports the final result, which is durable before the call returns. The job
    continues until the process ends. The metric ``default`` is the result if it is a number, and else its entry
    ``default``. ``Trial.returned`` keeps the whole result, or the last intermediate one of a trial that is stopped.

    Args:
        command: A shell command.
        space: The content of ``search_space.json``; None: an own tuner or BatchTuner, whose points are not validated.
        optimize_mode: ``maximize`` or ``minimize``.
        multi_phase: Whether a process may ask for further configurations.
        code_dir: The working folder of the command.
        output_dir: The parent of each job's folder, ``NNI_OUTPUT_DIR``.
        search: The name of the search, from which the ids of the experiment and its jobs are derived.
        gpus_per_trial: None: trials see all of ``gpus``; 0: none; n: slot i sees those from ``i * n`` on.
        gpus: Their names in ``CUDA_VISIBLE_DEVICES``: numbers or UUIDs. Without any, trials see those of this process.
        timeout_s: A process that runs longer is ended, and its trial is FAILED.
    """

    scores_optional = False
    is_apart: ClassVar[bool] = True
    data_arguments: ClassVar[frozenset[str]] = frozenset(
        {"code_dir", "output_dir", "search", "gpus_per_trial", "gpus", "timeout_s"}
    )
    code_arguments: ClassVar[frozenset[str]] = frozenset({"command", "code_dir"})

    def __init__(
        self,
        *,
        command: str,
        space: Mapping[str, Any] | None = None,
        optimize_mode: Direction = "maximize",
        multi_phase: bool = False,
        code_dir: str = ".",
        output_dir: str = "",
        search: str = "",
        gpus_per_trial: int | None = None,
        gpus: tuple[str, ...] = (),
        timeout_s: float | None = None,
    ) -> None:
        if not isinstance(space, Mapping | None):  # a path would be read
            raise ConfigurationError(f"problem.space={short_repr(space)}: must be an object, or null")
        check_bool("problem.multi_phase", multi_phase)
        self.metrics = (Metric("default", optimize_mode),)
        self.space = UnrestrictedSpace() if space is None else load_nni_space(space)
        self.scores_optional = space is None
        self.command = command
        self.multi_phase = multi_phase
        self.code_dir = code_dir
        self.output_dir = output_dir
        self.search = search
        self.gpus_per_trial = gpus_per_trial
        self.gpus = tuple(gpus)
        self.timeout_s = timeout_s

    @property
    def code_files(self) -> Mapping[str, Path]:
        """The Python files under ``code_dir``, and the files there that the command names."""
        return files_under(Path(self.code_dir), self.command, without=self.output_dir)

    def train_many(self, job: Job) -> None:
        """Starts the process and serves its requests until it ends."""
        trials = job.trials(None if self.multi_phase else 1)
        if (first := next(trials, None)) is None:
            return
        if not os.path.isdir(self.code_dir):
            raise ConfigurationError(f"trial.codeDir={self.code_dir}: must be a folder on this machine")
        derivation = first.derivation
        if isinstance(derivation, dict) and "trial_job_id" in derivation:  # from the experiment's own tuner
            name = check_job_id(derivation["trial_job_id"])
        else:
            name = job_id(self.search, job.number)
        environment = self._environment(job, name)
        with TrialProcess(self.command, self.code_dir, environment) as process:
            _TrialServer(self, trials, first, process).run()

    def _environment(self, job: Job, name: str) -> dict[str, str]:
        folder = Path(self.output_dir) / "trials" / name
        folder.mkdir(parents=True, exist_ok=True)
        found = {
            **os.environ,
            "NNI_PLATFORM": "local",
            "NNI_EXP_ID": experiment_id(self.search),
            "NNI_TRIAL_JOB_ID": name,
            "NNI_TRIAL_SEQ_ID": str(job.index),
            "NNI_SYS_DIR": str(folder),
            "NNI_OUTPUT_DIR": str(folder),
            "MULTI_PHASE": "true" if self.multi_phase else "false",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(SDK), os.environ.get("PYTHONPATH")])),
            "PYTHONUNBUFFERED": "1",
        }
        if self.gpus_per_trial == 0:
            found["CUDA_VISIBLE_DEVICES"] = "-1"
        elif self.gpus:
            n_gpus = self.gpus_per_trial or len(self.gpus)
            first = job.slot * n_gpus
            indices = range(first, first + n_gpus)
            found["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus[i % len(self.gpus)] for i in indices)
        return found


class _TrialServer:
    """Serves the requests of one job's process."""

    def __init__(self, problem: NniProblem, trials: Iterator[TrialRun], first: TrialRun, process: TrialProcess) -> None:
        self._problem = problem
        self._trials = trials
        self._process = process
        self._run: TrialRun | None = first
        self._finished = first
        """The last trial with a result, used while ``_run`` is None."""
        self._parameters = to_parameters(first.point)
        self._is_fetched = False
        self._is_over = False
        """Whether there are no more configurations."""
        self._n_reports = 0
        self._reported: str | None = None
        """The last intermediate result of ``_run`` as JSON."""
        self._started_s = time.monotonic()

    def run(self) -> None:
        """Serves requests until the process ends.

        Raises:
            TrialProcessError: the exit status is not 0.
            TimeoutError: the process has run for too long.
            TrialStopped: the trial, and with it the job, is stopped.
        """
        try:
            while (status := self._process.status) is None:
                self._serve(POLL_S)
                if self._run is not None:
                    self._run.raise_if_stopped()
                timeout_s = self._problem.timeout_s
                if timeout_s is not None and time.monotonic() > self._started_s + timeout_s:
                    raise TimeoutError(f"the trial command ran longer than {timeout_s:g} s and was ended")
            self._serve(0.0)  # requests sent before the end
        except TrialStopped:
            if self._run is not None:
                self._run.returned = self._reported
            raise
        self._process.drain()
        if status:
            told = [f"the trial command ended {_status_text(status)}", self._process.ending]
            raise TrialProcessError(": ".join(filter(None, told)))
        if self._run is not None:
            self._run.result_error = "the trial command ended with status 0 without nni.report_final_result(...)"
            self._run.finish()  # the trial is FAILED

    def _serve(self, timeout_s: float) -> None:
        for connection, request in self._process.requests(timeout_s):
            connection.reply(self._next() if request.get("ask") == "next" else self._report(request))

    def _next(self) -> dict[str, Any]:
        """Returns the reply with the configuration to try now."""
        if self._is_fetched and self._problem.multi_phase and not self._is_over:
            self._run = next(self._trials, None)  # a trial without a result becomes abandoned
            self._is_over, self._n_reports, self._reported = self._run is None, 0, None
            self._parameters = None if self._run is None else to_parameters(self._run.point)
        self._is_fetched = True
        return {"parameters": self._parameters}

    def _report(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Records a report and returns the reply."""
        kind, text = request.get("report"), request.get("value")
        if kind not in ("final", "intermediate") or not isinstance(text, str):
            return {"error": f"invalid request {request!r:.200}: it must ask next, or report final or intermediate"}
        if self._is_over:  # NNI 1.1 and later ignore it
            logger.warning("%s result ignored: get_next_parameter has returned None: %.1000s", kind, text)
            return {}
        try:
            value = json.loads(text)
        except ValueError as error:
            return {"error": f"the result is not JSON: {error}"}
        if self._run is None and kind == "final":
            self._finished.log_extra_result(text)
        elif self._run is None:
            logger.warning("intermediate result ignored, because the trial has its final result: %.1000s", text)
        elif kind == "intermediate":
            self._n_reports, self._reported = self._n_reports + 1, text
            if reported := _numbers(value):
                self._run.report(self._n_reports, **reported)
        else:
            self._run.returned = text
            self._run.result_error = (
                f"nni.report_final_result({value!r:.200}): must be a finite number, or a dict with one as `default`"
            )
            self._finished, self._run = self._run, None
            self._finished.finish(**_score(value, self._problem.scores_optional))
        return {}


def _score(value: Any, is_optional: bool) -> dict[str, float]:
    """Returns the metric ``default`` of a result, or nothing if the result has no number.

    If the score is optional, a number that is not finite is omitted.
    """
    found = value.get("default") if isinstance(value, dict) else value
    if not isinstance(found, int | float):
        return {}
    score = plain_metrics({"default": int(found) if isinstance(found, bool) else found})
    return finite_metrics(score) if is_optional else score


def _numbers(value: Any) -> dict[str, float]:
    """Returns the finite numbers of an intermediate result by name, for stoppers and the learning curve."""
    found = value if isinstance(value, dict) else {"default": value}
    numbers = {k: v for k, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return {k: v for k, v in finite_metrics(plain_metrics(numbers)).items() if k not in ("self", "step")}


def _status_text(status: int) -> str:
    if 128 < status <= 128 + max(signal.valid_signals()):
        return f"by {signal.Signals(status - 128).name}"
    return f"with exit status {status}"
