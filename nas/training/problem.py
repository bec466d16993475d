"""What is searched: a space, and the code that trains one candidate of it."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.policy import Policy
from nas.spaces.space import Space

if TYPE_CHECKING:
    import torch

    from nas.core.trial import Trial
    from nas.training.job import Job
    from nas.training.trial_run import TrialRun


LATENCY = "latency_s"
"""Seconds of one forward pass of a batch of one, as ``Problem.measure`` has them by default."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """What a trial takes and scores, without training.

    Attributes:
        seconds: From its beginning to its end.
        metrics: Its scores.
        curve: What it reports on the way: (share of its time, step, metrics).
        shares: Of a full training, as ``run.epochs`` and ``run.scale`` would have them (``TrialRun.shares``).
    """

    seconds: float
    metrics: Mapping[str, float]
    curve: tuple[tuple[float, int, Mapping[str, float]], ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)


class Ability(StrEnum):
    """An optional part of a problem. Each value is the name of the method."""

    TRAIN = "train"
    TRAIN_MANY = "train_many"
    TEST = "test"
    EXPORT = "export"
    BUILD = "build"
    EXAMPLE_INPUTS = "example_inputs"
    STATIC_METRICS = "static_metrics"
    MEASURE = "measure"
    SIMULATE = "simulate"


_HAS_NETWORK = frozenset({Ability.BUILD, Ability.EXAMPLE_INPUTS})
"""The abilities that ``static_metrics`` and ``measure`` need by default."""


class Problem(ABC):
    """A space and the code that trains one point of it.

    Built once in the driver (which needs ``space``, ``metrics`` and ``policies`` only, so load data when first
    trained) and once in each worker process, where it stays warm for every trial that lands there.
    """

    metrics: tuple[Metric, ...]
    """The first ranks trials; further ones are objectives."""
    policies: frozenset[Policy] = frozenset()
    """The policies that ``train`` honors."""
    space: Space
    scores_optional: bool = False
    """A trial that gave a result in its own words (``Trial.returned``) may be COMPLETE without the declared metrics."""
    is_apart: ClassVar[bool] = False
    """Its trials run in processes of their own, so that none can end the process that drives the search."""
    data_arguments: ClassVar[frozenset[str]] = frozenset({"data_root"})
    """Constructor arguments that only say where data lies: no part of a search's identity, and kept in no record."""
    data_files: ClassVar[frozenset[str]] = frozenset()
    """Those of them that name one file each, which must hold what it held when the search began
    (``nas.training.data_digest``)."""
    code_arguments: ClassVar[frozenset[str]] = frozenset()
    """Those that are code, or say where it lies: taken from a command line, never from a record or a driver alone."""
    content: Mapping[str, str] = {}
    """Digests of what arguments of these names only name (code in a user's file): part of a search's identity."""
    label: str = ""
    """What ends a search's default name, where the problem's class says little."""
    about: Mapping[str, str] = {}
    """What reports say of the problem besides its arguments, by name: texts that are no part of a search's identity."""

    @property
    def abilities(self) -> frozenset[Ability]:
        """The optional methods that the class defines. Override it if one of them needs data that may be absent.

        A problem with ``build`` and ``example_inputs`` also has ``static_metrics`` and ``measure``.
        """
        defined = {ability for ability in Ability if getattr(type(self), ability) is not getattr(Problem, ability)}
        if defined >= _HAS_NETWORK:
            defined |= {Ability.STATIC_METRICS, Ability.MEASURE}
        return frozenset(defined)

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Trains ``run.point`` and returns its validation scores; this or ``train_many`` must be defined."""
        raise LookupError("no train")

    def train_many(self, job: Job) -> None:
        """Trains the trials of a job one after another, where they share what is costly or build on one another.

        A job asks for as many trials as its code takes, within the budget and ``job.trials_per_job``; a finalist is a
        job of one trial. See ``nas.Job``.
        """
        raise LookupError("no train_many")

    def test(self, run: TrialRun) -> Mapping[str, float]:
        """Scores a finalist on test data; optional. Called after the winner is chosen; ``run.restore`` loads it."""
        raise LookupError("no test data")

    def export(self, run: TrialRun) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        """Returns the trained network and an example batch of two; optional. ``run.restore`` loads the weights.

        Each example tensor has shape ``(2, ...)``; the exported program takes any batch size.
        """
        raise LookupError("no export")

    def build(self, point: Point) -> torch.nn.Module:
        """The network of a point, as it is trained in full; optional, for ``static_metrics`` and ``measure``."""
        raise LookupError("no network")

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        """What the network takes, as a batch of one; optional, for ``static_metrics`` and ``measure``."""
        raise LookupError("no example inputs")

    def static_metrics(self, point: Point) -> Mapping[str, float]:
        """What is known of a point before it is trained, by name: what ``constraints`` may limit.

        The same names for every point, and the same numbers whenever it is asked. Those that ``metrics`` declares and
        ``train`` does not return become metrics of the trial. By default, where the problem has ``build`` and
        ``example_inputs``, the ``parameters`` and ``flops`` of the network (``nas.training.costs``), else nothing.
        """
        if not self.abilities >= _HAS_NETWORK:
            return {}
        from nas.training.costs import NetworkCost

        return NetworkCost(lambda: self.build(point), self.example_inputs)

    def measure(self, point: Point, device: str) -> Mapping[str, float]:
        """What is measured of a point before it is trained, on the machine that trains it.

        By default, where the problem has ``build`` and ``example_inputs``, ``latency_s``: the seconds of one forward
        pass (``nas.training.costs``), else nothing. Kept as ``static_metrics``'s numbers are, and never limited, as it
        differs from time to time.
        """
        if not self.abilities >= _HAS_NETWORK:
            return {}
        from nas.training.costs import forward_latency_s

        return {LATENCY: forward_latency_s(self.build(point), self.example_inputs(), device)}

    def simulate(self, trial: Trial) -> Simulation:
        """What the trial would take and score; optional, for ``runner=simulated``."""
        raise LookupError("no simulation")

    def close(self) -> None:  # noqa: B027 - optional
        """Frees what it holds in this process, which runs no more trials; not called where the process is killed."""
