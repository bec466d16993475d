"""What an attempt and a job need of the process in which they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from nas.core.metric import Metric
from nas.core.point import Point
from nas.storage.blobs import BlobStore
from nas.storage.records import Records
from nas.training.messages import RuntimeSpec
from nas.training.trial_run import TrialRun


class Trainable(Protocol):
    """The part of a problem that an attempt and a job call."""

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The first ranks trials."""

    @property
    def scores_optional(self) -> bool:
        """Whether a trial that gave a result in its own words needs no scores."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Trains one point."""

    def static_metrics(self, point: Point) -> Mapping[str, float]:
        """Costs of a point that are known before training."""

    def measure(self, point: Point, device: str) -> Mapping[str, float]:
        """Costs of a point that are measured before training."""


class Host(Protocol):
    """The process in which attempts and jobs run."""

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
    def problem(self) -> Trainable:
        """The problem, built once."""

    def threads_of(self, n_slots: int) -> int:
        """Torch threads of this many slots."""

    def restore_settings(self, n_slots: int = 1) -> None:
        """Restore torch's settings."""
