"""The data and channels between the search controller and a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from nas.core.point import Point
from nas.core.spec import Spec
from nas.core.trial import DonorWeights, Trial

NEEDS_EXTRA = "needs the extra "
"""Begins the text for a file that an export lacks without an optional package."""
PROGRAM = "program.pt2"
"""The file of an export that holds the whole network."""
NO_EXPORT = "the problem defines no `export(run)`, which returns the network and an example batch"
NO_WEIGHTS = "the trial saved no weights (`run.save(model)`)"
EVERY_S = 300.0
"""Default seconds between two resume points.

The best interval is sqrt(2 x duration of a save x time between failures); see Young 1974,
doi:10.1145/361147.361115. With one failure a day and a save of half a second it is 5 minutes. Such a save is 50 MB of
weights with Adam's state, to a disk.
"""
LOG_DIR = "runs"
"""Default folder of loggers; torch's SummaryWriter has the same."""


class TrialChannel(Protocol):
    """The channel from a running trial to the controller."""

    def started(self) -> None:
        """Tells the controller that the problem's code starts now."""

    def static_metrics(self, known: Mapping[str, float], declared: Mapping[str, float]) -> None:
        """Sends the metrics that are known before training.

        The receiver needs them to record the trial if its worker is killed.

        Args:
            known: All of them.
            declared: Those of them that the problem declares in ``metrics``.
        """

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Sends intermediate metrics. Raises ``TrialStopped`` if the trial should end."""

    def raise_if_stopped(self) -> None:
        """Raises ``TrialStopped`` if the controller asked the trial to end."""

    def was_signaled(self) -> bool:
        """Returns whether the trial's processes got a signal just now, so that a stop will follow."""

    def resumed(self, curve: Sequence[tuple[int, Mapping[str, float]]], totals: Mapping[str, Any]) -> None:
        """Sends the reports and totals of the attempts that this one continues. Waits for no decision.

        The receiver needs them to record the trial if its worker is killed.

        Args:
            curve: The reports.
            totals: Their donor, inheritance and cost, by the trial's fields.
        """

    def extra_result(self, result: str) -> None:
        """Sends a result that a finished trial gave in addition."""

    def committed(self, trial: Trial) -> None:
        """Sends a trial whose result is durable. The problem's ``export`` is checked with it next."""


class JobChannel(Protocol):
    """The channel from a job to the controller."""

    def trial_channel(self, trial: Trial) -> TrialChannel:
        """Returns the channel of one of the job's trials."""

    def trial_ended(self, trial: Trial | None) -> None:
        """Sends a trial that has its result, or None if it was interrupted."""

    def next_trial(self) -> Assignment | None:
        """Requests the job's next trial and waits for it. None: there are no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSpec:
    """The settings with which a worker process runs the trials of one search; plain data."""

    problem: Spec
    url: str = field(repr=False)
    """The search's folder: the root and the search's name. It may hold a password."""
    options: Mapping[str, Any] = field(repr=False)
    """Storage options. They may hold credentials and are kept in no record."""
    code: Mapping[str, str] = field(default_factory=dict)
    """Digests of the problem's code in the driver (``nas.training.code_digests``); a worker must load the same."""
    session: int = 0
    device: str = "cpu"
    gpus_per_trial: float = 1.0
    """GPUs of each trial if ``device`` is ``cuda``; less than 1: trials share a GPU."""
    n_threads: int = 1
    has_stopper: bool = False
    """Whether each report waits for the stopper's decision."""
    jobs_request_trials: bool = False
    """Whether a job may request another trial after one has ended."""
    checks_export: bool = True
    """Whether the problem's ``export`` is checked with the first trial that has weights."""
    resume_every_s: float = EVERY_S
    """Seconds between two resume points of a long trial, unless its problem sets them."""
    log_dir: str = LOG_DIR
    """The local folder with a folder for each search, for loggers."""

    @property
    def n_gpus(self) -> float:
        """Returns the GPUs of each trial: 0 without GPUs, a fraction if trials share one."""
        return self.gpus_per_trial if self.device == "cuda" else 0.0


@dataclass(frozen=True, slots=True)
class Assignment:
    """A trial to run now, on ``trial.slot`` as attempt ``trial.attempt``.

    Attributes:
        donors: The weights that it may inherit, best donor first.
        n_finished: How many trials its job has finished.
        is_last: Whether its job gets no trial after it.
        job_index: How many jobs were started before its job.
        n_slots: How many slots' torch threads it may use because other slots are idle. Workers elsewhere ignore it.
        train_until: The ``time.time`` at which its training should end. None: any; infinite: in full.
    """

    trial: Trial
    donors: tuple[DonorWeights, ...] = ()
    n_finished: int = 0
    is_last: bool = True
    job_index: int = 0
    n_slots: int = 1
    train_until: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRequest:
    """Points whose proxies (``nas.training.proxies``) a worker computes. Nothing of it is recorded.

    Attributes:
        number: The number of the trial to propose, for the log.
        seed: The seed of the networks' initial weights.
        names: The proxies.
        points: The points.
        slot: The slot whose worker computes them.
    """

    number: int
    seed: int
    names: tuple[str, ...]
    points: tuple[Point, ...]
    slot: int = 0


@dataclass(frozen=True, slots=True)
class JobStart:
    """A job to start on a slot.

    Attributes:
        job: Its id: the number of its first trial.
        n_finished: How many trials it has finished, if it ran before.
        first: The trial to start with; None: the job requests one.
        job_index: How many jobs were started before it.
    """

    job: int
    slot: int
    n_finished: int = 0
    first: Assignment | None = None
    job_index: int = 0

    @classmethod
    def of(cls, first: Assignment) -> JobStart:
        """Returns the start of a job whose first trial is this one."""
        return cls(first.trial.job, first.trial.slot or 0, first.n_finished, first, first.job_index)
