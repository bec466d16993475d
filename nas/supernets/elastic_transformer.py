"""Transformer blocks of elastic width, heads and MLP (Wang et al. 2020, arXiv:2005.14187).

>>> heads, head_width = Elastic("heads", (2, 4)), Elastic("head_width", (8, 16))
>>> width = ElasticProduct((heads, head_width))
>>> block = ElasticTransformerEncoderLayer(width, heads, width.times(4), norm_first=True)

A smaller block has the first heads of queries, keys and values, and the first features of each. Differs from the paper:
the heads have the width of the block together, as in torch's own layer, which a subnet is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.supernets.elastic import ElasticModule, part_of, with_copies
from nas.supernets.sizes import Size, all_sizes, largest

Activation = str | Callable[[Tensor], Tensor]


@final
class ElasticTransformerEncoderLayer(nn.TransformerEncoderLayer, ElasticModule):
    """A transformer block of elastic width. Inputs are ``(batch, tokens, width)``.

    Args:
        d_model: The width of inputs and outputs.
        nhead: The number of heads, a divisor of the width. A head must not be wider than in the largest block.
        dim_feedforward: The width of the MLP.
        dropout: The share of features that training drops.
        activation: The activation of the MLP.
        norm_first: Whether norms come before attention and MLP instead of after them.

    Raises:
        ConfigurationError: an argument is no size, heads do not fit the width, or they are wider than in the largest.
    """

    def __init__(
        self,
        d_model: Size,
        nhead: Size,
        dim_feedforward: Size,
        *,
        dropout: float = 0.1,
        activation: Activation = "relu",
        norm_first: bool = False,
    ) -> None:
        _check_heads(d_model, nhead)
        sizes = largest(d_model), largest(nhead), largest(dim_feedforward, "dim_feedforward")
        super().__init__(*sizes, dropout, activation, batch_first=True, norm_first=norm_first)
        self._make = partial(
            nn.TransformerEncoderLayer,
            dropout=dropout, activation=activation, batch_first=True, norm_first=norm_first, device="meta",
        )  # fmt: skip
        self._empty: dict[tuple[int, ...], nn.TransformerEncoderLayer] = {}
        self.declare({"width": d_model, "heads": nhead, "hidden": dim_feedforward})

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Returns the outputs of torch's block of the chosen sizes, with parts of these tensors."""
        sizes = self._chosen["width"], self._chosen["heads"], self._chosen["hidden"]
        if sizes not in self._empty:
            self._empty[sizes] = self._make(*sizes)
        found: Tensor = functional_call(
            self._empty[sizes].train(self.training),
            self._parts(*sizes),
            (src, src_mask, src_key_padding_mask),
            {"is_causal": is_causal},
        )
        return found

    def subnet(self, point: Point) -> nn.TransformerEncoderLayer:
        """Returns torch's block of the point's sizes."""
        chosen = self.sizes_at(point)
        sizes = chosen["width"], chosen["heads"], chosen["hidden"]
        return with_copies(self._make(*sizes), self, self._parts(*sizes))

    def _parts(self, width: int, n_heads: int, hidden: int) -> dict[str, Tensor]:
        """Returns the part of each tensor: a view, or a copy in the attention."""
        shapes = {"linear1.weight": (hidden, width), "linear1.bias": (hidden,), "linear2.weight": (width, hidden)}
        by_head = {
            "self_attn.in_proj_weight": self._projections(self.self_attn.in_proj_weight, width, n_heads)[:, :width],
            "self_attn.in_proj_bias": self._projections(self.self_attn.in_proj_bias, width, n_heads),
            "self_attn.out_proj.weight": self._heads(self.self_attn.out_proj.weight, 1, width, n_heads)[:width],
        }
        return {
            name: by_head[name] if name in by_head else part_of(tensor, shapes.get(name, (width,)))
            for name, tensor in self.named_parameters()
        }

    def _projections(self, tensor: Tensor, width: int, n_heads: int) -> Tensor:
        """Returns the rows of the first heads in queries, keys and values."""
        return torch.cat([self._heads(part, 0, width, n_heads) for part in tensor.chunk(3)])

    def _heads(self, tensor: Tensor, dim: int, width: int, n_heads: int) -> Tensor:
        """Returns the first features of the first heads of this dimension."""
        heads = tensor.transpose(0, dim).reshape(self.self_attn.num_heads, self.self_attn.head_dim, -1)
        chosen = heads[:n_heads, : width // n_heads].reshape(width, *tensor.transpose(0, dim).shape[1:])
        return chosen.transpose(0, dim)


def _check_heads(d_model: Size, nhead: Size) -> None:
    """Checks that heads fit into all widths, and into the heads of the largest."""
    widest = largest(d_model, "d_model") // largest(nhead, "nhead")
    for width, n_heads in all_sizes(d_model, nhead):
        if width % n_heads or width // n_heads > widest:
            raise ConfigurationError(
                f"ElasticTransformerEncoderLayer: d_model={width}, nhead={n_heads}: must have heads of at most "
                f"{widest} features, as in the largest. Give nhead.times(HEAD_WIDTH) or an ElasticProduct as d_model."
            )
