"""Choices of a layer and of inputs: by a point, or as a weighted sum.

Weighted sums are those of DARTS (arXiv:1806.09055) and GDAS (arXiv:1910.04465). Names are NNI's: `LayerChoice` has
several layers for one place, `InputChoice` several inputs for one layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import combinations
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from nas.core.errors import ConfigurationError, PointError
from nas.core.point import Point
from nas.core.validation import check_int, short_repr
from nas.spaces.parameters.space import Choice, Parameter
from nas.supernets.module import SearchableModule, subnet, value_of


class LayerChoice(SearchableModule):
    """One of several layers for the same place; also a mixture of them by weights.

    The tensors of an option are ``options.<name>.*``.

    Args:
        options: The layers by name, of the same input and output shapes.
        label: The name of the decision. Choices with the same label take the same option. Labels of all pairs of nodes,
            as ``op_0_1``, ``op_0_2`` and ``op_1_2``, are edges of a cell (`nas.supernets.connectivity`).
    """

    def __init__(self, options: Mapping[str, nn.Module], label: str) -> None:
        super().__init__()
        if not isinstance(options, Mapping) or not options:
            given = short_repr(options)
            raise ConfigurationError(
                f"LayerChoice {label!r}: options={given}: must be layers by name: {{name: layer}}."
            )
        self.label = label
        self.options = nn.ModuleDict()
        for name, option in options.items():
            try:
                self.options[name] = option
            except (KeyError, TypeError) as error:  # torch's
                raise ConfigurationError(
                    f"LayerChoice {label!r}: option {name!r}: {error.args[0]}. Rename it."
                ) from error
        self._selected: str | None = None
        self._mixture: Mixture | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the options, in the order of the weights of a mixture."""
        return tuple(self.options)

    @property
    def selected(self) -> str | None:
        """The name of the selected option; None for a mixture, or before any selection."""
        return self._selected

    def decisions(self) -> dict[str, Parameter]:
        """Returns the choice of an option's name."""
        return {self.label: Choice(*self.options)}

    def select(self, point: Point) -> None:
        """Selects the point's option, instead of a mixture."""
        self._selected, self._mixture = self._option_of(point), None

    def mix(self, weights: Tensor) -> None:
        """Selects the sum of all options by weights ``(n_options,)``.

        An option of weight 0 is not computed. Its weight still gets a gradient: it is added to the output.
        """
        self._selected, self._mixture = None, Mixture(weights, len(self.options), f"LayerChoice {self.label!r}")

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Returns the output of the selected option, or of the mixture."""
        if self._mixture is not None:
            computed = [(self.options[name], weight) for name, weight in self._mixture.used(self.names)]
            return self._mixture.total(weight * option(*inputs, **named) for option, weight in computed)
        return self.options[_selection(self._selected, self.label)](*inputs, **named)

    def subnet(self, point: Point) -> nn.Module:
        """Returns a module with the point's option only."""
        name = self._option_of(point)
        return SelectedLayer(name, subnet(self.options[name], point))

    def _option_of(self, point: Point) -> str:
        name = value_of(point, self.label)
        if not isinstance(name, str) or name not in self.options:
            raise PointError(f"{self.label}={name!r}: must be one of {', '.join(self.options)}.")
        return name

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mixture": None}  # torch copies and pickles no tensor that a graph computed


