"""Names of published tensors: the network's and its optimizer's."""

from __future__ import annotations

OPTIMIZER = "optimizer/"
"""Prefix of the optimizer's tensors, as in ``optimizer/exp_avg/conv.weight``."""


def weight_name(name: str) -> str:
    """Returns the name of the weight that a tensor is, or whose state it is."""
    return name if is_weight(name) else name.removeprefix(OPTIMIZER).partition("/")[2]


def is_weight(name: str) -> bool:
    """Returns whether a tensor of this name belongs to the network."""
    return not name.startswith(OPTIMIZER)
