"""The four mutations of NNI's ga_squad, with a limit on tries.

A mutation adds a layer in place of an edge or on an edge, or removes a layer. After a removal, the layers behind it
read random layers or an input of the removed one. NNI tried again without a limit until the graph was legal.

Of equal layers, only the last one is removed or gets another input. A graph does not say which of them are gone, so
the others would take each other's names and weights.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from nas.core.errors import PointError
from nas.spaces.reading.graph import KINDS, ReadingGraph, ReadingLayer, of_nodes, order_of

_TRIES = 40
_ANY_WIDTH = 1  # names of one width are compared


class _Draft:
    """A graph that can be changed, legal or not.

    An edge is a layer and a place among its inputs; -1 stands for the outputs.
    """

    def __init__(self, graph: ReadingGraph) -> None:
        self.before = graph.numbered(_ANY_WIDTH)
        self.nodes = {id: [*layer.inputs] for id, layer in enumerate(graph.layers, 2)}
        self.kinds = {id: layer.kind for id, layer in enumerate(graph.layers, 2)}
        self.nodes[-1] = [*graph.outputs]

    def new_layer(self, kind: str, inputs: Sequence[int]) -> int:
        """Adds a layer and returns its id."""
        id = max(self.nodes) + 1 if len(self.nodes) > 1 else 2
        self.kinds[id], self.nodes[id] = kind, [*inputs]
        return id

    def draw_source(self, rng: random.Random) -> int:
        """Returns an input or a layer."""
        return rng.choice([0, 1, *self.kinds])

    def draw_edge(self, rng: random.Random) -> tuple[int, int]:
        """Returns a random edge into a random layer or output."""
        outputs = [(-1, 0), (-1, 1)]
        layers = [(id, rng.randrange(len(self.nodes[id]))) for id in self.kinds]
        return rng.choice([*outputs, *layers])

    def finish(self) -> ReadingGraph | None:
        """Returns the graph, or None if it is not legal or would rename an equal layer."""
        nodes = {id: ReadingLayer(self.kinds[id], tuple(self.nodes[id])) for id in self.kinds}
        try:
            graph = of_nodes(nodes, *self.nodes[-1])
        except PointError:
            return None
        if len(graph.layers) < len(nodes):
            return None
        now = graph.numbered(_ANY_WIDTH)
        kept = {id: now[place] for place, id in enumerate(order_of(nodes, self.nodes[-1]), 2) if id in self.before}
        return None if any(_is_renumbered(self.before[id], names) for id, names in kept.items()) else graph


def _is_renumbered(before: tuple[str, int], now: tuple[str, int]) -> bool:
    """Returns whether only the number among equal layers has changed."""
    return before[0] == now[0] and before[1] != now[1]


def _add(draft: _Draft, rng: random.Random, *, keeps_source: bool) -> None:
    id, place = draft.draw_edge(rng)
    kind = rng.choice([*KINDS])
    inputs = [draft.draw_source(rng) for _ in range(KINDS[kind])]
    if keeps_source:
        inputs[0] = draft.nodes[id][place]
    draft.nodes[id][place] = draft.new_layer(kind, inputs)


def _remove(draft: _Draft, rng: random.Random, *, keeps_source: bool) -> None:
    gone = rng.choice([*draft.kinds])
    sources = draft.nodes.pop(gone)
    del draft.kinds[gone]
    for inputs in draft.nodes.values():
        for place, source in enumerate(inputs):
            if source == gone:
                inputs[place] = rng.choice(sources) if keeps_source else draft.draw_source(rng)


Mutation = Callable[[_Draft, random.Random], None]
MUTATIONS: dict[str, Mutation] = {
    "add": partial(_add, keeps_source=False),  # with random inputs, in place of an edge
    "insert": partial(_add, keeps_source=True),  # on an edge; a second input is random
    "remove": partial(_remove, keeps_source=False),  # the layers behind it read random ones
    "bypass": partial(_remove, keeps_source=True),  # the layers behind it read its inputs
}
_ADDITIONS = ("add", "insert")


def mutated(graph: ReadingGraph, rng: random.Random, *, at_least: int, at_most: int) -> ReadingGraph | None:
    """Returns another legal graph after one mutation, or None.

    The mutation is random among additions below ``at_most`` layers and removals above ``at_least``. If 40 tries of one
    give no other legal graph, another one is used. So a graph below ``at_least`` layers grows, as in NNI.

    Args:
        graph: The graph.
        rng: The generator of all choices.
        at_least: The smallest number of layers.
        at_most: The greatest number of layers.
    """
    before = graph.canonical()
    n = len(graph.layers)
    allowed = [name for name in MUTATIONS if (n < at_most if name in _ADDITIONS else n > at_least)]
    for name in rng.sample(allowed, len(allowed)):
        for _ in range(_TRIES):
            draft = _Draft(graph)
            MUTATIONS[name](draft, rng)
            found = draft.finish()
            if found is not None and found.canonical() != before:
                return found
    return None
