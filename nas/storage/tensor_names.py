"""Names of published tensors: the network's, without those of wrappers, and its optimizer's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

OPTIMIZER = "optimizer/"
"""Prefix of the optimizer's tensors, as in ``optimizer/exp_avg/conv.weight``."""


def weight_name(name: str) -> str:
    """Returns the name of the weight that a tensor is, or whose state it is."""
    return name if is_weight(name) else name.removeprefix(OPTIMIZER).partition("/")[2]


def is_weight(name: str) -> bool:
    """Returns whether a tensor of this name belongs to the network."""
    return not name.startswith(OPTIMIZER)


def unwrapped(model: nn.Module) -> nn.Module:
    """Returns the network inside ``torch.compile``, ``DataParallel`` and ``DistributedDataParallel``.

    They put a prefix before the names of all tensors, and torch can't export them.
    """
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    while True:
        inner = model.module if isinstance(model, DataParallel | DistributedDataParallel) else model
        inner = getattr(inner, "_orig_mod", inner)  # of torch.compile; its class takes a second to import
        if inner is model:
            return model
        model = inner
