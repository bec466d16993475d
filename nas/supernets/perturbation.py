"""Selection of options by what the supernet loses without them (DARTS-PT, Wang et al. 2021, arXiv:2108.04392).

Differs: all choices are made on the weights of one epoch; the supernet is not trained between them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from nas.core.point import Point
from nas.supernets.alphas import Alphas
from nas.supernets.choices import mix

Score: TypeAlias = Callable[[nn.Module], tuple[float, float]]
"""Returns the accuracy and the loss of a network; the loss decides between equal accuracies."""


def select_by_perturbation(
    network: nn.Module, alphas: Alphas, score: Score, generator: torch.Generator, excluded: Collection[Any] = ()
) -> Point:
    """Returns the point of the options that the supernet needs most.

    Choices are made one by one in random order. Each takes the option without which the mixture scores worst, and the
    mixture has only that option from then on. A removed option has the weight 0; the others keep theirs.

    Args:
        network: The supernet.
        alphas: Its alphas.
        score: Scores the mixture, on examples that trained no weights.
        generator: Draws the order of the choices.
        excluded: Options that are never taken.
    """
    labels = list(alphas.logits())
    weights = {label: logits.detach().softmax(0) for label, logits in alphas.logits().items()}
    point: Point = {}
    for index in torch.randperm(len(labels), generator=generator).tolist():
        label = labels[index]
        need = _need(network, weights, label, score)
        point |= alphas.point_of({label: need}, excluded)
        weights[label] = _only(alphas.options(label), point[label]).to(weights[label])
    return {label: point[label] for label in labels}


def _need(network: nn.Module, weights: dict[str, Tensor], label: str, score: Score) -> Tensor:
    """Returns the rank of each option: the more the mixture loses without it, the greater."""
    found = []
    for removed in range(len(weights[label])):
        left = weights[label].clone()
        left[removed] = 0.0
        if not left.any():  # nothing is left without the option
            found.append((-math.inf, 0.0))
            continue
        mix(network, {**weights, label: left})
        accuracy, loss = score(network)
        found.append((accuracy, -loss))
    return torch.tensor([float(sum(other > one for other in found)) for one in found])


def _only(options: tuple[Any, ...], chosen: Any) -> Tensor:
    """Returns weights of 1 for the chosen options, and 0 for the others."""
    kept = chosen if isinstance(chosen, list) else [chosen]
    return torch.tensor([float(option in kept) for option in options])
