"""The trial code of an NNI experiment as a problem: each job is one start of the trial command."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from nas.compat.nni.any_space import AnySpace
from nas.compat.nni.calls import checked_job
from nas.compat.nni.host import SDK
from nas.compat.nni.names import experiment_id, job_id
from nas.compat.nni.parameters import parameters_of
from nas.compat.nni.process import TrialProcess
from nas.core.errors import ConfigurationError
from nas.core.metric import Direction, Metric
from nas.spaces.parameters.nni_json import load_nni_space
from nas.training.job import Job
from nas.training.problem import Problem
from nas.training.trial_run import TrialRun

POLL_S = 0.2
logger = logging.getLogger(__name__)


class TrialProcessError(Exception):
    """The trial command ended before its trial had a result, with an exit status that is not 0."""


class NniProblem(Problem):
    """Runs the trial command in its folder, once a job, and gives it configurations when it asks.

    A trial is finished when its process reports the final result, which is durable before the call returns; the job
    goes on until the process has ended. The metric ``default`` is the result, where that is a number, or the number
    that stands under ``default`` in it; the result itself stays untouched in ``Trial.returned``.

    Args:
        command: For a shell.
        space: What ``search_space.json`` holds; None: a tuner of the user's own, whose answers are taken as they are.
        optimize_mode: ``maximize`` or ``minimize``.
        multi_phase: A process may ask for further configurations.
        code_dir: Where the command runs.
        output_dir: Below it the folder of each job, ``NNI_OUTPUT_DIR``.
        search: The name from which the ids of the experiment and its jobs are made.
        gpus_per_trial: None: trials see what this process sees; 0: none; else slot i sees GPUs from ``i * n`` on.
        gpus: The numbers of the GPUs that there are.
        timeout_s: A process that runs longer is ended, and its trial FAILED.
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
        gpus: tuple[int, ...] = (),
        timeout_s: float | None = None,
    ) -> None:
        self.metrics = (Metric("default", optimize_mode),)
        self.space = AnySpace() if space is None else load_nni_space(space)
        self.scores_optional = space is None
        self.command = command
        self.multi_phase = multi_phase
        self.code_dir = code_dir
        self.output_dir = output_dir
        self.search = search
        self.gpus_per_trial = gpus_per_trial
        self.gpus = tuple(gpus)
        self.timeout_s = timeout_s

    def train_many(self, job: Job) -> None:
        """Starts the process, and talks with it until it has ended."""
        trials = job.trials(None if self.multi_phase else 1)
        if (first := next(trials, None)) is None:
            return
        if not os.path.isdir(self.code_dir):
            raise ConfigurationError(f"trial.codeDir ({self.code_dir}) is not here")
        made = first.derivation
        is_named = isinstance(made, dict) and "trial_job_id" in made  # by a tuner of the experiment's own
        name = checked_job(made["trial_job_id"]) if is_named else job_id(self.search, job.number)
        environment = self._environment(job, name)
        with TrialProcess(self.command, self.code_dir, environment) as process:
            _Talk(self, trials, first, process).run()

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
        elif self.gpus_per_trial and self.gpus:
            first = job.slot * self.gpus_per_trial
            places = range(first, first + self.gpus_per_trial)
            found["CUDA_VISIBLE_DEVICES"] = ",".join(str(self.gpus[i % len(self.gpus)]) for i in places)
        return found


class _Talk:
    """What the process of one job asks, and what it is told."""

    def __init__(self, problem: NniProblem, trials: Iterator[TrialRun], first: TrialRun, process: TrialProcess) -> None:
        self._problem = problem
        self._trials = trials
        self._process = process
        self._run: TrialRun | None = first
        self._finished = first
        """The last that has its result, where ``_run`` is None."""
        self._parameters = parameters_of(first.point)
        self._is_fetched = False
        self._is_over = False
        """There are no more configurations."""
        self._n_reports = 0
        self._began_s = time.monotonic()

    def run(self) -> None:
        """Talks until the process has ended.

        Raises:
            TrialProcessError: its exit status is not 0.
            TimeoutError: it has run for too long.
            TrialStopped: the trial, and with it the job, is to end.
        """
        while (status := self._process.status) is None:
            self._serve(POLL_S)
            if self._run is not None:
                self._run.raise_if_stopped()
            most_s = self._problem.timeout_s
            if most_s is not None and time.monotonic() > self._began_s + most_s:
                raise TimeoutError(f"the trial command ran past {most_s:g} s and was ended")
        self._serve(0.0)  # what it had asked before it ended
        self._process.drain()
        if status:
            last = f": {self._process.last_line}" if self._process.last_line else ""
            raise TrialProcessError(f"the trial command ended {_described(status)}{last}")
        if self._run is not None:
            self._run.finish()  # without a result, which is FAILED

    def _serve(self, wait_s: float) -> None:
        for connection, question in self._process.questions(wait_s):
            with self._process.pinged():  # for as long as a tuner thinks, or the store is slow
                answer = self._next() if question.get("ask") == "next" else self._take(question)
            connection.answer(answer)

    def _next(self) -> dict[str, Any]:
        """Returns the configuration to try now."""
        if self._is_fetched and self._problem.multi_phase and not self._is_over:
            self._run = next(self._trials, None)  # one that has no result is left as abandoned
            self._is_over, self._n_reports = self._run is None, 0
            self._parameters = None if self._run is None else parameters_of(self._run.point)
        self._is_fetched = True
        return {"parameters": self._parameters}

    def _take(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Takes in a report."""
        kind, text = question.get("report"), question.get("value")
        if kind not in ("final", "intermediate") or not isinstance(text, str):
            return {"error": f"{question!r:.200} is no question: ask next, or report final or intermediate"}
        if self._is_over:
            return {"error": f"a {kind} result was reported, but get_next_parameter gave None: there is no trial"}
        try:
            value = json.loads(text)
        except ValueError as error:
            return {"error": f"the result is no JSON: {error}"}
        if self._run is None and kind == "final":
            self._finished.log_extra_result(text)
        elif self._run is None:
            logger.warning("the trial has its result; a later intermediate result changes nothing: %.1000s", text)
        elif kind == "intermediate":
            self._n_reports += 1
            if reported := _numbers(value):
                self._run.report(self._n_reports, **reported)
        else:
            self._run.returned = text
            self._finished, self._run = self._run, None
            self._finished.finish(**_score(value, self._problem.scores_optional))
        return {}


def _score(value: Any, is_optional: bool) -> dict[str, float]:
    """The metric ``default``, where the result is or holds a number; one that is not finite only where it must."""
    found = value.get("default") if isinstance(value, dict) else value
    if not isinstance(found, int | float) or (is_optional and not math.isfinite(found)):
        return {}
    return {"default": int(found) if isinstance(found, bool) else found}


def _numbers(value: Any) -> dict[str, float]:
    """What an intermediate result tells a stopper and the learning curve: numbers by name, the finite ones."""
    found = value if isinstance(value, dict) else {"default": value}
    numbers = {k: v for k, v in found.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return {k: v for k, v in numbers.items() if math.isfinite(v) and k not in ("self", "step")}


def _described(status: int) -> str:
    if 128 < status <= 128 + max(signal.valid_signals()):
        return f"by {signal.Signals(status - 128).name}"
    return f"with exit status {status}"
