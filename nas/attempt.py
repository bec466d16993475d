"""One attempt of one trial, in the process where it trains: from the donor's weights to the durable result."""

from __future__ import annotations

import logging
import os
import random
import socket
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nas.errors import AlreadyPublishedError, CorruptError, MissingError, StoreError, TrialInterrupted
from nas.metric import not_finite, plain_metrics
from nas.problems.base import Problem
from nas.resume import EVERY_S
from nas.run import Channel, DonorWeights, TrialRun
from nas.spec import Spec
from nas.store.files import Files, open_root
from nas.store.records import Records
from nas.store.trial_log import MAX_LOG_BYTES, log_path, set_earlier_log_aside
from nas.trial import Reason, State, Trial

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSpec:
    """What a process needs to know to run the trials of one search; plain data, so that it travels."""

    problem: Spec
    url: str = field(repr=False)
    """The search's folder: the root and the search's name; it may hold a password."""
    options: Mapping[str, Any] = field(repr=False)
    """Storage options; they may hold credentials and are kept in no record."""
    session: int = 0
    device: str = "cpu"
    n_threads: int = 1
    asks_stopper: bool = False
    """Whether each report waits for the loop's verdict."""
    checkpoint_every_s: float = EVERY_S
    """Between two saves of what a long trial has reached, where its problem says nothing."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A trial to run now, on ``trial.slot`` as attempt ``trial.attempt``, with these donors, best first."""

    trial: Trial
    donors: tuple[DonorWeights, ...] = ()


