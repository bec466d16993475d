"""The distribution of a machine's GPUs over slots."""

from __future__ import annotations

import math
from collections.abc import Sequence

_ROUNDING = 1e-6


def slots_of_gpus(n_gpus: int, gpus_per_trial: float) -> int:
    """Returns the number of trials that ``n_gpus`` GPUs hold at a time."""
    if gpus_per_trial >= 1:
        return n_gpus // math.ceil(gpus_per_trial)
    return n_gpus * math.floor(1 / gpus_per_trial + _ROUNDING)


def gpus_of_slot(gpus: Sequence[int], slot: int, gpus_per_trial: float) -> Sequence[int]:
    """Returns the GPUs of a slot: consecutive ones, or one that slots may share."""
    width = max(1, math.ceil(gpus_per_trial))
    first = slot % (len(gpus) // width) * width
    return gpus[first : first + width]


def share_of_slots(n_gpus: int, slots: int) -> float:
    """Returns 1, or the share of a GPU that each slot gets if slots outnumber GPUs."""
    return 1.0 if slots <= n_gpus else 1 / math.ceil(slots / n_gpus)
