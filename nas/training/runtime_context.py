"""The parts of a trial runtime that attempts and jobs use.

Protocols, so that these modules do not import one another in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.trial import Trial
from nas.spaces.space import Space
from nas.storage.blobs import BlobStore
from nas.storage.records import Records
from nas.training.messages import RuntimeSpec
from nas.training.trial_run import TrialRun

if TYPE_CHECKING:
    import torch


class TrainableProblem(Protocol):
    """The methods of a problem that attempts and jobs call."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The first ranks trials."""

    @property
    def space(self) -> Space:
        """The space of valid points."""

    @property
    def scores_optional(self) -> bool:
        """Whether a trial with a result in a format of its own needs no metrics."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Trains one point."""

    def static_metrics(self, point: Point) -> Mapping[str, float]:
        """Returns metrics of a point that are known before training."""

    def measure(self, point: Point, device: str) -> Mapping[str, float]:
        """Returns metrics of a point that are measured before training."""


class RuntimeContext(Protocol):
    """The part of ``TrialRuntime`` that attempts and jobs use."""

    checks_export: bool
    """Whether the problem's ``export`` should be checked with the next trial that has weights."""

    @property
    def spec(self) -> RuntimeSpec:
        """The search's settings."""

    @property
    def files(self) -> BlobStore:
        """The search's folder."""

    @property
    def records(self) -> Records:
        """The search's records."""

    @property
    def problem(self) -> TrainableProblem:
        """The problem, built once."""

    @property
    def example_inputs(self) -> Callable[[], tuple[torch.Tensor, ...]] | None:
        """The problem's method of this name, or None if it defines none."""

    def threads_of(self, n_slots: int) -> int:
        """Returns the torch threads of this many slots."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Trains one point by the problem's ``train``, and restores the process."""

    def declared_proxies(self, trial: Trial, declared: Collection[str]) -> dict[str, float]:
        """Returns those of the declared metrics that are proxies which the problem can give."""

    def check_export(self, trial: Trial) -> str | None:
        """Returns a warning if the problem's ``export`` returns something that can't be exported."""

    def note_error(self, error: BaseException) -> None:
        """Takes note of an error that the problem's code raised."""

    def restore_settings(self, n_slots: int = 1) -> None:
        """Restores torch's settings."""
