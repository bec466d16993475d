"""What a worker is told of a search, a trial and a job, and how these answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from nas.core.spec import Spec
from nas.core.trial import DonorWeights, Trial

EVERY_S = 300.0
"""By default. Least is lost where saves lie sqrt(2 x duration of a save x time between failures) apart (Young 1974,
doi:10.1145/361147.361115): 5 minutes for a save of half a second (50 MB of weights with Adam's state, to a disk) and
one failure a day."""


class Channel(Protocol):
    """How a running trial speaks to the loop."""

    def started(self) -> None:
        """Tells the loop that the problem's code starts now."""

    def static_metrics(self, known: Mapping[str, float], declared: Mapping[str, float]) -> None:
        """Leaves what is known before training with whoever may have to record the trial, and the objectives among it.

        Where nobody can kill it, the trial records that itself.
        """

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Tells the loop of intermediate metrics; raises ``TrialStopped`` where the trial should end."""

    def heed(self) -> None:
        """Raises ``TrialStopped`` where the loop has asked the trial to end; tells nothing."""

    def resumed(self, curve: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        """Tells the loop what an earlier attempt reported, from which this one goes on; asks for no verdict."""

    def late(self, result: str) -> None:
        """Tells the loop of a result after the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeSpec:
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
    jobs_ask: bool = False
    """Whether a job may ask for a next trial when one has ended."""
    checkpoint_every_s: float = EVERY_S
    """Between two saves of what a long trial has reached, where its problem says nothing."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """A trial to run now, on ``trial.slot`` as attempt ``trial.attempt``.

    Attributes:
        donors: Best first.
        n_finished: How many trials its job has finished before.
        is_last: Its job gets no trial after it.
        job_index: How many jobs were begun before its job.
        n_slots: How many slots' torch threads it may use, where others stay idle; a worker elsewhere has its own.
    """

    trial: Trial
    donors: tuple[DonorWeights, ...] = ()
    n_finished: int = 0
    is_last: bool = True
    job_index: int = 0
    n_slots: int = 1


@dataclass(frozen=True, slots=True)
class JobStart:
    """A job that begins to stay on a slot.

    Attributes:
        job: Its id: the number of its first trial.
        n_finished: How many trials it has finished before, where it stayed elsewhere.
        first: The trial that it begins with; None: it asks for one.
        job_index: How many jobs were begun before it.
    """

    job: int
    slot: int
    n_finished: int = 0
    first: Assignment | None = None
    job_index: int = 0

    @classmethod
    def of(cls, first: Assignment) -> JobStart:
        """Returns the stay that begins with this trial."""
        return cls(first.trial.job, first.trial.slot or 0, first.n_finished, first, first.job_index)


class JobLine(Protocol):
    """How a job speaks to the loop."""

    def channel(self, trial: Trial) -> Channel:
        """Returns the line of one of its trials."""

    def finished(self, trial: Trial | None) -> None:
        """Tells that a trial has its result, or, with None, that it was interrupted."""

    def ask(self) -> Assignment | None:
        """Returns the job's next trial, once the loop has one; None: no more."""
