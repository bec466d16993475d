"""Graphs of ga_squad, their mutations, and the layers that a child shares with its parent."""

from nas.spaces.reading import mutations
from nas.spaces.reading.graph import ReadingGraph
from nas.spaces.reading.space import GA_SQUAD

WIDTH = 64


def first_graph():
    return GA_SQUAD


def mutated(graph, limits, rng):
    """Returns a mutant. The first graph may have fewer layers than the limits, and grows then."""
    found = mutations.mutated(ReadingGraph.from_json(graph), rng, at_least=limits[0], at_most=limits[1])
    if found is None:
        raise ValueError(f"graph_min_layer={limits[0]}: must be below graph_max_layer={limits[1]}. Change one of them.")
    return found.to_json()


def shared_layers(parent, child):
    """Returns the ids of the layers that both have, with all that they read."""
    names = [{*ReadingGraph.from_json(graph).names(WIDTH).values()} for graph in (parent, child)]
    return sorted(names[0] & names[1])
