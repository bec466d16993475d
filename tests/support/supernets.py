"""Small networks with choices, for tests of supernets."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from nas.supernets.cell import Cell, ConcatCell
from nas.supernets.operations import DARTS, Halve, Operations

SIDE = 8


class CellNetwork(nn.Module):
    """Two cells with the same decisions, and a reduction between them: ``(batch, 1, 8, 8)`` to ``(batch, 3)``."""

    def __init__(self, operations: Operations | None = None, n_channels: int = 4, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        operations = operations or Operations()
        self.stem = nn.Conv2d(1, n_channels, 3, padding=1)
        self.first = Cell(4, partial(operations.all, n_channels))
        self.halve = Halve()
        self.second = Cell(4, partial(operations.all, 2 * n_channels))
        self.head = nn.Linear(2 * n_channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.halve(self.first(self.stem(x))))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


class ConcatNetwork(nn.Module):
    """A normal and a reduction cell in the style of DARTS: ``(batch, 1, 8, 8)`` to ``(batch, 3)``."""

    def __init__(self, operations: Operations | None = None, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        operations = operations or Operations(names=DARTS)
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.normal = ConcatCell(2, partial(operations.all, 4), label="normal")
        self.between = nn.Conv2d(8, 4, 1)
        self.reduction = ConcatCell(2, partial(operations.all, 4), label="reduce", reduces=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.reduction(x, self.between(self.normal(x, x)))
        logits: Tensor = self.head(y.mean((2, 3)))
        return logits


def images(n: int = 6, seed: int = 1) -> Tensor:
    """Returns random images ``(n, 1, 8, 8)``."""
    return torch.randn(n, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