class InputChoice(SearchableModule):
    """The sum of ``n_chosen`` of ``n_inputs`` tensors; also a mixture of all of them.

    The value of the decision is an index, or a list of rising indices if ``n_chosen`` is 2 or more.

    Args:
        n_inputs: The number of tensors to choose from.
        n_chosen: The number of tensors in the sum. If it is ``n_inputs``, there is no decision.
        label: The name of the decision.
    """

    def __init__(self, n_inputs: int, n_chosen: int, label: str) -> None:
        super().__init__()
        check_int(f"InputChoice {label!r}: n_inputs", n_inputs, 1)
        check_int(f"InputChoice {label!r}: n_chosen", n_chosen, 1, n_inputs)
        self.n_inputs, self.n_chosen, self.label = n_inputs, n_chosen, label
        self._selected: tuple[int, ...] | None = tuple(range(n_inputs)) if n_chosen == n_inputs else None
        self._mixture: Mixture | None = None

    @property
    def selected(self) -> tuple[int, ...] | None:
        """The indices of the selected inputs; None for a mixture, or before any selection."""
        return self._selected

    def decisions(self) -> dict[str, Parameter]:
        """Returns the choice of an index, or of a list of indices."""
        if self.n_chosen == self.n_inputs:
            return {}
        sets = [list(indices) for indices in combinations(range(self.n_inputs), self.n_chosen)]
        return {self.label: Choice(*(range(self.n_inputs) if self.n_chosen == 1 else sets))}

    def select(self, point: Point) -> None:
        """Selects the point's inputs, instead of a mixture."""
        self._selected, self._mixture = self.indices_of(point), None

    def mix(self, weights: Tensor | None) -> None:
        """Selects the sum of all inputs by weights ``(n_inputs,)``; None: their plain sum, as in DARTS."""
        self._selected, self._mixture = tuple(range(self.n_inputs)), None
        if weights is not None:
            self._selected, self._mixture = None, Mixture(weights, self.n_inputs, f"InputChoice {self.label!r}")

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Returns the sum of the selected inputs, or of the mixture."""
        if len(inputs) != self.n_inputs:
            raise ConfigurationError(f"InputChoice {self.label!r}: {len(inputs)} inputs: must be {self.n_inputs}.")
        if self._mixture is not None:
            return self._mixture.total(weight * one for one, weight in self._mixture.used(inputs))
        return added(inputs[index] for index in _selection(self._selected, self.label))

    def subnet(self, point: Point) -> nn.Module:
        """Returns a module that adds the point's inputs."""
        return SelectedInputs(self.indices_of(point))

    def indices_of(self, point: Point) -> tuple[int, ...]:
        """Returns the indices that a point selects.

        Raises:
            PointError: the point lacks the decision, or has a value that is not allowed.
        """
        for name, parameter in self.decisions().items():
            value = value_of(point, name)
            parameter.check(value, name)
            return (value,) if self.n_chosen == 1 else tuple(value)
        return tuple(range(self.n_inputs))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mixture": None}


AnyChoice: TypeAlias = LayerChoice | InputChoice


class SelectedLayer(nn.Module):
    """The subnet of a `LayerChoice`: one option, under the name that it has there."""

    def __init__(self, name: str, option: nn.Module) -> None:
        super().__init__()
        self.options = nn.ModuleDict({name: option})

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Returns the output of the option."""
        (option,) = self.options.values()
        return option(*inputs, **named)


class SelectedInputs(nn.Module):
    """The subnet of an `InputChoice`."""

    def __init__(self, indices: Sequence[int]) -> None:
        super().__init__()
        self.indices = tuple(indices)

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Returns the sum of the inputs at the indices."""
        return added(inputs[index] for index in self.indices)


class Mixture:
    """Weights of options.

    Options of weight 0 need not be computed.

    Raises:
        ConfigurationError: there are not ``n_options`` weights, or all are 0.
    """

    def __init__(self, weights: Tensor, n_options: int, owner: str) -> None:
        if weights.shape != (n_options,):
            raise ConfigurationError(f"{owner}: weights of shape {tuple(weights.shape)}: must be ({n_options},).")
        self._weights = weights.unbind()  # a tuple: torch would register a tensor that is a parameter
        self._values: list[float] = weights.detach().tolist()
        if not any(self._values):
            raise ConfigurationError(f"{owner}: weights={self._values}: must not all be 0.")

    def used(self, options: Sequence[Any]) -> list[tuple[Any, Tensor]]:
        """Returns the options of a weight other than 0, with their weights."""
        pairs = zip(options, self._weights, self._values, strict=True)
        return [(option, weight) for option, weight, value in pairs if value]

    def total(self, terms: Iterable[Tensor]) -> Tensor:
        """Returns the sum of the terms, and of weights 0 that need a gradient."""
        unused = [w for w, value in zip(self._weights, self._values, strict=True) if not value and w.requires_grad]
        return added([*terms, *unused])


def mix(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Selects mixtures by label, in the whole network, for all later forward passes.

    An `InputChoice` without weights adds all its inputs.

    Raises:
        ConfigurationError: weights are missing for a `LayerChoice`, or have another number of options.
    """
    for choice in network.modules():
        if isinstance(choice, InputChoice):
            choice.mix(weights.get(choice.label))
        elif isinstance(choice, LayerChoice):
            if choice.label not in weights:
                raise ConfigurationError(f"weights: must have {choice.label!r}, the label of a LayerChoice.")
            choice.mix(weights[choice.label])


def choices_of(network: nn.Module) -> dict[str, AnyChoice]:
    """Returns the first choice of each label that has a decision, in module order."""
    found: dict[str, AnyChoice] = {}
    for module in network.modules():
        if isinstance(module, LayerChoice | InputChoice) and module.decisions():
            found.setdefault(module.label, module)
    return found


def added(tensors: Iterable[Tensor]) -> Tensor:
    """Returns the sum of one tensor or more, from the first to the last."""
    return reduce(torch.add, tensors)


def _selection(selected: Any, label: str) -> Any:
    if selected is None:
        raise ConfigurationError(
            f"choice {label!r}: must be selected before a forward pass. Call select(network, point)."
        )
    return selected
