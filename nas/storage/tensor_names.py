"""Which of a trial's published tensors are weights, and which are its optimizer's."""

from __future__ import annotations

OPTIMIZER = "optimizer/"
"""What the names of an optimizer's tensors begin with: ``optimizer/exp_avg/conv.weight``."""


def is_weight(name: str) -> bool:
    """Returns whether a published tensor of this name belongs to the network."""
    return not name.startswith(OPTIMIZER)
