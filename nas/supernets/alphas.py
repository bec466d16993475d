"""Architecture parameters of differentiable search (DARTS, Liu et al. 2019, arXiv:1806.09055)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.supernets.choices import AnyChoice, LayerChoice, choices_of

SPREAD = 1e-3
"""The standard deviation of new alphas, as in DARTS."""


class Alphas(nn.Module):
    """One logit for each option of each choice, by the choice's label.

    As the submodule ``alphas`` of a supernet they are published, inherited and saved with its weights.

    Args:
        network: The supernet. Choices of the same label share their logits.
        generator: Draws the first values.

    Raises:
        ConfigurationError: a label can't be the name of a parameter.
    """

    def __init__(self, network: nn.Module, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self._options = {label: _options(choice) for label, choice in choices_of(network).items()}
        self._n_chosen = {label: _n_chosen(choice) for label, choice in choices_of(network).items()}
        for label, options in self._options.items():
            drawn = SPREAD * torch.randn(len(options), generator=generator)
            try:
                self.register_parameter(label, nn.Parameter(drawn))
            except KeyError as error:
                remedy = "Write it without dots, and not as the name of a method of torch.nn.Module."
                raise ConfigurationError(f"label={label!r}: must be usable as a parameter's name. {remedy}") from error

    def forward(self, inputs: Any) -> Any:
        """Returns its inputs, so that alphas may be a submodule of `torch.nn.Sequential`."""
        return inputs

    def logits(self) -> dict[str, Tensor]:
        """Returns the logits ``(n_options,)`` by label."""
        return dict(self.named_parameters())

    def options(self, label: str) -> tuple[Any, ...]:
        """Returns the options of a choice in the order of its logits.

        They are names of layers, or indices of inputs.
        """
        return self._options[label]

    def point(self, excluded: Collection[Any] = ()) -> Point:
        """Returns the point of the largest logits.

        Args:
            excluded: Options that are never taken, such as ``none`` in the space of DARTS.

        Raises:
            ConfigurationError: a choice has too few other options.
        """
        return self.point_of(self.logits(), excluded)

    def point_of(self, logits: Mapping[str, Tensor], excluded: Collection[Any] = ()) -> Point:
        """Returns the point of the largest values ``(n_options,)``, given by label; on ties, the first option."""
        return {label: self._value(label, values.tolist(), excluded) for label, values in logits.items()}

    def entropy(self) -> float:
        """Returns the mean entropy of the softmax of the logits, in nats."""
        entropies = [-(values.softmax(0) * values.log_softmax(0)).sum() for values in self.logits().values()]
        return float(torch.stack(entropies).detach().mean())

    def flat(self) -> Tensor:
        """Returns a copy of all logits as one vector."""
        return torch.cat([values.detach().clone() for values in self.logits().values()])

    def _value(self, label: str, values: list[float], excluded: Collection[Any]) -> Any:
        options = self._options[label]
        allowed = [index for index, option in enumerate(options) if option not in excluded]
        ranked, n_chosen = sorted(allowed, key=lambda index: -values[index]), self._n_chosen[label]
        if len(ranked) < n_chosen:
            raise ConfigurationError(
                f"label={label!r}: must have at least {n_chosen} options other than {', '.join(map(str, excluded))}. "
                "Add one, or set tuner.allows_none=true."
            )
        if n_chosen == 1:
            return options[ranked[0]]
        return sorted(options[index] for index in ranked[:n_chosen])


def _options(choice: AnyChoice) -> tuple[Any, ...]:
    return choice.names if isinstance(choice, LayerChoice) else tuple(range(choice.n_inputs))


def _n_chosen(choice: AnyChoice) -> int:
    return 1 if isinstance(choice, LayerChoice) else choice.n_chosen
