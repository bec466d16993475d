"""Start networks: plain CNN, MLP, residual network, and networks of repeated cells."""

from __future__ import annotations

import re
from collections.abc import Sequence

from nas.core.errors import ConfigurationError
from nas.core.validation import check_int
from nas.spaces.graphs.layers import Activation, Add, Conv, GlobalPool, Layer, Linear, Norm, Pool, Shape
from nas.spaces.graphs.network import INPUT, Network, Node
from nas.spaces.graphs.rewiring import pruned

CELL_OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
_CELL = re.compile(r"\|([^|~+]+)~0\|\+\|([^|~+]+)~0\|([^|~+]+)~1\|\+\|([^|~+]+)~0\|([^|~+]+)~1\|([^|~+]+)~2\|")


def plain_cnn(input_shape: Shape, n_outputs: int, *, widths: Sequence[int], pool_after: Sequence[int]) -> Network:
    """Returns a chain of blocks (convolution 3x3, norm, relu), a global pool and a linear layer.

    Args:
        input_shape: ``(channels, height, width)``.
        n_outputs: The features of the linear layer.
        widths: The channels of each block.
        pool_after: The blocks (from 0) before a 2x2 max-pool.

    Raises:
        ConfigurationError: there is no width, or ``pool_after`` names a missing block.
    """
    _check_sizes("widths", widths)
    if wrong := [block for block in pool_after if block not in range(len(widths))]:
        last = len(widths) - 1
        raise ConfigurationError(f"pool_after={list(pool_after)}: names {wrong[0]}. Choose from 0 to {last}.")
    builder = _Builder()
    x = INPUT
    for block, width in enumerate(widths):
        x = builder.block(x, width)
        if block in pool_after:
            x = builder.put(Pool("max", 2, 2), x)
    return builder.finished(x, input_shape, n_outputs)


def mlp(input_shape: Shape, n_outputs: int, *, widths: Sequence[int]) -> Network:
    """Returns linear layers with a relu each, and a last one without.

    Args:
        input_shape: ``(features,)``.
        n_outputs: The features of the last layer.
        widths: The features of the other layers; may be empty.
    """
    _check_sizes("widths", widths, least=0)
    builder = _Builder()
    x = INPUT
    for width in widths:
        x = builder.put(Activation("relu"), builder.put(Linear(width), x))
    builder.put(Linear(n_outputs), x)
    return Network(input_shape, tuple(builder.nodes))


def resnet(input_shape: Shape, n_outputs: int, *, widths: Sequence[int], depth: int = 1) -> Network:
    """Returns a convolution and stages of residual units (He et al. 2016, arXiv:1512.03385).

    All stages but the first halve the image.

    Args:
        input_shape: ``(channels, height, width)``.
        n_outputs: The features of the last linear layer.
        widths: The channels of each stage.
        depth: Units a stage.

    Raises:
        ConfigurationError: there is no width, or no unit.
    """
    check_int("depth", depth, 1)
    _check_sizes("widths", widths)
    builder = _Builder()
    x, before = builder.block(INPUT, widths[0]), widths[0]
    for stage, width in enumerate(widths):
        for unit in range(depth):
            x = builder.unit(x, width, stride=2 if stage and not unit else 1, n_inputs=before)
            before = width
    return builder.finished(x, input_shape, n_outputs)


def nas_bench_201(input_shape: Shape, n_outputs: int, *, cell: str, widths: Sequence[int], n_cells: int = 1) -> Network:
    """Returns a network of NAS-Bench-201 (Dong and Yang 2020, arXiv:2001.00326): stages of one cell.

    A residual block between stages halves the image. Nodes that a ``none`` cuts off are left out, which does not change
    the function. Published: widths of 16, 32, 64 and 5 cells.

    Args:
        input_shape: ``(channels, height, width)``.
        n_outputs: The features of the last linear layer.
        cell: The cell in its published notation: ``|nor_conv_3x3~0|+|none~0|skip_connect~1|+|...~0|...~1|...~2|``.
        widths: The channels of each stage.
        n_cells: Cells a stage.

    Raises:
        ConfigurationError: the cell is invalid or has no path; or a side of the image can't be halved often enough.
    """
    check_int("n_cells", n_cells, 1)
    _check_sizes("widths", widths)
    parts = 2 ** (len(widths) - 1)
    if wrong := [side for side in input_shape[1:] if side % parts]:
        raise ConfigurationError(
            f"input_shape={input_shape}: {wrong[0]} must be a multiple of {parts}, as {len(widths) - 1} of "
            f"{len(widths)} stages halve the image. Give other sides or fewer widths."
        )
    operations = _parsed(cell)
    builder = _Builder()
    x = builder.put(Norm(), builder.put(Conv(widths[0], 3, 1, False), INPUT))
    for stage, width in enumerate(widths):
        if stage:
            x = builder.reduction(x, width)
        for _ in range(n_cells):
            x = builder.cell(x, width, operations)
    x = builder.put(Activation("relu"), builder.put(Norm(), x))
    return builder.finished(x, input_shape, n_outputs)


