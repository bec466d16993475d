"""Where the attempts of one search run: a problem, built once and kept warm, and the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nas.core.cpus import usable_cores
from nas.core.errors import ConfigurationError
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
    """A problem, built once and kept warm, and the store: where attempts of one search run.

    Raises:
        ConfigurationError: the problem can't be built, or a file with code is not the one that the search began with.
    """

    def __init__(self, spec: RuntimeSpec, *, problem: Problem | None = None, files: BlobStore | None = None) -> None:
        import torch

        self.spec = spec
        self.files = open_root(spec.url, spec.options) if files is None else files
        self.records = Records(self.files)
        self.problem: Problem = spec.problem.build() if problem is None else problem
        self._check_content()
        torch.set_num_threads(spec.n_threads)
        self._defaults = torch_settings()

    def _check_content(self) -> None:
        """Refuses code that was edited meanwhile, or that is another on this machine."""
        if not self.problem.content:
            return
        began_with = (self.records.read("search.json") or {}).get("identity", {}).get("content", {})
        for name, digest in self.problem.content.items():
            if began_with.get(name, digest) != digest:
                raise ConfigurationError(
                    f"problem.{name} ({self.spec.problem.arguments.get(name)}) is not what the search began with "
                    f"({digest}, not {began_with[name]}): bring that back, or begin another search"
                )

    def run(self, assignment: Assignment, channel: TrialChannel) -> Trial | None:
        """Runs the attempt and commits its result; None where it was interrupted (no result, it will run again).

        A trial that has a result already is not run again: that result is returned.

        Raises:
            StorageError: the store failed, which is no fault of the trial's.
        """
        attempt = Attempt(self, assignment, channel)
        try:
            if (found := attempt.begin()) is not None:
                return found
            try:
                returned = self.problem.train(attempt.run)
            except (Exception, SystemExit) as error:
                return attempt.settle(error=error)
            return attempt.settle(returned)
        finally:
            attempt.close()

    def run_job(self, job_start: JobStart, channel: JobChannel) -> str | None:
        """Runs a job for as long as it stays; gives the traceback of code that raised between two trials.

        Raises:
            StorageError: the store failed.
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
        """Frees what the problem holds; gives what its code raised, which ends nothing, as a line."""
        try:
            self.problem.close()
        except (Exception, SystemExit) as error:
            raised = f"{type(self.problem).__name__}.close raised {type(error).__name__}: {error}"
            return str(getattr(error, "__notes__", [raised])[-1]).replace("\n", " ")
        return None

    def threads_of(self, n_slots: int) -> int:
        """Returns the torch threads of so many slots, as far as there are cores for more than those of one."""
        return min(n_slots * self.spec.n_threads, max(self.spec.n_threads, usable_cores()))

    def restore_settings(self, n_slots: int = 1) -> None:
        """Puts torch's settings back to what they were before the first trial, with the threads of so many slots."""
        set_torch_settings({**self._defaults, "threads": self.threads_of(n_slots)})

    def test(self, trial: Trial) -> dict[str, float]:
        """Returns a finalist's scores on test data.

        Raises:
            FloatingPointError: one is NaN or infinite.
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
        return metrics

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
    """Returns the settings of torch that trials leave behind and that change bits."""
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

    torch.set_num_threads(settings["threads"])  # those found are this thread's; later threads have the last set
    if torch_settings() == settings:
        return
    torch.set_default_dtype(settings["dtype"])
    torch.set_default_device(None if settings["device"] == "cpu" else settings["device"])  # None costs nothing a call
    torch.set_float32_matmul_precision(settings["matmul"])
    torch.backends.mkldnn.enabled = settings["mkldnn"]
    torch.backends.cudnn.enabled = settings["cudnn"]
    torch.backends.cudnn.benchmark = settings["cudnn_benchmark"]
    torch.backends.cudnn.deterministic = settings["cudnn_deterministic"]
    torch.use_deterministic_algorithms(settings["deterministic"])
    torch.set_grad_enabled(settings["grad"])
