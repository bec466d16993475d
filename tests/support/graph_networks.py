"""Networks for tests: small ones to start from, and what random moves make of them."""

from __future__ import annotations

import random

from hypothesis import strategies as st

from nas.spaces.graphs.layers import Conv, GlobalPool, Linear, Norm
from nas.spaces.graphs.limits import Limits
from nas.spaces.graphs.moves import MOVES, draw_move
from nas.spaces.graphs.network import INPUT, Network, Node
from nas.spaces.graphs.operation import Operation
from nas.spaces.graphs.starts import mlp, nas_bench_201, plain_cnn, resnet

SHAPE = (2, 8, 8)
CELL = "|nor_conv_3x3~0|+|none~0|skip_connect~1|+|skip_connect~0|skip_connect~1|avg_pool_3x3~2|"
STARTS = (
    plain_cnn(SHAPE, 3, widths=[4, 6], pool_after=[0]),
    resnet(SHAPE, 3, widths=[4, 6], depth=1),
    nas_bench_201(SHAPE, 3, cell=CELL, widths=[4, 6]),
    mlp((5,), 3, widths=[4, 6]),
)
LIMITS = Limits(nodes=80, size=24)
SHRINKING = ("narrow", "shrink_kernel", "remove", "disconnect")
MORPHISMS = tuple(name for name in MOVES if name not in SHRINKING)


def walk(seed: int, n_moves: int, kinds: tuple[str, ...] = tuple(MOVES)) -> tuple[Network, list[Operation]]:
    """A start, and the operations of so many random moves from it."""
    rng = random.Random(seed)
    start = network = rng.choice(STARTS)
    operations: list[Operation] = []
    for _ in range(n_moves):
        move = draw_move(network, kinds, LIMITS, rng)
        if move is None:
            break
        operations.append(move.operation)
        network = move.network
    return start, operations


def grown(seed: int, n_moves: int = 6) -> Network:
    """Returns a random start after so many random moves."""
    network, operations = walk(seed, n_moves)
    for operation in operations:
        network = operation.apply(network)
    return network


def small() -> Network:
    """The input's two channels, 3 by a convolution, normalized, averaged, made into 2 outputs."""
    layers = (Conv(3, 3, 1, False), Norm(), GlobalPool(), Linear(2))
    return Network((2, 4, 4), tuple(Node(id, layer, (id - 1,)) for id, layer in enumerate(layers, INPUT + 1)))


seeds = st.integers(0, 2**32)
networks = st.builds(grown, seeds, st.integers(0, 8))
