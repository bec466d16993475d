"""The environment in which the attempts of one search run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nas.core.cpus import usable_cores
from nas.core.metric import not_finite, plain_metrics
from nas.core.trial import Trial
from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.attempt import Attempt
from nas.training.job import Job
from nas.training.messages import Assignment, JobChannel, JobStart, RuntimeSpec, TrialChannel
from nas.training.problem import Ability, Problem
from nas.training.trial_run import TrialRun


class TrialRuntime:
    """A problem, built once and kept warm, and the search's storage.

    Raises:
        ConfigurationError: the problem can't be built.
    """

    def __init__(self, spec: RuntimeSpec, *, problem: Problem | None = None, files: BlobStore | None = None) -> None:
        import torch

        self.spec = spec
        self.files = open_root(spec.url, spec.options) if files is None else files
        self.records = Records(self.files)
        self.problem: Problem = spec.problem.build() if problem is None else problem
        torch.set_num_threads(spec.n_threads)
        self._defaults = torch_settings()
        self.has_checked_export = Ability.EXPORT not in self.problem.abilities

    def run(self, assignment: Assignment, channel: TrialChannel) -> Trial | None:
        """Runs the attempt and records its result.

        Returns None if it was interrupted; it will run again.

        A trial that has a result is not run again: that result is returned.

        Raises:
            StorageError: the storage failed. The trial is not FAILED by it.
        """
        attempt = Attempt(self, assignment, channel)
        try:
            if (result := attempt.begin()) is not None:
                return result
            try:
                returned = self.problem.train(attempt.run)
            except (Exception, SystemExit) as error:
                return attempt.settle(error=error)
            return attempt.settle(returned)
        finally:
            attempt.close()

    def run_job(self, job_start: JobStart, channel: JobChannel) -> str | None:
        """Runs a job until it ends. Returns the traceback if its code raised between two trials.

        Raises:
            StorageError: the storage failed.
        """
        job = Job(self, job_start, channel)
        try:
            if Ability.TRAIN_MANY in self.problem.abilities:
                self.problem.train_many(job)
            else:
                job.train_each()
        except (Exception, SystemExit) as error:
            return job.end(error)
        return job.end()

    def close(self) -> str | None:
        """Closes the problem.

        Returns an error of its ``close`` as one line, since the search goes on.
        """
        try:
            self.problem.close()
        except (Exception, SystemExit) as error:
            raised = f"{type(self.problem).__name__}.close raised {type(error).__name__}: {error}"
            return str(getattr(error, "__notes__", [raised])[-1]).replace("\n", " ")
        return None

    def threads_of(self, n_slots: int) -> int:
        """Returns the torch threads of ``n_slots`` slots.

        They are at most the usable cores, and at least the threads of one slot.
        """
        return min(n_slots * self.spec.n_threads, max(self.spec.n_threads, usable_cores()))

    def restore_settings(self, n_slots: int = 1) -> None:
        """Restores torch's settings from before the first trial, with the threads of ``n_slots`` slots."""
        set_torch_settings({**self._defaults, "threads": self.threads_of(n_slots)})

    def test(self, trial: Trial) -> dict[str, Any]:
        """Returns a finalist's scores on test data: ``{"metrics": {...}}``, with ``error`` if something failed later.

        Raises:
            FloatingPointError: a score is NaN or infinite.
        """
        from nas.training.seeds import seed_everything

        self.restore_settings()
        seed_everything(trial.seed)
        run = TrialRun(trial, self.files, device=self.spec.device)
        try:
            run.fetch_own_files()
            metrics = plain_metrics(self.problem.test(run))
        finally:
            run.close()
        if bad := not_finite(metrics):
            raise FloatingPointError(f"test returned {', '.join(f'{name}={metrics[name]}' for name in bad)}")
        return {"metrics": metrics} | ({} if run.test_error is None else {"error": run.test_error})

    def export(self, trial: Trial) -> dict[str, Any]:
        """Publishes the winner's folder under ``best/``; see ``nas.training.export``."""
        from nas.training.export import export

        self.restore_settings()
        run = TrialRun(trial, self.files, device="cpu")
        try:
            run.fetch_own_files()
            return export(self.problem, run, trial, self.files)
        finally:
            run.close()


def torch_settings() -> dict[str, Any]:
    """Returns the torch settings that a trial may change and that affect results."""
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
    """Restores settings that ``torch_settings`` returned."""
    import torch

    torch.set_num_threads(settings["threads"])  # always set: later threads take the last value set, not this thread's
    if torch_settings() == settings:
        return
    torch.set_default_dtype(settings["dtype"])
    torch.set_default_device(None if settings["device"] == "cpu" else settings["device"])  # None is faster
    torch.set_float32_matmul_precision(settings["matmul"])
    torch.backends.mkldnn.enabled = settings["mkldnn"]
    torch.backends.cudnn.enabled = settings["cudnn"]
    torch.backends.cudnn.benchmark = settings["cudnn_benchmark"]
    torch.backends.cudnn.deterministic = settings["cudnn_deterministic"]
    torch.use_deterministic_algorithms(settings["deterministic"])
    torch.set_grad_enabled(settings["grad"])
