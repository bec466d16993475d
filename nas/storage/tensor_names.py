"""Which of a trial's published tensors are weights, and which are its optimiser's."""

from __future__ import annotations

OPTIMIZER = "optimizer/"
"""What the names of an optimiser's tensors begin with: ``optimizer/exp_avg/conv.weight``."""


def is_weight(name: str) -> bool:
    """Whether a published tensor of this name belongs to the network."""
    return not name.startswith(OPTIMIZER)
