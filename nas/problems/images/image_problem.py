"""The base class of problems that classify small images."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence, Set
from contextlib import closing
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor, nn

from nas.core.errors import ConfigurationError, TrialStopped
from nas.core.metric import Metric, choose_metrics
from nas.core.point import Point
from nas.core.policy import Policy
from nas.core.validation import check_int
from nas.inheritance.rules import Rules
from nas.problems.images.conv_net import ConvNet
from nas.problems.images.fit import Recipe, Start, fit, optimizer_of, score
from nas.problems.images.graph_recipes import WIDTHS, ImageGraph, image_graphs
from nas.problems.images.largest_net import LargestConvNet
from nas.problems.images.pixels import Images
from nas.problems.images.stack import NetworkStack
from nas.spaces.graphs.network import Network
from nas.spaces.graphs.space import NETWORK, GraphSpace
from nas.spaces.parameters.space import ParameterSpace
from nas.training.epochs import inherit_or_resume, save_for_children
from nas.training.problem import LATENCY, PROXY_ABILITIES, Problem
from nas.training.trial_run import TrialRun

MAX_LANES = 1024
CHEAP = frozenset({Policy.EARLY_STOP, Policy.DOWNSCALE})
"""The policies with which trials train in lanes."""
_LOCK = threading.Lock()
"""Held while data is loaded, or a stack is made, for all threads of a process."""


class ImageProblem(Problem):
    """Classification of small images in ten classes. Subclasses add the data and the space.

    A point has either a network graph (`nas.spaces.graphs.space`) or the parameters of a chain of blocks
    (`nas.problems.images.conv_net`). Only chains of blocks can be halved, so problems with graphs do not declare
    DOWNSCALE.

    The training is stochastic gradient descent with Nesterov momentum and a one-cycle learning rate (Smith 2018,
    arXiv:1803.09820). The peak of the learning rate is the point's ``learning_rate``. A fidelity is a share of
    ``recipe.n_epochs`` and takes precedence over EARLY_STOP. Networks take raw pixels: uint8
    ``(batch, channels, height, width)``.
    """

    OBJECTIVES: ClassVar[tuple[Metric, ...]] = (
        Metric("accuracy"),
        Metric("parameters", "minimize"),
        Metric("flops", "minimize"),
        Metric("live_flops", "minimize"),
        Metric(LATENCY, "minimize"),
        *(Metric(name) for name in sorted(PROXY_ABILITIES)),
    )
    metrics = OBJECTIVES[:1]
    policies = frozenset(
        {Policy.SHARE_PARAMS, Policy.EARLY_STOP, Policy.SKIP_TRAIN, Policy.QUICK_EVAL, Policy.DOWNSCALE}
    )
    speed_arguments: ClassVar[frozenset[str]] = frozenset({"lanes"})
    recipe: Recipe
    rules: Rules = Rules()
    """The rules of inheritance."""
    lanes: int = 1
    """The cheap trials that a process trains at once, if its space has blocks."""
    pixel_mean: float
    pixel_std: float
    image_shape: tuple[int, int, int]
    """Channels, height and width."""
    initial_widths: ClassVar[tuple[Sequence[int], ...]] = WIDTHS
    """The channels of the possible initial networks, if its space has graphs (`nas.problems.images.graph_recipes`)."""
    default_max_flops: ClassVar[int] = 80_000_000
    """The default limit on the FLOPs of a network of graphs for one image."""

    @classmethod
    def graph_space(cls, max_flops: int | None = None, max_activations: int | None = None) -> GraphSpace:
        """Returns the space of network graphs within these limits; see ``image_graphs``."""
        max_flops = cls.default_max_flops if max_flops is None else max_flops
        return image_graphs(cls.image_shape, cls.initial_widths, max_flops, max_activations)

    @abstractmethod
    def load_train(self) -> tuple[Images, Images]:
        """Returns the training and the validation images, each in a random but fixed order."""

    @abstractmethod
    def load_test(self) -> Images:
        """Returns the held-out test images."""

    def choose_lanes(self, lanes: int) -> None:
        """Sets the number of cheap trials that a process trains at once (`nas.problems.images.stack`).

        Raises:
            ConfigurationError: it is not positive, or the rules of inheritance need a training of their own.
        """
        self.lanes = check_int("problem.lanes", lanes, 1, MAX_LANES)
        remedy = f"with problem.lanes={lanes}. Change it, or set problem.lanes=1"
        rules = {"optimizer": ("fresh", self.rules.optimizer), "freeze_epochs": (0, self.rules.freeze_epochs)}
        if lanes > 1 and LATENCY in {metric.name for metric in self.metrics}:
            raise ConfigurationError(f"problem.objectives: must not have {LATENCY} {remedy}")
        for name, (needed, given) in rules.items():
            if lanes > 1 and given != needed:
                raise ConfigurationError(f"problem.rules.{name}={given}: must be {needed} {remedy}")

    def choose_objectives(self, names: Sequence[str] | None) -> None:
        """Sets the metrics, in this order; None: accuracy alone.

        Raises:
            ConfigurationError: a name is unknown or repeated, or accuracy is missing.
        """
        self.metrics = choose_metrics(names, self.OBJECTIVES, ["accuracy"])

    def check_runner(self, runner: str, slots: int, policies: Set[Policy]) -> None:
        """Checks that as many cheap trials as there are lanes share a process.

        Raises:
            ConfigurationError: they don't.
        """
        if self.lanes > 1 and not policies & CHEAP:
            raise ConfigurationError(
                f"problem.lanes={self.lanes}: must be 1 if the search stage trains in full, without EARLY_STOP and "
                "DOWNSCALE. Choose policy=two_stage"
            )
        if self.lanes > 1 and runner != "threads":
            raise ConfigurationError(
                f"problem.lanes={self.lanes}: must be 1 with runner={runner}, whose trials can't train together. "
                "Choose runner=threads"
            )
        if self.lanes > slots:
            raise ConfigurationError(
                f"problem.lanes={self.lanes}: must be at most slots={slots}, since each lane costs time. Raise slots"
            )

    @cached_property
    def data(self) -> tuple[Images, Images]:
        """The training and validation images, loaded at first use and kept for later trials."""
        return self.load_train()

    @cached_property
    def _stacks(self) -> dict[tuple[int, int], NetworkStack]:
        """The stacks by halves of widths and number of images."""
        return {}

    def build(self, point: Point) -> nn.Module:
        """Returns the full-size network of a point, newly initialized with torch's global generator."""
        return self._scaled(point, 2)

    def build_for(self, run: TrialRun) -> nn.Module:
        """Returns the network of this trial; under DOWNSCALE each width is halved."""
        n_halves = run.scale(halves_of_width=2, downscaled=1)
        return self.build(run.point) if n_halves == 2 else self._scaled(run.point, n_halves)

    def _scaled(self, point: Point, n_halves: int) -> nn.Module:
        """Returns the network with so many halves of each width; network graphs are never halved."""
        scale = {"pixel_mean": self.pixel_mean, "pixel_std": self.pixel_std}
        if NETWORK in point:
            return ImageGraph(Network.from_json(point[NETWORK]), **scale)
        return ConvNet(point, n_inputs=self.image_shape[0], n_halves=n_halves, **scale)

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Returns one blank image."""
        return (torch.zeros(1, *self.image_shape, dtype=torch.uint8),)

    def example_batch(self) -> tuple[Tensor, Tensor]:
        """Returns 64 training images and their labels."""
        images = self.data[0][:64]
        return images.pixels, images.labels

    def measure(self, point: Point, device: str) -> Mapping[str, float]:
        """Returns the latency, but nothing with several lanes: neighbors would disturb the clock."""
        return super().measure(point, device) if self.lanes == 1 else {}

    def close(self) -> None:
        """Ends the threads of stacks; a later trial makes new ones."""
        for stack in self._stacks.values():
            stack.close()
        self._stacks.clear()

    def train(self, run: TrialRun) -> dict[str, float]:
        """Trains the point under its policies.

        A network with outputs that are not finite scores NaN and fails.
        """
        with _LOCK:
            train, validation = self.data
        n_downscaled = min(self.recipe.n_train_downscaled or len(train), len(train))
        train = train[: run.scale(images=len(train), downscaled=n_downscaled)].to(run.device)
        validation = run.subset(validation, quick=self.recipe.n_validation_quick).to(run.device)

        network = self.build_for(run).to(run.device)
        start = self._start(run, network)
        return self._fitted(run, network, (train, validation), n_steps=self._n_steps(run, len(train)), start=start)

    def _n_steps(self, run: TrialRun, n_images: int) -> int:
        """Returns the steps of the training; if its time is limited, the most."""
        n_batches = self.recipe.n_batches(n_images)
        unit = n_batches if run.fidelity is None else 1  # steps: a fidelity may be less than an epoch
        full, early = (n * n_batches // unit for n in (self.recipe.n_epochs, self.recipe.n_epochs_early))
        n_planned = unit * run.epochs(full=full, early=early)
        ends_by_time = run.train_until is not None and not self._trains_in_lanes(run)
        return unit * full if ends_by_time else n_planned

    def _fitted(
        self, run: TrialRun, network: nn.Module, data: tuple[Images, Images], *, n_steps: int, start: Start
    ) -> dict[str, float]:
        """Trains the network, saves it, and returns its validation scores. Each epoch is reported."""
        train, validation = data
        scores = self._scores(network, validation) if n_steps == 0 else {}
        with closing(self._fit(run, network, train, n_steps, start)) as epochs:
            for epoch in epochs:
                scores = self._scores(network, validation)
                try:
                    run.report(epoch, **scores)
                except TrialStopped:
                    save_for_children(run, network, start.optimizer, self.rules)
                    raise
        save_for_children(run, network, start.optimizer, self.rules)
        return scores or self._scores(network, validation)  # an earlier attempt trained all epochs

    def _fit(
        self, run: TrialRun, network: nn.Module, train: Images, n_steps: int, start: Start
    ) -> Generator[int, None, None]:
        """Trains the network; that of a cheap trial in a stack if there are ``lanes``."""
        if not self._trains_in_lanes(run) or n_steps == 0 or run.resumed_from() is not None:
            return fit(network, train, self.recipe, n_steps=n_steps, run=run, start=start)
        return self._stack_of(run, train).fit(network, n_steps=n_steps, run=run, start=start)

    def _trains_in_lanes(self, run: TrialRun) -> bool:
        """Returns whether it is one of several cheap trials that train at once."""
        return self.lanes > 1 and bool(run.policies & CHEAP)

    def _stack_of(self, run: TrialRun, train: Images) -> NetworkStack:
        """Returns the stack of trials with as many images and halves of widths."""
        n_halves = run.scale(halves_of_width=2, downscaled=1)
        with _LOCK:
            if (key := (n_halves, len(train))) not in self._stacks:
                assert isinstance(self.space, ParameterSpace)
                largest = LargestConvNet(
                    self.space, n_inputs=self.image_shape[0], n_halves=n_halves,
                    pixel_mean=self.pixel_mean, pixel_std=self.pixel_std,
                )  # fmt: skip
                self._stacks[key] = NetworkStack(largest.to(run.device), train, self.recipe, self.lanes)
            return self._stacks[key]

    def _scores(self, network: nn.Module, validation: Images) -> dict[str, float]:
        return {"accuracy": score(network, validation, self.recipe.precision)}

    def _start(self, run: TrialRun, network: nn.Module) -> Start:
        """Lets the network inherit under SHARE_PARAMS. A resumed training has inherited already."""
        optimizer = self._optimizer(network, run.point)
        report = inherit_or_resume(run, network, optimizer, self.rules)
        return Start(optimizer=optimizer, rules=self.rules, report=report)

    def _optimizer(self, network: nn.Module, point: Point) -> torch.optim.Optimizer:
        return optimizer_of(network, point)

    def test(self, run: TrialRun) -> dict[str, float]:
        """Returns the accuracy on the test images, always in float32."""
        return {"accuracy": score(run.restore(self.build_for(run)), self.load_test().to(run.device))}

    def export(self, run: TrialRun) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Returns the trained network, and two validation images."""
        network = run.restore(self.build_for(run)).eval()
        return network, (self.data[1].pixels[:2].to(run.device),)
