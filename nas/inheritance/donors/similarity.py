"""Measures of how similar two networks are, by their signatures (`nas.storage.signature`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from nas.core.checkpoint import LETTERS
from nas.storage.signature import Signature

Measure: TypeAlias = Callable[[Signature, str], float]
"""Returns how much a new network shares with a donor, given the text of its signature."""


def common_prefix(wanted: Signature, donor: str) -> float:
    """Returns the number of layers, from the first on, that are equal in both networks."""
    return float(sum(wanted.lengths[: n_common_digests(wanted.text, donor)]))


def common_layers(wanted: Signature, donor: str) -> float:
    """Returns the share of the new network's elements in layers that the donor has too.

    Positions do not count. ``inherit`` copies these layers whole, and slices others.
    """
    donor_digests = {*_digests(donor)}
    pairs = zip(_digests(wanted.text), wanted.sizes, strict=True)
    shared = sum(size for digest, size in pairs if digest in donor_digests)
    return shared / (sum(wanted.sizes) or 1)


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


def _digests(text: str) -> Iterator[str]:
    return (text[at : at + LETTERS] for at in range(0, len(text), LETTERS))
