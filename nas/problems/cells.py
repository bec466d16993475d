"""Cells of NAS-Bench-201 (Dong and Yang 2020, arXiv:2001.00326), trained on the images of other problems.

A *supernet epoch* trains shared weights of all cells. A *subnet* inherits all of its weights from one, and is scored
without training. Any other trial trains the network of one cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import count, islice
from statistics import fmean
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.policy import Policy
from nas.core.supernet import epoch_of
from nas.core.tracebacks import error_line
from nas.core.trial import Trial
from nas.core.validation import check_int
from nas.inheritance.optimizer_state import optimizer_tensors
from nas.inheritance.rules import Rules
from nas.problems.cell_data import checked_side, data_set, shrunk, source_of
from nas.problems.images.alpha_epoch import AlphaEpoch, train_alphas
from nas.problems.images.cell_costs import EDGES, CellCosts
from nas.problems.images.cell_net import OWN, SHARED, CellNet, Skeleton, initialized
from nas.problems.images.fit import evaluate, optimizer_of
from nas.problems.images.image_problem import ImageProblem
from nas.problems.images.pixels import Images
from nas.problems.images.supernet_schedule import SupernetSchedule
from nas.problems.nasbench201 import NasBench201Problem
from nas.problems.table_agreement import TableAgreement
from nas.spaces.supernet import SupernetSpace
from nas.storage.remote_file import check_file
from nas.supernets.method import Method
from nas.supernets.module import select, space_of, subnet
from nas.supernets.operations import Operations
from nas.supernets.paths import N_PANEL, ListedPaths, UniformPaths, path_metrics
from nas.supernets.statistics import recalibrate
from nas.supernets.training import PathTraining, train_epoch
from nas.training.precision import checked_precision
from nas.training.problem import LATENCY
from nas.training.trial_run import TrialRun

LARGEST = dict.fromkeys(EDGES, "nor_conv_3x3")
_PANEL_SEED = 0
_N_RECALIBRATED = 2_000  # images
_RECALIBRATED_AT_ONCE = 500


class CellsProblem(ImageProblem):
    """The skeleton of NAS-Bench-201 on small images (`nas.problems.images.cell_net`).

    Points are those of ``problem=nasbench201``. A supernet epoch continues the network and the optimizer of the epoch
    before. It publishes both, and its score is the mean over a fixed panel of 16 connected cells. If its ``derivation``
    is a method of differentiable search, it trains alphas too and suggests a cell.

    A network that is trained in full has affine norms with running statistics. With SKIP_TRAIN, EARLY_STOP or a
    fidelity it has the norms of the supernet, which use the statistics of each batch. A fidelity is a share of the
    steps of a full training, at least one step.

    Args:
        data: ``digits``, ``fashion_mnist`` or ``cifar10``.
        data_root: For Fashion-MNIST: the folder of its four files, at any fsspec URL.
        data_file: For CIFAR-10: its archive or an ``npz``, at any fsspec URL.
        data_options: Options for fsspec.
        split_seed: The seed that chooses the validation images.
        side: The side to which images are averaged, a multiple of 4; None: 8 for digits, else 16.
        reduction: ``pool`` or ``residual`` (`nas.problems.images.cell_net.Skeleton`).
        channels: The channels of the first stage.
        cells_per_stage: The number of cells in each stage.
        epoch_steps: The steps of a supernet epoch; None: 250 for digits, else 2,000.
        n_supernet_epochs: The supernet epochs in which the learning rate falls along a cosine. Later ones keep the
            lowest rate. Differentiable tuners give their own ``n_epochs`` instead.
        n_epochs: The epochs of a full training; None: 30 for digits, 12 for Fashion-MNIST, 24 for CIFAR-10.
        learning_rate: The peak of the learning rate, of supernets and single networks.
        precision: Precision of training: ``float32``, ``bfloat16`` or ``auto`` (`nas.problems.images.fit`).
        objectives: ``accuracy`` and any of ``loss``, static metrics, ``latency_s`` and proxies; the first ranks. None:
            accuracy alone. The cross-entropy on validation images, ``loss``, is returned in any case.
        table: NAS-Bench-201 as a parquet or csv file. Only ``test`` and ``remarks`` use it, so no search sees
            it.
        table_column: The column of the test accuracy in the table.

    Raises:
        ConfigurationError: a file is missing or has another format, a value is not allowed, or an option belongs to
            other data.
    """

    OBJECTIVES: ClassVar[tuple[Metric, ...]] = (
        ImageProblem.OBJECTIVES[0],
        Metric("loss", "minimize"),
        *ImageProblem.OBJECTIVES[1:],
    )
    policies = ImageProblem.policies - {Policy.DOWNSCALE}
    rules = Rules(rest="own")
    data_arguments: ClassVar[frozenset[str]] = frozenset({"data_root", "data_file", "data_options", "table"})
    data_files: ClassVar[frozenset[str]] = frozenset({"data_file", "table"})

    def __init__(
        self,
        data: str = "digits",
        *,
        data_root: str | None = None,
        data_file: str | None = None,
        data_options: Mapping[str, Any] | None = None,
        split_seed: int = 0,
        side: int | None = None,
        reduction: str = "pool",
        channels: int = 16,
        cells_per_stage: int = 1,
        epoch_steps: int | None = None,
        n_supernet_epochs: int = 8,
        n_epochs: int | None = None,
        learning_rate: float = 0.05,
        precision: str = "auto",
        objectives: Sequence[str] | None = None,
        table: str | None = None,
        table_column: str = "c10_test_200",
    ) -> None:
        options = {"data_root": data_root, "data_file": data_file, "data_options": data_options}
        self._source = source_of(data, split_seed=split_seed, options=options)
        self._side = checked_side(side, data, self._source)
        self.image_shape = (self._source.image_shape[0], self._side, self._side)
        self.pixel_mean, self.pixel_std = self._source.pixel_mean, self._source.pixel_std
        self._skeleton = Skeleton(reduction=reduction, channels=channels, cells_per_stage=cells_per_stage)
        self._schedule = SupernetSchedule(
            n_epochs=n_supernet_epochs,
            epoch_steps=data_set(data).epoch_steps if epoch_steps is None else epoch_steps,
            learning_rate=learning_rate,
        )
        self.recipe = replace(data_set(data).recipe, precision=checked_precision(precision))
        if n_epochs is not None:
            check_int("problem.n_epochs", n_epochs, 1)
            self.recipe = replace(self.recipe, n_epochs=n_epochs)
        self.choose_objectives(objectives)
        self._table = None if table is None else _checked_table(table, table_column)
        self._table_column = table_column
        self.space = SupernetSpace(space_of(self._empty_shared))

    def load_train(self) -> tuple[Images, Images]:
        """Returns the training and the validation images of the data set, averaged to ``side``."""
        train, validation = self._source.load_train()
        return shrunk(train, self._side), shrunk(validation, self._side)

    def load_test(self) -> Images:
        """Returns the test images of the data set, averaged to ``side``."""
        return shrunk(self._source.load_test(), self._side)

    def build(self, point: Point) -> nn.Module:
        """Returns the full-size network of a cell, or the supernet of an epoch."""
        return self._built(point, OWN)

    def build_for(self, run: TrialRun) -> nn.Module:
        """Returns the network of this trial."""
        return self._built(run.point, SHARED if _shares_norms(run) else OWN)

    def _built(self, point: Point, operations: Operations) -> nn.Module:
        if epoch_of(point) is not None:
            network: nn.Module = self._supernet(SHARED)
            select(network, LARGEST)
            return network
        empty = subnet(self._empty_own if operations is OWN else self._empty_shared, point)
        return initialized(empty)

    @cached_property
    def _empty_own(self) -> CellNet:
        with torch.device("meta"):
            return self._supernet(OWN)

    @cached_property
    def _empty_shared(self) -> CellNet:
        with torch.device("meta"):
            return self._supernet(SHARED)

    def _supernet(self, operations: Operations) -> CellNet:
        return CellNet(
            self._skeleton,
            operations,
            n_inputs=self.image_shape[0],
            pixel_mean=self.pixel_mean,
            pixel_std=self.pixel_std,
        )

    def static_metrics(self, point: Point) -> Mapping[str, float]:
        """Returns ``parameters``, ``flops`` and ``live_flops``; edges that no path uses have none."""
        if epoch_of(point) is not None:
            return dict(super().static_metrics(point))
        return self._costs.of(point)

    @cached_property
    def _costs(self) -> CellCosts:
        return CellCosts.measured(super().static_metrics)

    def measure(self, point: Point, device: str) -> Mapping[str, float]:
        """Returns ``latency_s`` if it is an objective, since it takes longer than to score a subnet."""
        return super().measure(point, device) if any(metric.name == LATENCY for metric in self.metrics) else {}

    def train(self, run: TrialRun) -> dict[str, float]:
        """Trains a supernet epoch, or the network of a cell. Returns validation scores."""
        train, validation = (images.to(run.device) for images in self.data)
        validation = run.subset(validation, quick=self.recipe.n_validation_quick)
        network = self.build_for(run).to(run.device)
        if (epoch := epoch_of(run.point)) is not None:
            return self._train_epoch(run, network, (train, validation), epoch)
        n_steps, start = self._n_steps(run, len(train)), self._start(run, network)
        return self._fitted(run, network, (train, validation), n_steps=n_steps, start=start)

    def _train_epoch(
        self, run: TrialRun, network: nn.Module, data: tuple[Images, Images], epoch: int
    ) -> dict[str, float]:
        """Trains and saves the supernet and its optimizer. Returns the scores of the panel."""
        train, validation = data
        if (method := Method.of(run.derivation)) is not None:
            settings = AlphaEpoch(
                method=method, number=epoch, schedule=self._schedule, recipe=self.recipe, rules=self.rules
            )
            found = train_alphas(run, network, self._optimizer(network, run.point), train, settings)
            return {**self._panel_scores(network, validation), **found}
        optimizer, resumed = self._optimizer(network, run.point), run.resumed_from()
        n_done = 0
        if resumed is not None:
            resumed.load(network, optimizer)
            n_done = resumed.step
        elif Policy.SHARE_PARAMS in run.policies:
            run.inherit(network, rules=self.rules)
            run.inherit_optimizer(optimizer, network)
        batches = self._schedule.batches(train, self.recipe, optimizer, epoch=epoch, seed=run.seed)
        listed = ListedPaths.of_derivation(self.space, run.derivation)  # by the tuner; else they are random
        paths, counted = listed or UniformPaths(self.space, run.seed), count(n_done + 1)
        train_epoch(
            network,
            islice(batches, n_done, None),
            optimizer,
            lambda step: paths(n_done + step),
            settings=PathTraining(precision=self.recipe.precision),
            after_step=lambda: run.save_resume_point(next(counted), network, optimizer),
        )
        run.save({**network.state_dict(), **optimizer_tensors(optimizer, network)})
        found = {} if listed is None else path_metrics(listed.points)
        return {**self._panel_scores(network, validation), **found}

    def _panel_scores(self, network: nn.Module, validation: Images) -> dict[str, float]:
        """Returns the mean scores of the panel's cells."""
        found = []
        for cell in self.panel():
            select(network, cell)
            found.append(self._scores(network, validation))
        return {name: fmean(scores[name] for scores in found) for name in found[0]}

    def panel(self) -> list[Point]:
        """Returns the connected cells whose mean score is that of a supernet epoch."""
        paths = UniformPaths(self.space, _PANEL_SEED)
        return [paths(index)[0] for index in range(N_PANEL)]

    def _scores(self, network: nn.Module, validation: Images) -> dict[str, float]:
        return evaluate(network, validation, self.recipe.precision)

    def _optimizer(self, network: nn.Module, point: Point) -> torch.optim.Optimizer:
        return optimizer_of(network, {"learning_rate": self._schedule.learning_rate})

    def test(self, run: TrialRun) -> dict[str, float]:
        """Returns the accuracy on the test images, and with a table the published one as ``table``."""
        found = super().test(run)
        if self._table is not None:
            try:
                found["table"] = self._table.value(run.point, self._table_column)
            except LookupError as error:  # the table has some of the cells
                run.test_error = error_line(error)
        return found

    def remarks(self, trials: Sequence[Trial], winner: Trial) -> list[str]:
        """Returns the agreement of the trials with the table, if there is one."""
        if self._table is None:
            return []
        return [*TableAgreement(self._table, self._table_column, self._costs).lines(trials, winner)]

    def export(self, run: TrialRun) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Returns the network, and two validation images.

        A network that shares weights gets running statistics here, from training images.
        """
        network, inputs = super().export(run)
        if _shares_norms(run):
            pixels = self.data[0].pixels[:_N_RECALIBRATED].to(run.device)
            recalibrate(network, torch.split(pixels, _RECALIBRATED_AT_ONCE))
        return network, inputs


def _shares_norms(run: TrialRun) -> bool:
    """Returns whether the network of the trial has the norms of the supernet."""
    return run.fidelity is not None or not run.policies.isdisjoint({Policy.SKIP_TRAIN, Policy.EARLY_STOP})


def _checked_table(table: str, column: str) -> NasBench201Problem:
    """Returns the problem that reads the table.

    Its columns are read now, so that faults are told before the search, not after it.

    Raises:
        ConfigurationError: the file does not exist, has another format, or lacks a column.
    """
    check_file("problem.table", table, {}, "Set it to a file of NAS-Bench-201 as parquet or csv")
    found = NasBench201Problem(table, parameters=EDGES, metrics={"accuracy": {"column": column}})
    found.check_column("problem.table_column", column)
    _ = found.points
    return found
