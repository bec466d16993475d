"""The edit distance of two networks, on their canonical forms: how similar they are.

After the distance of Auto-Keras (Jin et al. 2019, arXiv:1806.10282, section 3.1). That one aligns layers by dynamic
programming, aligns skips by the Hungarian method, and adds both. Differs: the length of a skip is an attribute of its
target layer, so that one alignment of layers is enough. A weighted Levenshtein distance is a metric if its costs
are: symmetric, 0 only for equal canonical forms, with the triangle inequality. Input shapes do not count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

from nas.spaces.graphs.canonical import canonical_form
from nas.spaces.graphs.network import Network

_NUMBER = re.compile(r"\d+")


class Step(NamedTuple):
    """A layer in the canonical order, with the distances to its inputs; 1: the layer before."""

    layer: str
    reaches: tuple[int, ...]


Steps: TypeAlias = tuple[Step, ...]


def steps_of(network: Network) -> Steps:
    """Returns the steps to align; keep them if a network is compared with many."""
    form = canonical_form(network)
    return tuple(
        Step(layer, tuple([place - source for source in inputs])) for place, (layer, inputs) in enumerate(form)
    )


def edit_distance(first: Network | Steps, second: Network | Steps) -> float:
    """Returns the least sum of edits that turns one network into the other.

    A new, removed or other layer costs 1. Numbers in layers of one kind (channels, kernel, length of a skip) count by
    their ratio, at most 1 per layer. For example, 32 instead of 48 channels are a third of an edit. Any other different
    attribute, such as a bias or the kind of a pool, counts as another layer.
    """
    one = steps_of(first) if isinstance(first, Network) else first
    other = steps_of(second) if isinstance(second, Network) else second
    return _aligned(one, other)


def _aligned(one: Sequence[Step], other: Sequence[Step]) -> float:
    """Returns the weighted Levenshtein distance, row by row."""
    start = 0
    end = 0
    while start < min(len(one), len(other)) and one[start] == other[start]:
        start += 1
    while end < min(len(one), len(other)) - start and one[-1 - end] == other[-1 - end]:
        end += 1
    one, other = one[start : len(one) - end], other[start : len(other) - end]
    row = [float(n) for n in range(len(other) + 1)]
    for place, step in enumerate(one, 1):
        diagonal, row[0] = row[0], float(place)
        left = row[0]
        for column, against in enumerate(other, 1):
            above = row[column]
            least = diagonal if step == against else diagonal + _cost(step, against)
            if above + 1.0 < least:
                least = above + 1.0
            if left + 1.0 < least:
                least = left + 1.0
            diagonal, left = above, least
            row[column] = least
    return row[-1]


@lru_cache(maxsize=1 << 17)
def _cost(one: Step, other: Step) -> float:
    """Returns the cost of replacing a step, from 0 to 1."""
    kind, numbers = _parsed(one.layer)
    other_kind, other_numbers = _parsed(other.layer)
    if kind != other_kind:
        return 1.0
    attributes = sum(_apart(a, b) for a, b in zip(numbers, other_numbers, strict=True))
    reaches = sum(_apart(a, b) for a, b in zip_longest(one.reaches, other.reaches, fillvalue=0))
    return min(1.0, attributes + reaches)


@lru_cache(maxsize=1 << 16)
def _parsed(layer: str) -> tuple[str, tuple[int, ...]]:
    """Returns the text of a layer without its numbers, and the numbers."""
    return _NUMBER.sub("", layer), tuple(map(int, _NUMBER.findall(layer)))


def _apart(a: int, b: int) -> float:
    """Returns the difference divided by the greater number: a metric on numbers from 0."""
    return abs(a - b) / max(a, b) if a != b else 0.0
