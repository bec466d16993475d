"""The layers that two networks share, by their signatures (`nas.storage.signature`)."""

from __future__ import annotations

from nas.core.checkpoint import LETTERS
from nas.storage.signature import Signature


def common_prefix(wanted: Signature, donor: str) -> int:
    """Returns the number of layers, from the first on, that are equal in both networks."""
    return sum(wanted.lengths[: n_common_digests(wanted.text, donor)])


def n_common_digests(text: str, other: str) -> int:
    """Returns the number of equal digests at the beginning of two signature texts."""
    low, high = 0, min(len(text), len(other)) // LETTERS
    while low < high:
        middle = (low + high + 1) // 2
        if text[: middle * LETTERS] == other[: middle * LETTERS]:
            low = middle
        else:
            high = middle - 1
    return low
