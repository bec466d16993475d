"""A causal transformer of torch's own layers that predicts the next symbol of a text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_INITIAL_STD = 0.02  # of GPT-2's embeddings; a tied head of torch's default would start at a loss of hundreds


class LanguageModel(nn.Module):
    """Embeddings, pre-norm blocks of attention and MLP, and a head that shares the embedding's weights.

    Layers are named ``embed``, ``positions``, ``layers.0`` and so on, ``norm`` and ``head``. A block is a
    ``nn.TransformerEncoderLayer`` with a causal mask and without dropout.

    Args:
        n_symbols: The number of different symbols.
        n_layers: The number of blocks.
        n_heads: The attention heads of each block.
        width: The size of a symbol's vector; a multiple of ``n_heads``.
        mlp_ratio: The MLP's hidden size, as a multiple of ``width``.
        context: The greatest length of a text.
        vocabulary: The digest of the symbols (`nas.inheritance.vocabularies`). A child with another one gets new
            embeddings. None: every child gets them by row.
    """

    vocabulary_tensors = ("embed.weight",)

    def __init__(
        self,
        n_symbols: int,
        n_layers: int,
        n_heads: int,
        width: int,
        mlp_ratio: float = 4,
        context: int = 64,
        *,
        vocabulary: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("vocabulary", vocabulary)
        self.embed = nn.Embedding(n_symbols, width)
        self.positions = nn.Embedding(context, width)
        self.layers = nn.ModuleList(_block(width, n_heads, round(mlp_ratio * width)) for _ in range(n_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, n_symbols, bias=False)
        for embedding in (self.embed, self.positions):
            nn.init.normal_(embedding.weight, std=_INITIAL_STD)
        self.head.weight = self.embed.weight

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Loads weights; those of earlier versions have no vocabulary."""
        if self.vocabulary is not None:
            state_dict.setdefault(f"{prefix}vocabulary", self.vocabulary)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def forward(self, symbols: Tensor) -> Tensor:
        """Returns logits ``(batch, length, n_symbols)`` of the symbol after each of ``(batch, length)``."""
        length = symbols.shape[1]
        x = self.embed(symbols) + self.positions(torch.arange(length, device=symbols.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length, symbols.device, x.dtype)
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _block(width: int, n_heads: int, hidden: int) -> nn.TransformerEncoderLayer:
    """Returns a pre-norm block without dropout."""
    return nn.TransformerEncoderLayer(
        width, n_heads, hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
