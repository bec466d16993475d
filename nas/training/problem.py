"""The base class of problems: a space, and the code that trains one point of it."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from nas.core.arguments import RecordsArguments
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
"""The default metric of ``Problem.measure``: seconds of one forward pass of a batch of one."""


@dataclass(frozen=True, slots=True)
class Simulation:
    """The duration and the scores of a trial that is not trained.

    Attributes:
        seconds: Its duration. The virtual clock of a search ends after a million hours.
        metrics: Its scores: each declared metric that ``static_metrics`` does not give.
        curve: Its reports: (share of its duration, step, metrics).
        shares: Its shares of a full training, as in ``TrialRun.shares``.
    """

    seconds: float
    metrics: Mapping[str, float]
    curve: tuple[tuple[float, int, Mapping[str, float]], ...] = ()
    shares: Mapping[str, float] = field(default_factory=dict)


class Ability(StrEnum):
    """An optional part of a problem. Each value is the name of the method."""

    TRAIN = "train"
    """Trains one trial."""
    TRAIN_MANY = "train_many"
    """Trains several trials on one worker."""
    TEST = "test"
    """Scores a finalist on test data."""
    EXPORT = "export"
    """Gives the network of the winner to export."""
    BUILD = "build"
    """Builds the network of a point."""
    EXAMPLE_INPUTS = "example_inputs"
    """Gives inputs for counts of operations and for latency."""
    EXAMPLE_BATCH = "example_batch"
    """Gives a labeled batch for proxies."""
    STATIC_METRICS = "static_metrics"
    """Computes metrics before training."""
    MEASURE = "measure"
    """Measures latency on a device."""
    SIMULATE = "simulate"
    """Gives the outcome of a trial without training."""


_HAS_NETWORK = frozenset({Ability.BUILD, Ability.EXAMPLE_INPUTS})
"""The abilities that ``static_metrics`` and ``measure`` need by default."""
_HAS_BATCH = frozenset({Ability.BUILD, Ability.EXAMPLE_BATCH})
PROXY_ABILITIES: Mapping[str, frozenset[Ability]] = {
    "jacov": _HAS_BATCH,
    "naswot": _HAS_BATCH,
    "snip": _HAS_BATCH,
    "synflow": _HAS_NETWORK,
}
"""The abilities that each proxy of ``nas.training.proxies`` needs."""


class Problem(RecordsArguments, ABC):
    """A space and the code that trains one point of it.

    It is built once in the driver and once in each worker process, where all trials use the same instance. The driver
    needs only ``space``, ``metrics`` and ``policies``, so load data when the first trial is trained.
    """

    metrics: tuple[Metric, ...]
    """The first ranks trials. Others are further objectives."""
    policies: frozenset[Policy] = frozenset()
    """The policies that ``train`` honors."""
    space: Space
    scores_optional: bool = False
    """Whether ``test`` may return no scores, and trials with ``Trial.returned`` none of the declared metrics."""
    shortens_finals: ClassVar[bool] = False
    """Whether finals train for a share of their epochs, as fidelity, if hours are short.

    With GPU-hours alone they do not. The share is an estimate. To use all time, ``train`` goes on for the full epochs
    until ``run.time_share`` is 1, and sets ``run.trained_share``.
    """
    is_apart: ClassVar[bool] = False
    """Whether its trials run in processes of their own and can't end the driver's."""
    data_arguments: ClassVar[frozenset[str]] = frozenset({"data_root"})
    """Constructor arguments that are paths of data.

    They are not part of a search's identity and enter no record.
    """
    data_files: ClassVar[frozenset[str]] = frozenset()
    """Those of ``data_arguments`` that name one file, whose content must not change during a search."""
    optional_data_files: ClassVar[frozenset[str]] = frozenset()
    """Those of ``data_files`` without which the problem trains on other data, such as bundled data."""
    speed_arguments: ClassVar[frozenset[str]] = frozenset()
    """Constructor arguments that, like ``slots``, decide only how fast trials run.

    They are not part of a search's identity.
    """
    code_arguments: ClassVar[frozenset[str]] = frozenset()
    """Arguments that are code or its path.

    They are taken from the command line, never from a record.
    """
    foreign_arguments: ClassVar[frozenset[str]] = frozenset()
    """Arguments passed on to code that is not Heirloom's, such as a template.

    Text in them is taken from the command line, never from a record.
    """
    label: str = ""
    """The last part of a search's default name, if the class name alone says little."""
    about: Mapping[str, str] = {}
    """Texts about the problem for reports, by name. They are not part of a search's identity."""

    @property
    def code_files(self) -> Mapping[str, Path]:
        """Files with code besides the class's module and its imports, by name."""
        return {}

    @property
    def abilities(self) -> frozenset[Ability]:
        """The optional methods that the class defines.

        Override it if one of them needs data that may be absent.

        A problem with ``build`` and ``example_inputs`` also has ``static_metrics`` and ``measure``.
        """
        defined = {ability for ability in Ability if getattr(type(self), ability) is not getattr(Problem, ability)}
        if defined >= _HAS_NETWORK:
            defined |= {Ability.STATIC_METRICS, Ability.MEASURE}
        return frozenset(defined)

    def check_runner(self, runner: str, slots: int, policies: Set[Policy]) -> None:
        """Checks that trials can run on a runner. By default they can.

        Args:
            runner: Its name, such as ``processes``.
            slots: The number of trials at a time.
            policies: The policies of the search stage.

        Raises:
            ConfigurationError: they can't.
        """
        return

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Trains ``run.point`` and returns its validation scores. A problem defines this or ``train_many``."""
        raise LookupError("no train")

    def train_many(self, job: Job) -> None:
        """Trains the trials of a job one after another.

        It suits trials that share a costly start or build on one another.

        A job requests trials until its code ends, within the budget and ``job.trials_per_job``. A finalist is a job of
        one trial. See ``nas.Job``.
        """
        raise LookupError("no train_many")

    def test(self, run: TrialRun) -> Mapping[str, float]:
        """Scores a finalist on test data; optional. Called after the winner is chosen. See ``run.restore``."""
        raise LookupError("no test data")

    def export(self, run: TrialRun) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        """Returns the trained network and an example batch of two; optional. ``run.restore`` loads the weights.

        Each example tensor has shape ``(2, ...)``. The exported program takes any batch size.
        """
        raise LookupError("no export")

    def build(self, point: Point) -> torch.nn.Module:
        """Returns the full-size network of a point; optional, for ``static_metrics``, ``measure`` and proxies."""
        raise LookupError("no network")

    def example_inputs(self) -> tuple[torch.Tensor, ...]:
        """Returns the network's inputs, a batch of one; optional, for ``static_metrics`` and ``measure``."""
        raise LookupError("no example inputs")

    def example_batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns inputs and labels of a batch of training data; optional, for proxies (``nas.training.proxies``).

        Inputs have shape ``(n, ...)``. Labels are classes ``(n,)``, or floats of the shape of the outputs. Every call
        returns the same batch of at least two examples. It is called on workers.
        """
        raise LookupError("no example batch")

    @property
    def proxies(self) -> frozenset[str]:
        """The proxies of ``nas.training.proxies`` that can be computed with the problem's abilities."""
        return frozenset(name for name, needed in PROXY_ABILITIES.items() if needed <= self.abilities)

    def static_metrics(self, point: Point) -> Mapping[str, float]:
        """Returns the metrics of a point that are known before training, by name.

        ``constraints`` may limit them.

        Every point has the same names, and a point always has the same values. Those that ``metrics`` declares and
        ``train`` does not return become metrics of the trial. By default: the network's ``parameters``, ``flops`` and
        ``live_flops`` (``nas.training.costs``) if the problem has ``build`` and ``example_inputs``, else nothing.
        """
        if not self.abilities >= _HAS_NETWORK:
            return {}
        from nas.training.costs import NetworkCost

        return NetworkCost(lambda: self.build(point), self.example_inputs)

    def measure(self, point: Point, device: str) -> Mapping[str, float]:
        """Returns metrics that are measured before training, on the machine that trains.

        By default: ``latency_s``, the seconds of one forward pass (``nas.training.costs``), if the problem has
        ``build`` and ``example_inputs``, else nothing. They are recorded like ``static_metrics``. ``constraints``
        can't limit them, since they vary.
        """
        if not self.abilities >= _HAS_NETWORK:
            return {}
        from nas.training.costs import forward_latency_s

        return {LATENCY: forward_latency_s(self.build(point), self.example_inputs(), device)}

    def simulate(self, trial: Trial) -> Simulation:
        """Returns the trial's duration and scores; optional, for ``runner=simulated``."""
        raise LookupError("no simulation")

    def remarks(self, trials: Sequence[Trial], winner: Trial) -> Sequence[str]:
        """Returns lines for reports, such as a comparison with known results; optional.

        Called in the driver when a new winner is chosen and tested. Nothing in the search depends on them. The first
        100 lines are kept, with 1,000 characters each.

        Args:
            trials: All trials.
            winner: One of them.
        """
        return ()

    def close(self) -> None:
        """Frees resources after the last trial in this process. Not called if the process is killed."""
