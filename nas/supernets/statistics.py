"""Batch-norm statistics of networks with shared weights.

Running statistics of a supernet are those of no path. Subnets are scored with the statistics of each batch, all of them
on the same batches in the same order.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from statistics import fmean
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from nas.core.point import Point
from nas.core.validation import check_int
from nas.supernets.module import select
from nas.training.precision import precision_of

Measure: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Returns a mean over a batch, of outputs and targets."""
LEAST_IMAGES = 250
"""The fewest examples of a batch from which statistics are taken."""


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the share of outputs ``(batch, classes)`` whose largest value is at the target."""
    return (outputs.argmax(1) == targets).double().mean()


MEASURES: Mapping[str, Measure] = MappingProxyType({"loss": functional.cross_entropy, "accuracy": accuracy})


def scoring_slices(n: int, least: int = LEAST_IMAGES) -> list[slice]:
    """Returns slices of ``n`` examples of almost equal size, at least ``least``.

    If ``n`` is less, there is one slice.
    """
    check_int("least", least, 1)
    n_batches = max(1, n // least)
    bounds = [n * index // n_batches for index in range(n_batches + 1)]
    return [slice(low, high) for low, high in pairwise(bounds)]


def score(
    network: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    measures: Mapping[str, Measure] = MEASURES,
    precision: str = "float32",
) -> dict[str, float]:
    """Returns mean measures over all examples, with the statistics of each batch.

    They are NaN if an output is not finite.

    Args:
        network: A subnet, or a supernet with a selection.
        batches: Inputs and targets; the same for all networks that are compared (``scoring_slices``).
        measures: Means over a batch, of outputs in float32 and targets; by default loss and accuracy of classes.
        precision: ``float32``, ``bfloat16`` or ``auto`` (`nas.training.precision`).
    """
    sums: dict[str, float] = defaultdict(float)
    n_examples = 0
    with torch.no_grad(), batch_statistics(network):
        for inputs, targets in batches:
            with precision_of(precision, inputs.device.type):
                outputs = network(inputs)
            if not outputs.isfinite().all():
                return dict.fromkeys(measures, math.nan)
            for name, measure in measures.items():
                sums[name] += len(inputs) * measure(outputs.float(), targets).item()
            n_examples += len(inputs)
    return {name: sums[name] / n_examples if n_examples else math.nan for name in measures}


def panel_score(
    network: nn.Module,
    points: Sequence[Point],
    batches: Sequence[tuple[Tensor, Tensor]],
    *,
    measures: Mapping[str, Measure] = MEASURES,
    precision: str = "float32",
) -> dict[str, float]:
    """Returns the mean score of several points, for example as that of a supernet.

    Args:
        network: A supernet; or a subnet, if there is one point only.
        points: The points, the same for all supernets that are compared.
        batches: As for ``score``.
        measures: As for ``score``.
        precision: As for ``score``.
    """
    found = []
    for point in points:
        select(network, point)
        found.append(score(network, batches, measures=measures, precision=precision))
    return {name: fmean(scores[name] for scores in found) for name in measures}


@contextmanager
def batch_statistics(network: nn.Module) -> Iterator[None]:
    """Puts a network into evaluation mode, except that batch-norm uses the statistics of each batch.

    Running statistics neither count nor change. Modes are restored at the end.
    """
    modes = {module: module.training for module in network.modules()}
    tracking = {norm: norm.track_running_stats for norm in _norms(network)}
    network.eval()
    for norm in tracking:
        norm.training, norm.track_running_stats = True, False
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for norm, tracks in tracking.items():
            norm.track_running_stats = tracks


def recalibrate(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Sets running statistics of a subnet to their mean over batches of training inputs.

    Batch-norm without running statistics gets them. The network then scores and exports single examples.
    """
    modes = {module: module.training for module in network.modules()}
    momenta = {norm: norm.momentum for norm in _norms(network)}
    device = next(network.parameters()).device
    network.eval()
    for norm in momenta:
        _track(norm, device)
        norm.training, norm.momentum = True, None  # the mean over all batches
    try:
        with torch.no_grad():
            for inputs in batches:
                network(inputs)
    finally:
        for module, mode in modes.items():
            module.training = mode
        for norm, momentum in momenta.items():
            norm.momentum = momentum


def _norms(network: nn.Module) -> list[_BatchNorm]:
    """Returns the batch-norm layers of a network."""
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]


def _track(norm: _BatchNorm, device: torch.device) -> None:
    """Gives batch-norm new running statistics."""
    if norm.running_mean is None:
        norm.track_running_stats = True
        norm.running_mean = torch.zeros(norm.num_features, device=device)
        norm.running_var = torch.ones(norm.num_features, device=device)
        norm.num_batches_tracked = torch.tensor(0, device=device)
    norm.reset_running_stats()
