"""One attempt of a trial in its worker, from reading the donors to the recorded result."""

from __future__ import annotations

import copy
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from nas.core.errors import (
    AlreadyPublishedError,
    CorruptError,
    MissingError,
    StorageError,
    TrialDeadlineExceeded,
    TrialInterrupted,
    TrialStopped,
)
from nas.core.metric import not_finite, plain_metrics
from nas.core.redaction import one_line
from nas.core.supernet import is_epoch
from nas.core.tracebacks import raise_ctrl_c, traceback_of
from nas.core.trial import Reason, Trial, training_cost
from nas.storage.trial_log import MAX_LOG_BYTES, log_path, move_earlier_log
from nas.training.device_errors import is_out_of_memory
from nas.training.messages import TrialChannel
from nas.training.static_metrics import known_metrics, missing_metrics, read_static_metrics
from nas.training.trial_run import TrialRun

if TYPE_CHECKING:
    from nas.training.messages import Assignment
    from nas.training.runtime_context import RuntimeContext

logger = logging.getLogger(__name__)


class Attempt:
    """One attempt of a trial: ``begin``, the problem's code with ``run``, then ``settle``.

    Args:
        runtime: The environment of the attempt.
        assignment: The trial and its donors.
        channel: The channel to the controller.
    """

    run: TrialRun

    def __init__(self, runtime: RuntimeContext, assignment: Assignment, channel: TrialChannel) -> None:
        self._runtime = runtime
        self._channel = channel
        self._n_slots = assignment.n_slots
        self._trial = replace(assignment.trial, started=time.time())
        self._began = time.perf_counter()
        self._static_metrics_error = ""
        self._lacked_memory = False  # for a static metric
        self._static_metrics_cost: dict[str, float] = {}
        self.run = TrialRun(
            self._trial,
            runtime.files,
            donors=assignment.donors,
            device=runtime.spec.device,
            n_gpus=runtime.spec.n_gpus,
            channel=channel,
            resume_every_s=runtime.spec.resume_every_s,
            example_inputs=runtime.example_inputs,
            space=runtime.problem.space,
            log_dir=runtime.spec.log_dir,
            train_until=assignment.train_until,
        )

    def begin(self) -> Trial | None:
        """Prepares the run for the problem's code.

        Returns the trial if it has its result without that code.

        Raises:
            StorageError: the storage failed. The trial is not FAILED by it.
        """
        from nas.training.seeds import seed_everything

        trial, run, runtime = self._trial, self.run, self._runtime
        if (result := runtime.records.result(trial)) is not None:
            return result
        move_earlier_log(runtime.files, trial.number, trial.attempt)
        try:
            run.load_donors()
        except (MissingError, CorruptError):
            if run.resumed_from() is None:
                return self._commit(_without_donor(run, trial))
            run.ignore_missing_donor()
        self._trial = self._start(trial)
        self._channel.started()
        runtime.restore_settings(self._n_slots)
        began_s = time.perf_counter()
        known, self._static_metrics_error = read_static_metrics(
            runtime.problem, trial, self._measure, self._note_early_error
        )
        self._trial = replace(self._trial, static_metrics=known)
        if known:
            self._static_metrics_cost = {"static_metrics_seconds": time.perf_counter() - began_s}
            self._channel.static_metrics(known, known_metrics(runtime.problem, self._trial))
        runtime.restore_settings(self._n_slots)
        seed_everything(trial.seed)
        return None

    def _note_early_error(self, error: BaseException) -> None:
        """Takes note of an error of the static metrics, without keeping what its frames hold."""
        self._runtime.note_error(error)
        self._lacked_memory = self._lacked_memory or is_out_of_memory(error)

    def settle(self, returned: object = None, *, error: BaseException | None = None) -> Trial | None:
        """Records the result. Returns None if the attempt was interrupted; the trial will run again.

        Args:
            returned: The value that the problem's code returned, normally the validation scores.
            error: The exception that it raised instead.

        Raises:
            StorageError: the storage failed.
        """
        if isinstance(error, StorageError) and self.run.lost is None:  # for example from a last save
            raise error
        if error is not None and self.run.stop is None and self._channel.was_signaled():
            with suppress(TrialStopped):  # the stop may be why the problem's code failed
                self.run.raise_if_stopped()
        try:
            outcome = self._outcome(returned, error)
        except StorageError:
            raise
        except BaseException as publishing_error:
            raise_ctrl_c(publishing_error)
            outcome = self._failed(publishing_error)
        return None if outcome is None else self._check_export(self._commit(outcome))

    def _check_export(self, trial: Trial) -> Trial:
        """Returns the trial, with a warning if the problem's ``export`` returns something that can't be exported.

        Its result is durable before, since that code may end this process or hang.
        """
        if trial.checkpoint is None or not self._runtime.checks_export:
            return trial
        self._channel.committed(trial)
        warning = self._runtime.check_export(trial)
        return trial if warning is None else trial.warn(warning)

    def abandon(self) -> Trial | None:
        """Records a trial that its job left without a result."""
        if self.run.stop is not None or self.run.lost is not None:
            return self.settle()
        error = f"the job continued without calling `run.finish` for trial {self._trial.number}"
        return self._commit(self._trial.fail(Reason.ABANDONED, error))

    def close(self) -> None:
        """Removes the local folders. The run can't be used afterwards."""
        self.run.close()

    def _outcome(self, returned: object, error: BaseException | None) -> Trial | None:
        run, trial = self.run, self._trial
        if run.lost is not None:  # even if the problem's code continued without the weights
            return _without_donor(run, trial)
        if isinstance(run.stop, TrialInterrupted):
            return None
        if run.stop is not None:  # even if the problem's code raised another exception instead
            reason = Reason.DEADLINE if isinstance(run.stop, TrialDeadlineExceeded) else Reason.STOPPER
            ended = trial.stop(reason, run.curve, known_metrics(self._runtime.problem, trial))
            return replace(ended, checkpoint=run.commit_weights()) if run.curve else ended
        return self._failed(error) if error is not None else self._judge(returned)

    def _failed(self, error: BaseException) -> Trial:
        self._runtime.note_error(error)
        reason = Reason.NOT_FINITE if isinstance(error, FloatingPointError) else Reason.EXCEPTION
        if is_out_of_memory(error):
            reason = Reason.OUT_OF_MEMORY
        text = traceback_of(error)
        logger.error("%s", text)
        return self._trial.fail(reason, text)

    def _commit(self, outcome: Trial) -> Trial:
        run, runtime = self.run, self._runtime
        seconds = time.perf_counter() - self._began
        spent = training_cost(seconds, runtime.spec.n_gpus)
        result = replace(
            outcome,
            metrics=self._declared_first(outcome.metrics),
            cost={**spent, **self._static_metrics_cost, **self._setup_cost(), **self._threads_cost(), **run.shares},
            finished=time.time(),
            donor=run.donor,
            inherited=None if run.inheritance is None else run.inheritance.share,
            inheritance={**outcome.inheritance, **run.summary()},
            curve=tuple(run.curve),
            returned=run.returned,
            suggested=run.suggested,
        )
        whole = run.resume_point_saver.completed(result)
        committed = runtime.records.commit(whole)
        run.resume_point_saver.delete(committed)
        self._log_left_out(whole, committed)
        return committed

    def _setup_cost(self) -> dict[str, float]:
        """Returns the seconds until the problem's code called ``run.epochs``, static metrics included."""
        asked_s = self.run.asked_epochs_s
        return {} if asked_s is None else {"setup_seconds": asked_s - self._began}

    def _threads_cost(self) -> dict[str, float]:
        """Returns the number of torch threads if it exceeds that of one slot."""
        n_threads = self._runtime.threads_of(self._n_slots)
        return {"threads": n_threads} if n_threads > self._runtime.spec.n_threads else {}

    def _measure(self, known: Mapping[str, float]) -> Iterator[Mapping[str, float]]:
        """Yields the metrics that are measured on this machine, then the declared proxies."""
        runtime, trial = self._runtime, self._trial
        yield runtime.problem.measure(copy.deepcopy(trial.point), runtime.spec.device)
        yield runtime.declared_proxies(trial, {metric.name for metric in runtime.problem.metrics} - known.keys())

    def _declared_first(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics, declared ones first, since a record may have no room for the others."""
        declared = [metric.name for metric in self._runtime.problem.metrics if metric.name in metrics]
        return {name: metrics[name] for name in dict.fromkeys([*declared, *metrics])}

    def _log_left_out(self, whole: Trial, result: Trial) -> None:
        """Writes to the trial's logs what its record has no room for."""
        if result.attempt != whole.attempt:  # another attempt's result was recorded first
            return
        if left_out := [name for name in whole.metrics if name not in result.metrics]:
            logger.warning("record too small: %d metrics left out, the first is %s", len(left_out), left_out[0][:100])
        if "n_unlisted" in result.inheritance:
            lines = (f"{name}: {why}\n" for name, why in whole.inheritance["not_copied"].items())
            text = "".join(lines).encode(errors="backslashreplace")
            self._runtime.files.replace(log_path(whole.number, "inheritance"), text[-MAX_LOG_BYTES:], durable=False)

    def _start(self, trial: Trial) -> Trial:
        """Records the start.

        Returns the trial, with a later attempt number if an orphaned worker took this one.
        """
        where = {
            "session": self._runtime.spec.session,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "time": trial.started,
        }
        while True:
            try:
                self._runtime.records.start(trial, where)
                return trial
            except AlreadyPublishedError:
                trial = replace(trial, attempt=trial.attempt + 1)

    def _judge(self, returned: object) -> Trial:
        """Returns the trial COMPLETE with its weights published, or FAILED if a declared metric is missing."""
        run, trial = self.run, self._trial
        problem = self._runtime.problem
        scores = plain_metrics(returned) if isinstance(returned, Mapping) else {}
        metrics = {**known_metrics(problem, trial), **scores}
        missing = missing_metrics(problem, trial, metrics)
        source = "run.finish received" if run.has_ended else "train returned"
        if missing and not (problem.scores_optional and run.returned is not None):
            shown = one_line(f"{returned!r:.800}")
            error = f"{source} {shown}, without {', '.join(missing)}"
            if self._static_metrics_error:
                error += f"; before training: {self._static_metrics_error}"
            else:
                name = missing[0]
                remedy = f"Call run.finish({name}=value)" if run.has_ended else f"Return {{'{name}': value}} from train"
                error += f". {remedy}, or declare other metrics"
            lacked_memory = self._lacked_memory and problem.metrics[0].name in metrics
            return trial.fail(Reason.OUT_OF_MEMORY if lacked_memory else Reason.NO_METRIC, run.result_error or error)
        if bad := not_finite(metrics):
            error = f"{source} {', '.join(f'{name}={metrics[name]}' for name in bad)}"
            return trial.fail(Reason.NOT_FINITE, run.result_error or error)
        checkpoint = run.commit_weights()
        if checkpoint is None and is_epoch(trial):
            return trial.fail(Reason.EXCEPTION, "the supernet epoch saved no weights. Call run.save(network) in train")
        return trial.complete(metrics, checkpoint)


def _without_donor(run: TrialRun, trial: Trial) -> Trial:
    """Returns the trial FAILED because a donor's weights are lost.

    It must not train from scratch unnoticed.
    """
    if run.lost is None:
        raise AssertionError("run.lost must name the donor")
    donor, error = run.lost
    logger.error("%s", error)  # it holds a path of this machine, so it enters no record
    kind = "missing" if isinstance(error, MissingError) else "corrupt"
    [manifest] = [offered.checkpoint.manifest.path for offered in run.donors if offered.donor == donor]
    line = f"weights of donor {donor} ({manifest}) are {kind}; the log names the file"
    lost = {**trial.inheritance, "lost": [donor]}
    return replace(trial.fail(Reason.PARENT, line), inheritance=lost)
