"""Batch-norm statistics of networks with shared weights.

Running statistics of a supernet are those of no path. Subnets are scored with the statistics of each batch, all of them
on the same batches in the same order. A network that trains alone has its own.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from nas.core.point import Point
from nas.supernets.module import select
from nas.training.precision import precision_of

Measure: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Returns a mean over a batch, of outputs and targets."""


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the share of outputs ``(batch, classes)`` whose largest value is at the target."""
    return (outputs.argmax(1) == targets).double().mean()


MEASURES: Mapping[str, Measure] = MappingProxyType({"loss": functional.cross_entropy, "accuracy": accuracy})


def score(
    network: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    measures: Mapping[str, Measure] = MEASURES,
    precision: str = "float32",
) -> dict[str, float]:
    """Returns mean measures over all examples, in evaluation mode.

    Batch-norm uses its running statistics, or those of the batch if it has none. The measures are NaN if an output is
    not finite.

    Args:
        network: A network; a supernet needs a selection.
        batches: Inputs and targets; the same for all networks that are compared.
        measures: Means over a batch, of outputs in float32 and targets; by default loss and accuracy of classes.
        precision: ``float32``, ``bfloat16`` or ``auto`` (`nas.training.precision`).
    """
    with _evaluation(network):
        return _means(network, batches, measures, precision)


def panel_score(
    network: nn.Module,
    points: Sequence[Point],
    batches: Sequence[tuple[Tensor, Tensor]],
    *,
    measures: Mapping[str, Measure] = MEASURES,
    precision: str = "float32",
) -> dict[str, float]:
    """Returns the mean score of points with shared weights and the statistics of each batch.

    Args:
        network: A supernet; or a subnet, if there is one point only.
        points: The points; for the score of a supernet, the same ones in each epoch.
        batches: As for ``score``.
        measures: As for ``score``.
        precision: As for ``score``.
    """
    found = []
    with batch_statistics(network):
        for point in points:
            select(network, point)
            found.append(_means(network, batches, measures, precision))
    return {name: fmean(scores[name] for scores in found) for name in measures}


@contextmanager
def batch_statistics(network: nn.Module) -> Iterator[None]:
    """Evaluates with the statistics of each batch, and without gradients.

    Running statistics neither count nor change. Modes are restored at the end.
    """
    tracking = {norm: norm.track_running_stats for norm in _norms(network)}
    with _evaluation(network):
        for norm in tracking:
            norm.training, norm.track_running_stats = True, False
        try:
            yield
        finally:
            for norm, tracks in tracking.items():
                norm.track_running_stats = tracks


def recalibrate(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Sets running statistics of a subnet to their mean over batches of training inputs.

    Batch-norm without running statistics gets them. The network then scores and exports single examples.

    Raises:
        ValueError: there is no batch.
    """
    if (first := next(given := iter(batches), None)) is None:
        raise ValueError("batches: must have at least one batch of training inputs. Give more")
    momenta = {norm: norm.momentum for norm in _norms(network)}
    like = next(network.parameters(), first)
    try:
        with _evaluation(network):
            for norm in momenta:
                _track(norm, like)
                norm.training, norm.momentum = True, None  # the mean over all batches
            for inputs in itertools.chain([first], given):
                network(inputs)
    finally:
        for norm, momentum in momenta.items():
            norm.momentum = momentum


def _means(
    network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], measures: Mapping[str, Measure], precision: str
) -> dict[str, float]:
    """Returns mean measures over all examples; NaN if an output is not finite."""
    sums: dict[str, float] = defaultdict(float)
    n_examples = 0
    for inputs, targets in batches:
        with precision_of(precision, inputs.device.type):
            outputs = network(inputs)
        if not outputs.isfinite().all():
            return dict.fromkeys(measures, math.nan)
        for name, measure in measures.items():
            sums[name] += len(inputs) * measure(outputs.float(), targets).item()
        n_examples += len(inputs)
    return {name: sums[name] / n_examples if n_examples else math.nan for name in measures}


@contextmanager
def _evaluation(network: nn.Module) -> Iterator[None]:
    """Puts a network into evaluation mode, without gradients, and restores the modes of its modules."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _norms(network: nn.Module) -> list[_BatchNorm]:
    """Returns the batch-norm layers of a network."""
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]


def _track(norm: _BatchNorm, like: Tensor) -> None:
    """Gives batch-norm new running statistics, of the type and on the device of a tensor."""
    if norm.running_mean is None:
        norm.track_running_stats = True
        norm.running_mean = like.new_zeros(norm.num_features)
        norm.running_var = like.new_ones(norm.num_features)
        norm.num_batches_tracked = torch.tensor(0, device=like.device)
    norm.reset_running_stats()
