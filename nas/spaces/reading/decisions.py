"""Reading graphs as sequences of decisions, for tuners that know nothing of graphs.

Any answers give a legal graph. An impossible answer stands for the next possible one. Layers that lead to no output
are left out. Recurrent layers are added to the passage's output if there are too few layers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from nas.spaces.domain import Ask, Categorical, Decision, Domain, Numeric
from nas.spaces.reading.graph import KINDS, PASSAGE, QUESTION, SIZES, ReadingGraph, ReadingLayer, of_nodes

_KINDS = tuple(KINDS)


def decide_graph(ask: Ask, *, at_least: int, at_most: int) -> ReadingGraph:
    """Returns the graph that the answers give.

    Args:
        ask: Returns the answer for a name and a domain.
        at_least: The smallest number of layers.
        at_most: The greatest number of layers.
    """
    ids = range(at_most + 2)
    nodes: dict[int, ReadingLayer] = {}
    sizes = {PASSAGE: PASSAGE, QUESTION: QUESTION}
    n_layers = at_most if at_least == at_most else int(ask("n_layers", Numeric(at_least, at_most, False, True)))
    for id in range(2, n_layers + 2):
        kind = _option(ask, f"{id}.kind", _KINDS, _KINDS)
        inputs = [_option(ask, f"{id}.input.{place}", ids, sizes) for place in range(KINDS[kind])]
        nodes[id], sizes[id] = ReadingLayer(kind, tuple(inputs)), sizes[inputs[0]]
    outputs = [_option(ask, name, ids, [id for id in sizes if sizes[id] == size]) for size, name in enumerate(SIZES)]
    graph = ReadingGraph(tuple(nodes.values()), *outputs) if _is_live(nodes, outputs) else of_nodes(nodes, *outputs)
    while len(graph.layers) < at_least:
        last = len(graph.layers) + 2
        graph = ReadingGraph((*graph.layers, ReadingLayer("recurrent", (graph.passage,))), last, graph.question)
    return graph


def decisions_of(graph: ReadingGraph, *, at_least: int, at_most: int) -> list[Decision]:
    """Returns the answers that give this graph, in the order of the questions."""
    answers: dict[str, Any] = {"n_layers": len(graph.layers), "passage": graph.passage, "question": graph.question}
    for id, layer in enumerate(graph.layers, 2):
        answers[f"{id}.kind"] = layer.kind
        answers |= {f"{id}.input.{place}": source for place, source in enumerate(layer.inputs)}
    found: list[Decision] = []

    def answer(name: str, domain: Domain) -> float:
        value = answers[name]
        index = domain.labels.index(str(value)) if isinstance(domain, Categorical) else value
        found.append(Decision(name, domain, index))
        return index

    decide_graph(answer, at_least=at_least, at_most=at_most)
    return found


def _option(ask: Ask, name: str, options: Sequence[Any], possible: Collection[Any]) -> Any:
    """Returns the answered option, or the next possible one after it."""
    start = int(ask(name, Categorical(len(options), tuple(map(str, options)))))
    return next(one for one in (*options[start:], *options[:start]) if one in possible)


def _is_live(nodes: dict[int, ReadingLayer], outputs: Sequence[int]) -> bool:
    used = {*outputs}.union(*(layer.inputs for layer in nodes.values()))
    return used >= nodes.keys()
