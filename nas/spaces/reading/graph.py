"""Graphs of layers that read a passage and a question.

After the individuals of NNI's ga_squad (v0.5 to v3.0). Differs: names of layers are equal in all processes, and two
equal layers of one graph have different names. NNI gave both the same weights.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from nas.core.errors import PointError
from nas.core.validation import short_repr

KINDS = {"attention": 2, "self_attention": 1, "recurrent": 1}
"""The number of inputs of each kind of layer.

An attention reads its second input for each word of its first.
"""
PASSAGE, QUESTION = 0, 1
"""The ids of the inputs. The layer at index ``i`` has the id ``i + 2``."""
SIZES = ("passage", "question")
MAX_LAYERS = 64


class ReadingLayer(NamedTuple):
    """A layer: its kind and the ids of its inputs."""

    kind: str
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadingGraph:
    """Layers between a passage and a question, and the ids of the two outputs.

    Each layer comes after its inputs and leads to an output. An output has a vector for each word of its text: the
    passage's or the question's. The first input of a layer decides the text.

    Raises:
        PointError: the graph is not so.
    """

    layers: tuple[ReadingLayer, ...]
    passage: int
    question: int

    def __post_init__(self) -> None:
        if len(self.layers) > MAX_LAYERS:
            raise PointError(f"layers: {len(self.layers)} given; there must be at most {MAX_LAYERS}. Remove some.")
        for id, layer in enumerate(self.layers, 2):
            _check_layer(id, layer)
        sizes = self.sizes
        for size, (name, output) in enumerate(zip(SIZES, self.outputs, strict=True)):
            _check_id(name, output, len(sizes))
            if sizes[output] != size:
                raise PointError(f"{name}={output}: must be a layer or input of the {name}. Choose another.")
        if unused := [id for id in range(2, len(sizes)) if id not in self._order()]:
            raise PointError(f"layers[{unused[0] - 2}]: must lead to an output. Remove it.")

    @property
    def outputs(self) -> tuple[int, int]:
        """The ids of the two outputs."""
        return self.passage, self.question

    @property
    def sizes(self) -> list[int]:
        """The text of each input and layer: 0 for the passage, 1 for the question."""
        found = [PASSAGE, QUESTION]
        for layer in self.layers:
            found.append(found[layer.inputs[0]])
        return found

    def names(self, width: int) -> dict[int, str]:
        """Returns the name of each input and layer by id, equal on every machine.

        It is the kind and a digest of the kind, the width, the text and the names of the inputs. A layer keeps its
        name if it and everything before it stays the same. The second of two equal layers ends in ``_1``.

        Args:
            width: The width of all layers.
        """
        return {id: f"{name}_{number}" if number else name for id, (name, number) in self.numbered(width).items()}

    def numbered(self, width: int) -> dict[int, tuple[str, int]]:
        """Returns the parts of each name: that of equal layers, and the number among them."""
        sizes, n_equal = self.sizes, Counter[str]()
        found = {id: (name, 0) for id, name in enumerate(SIZES)}
        for id, layer in enumerate(self.layers, 2):
            sources = (f"{name}_{number}" if number else name for name, number in map(found.__getitem__, layer.inputs))
            about = [layer.kind, width, SIZES[sizes[id]], *sources]
            name = f"{layer.kind}_{hashlib.blake2b(json.dumps(about).encode(), digest_size=6).hexdigest()}"
            found[id] = name, n_equal[name]
            n_equal[name] += 1
        return found

    def canonical(self) -> ReadingGraph:
        """Returns the same graph with its layers in the order in which the outputs need them."""
        return _ordered(dict(enumerate(self.layers, 2)), self.outputs, self._order())

    def _order(self) -> list[int]:
        return needed(dict(enumerate(self.layers, 2)), self.outputs)

    def to_json(self) -> dict[str, Any]:
        """Returns the graph as JSON."""
        layers = [[layer.kind, *layer.inputs] for layer in self.layers]
        return {"layers": layers, "passage": self.passage, "question": self.question}

    @classmethod
    def from_json(cls, point: object) -> ReadingGraph:
        """Returns the graph of a point.

        Raises:
            PointError: the point has another form, or its graph is not valid.
        """
        if type(point) is not dict or point.keys() != {"layers", "passage", "question"}:
            raise PointError(f"{short_repr(point)}: must be a dict of layers, passage and question. Give these three.")
        layers = point["layers"]
        if type(layers) is not list or not all(type(layer) is list and layer for layer in layers):
            raise PointError(f'layers={short_repr(layers)}: must be a list of lists. Write [["recurrent", 0]].')
        parsed = tuple(ReadingLayer(kind, tuple(inputs)) for kind, *inputs in layers)
        return cls(parsed, point["passage"], point["question"])


def needed(nodes: Mapping[int, ReadingLayer], outputs: Sequence[int]) -> list[int]:
    """Returns the ids of the layers that the outputs need, each after its inputs.

    The order does not depend on ids.

    Raises:
        PointError: a layer needs its own output.
    """
    found: dict[int, None] = {}

    def visit(id: int, above: tuple[int, ...]) -> None:
        if id in above:
            raise PointError(f"layer {id}: must not need its own output. Choose other inputs.")
        if id in nodes and id not in found:
            for source in nodes[id].inputs:
                visit(source, (*above, id))
            found[id] = None

    for output in outputs:
        visit(output, ())
    return list(found)


def of_nodes(nodes: Mapping[int, ReadingLayer], passage: int, question: int) -> ReadingGraph:
    """Returns the graph of the layers that the outputs need, in the order of ``order_of``.

    Args:
        nodes: Layers by any ids from 2.
        passage: The id of the passage's output.
        question: The id of the question's output.

    Raises:
        PointError: a layer needs its own output, or an output is of the other text.
    """
    return _ordered(nodes, (passage, question), order_of(nodes, (passage, question)))


def order_of(nodes: Mapping[int, ReadingLayer], outputs: Sequence[int]) -> list[int]:
    """Returns the ids of the layers that outputs need, in order as far as inputs allow.

    So of two equal layers the older one keeps its name.

    Raises:
        PointError: a layer needs its own output.
    """
    left = sorted(needed(nodes, outputs))
    order: list[int] = []
    while left:
        id = next(id for id in left if not {*left}.intersection(nodes[id].inputs))
        left.remove(id)
        order.append(id)
    return order


def _ordered(nodes: Mapping[int, ReadingLayer], outputs: tuple[int, int], order: Sequence[int]) -> ReadingGraph:
    """Returns the graph of these layers in this order."""
    ids = {PASSAGE: PASSAGE, QUESTION: QUESTION} | {id: place for place, id in enumerate(order, 2)}
    layers = [ReadingLayer(nodes[id].kind, tuple(ids[source] for source in nodes[id].inputs)) for id in order]
    return ReadingGraph(tuple(layers), ids[outputs[0]], ids[outputs[1]])


def _check_layer(id: int, layer: ReadingLayer) -> None:
    name = f"layers[{id - 2}]"
    if not isinstance(layer.kind, str) or layer.kind not in KINDS:
        raise PointError(f"{name}={short_repr(layer.kind)}: must be one of {', '.join(KINDS)}. Choose one.")
    if len(layer.inputs) != (n_inputs := KINDS[layer.kind]):
        raise PointError(f"{name} ({layer.kind}): must have {n_inputs} inputs, not {len(layer.inputs)}.")
    for source in layer.inputs:
        _check_id(f"{name} ({layer.kind}): input", source, id)


def _check_id(name: str, id: object, n_ids: int) -> None:
    if type(id) is not int or not 0 <= id < n_ids:
        raise PointError(f"{name}={short_repr(id)}: must be a whole number from 0 to {n_ids - 1}. Choose one.")
