"""Elastic depth and attention heads: the first layers of a chain, the first heads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import final

from torch import Tensor, nn
from torch.nn import functional

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.supernets.elastic import ElasticModule
from nas.supernets.elastic_layers import ElasticLinear
from nas.supernets.module import subnet
from nas.supernets.sizes import Elastic, Size


@final
class ElasticDepth(nn.Sequential, ElasticModule):
    """A chain of layers of which the first run.

    The layers may have decisions of their own. A point also decides for those that do not run.

    Args:
        depth: The number of layers that run.
        layers: As many layers as the largest depth. All must return what the next one takes, and the same shapes.

    Raises:
        ConfigurationError: the number of layers is another one.
    """

    def __init__(self, depth: Elastic, layers: Iterable[nn.Module]) -> None:
        super().__init__(*layers)
        _check_depth(self, depth)
        self.declare({"depth": depth})

    def forward(self, input: Tensor) -> Tensor:
        """Returns the output of the last layer that runs."""
        for layer in islice(self, self._chosen["depth"]):
            input = layer(input)
        return input

    def subnet(self, point: Point) -> nn.Sequential:
        """Returns the chain of the point's layers, each as its own subnet."""
        layers = islice(self, self.sizes_at(point)["depth"])
        return nn.Sequential(*(subnet(layer, point) for layer in layers)).train(self.training)


@final
class ElasticModuleList(nn.ModuleList, ElasticModule):
    """A list of layers that has as many as the chosen depth.

    It is for networks that call layers themselves, with masks for example.

    Args:
        depth: The number of layers that run.
        layers: As many layers as the largest depth.

    Raises:
        ConfigurationError: the number of layers is another one.
    """

    def __init__(self, depth: Elastic, layers: Iterable[nn.Module]) -> None:
        super().__init__(layers)
        _check_depth(self, depth)
        self.declare({"depth": depth})

    def __iter__(self) -> Iterator[nn.Module]:
        return islice(super().__iter__(), self._chosen["depth"])

    def __len__(self) -> int:
        return self._chosen["depth"] if "_chosen" in vars(self) else super().__len__()

    def __getitem__(self, index: int | slice) -> nn.Module:  # type: ignore[override]
        layers = list(self)
        return nn.ModuleList(layers[index]) if isinstance(index, slice) else layers[index]

    def subnet(self, point: Point) -> nn.ModuleList:
        """Returns the list of the point's layers, each as its own subnet."""
        layers = islice(super().__iter__(), self.sizes_at(point)["depth"])
        return nn.ModuleList(subnet(layer, point) for layer in layers).train(self.training)


@final
class ElasticAttention(nn.Module):
    """Self-attention of elastic width and an elastic number of heads. Inputs are ``(batch, tokens, width)``.

    Its projections hold the decisions. The first heads are the first features of queries, keys and values.

    Args:
        width: The width of inputs and outputs.
        n_heads: The number of heads.
        head_width: The width of a head.
        bias: Whether projections add a bias.
        is_causal: Whether a token sees only itself and earlier ones.
    """

    def __init__(
        self, width: Size, n_heads: Size, head_width: int, *, bias: bool = True, is_causal: bool = False
    ) -> None:
        super().__init__()
        inside = n_heads * head_width if isinstance(n_heads, int) else n_heads.times(head_width)
        self.query = ElasticLinear(width, inside, bias=bias)
        self.key = ElasticLinear(width, inside, bias=bias)
        self.value = ElasticLinear(width, inside, bias=bias)
        self.out = ElasticLinear(inside, width, bias=bias)
        self.head_width, self.is_causal = head_width, is_causal

    def forward(self, x: Tensor) -> Tensor:
        """Returns the attended values, projected to the width of the input."""
        queries, keys, values = (
            project(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)  # (batch, heads, tokens, head_width)
            for project in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_causal=self.is_causal)
        projected: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return projected


def _check_depth(layers: nn.Sequential | nn.ModuleList, depth: Elastic) -> None:
    """Checks that there are as many layers as the largest depth."""
    if len(layers) != depth.largest:
        raise ConfigurationError(
            f"{type(layers).__name__}: {len(layers)} layers: must be {depth.largest}, the largest size of "
            f"{depth.label!r}. Add or remove layers."
        )
