"""Moves: random operations on networks, for searches."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from nas.core.errors import PointError
from nas.spaces.graphs.branching import Branch, Merge, Split
from nas.spaces.graphs.inserting import InsertActivation, InsertBlock, InsertResidual
from nas.spaces.graphs.layers import Add, Concat, Conv, Linear, Norm
from nas.spaces.graphs.limits import Limits
from nas.spaces.graphs.network import INPUT, Network, Node
from nas.spaces.graphs.operation import Operation, size_of
from nas.spaces.graphs.removing import Disconnect, Remove
from nas.spaces.graphs.resizing import GrowKernel, Narrow, ShrinkKernel, Widen
from nas.spaces.graphs.rewiring import is_never_negative
from nas.spaces.graphs.skipping import AddSkip, ConcatSkip
from nas.spaces.graphs.striding import DelayStride, FuseStride

NOISE = 0.5
"""The difference between copies, and between branches; with 0 they would stay equal."""
_FACTORS = (1.25, 1.5, 2.0)
_STEP = 4
_SEEDS = 2**31


class Move(NamedTuple):
    """An operation, and the network that it makes."""

    operation: Operation
    network: Network


Draw: TypeAlias = Callable[[Network, random.Random], Iterable[Operation]]
"""Returns candidate operations in random order; the first valid one within the limits is used."""


def draw_move(network: Network, kinds: Sequence[str], limits: Limits, rng: random.Random) -> Move | None:
    """Returns a random move, or None if no move of these kinds is possible.

    Each kind has the same probability, and within it each possible operation.

    Args:
        network: The parent.
        kinds: Names in ``MOVES``.
        limits: Limits that the child must keep.
        rng: The random generator.
    """
    for kind in rng.sample(list(kinds), len(kinds)):
        for operation in MOVES[kind](network, rng):
            try:
                child = operation.apply(network)
            except PointError:
                continue
            if limits.refusal(child) is None:
                return Move(operation, child)
    return None


def _widen(network: Network, rng: random.Random) -> Iterator[Operation]:
    for node in _weighted(network, rng):
        size = _rounded(size_of(node) * rng.choice(_FACTORS), up=True)
        yield Widen(node.id, size, NOISE, rng.randrange(_SEEDS))


def _narrow(network: Network, rng: random.Random) -> Iterator[Operation]:
    for node in _weighted(network, rng):
        yield Narrow(node.id, _rounded(size_of(node) / rng.choice(_FACTORS), up=False))


def _deepen(network: Network, rng: random.Random) -> Iterator[Operation]:
    has_norm = any(isinstance(node.layer, Norm) for node in network.nodes)
    for after in _places(network, rng):
        yield InsertBlock(after, rng.choice((1, 3, 3)), has_norm)


def _residual(network: Network, rng: random.Random) -> Iterator[Operation]:
    for after in _places(network, rng):
        yield InsertResidual(after, rng.choice((3, 3, 5)), rng.randrange(_SEEDS))


def _grow_kernel(network: Network, rng: random.Random) -> Iterator[Operation]:
    for node in _weighted(network, rng):
        if isinstance(node.layer, Conv):
            yield GrowKernel(node.id, node.layer.kernel + 2)


def _shrink_kernel(network: Network, rng: random.Random) -> Iterator[Operation]:
    for node in _weighted(network, rng):
        if isinstance(node.layer, Conv):
            yield ShrinkKernel(node.id, node.layer.kernel - 2)


def _add_skip(network: Network, rng: random.Random) -> Iterator[Operation]:
    for source, target in _pairs(network, rng):
        yield AddSkip(source, target)


def _concat_skip(network: Network, rng: random.Random) -> Iterator[Operation]:
    for source, target in _pairs(network, rng):
        yield ConcatSkip(source, target)


def _activation(network: Network, rng: random.Random) -> Iterator[Operation]:
    for after in _places(network, rng):
        if not is_never_negative(network, after):
            yield InsertActivation(after, "prelu")


def _branch(network: Network, rng: random.Random) -> Iterator[Operation]:
    for node in _weighted(network, rng):
        yield Branch(node.id, NOISE, rng.randrange(_SEEDS))


def _split(network: Network, rng: random.Random) -> Iterator[Operation]:
    for node in _weighted(network, rng):
        yield Split(node.id, size_of(node) // 2)


def _merge(network: Network, rng: random.Random) -> Iterator[Operation]:
    joins = [node for node in network.nodes if isinstance(node.layer, Add | Concat)]
    for join in rng.sample(joins, len(joins)):
        for first, second in zip(join.inputs, join.inputs[1:], strict=False):
            yield Merge(first, second)


def _delay_stride(network: Network, rng: random.Random) -> Iterator[Operation]:
    for node in _weighted(network, rng):
        yield DelayStride(node.id)


def _fuse_stride(network: Network, rng: random.Random) -> Iterator[Operation]:
    for node in _weighted(network, rng):
        yield FuseStride(node.id)


def _remove(network: Network, rng: random.Random) -> Iterator[Operation]:
    for node in rng.sample(network.nodes, len(network.nodes)):
        yield Remove(node.id)


def _disconnect(network: Network, rng: random.Random) -> Iterator[Operation]:
    edges = [(node.id, source) for node in network.nodes if node.layer.joins for source in node.inputs]
    for join, source in rng.sample(edges, len(edges)):
        yield Disconnect(join, source)


MOVES: dict[str, Draw] = {
    "widen": _widen,
    "narrow": _narrow,
    "deepen": _deepen,
    "residual": _residual,
    "grow_kernel": _grow_kernel,
    "shrink_kernel": _shrink_kernel,
    "add_skip": _add_skip,
    "concat_skip": _concat_skip,
    "activation": _activation,
    "branch": _branch,
    "split": _split,
    "merge": _merge,
    "delay_stride": _delay_stride,
    "fuse_stride": _fuse_stride,
    "remove": _remove,
    "disconnect": _disconnect,
}


def _weighted(network: Network, rng: random.Random) -> list[Node]:
    """Returns the convolutions and linear layers in a random order."""
    nodes = [node for node in network.nodes if isinstance(node.layer, Conv | Linear)]
    return rng.sample(nodes, len(nodes))


def _places(network: Network, rng: random.Random) -> list[int]:
    """Returns the nodes after which layers can be inserted, in random order.

    The input is the last one, if no layer before the output has weights. Near a limit of FLOPs little else would fit
    than narrow layers on the input, which are slow and learn little.
    """
    inner = network.nodes[:-1]
    places = rng.sample([node.id for node in inner], len(inner))
    weighted = Conv if len(network.input_shape) == 3 else Linear
    return places if any(isinstance(node.layer, weighted) for node in inner) else [*places, INPUT]


def _pairs(network: Network, rng: random.Random) -> Iterator[tuple[int, int]]:
    """Yields pairs of nodes, the earlier one first, in random order, without the output."""
    ids = [node.id for node in network.nodes[:-1]]
    pairs = [(source, target) for place, target in enumerate(ids) for source in ids[:place]]
    return iter(rng.sample(pairs, len(pairs)))


def _rounded(size: float, *, up: bool) -> int:
    """Returns a multiple of four from eight on, else a whole number."""
    step = _STEP if size >= 2 * _STEP else 1
    return step * (math.ceil(size / step) if up else math.floor(size / step))
