"""Graphs of ga_squad, their mutations, and the layers that a child shares with its parent."""

from nas.spaces.reading.graph import ReadingGraph
from nas.spaces.reading.space import GA_SQUAD, ReadingSpace

WIDTH = 64


def first_graph():
    return GA_SQUAD


def mutated(graph, limits, rng):
    return ReadingSpace(WIDTH, min_layers=limits[0], max_layers=limits[1]).mutate(graph, rng)


def shared_layers(parent, child):
    """Returns the ids of the layers that both have, with all that they read."""
    names = [{*ReadingGraph.from_json(graph).names(WIDTH).values()} for graph in (parent, child)]
    return sorted(names[0] & names[1])