class _Builder:
    """Builds a network node by node."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def put(self, layer: Layer, *inputs: int) -> int:
        self.nodes.append(Node(len(self.nodes) + 1, layer, inputs))
        return len(self.nodes)

    def block(self, x: int, width: int, *, stride: int = 1) -> int:
        normed = self.put(Norm(), self.put(Conv(width, 3, stride, False), x))
        return self.put(Activation("relu"), normed)

    def unit(self, x: int, width: int, *, stride: int, n_inputs: int) -> int:
        inner = self.put(Norm(), self.put(Conv(width, 3, 1, False), self.block(x, width, stride=stride)))
        if stride > 1 or width != n_inputs:
            x = self.put(Norm(), self.put(Conv(width, 1, stride, False), x))
        return self.put(Activation("relu"), self.put(Add(), x, inner))

    def cell(self, x: int, width: int, operations: Sequence[Sequence[str]]) -> int:
        values: list[int | None] = [x]
        for row in operations:
            paths: list[int] = []
            for source, operation in zip(values, row, strict=True):
                if source is not None and operation != "none":
                    path = self._edge(source, operation, width)
                    paths.append(path if path not in paths else self.put(Pool("max", 1, 1), path))  # x + x
            values.append(None if not paths else paths[0] if len(paths) == 1 else self.put(Add(), *paths))
        if values[-1] is None:
            raise ConfigurationError("cell: it has no path, since none cuts them all. Choose another.")
        return values[-1]

    def reduction(self, x: int, width: int) -> int:
        inner = self._edge(self._relu_conv(x, width, kernel=3, stride=2), "nor_conv_3x3", width)
        return self.put(Add(), self.put(Conv(width, 1, 1, False), self.put(Pool("mean", 2, 2), x)), inner)

    def _relu_conv(self, x: int, width: int, *, kernel: int, stride: int = 1) -> int:
        return self.put(Norm(), self.put(Conv(width, kernel, stride, False), self.put(Activation("relu"), x)))

    def _edge(self, x: int, operation: str, width: int) -> int:
        if operation == "skip_connect":
            return x
        if operation == "avg_pool_3x3":
            return self.put(Pool("mean", 3, 1), x)
        return self._relu_conv(x, width, kernel=1 if operation == "nor_conv_1x1" else 3)

    def finished(self, x: int, input_shape: Shape, n_outputs: int) -> Network:
        self.put(Linear(n_outputs), self.put(GlobalPool(), x))
        return Network(input_shape, tuple(pruned(self.nodes)))


def _check_sizes(name: str, sizes: Sequence[int], least: int = 1) -> None:
    if not isinstance(sizes, Sequence) or isinstance(sizes, str) or len(sizes) < least:
        raise ConfigurationError(f"{name}={sizes!r}: must be a list of {least} or more whole numbers. Give one.")
    for place, size in enumerate(sizes):
        check_int(f"{name}[{place}]", size, 1)


def _parsed(cell: str) -> list[tuple[str, ...]]:
    """Returns the operations on the edges to each node of the cell."""
    found = _CELL.fullmatch(cell) if isinstance(cell, str) else None
    wrong = [name for name in found.groups() if name not in CELL_OPERATIONS] if found else [cell]
    if found is None or wrong:
        raise ConfigurationError(
            f"cell={cell!r}: must be |a~0|+|b~0|c~1|+|d~0|e~1|f~2|, each letter one of {', '.join(CELL_OPERATIONS)}. "
            f"Correct {wrong[0]!r}"
        )
    edges = found.groups()
    return [edges[:1], edges[1:3], edges[3:]]