class Bench:
    """A problem, built once and kept warm, and the store: where attempts of one search run."""

    def __init__(self, spec: BenchSpec, *, problem: Problem | None = None, files: Files | None = None) -> None:
        import torch

        self.spec = spec
        self.files = open_root(spec.url, spec.options) if files is None else files
        self.records = Records(self.files)
        self.problem: Problem = spec.problem.build() if problem is None else problem
        torch.set_num_threads(spec.n_threads)
        self._defaults = torch_settings()

    def run(self, assignment: Assignment, channel: Channel) -> Trial | None:
        """Runs the attempt and commits its result; None where it was interrupted (no result, it will run again).

        A trial that has a result already is not run again: that result is returned.

        Raises:
            StoreError: the store failed, which is no fault of the trial's.
        """
        if (found := self.records.result(assignment.trial)) is not None:
            return found
        set_earlier_log_aside(self.files, assignment.trial.number, assignment.trial.attempt)
        trial = replace(assignment.trial, started=time.time())
        began = time.perf_counter()
        run = TrialRun(
            trial,
            self.files,
            donors=assignment.donors,
            device=self.spec.device,
            channel=channel,
            checkpoint_every_s=self.spec.checkpoint_every_s,
        )
        try:
            outcome = self._train(run, trial, channel)
            if outcome is None:
                return None
            seconds = time.perf_counter() - began
            cost = {"seconds": seconds, "gpu_seconds": seconds if self.spec.device == "cuda" else 0.0}
            result = replace(
                outcome,
                metrics=self._declared_first(outcome.metrics),
                cost=cost,
                finished=time.time(),
                donor=run.donor,
                inherited=None if run.inheritance is None else run.inheritance.share,
                inheritance={**outcome.inheritance, **run.summary()},
                curve=tuple(run.curve),
            )
            whole = run.checkpointer.completed(result)
            committed = self.records.commit(whole)
            run.checkpointer.sweep(committed)
            self._log_what_had_no_room(whole, committed)
            return committed
        finally:
            run.close()

    def _train(self, run: TrialRun, trial: Trial, channel: Channel) -> Trial | None:
        """The trial with its outcome, its weights published; None where it was interrupted."""
        try:
            run.load_donors()
        except (MissingError, CorruptError):
            if run.resumed_from() is None:
                return _without_donor(run, trial)
            run.go_on_without_donor()
        trial = self._start(trial)
        channel.started()
        set_torch_settings(self._defaults)
        seed_everything(trial.seed)
        try:
            returned: object = None
            try:
                returned = self.problem.train(run)
            except StoreError:  # of a last save, say
                if run.lost is None:
                    raise
            except (Exception, SystemExit):
                if run.stop is None and run.lost is None:
                    raise
            if run.lost is not None:  # also where the problem's code went on without the weights
                return _without_donor(run, trial)
            if isinstance(run.stop, TrialInterrupted):
                return None
            if run.stop is not None:  # also where the problem's code turned the stop into another exception
                last = {**run.curve[-1][1], **self._foretold(trial, run.curve[-1][1])}
                stopped = replace(trial, state=State.STOPPED, reason=Reason.STOPPER, metrics=last)
                return replace(stopped, checkpoint=run.commit_weights())
            return self._judge(run, trial, returned)
        except StoreError:
            raise
        except (Exception, SystemExit) as error:
            reason = Reason.NOT_FINITE if isinstance(error, FloatingPointError) else Reason.EXCEPTION
            text = traceback.format_exc()
            logger.error("%s", text)
            return replace(trial, state=State.FAILED, reason=reason, error=text)

    def _foretold(self, trial: Trial, metrics: Mapping[str, float]) -> dict[str, float]:
        """The declared metrics that are known without training, but for those that training has given."""
        missing = {metric.name for metric in self.problem.metrics} - metrics.keys()
        if not missing or not self.problem.has("foretell"):
            return {}
        return {name: v for name, v in plain_metrics(self.problem.foretell(trial.point)).items() if name in missing}

    def _declared_first(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The metrics, those that the problem declares before the others, which a record may have no room for."""
        declared = [metric.name for metric in self.problem.metrics if metric.name in metrics]
        return {name: metrics[name] for name in dict.fromkeys([*declared, *metrics])}

    def _log_what_had_no_room(self, whole: Trial, result: Trial) -> None:
        """Leaves in the trial's logs what its record has no room for."""
        if result.attempt != whole.attempt:  # another attempt's came first
            return
        if left_out := [name for name in whole.metrics if name not in result.metrics]:
            logger.warning("no room in the record for %d metrics, from %s on", len(left_out), left_out[0][:100])
        if "n_unlisted" in result.inheritance:
            lines = (f"{name}: {why}\n" for name, why in whole.inheritance["not_copied"].items())
            text = "".join(lines).encode(errors="backslashreplace")
            self.files.put(log_path(whole.number, "inheritance"), text[-MAX_LOG_BYTES:])

    def _start(self, trial: Trial) -> Trial:
        """The trial, its attempt on record; as a later one where a worker that outlived its driver began this one."""
        where = {"session": self.spec.session, "host": socket.gethostname(), "pid": os.getpid(), "time": trial.started}
        while True:
            try:
                self.records.start(trial, where)
                return trial
            except AlreadyPublishedError:
                trial = replace(trial, attempt=trial.attempt + 1)

    def _judge(self, run: TrialRun, trial: Trial, returned: object) -> Trial:
        """COMPLETE with its weights published, or FAILED for want of the metrics that the problem declares."""
        wanted = [metric.name for metric in self.problem.metrics]
        metrics = plain_metrics(returned) if isinstance(returned, Mapping) else {}
        metrics |= self._foretold(trial, metrics)
        if missing := [name for name in wanted if name not in metrics]:
            error = f"train returned {returned!r:.800}, without {', '.join(missing)}"
            return replace(trial, state=State.FAILED, reason=Reason.NO_METRIC, error=error)
        if bad := not_finite(metrics):
            error = f"train returned {', '.join(f'{name}={metrics[name]}' for name in bad)}"
            return replace(trial, state=State.FAILED, reason=Reason.NOT_FINITE, error=error)
        return replace(trial, state=State.COMPLETE, metrics=metrics, checkpoint=run.commit_weights())

    def test(self, trial: Trial) -> dict[str, float]:
        """A finalist's scores on test data.

        Raises:
            FloatingPointError: one is NaN or infinite.
        """
        set_torch_settings(self._defaults)
        seed_everything(trial.seed)
        run = TrialRun(trial, self.files, device=self.spec.device)
        try:
            run.fetch_own_files()
            metrics = plain_metrics(self.problem.test(run))
        finally:
            run.close()
        if bad := not_finite(metrics):
            raise FloatingPointError(f"test returned {', '.join(f'{name}={metrics[name]}' for name in bad)}")
        return metrics

    def export(self, trial: Trial) -> dict[str, Any]:
        """Publishes the winner's folder under ``best/``; see ``nas.export``."""
        from nas.export import export

        set_torch_settings(self._defaults)
        run = TrialRun(trial, self.files, device="cpu")
        try:
            run.fetch_own_files()
            return export(self.problem, run, trial, self.files)
        finally:
            run.close()


def _without_donor(run: TrialRun, trial: Trial) -> Trial:
    """FAILED for want of the donor's weights: no child trains from scratch unawares."""
    if run.lost is None:
        raise AssertionError("the run knows which donor it could not read")
    donor, error = run.lost
    logger.error("%s", error)  # with the path on this machine, which enters no record
    kind = "missing" if isinstance(error, MissingError) else "corrupt"
    [manifest] = [offered.checkpoint.manifest.path for offered in run.donors if offered.donor == donor]
    line = f"weights of donor {donor} ({manifest}) are {kind}; the log names the file"
    lost = {**trial.inheritance, "lost": [donor]}
    return replace(trial, state=State.FAILED, reason=Reason.PARENT, error=line, inheritance=lost)


def seed_everything(seed: int) -> None:
    """Seeds python's, numpy's and torch's global generators."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        torch.manual_seed(seed)
    else:  # the same for the one generator that there is; manual_seed formats the stack for devices to come (0.8 ms)
        torch.default_generator.manual_seed(seed)


def torch_settings() -> dict[str, Any]:
    """The settings of torch that trials leave behind and that change bits."""
    import torch

    return {
        "dtype": torch.get_default_dtype(),
        "device": str(torch.get_default_device()),
        "matmul": torch.get_float32_matmul_precision(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "cudnn": torch.backends.cudnn.enabled,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "grad": torch.is_grad_enabled(),
    }


def set_torch_settings(settings: Mapping[str, Any]) -> None:
    """Restores what ``torch_settings`` found."""
    import torch

    if torch_settings() == settings:
        return
    torch.set_default_dtype(settings["dtype"])
    torch.set_default_device(None if settings["device"] == "cpu" else settings["device"])  # None costs nothing a call
    torch.set_float32_matmul_precision(settings["matmul"])
    torch.backends.mkldnn.enabled = settings["mkldnn"]
    torch.backends.cudnn.enabled = settings["cudnn"]
    torch.backends.cudnn.benchmark = settings["cudnn_benchmark"]
    torch.backends.cudnn.deterministic = settings["cudnn_deterministic"]
    torch.set_num_threads(settings["threads"])
    torch.use_deterministic_algorithms(settings["deterministic"])
    torch.set_grad_enabled(settings["grad"])
