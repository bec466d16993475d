"""The environment in which the attempts of one search run."""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

from nas.core.cpus import usable_cores
from nas.core.errors import ConfigurationError
from nas.core.metric import not_finite, plain_metrics
from nas.core.redaction import private_texts
from nas.core.supernet import is_epoch
from nas.core.tracebacks import error_line, raise_ctrl_c, text_of, traceback_of
from nas.core.trial import Trial
from nas.core.validation import short_repr
from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.attempt import Attempt
from nas.training.code_digests import changed_files, code_digests
from nas.training.device_errors import is_device_error
from nas.training.job import Job
from nas.training.messages import Assignment, JobChannel, JobStart, ProxyRequest, RuntimeSpec, TrialChannel
from nas.training.problem import Ability, Problem
from nas.training.torch_settings import SavedSettings, torch_settings
from nas.training.trial_run import TrialRun

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class TrialRuntime:
    """A problem, built once and kept warm, and the search's storage.

    Args:
        spec: The settings.
        problem: The problem; None: it is built.
        files: The search's storage; None: it is opened.
        train_many: Trains the trials of a job in place of the problem.

    Attributes:
        checks_export: Whether the problem's ``export`` is checked with the next trial that has weights.
        restore_process: Called after the problem's code has run. A worker process restores its state with it.
        device_error: The first error of a device in this process. None: there was none.
        leaves: Whether the session ends, so that no further proxies are computed.

    Raises:
        ConfigurationError: the problem can't be built, or its code changed since the driver loaded it.
    """

    def __init__(
        self,
        spec: RuntimeSpec,
        *,
        problem: Problem | None = None,
        files: BlobStore | None = None,
        train_many: Callable[[Job], None] | None = None,
    ) -> None:
        import torch

        self.spec = spec
        self.files = open_root(spec.url, spec.options) if files is None else files
        self.records = Records(self.files)
        self.problem: Problem = spec.problem.build() if problem is None else problem
        self.records.private = private_texts(self.problem)
        self._train_many = train_many
        if problem is None and not self.problem.is_apart:  # others start a command for each trial
            self._check_code()
        torch.set_num_threads(spec.n_threads)
        self.checks_export = spec.checks_export and Ability.EXPORT in self.problem.abilities
        self._settings = SavedSettings(torch_settings())
        self.restore_process: Callable[[], None] = lambda: None
        self.device_error: str | None = None
        self.leaves = False

    def _check_code(self) -> None:
        """Raises if this process loaded other code than the driver, which started earlier."""
        spec = self.spec
        if spec.code and (names := changed_files(spec.code, code_digests(spec.problem, self.problem))):
            raise ConfigurationError(
                f"{', '.join(names)} changed while the search ran, and a new worker loaded it. Restore the code and "
                "run the command again, or add code=changed"
            )

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
                returned = self.train(attempt.run)
            except BaseException as error:
                raise_ctrl_c(error)
                return attempt.settle(error=error)
            return attempt.settle(returned)
        finally:
            attempt.close()

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Trains one point by the problem's ``train``, and restores the process."""
        with self._problem_code():
            return self.problem.train(run)

    def run_job(self, job_start: JobStart, channel: JobChannel) -> str | None:
        """Runs a job until it ends. Returns the traceback if its code raised between two trials.

        Raises:
            StorageError: the storage failed.
        """
        job = Job(self, job_start, channel)
        try:
            if self.keeps_jobs_state:
                with self._problem_code():
                    (self._train_many or self.problem.train_many)(job)
            else:
                job.train_each()
        except BaseException as error:
            raise_ctrl_c(error)
            return job.end(error)
        return job.end()

    @property
    def example_inputs(self) -> Callable[[], tuple[torch.Tensor, ...]] | None:
        """The problem's method of this name, or None if it defines none."""
        return self.problem.example_inputs if Ability.EXAMPLE_INPUTS in self.problem.abilities else None

    @property
    def keeps_jobs_state(self) -> bool:
        """Whether a job runs the problem's own code, which may keep state between trials."""
        return self._train_many is not None or Ability.TRAIN_MANY in self.problem.abilities

    def close(self) -> str | None:
        """Closes the problem, and restores torch's settings for the next search of this process.

        Returns an error of its ``close`` as one line, since the search goes on.
        """
        try:
            self.problem.close()
        except BaseException as error:
            raise_ctrl_c(error)
            return error_line(error)
        finally:
            restoring = threading.Thread(target=self._settings.restore)  # the modes of the caller's thread are its own
            restoring.start()
            restoring.join()
        return None

    def threads_of(self, n_slots: int) -> int:
        """Returns the torch threads of ``n_slots`` slots.

        They are at most the usable cores, and at least the threads of one slot.
        """
        return min(n_slots * self.spec.n_threads, max(self.spec.n_threads, usable_cores()))

    def restore_settings(self, n_slots: int = 1) -> None:
        """Restores torch's settings from before the first trial, with the threads of ``n_slots`` slots."""
        import torch

        torch.set_num_threads(self.threads_of(n_slots))  # always: later threads take the last value, not this thread's
        self._settings.restore()

    @contextmanager
    def _problem_code(self) -> Iterator[None]:
        """Restores the process after the problem's code, before the result is recorded.

        A child that the code forked ends here, since the result is its parent's.
        """
        pid = os.getpid()
        try:
            yield
        except BaseException as error:
            if os.getpid() == pid:
                raise_ctrl_c(error)
                self.note_error(error)
            raise
        finally:
            if os.getpid() != pid:
                _end_forked_child(sys.exception())
            self.restore_process()

    def note_error(self, error: BaseException) -> None:
        """Sets ``device_error`` if the error comes from a device."""
        if self.device_error is None and is_device_error(error):
            self.device_error = f"{type(error).__name__}: {next(iter(text_of(error).splitlines()), '')}"

    def call(self, action: str, subject: Any) -> dict[str, Any]:
        """Returns the answer to ``test``, ``export`` or ``proxies``."""
        answers: dict[str, Callable[[Any], dict[str, Any]]]
        answers = {"test": self.test, "export": self.export, "proxies": self.proxies}
        return answers[action](subject)

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
            with self._problem_code():
                metrics = self._scores(self.problem.test(run))
        finally:
            run.close()
        if bad := not_finite(metrics):
            raise FloatingPointError(f"test returned {', '.join(f'{name}={metrics[name]}' for name in bad)}")
        return {"metrics": metrics} | ({} if run.test_error is None else {"error": run.test_error})

    def _scores(self, returned: object) -> dict[str, float]:
        if not isinstance(returned, Mapping) or not (returned or self.problem.scores_optional):
            name = self.problem.metrics[0].name
            raise TypeError(
                f"test returned {short_repr(returned)}: must return scores by name. Write return {{{name!r}: value}}"
            )
        return plain_metrics(returned)

    def proxies(self, request: ProxyRequest) -> dict[str, Any]:
        """Returns proxies: ``{"values": [{name: value}, ...], "error": line}``; fewer if the process leaves.

        A point whose network can't be scored has NaN, and ``error`` is the first such error or None.
        """
        from nas.training.proxies import ProxyScorer

        self.restore_settings()
        values, line = [], None
        with self._problem_code():
            scorer = ProxyScorer(self.problem, request.names, seed=request.seed, device=self.spec.device)
            for point in request.points:
                if self.leaves:
                    break
                try:
                    values.append(scorer.score(point))
                except BaseException as error:
                    raise_ctrl_c(error)
                    self.note_error(error)
                    line = line or error_line(error)
                    logger.warning("proxies of %r failed: %s", point, traceback_of(error))
                    values.append(dict.fromkeys(request.names, math.nan))
        return {"values": values, "error": line}

    def declared_proxies(self, trial: Trial, declared: Collection[str]) -> dict[str, float]:
        """Returns those of the declared metrics that are proxies which the problem can give.

        The networks' initial weights are seeded by the trial's seed.
        """
        names = sorted(self.problem.proxies & set(declared))
        if not names:
            return {}
        from nas.training.proxies import ProxyScorer

        scorer = ProxyScorer(self.problem, names, seed=trial.seed, device=self.spec.device)
        return scorer.score(trial.point)

    def check_untrained_export(self, trial: Trial) -> str | None:
        """Returns a warning if the problem's ``export`` returns something that can't be exported.

        It is called before the first trial trains, on a network without trained weights. If ``export`` needs those, it
        raises, and ``check_export`` follows. A supernet epoch is not checked, since it is never exported.
        """
        from nas.training.untrained_run import UntrainedRun

        if not self.checks_export or is_epoch(trial):
            return None
        return self._check_export(UntrainedRun(trial, self.files))

    def check_export(self, trial: Trial) -> str | None:
        """Returns a warning as ``check_untrained_export``, for the first trial with weights."""
        if is_epoch(trial):
            return None
        warning = self._check_export(TrialRun(trial, self.files))
        self.checks_export = False
        return warning

    def _check_export(self, run: TrialRun) -> str | None:
        from nas.training.export_parts import check_export_parts

        try:
            run.fetch_own_files()
            with nullcontext() if self.keeps_jobs_state else self._problem_code():  # a job's code runs inside it
                returned = self.problem.export(run)
        except BaseException as error:  # it may work for a final
            raise_ctrl_c(error)
            logger.info("export of this trial raised %s", error_line(error))
            return None
        finally:
            run.close()
        self.checks_export = False
        try:
            check_export_parts(returned)
        except ConfigurationError as error:
            return str(error)
        except BaseException as error:  # of the network's code
            raise_ctrl_c(error)
            logger.info("the exported network of this trial raised %s", error_line(error))
        return None

    def export(self, trial: Trial) -> dict[str, Any]:
        """Publishes the winner's folder under ``best/``; see ``nas.training.export``."""
        from nas.training.export import export

        self.restore_settings()
        run = TrialRun(trial, self.files, device="cpu")
        try:
            run.fetch_own_files()
            with self._problem_code():
                return export(self.problem, run, trial, self.records)
        finally:
            run.close()


def _end_forked_child(error: BaseException | None) -> NoReturn:
    """Ends this process as Python would, but without the handlers that it inherited."""
    status = 0 if error is None else 1
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    try:
        if error is not None and not isinstance(error, SystemExit):
            print(traceback_of(error), end="", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:  # the code may have closed them
        os._exit(status & 0xFF)
