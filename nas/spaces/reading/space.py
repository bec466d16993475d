"""The space of reading graphs (`nas.spaces.reading.graph`)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

from nas.core.errors import ConfigurationError, PointError, SpaceExhaustedError
from nas.core.point import Point, point_key
from nas.core.validation import check_int, short_repr
from nas.spaces.domain import Ask, Decision
from nas.spaces.reading.decisions import decide_graph, decisions_of
from nas.spaces.reading.graph import MAX_LAYERS, ReadingGraph
from nas.spaces.reading.mutations import mutated
from nas.spaces.space import Space

BIDAF: Point = {"layers": [["attention", 0, 1], ["recurrent", 2]], "passage": 3, "question": 1}
"""Attention of the passage to the question and a recurrent layer: a small BiDAF.

After Seo et al. (2017, arXiv:1611.01603).
"""
GA_SQUAD: Point = {"layers": [["attention", 0, 1], ["attention", 1, 0]], "passage": 2, "question": 3}
"""The graph from which NNI's ga_squad started: each text attends to the other."""
DEFAULT_STARTS: tuple[Point, ...] = (BIDAF, GA_SQUAD)


@final
class ReadingSpace(Space):
    """The graphs of attention and recurrent layers between a passage and a question.

    A point is ``{"layers": [["attention", 0, 1], ["recurrent", 2]], "passage": 3, "question": 1}``: 0 is the passage,
    1 the question, and the layers follow. ``passage`` and ``question`` are the outputs.

    Args:
        width: The width of all layers. It enters their names.
        min_layers: The smallest number of layers.
        max_layers: The greatest number of layers.
        starts: The points from which samples are mutated, each with the same probability.
        n_mutations: The greatest number of mutations between a start and a sample.

    Raises:
        ConfigurationError: a number is out of range, or a start is not in the space.
    """

    def __init__(
        self,
        width: int = 64,
        *,
        min_layers: int = 1,
        max_layers: int = 6,
        starts: Sequence[Point] = DEFAULT_STARTS,
        n_mutations: int = 4,
    ) -> None:
        check_int("width", width, 1)
        check_int("max_layers", max_layers, 1, MAX_LAYERS)
        check_int("min_layers", min_layers, 0, max_layers)
        check_int("n_mutations", n_mutations, 0)
        self.width, self.min_layers, self.max_layers, self.n_mutations = width, min_layers, max_layers, n_mutations
        if not isinstance(starts, list | tuple) or not starts:
            raise ConfigurationError(f"starts={short_repr(starts)}: must be a list of one point or more. Give one.")
        self.starts = tuple(self._start(index, start) for index, start in enumerate(starts))

    def __repr__(self) -> str:
        return f"ReadingSpace({self.width}, min_layers={self.min_layers}, max_layers={self.max_layers})"

    def graph(self, point: Point) -> ReadingGraph:
        """Returns the graph of a point.

        Raises:
            PointError: the point is not in the space.
        """
        graph = ReadingGraph.from_json(point)
        if not self.min_layers <= (n := len(graph.layers)) <= self.max_layers:
            raise PointError(f"layers: {n} given; there must be {self.min_layers} to {self.max_layers}.")
        return graph

    def sample(self, rng: random.Random) -> Point:
        """Returns a start after 0 to ``n_mutations`` mutations."""
        graph = rng.choice(self.starts)
        for _ in range(rng.randint(0, self.n_mutations)):
            graph = self._mutated(graph, rng) or graph
        return graph.to_json()

    def mutate(self, point: Point, rng: random.Random) -> Point:
        """Returns the point after one of the mutations of `nas.spaces.reading.mutations`."""
        graph = self._mutated(self.graph(point), rng)
        if graph is None:
            raise SpaceExhaustedError("no mutation gives another graph. Raise max_layers or lower min_layers.")
        return graph.to_json()

    def validate(self, point: Point) -> None:
        """Checks the graph and its number of layers."""
        self.graph(point)

    def to_json(self) -> dict[str, Any]:
        """Returns everything that decides the samples, as JSON."""
        numbers = {name: getattr(self, name) for name in ("width", "min_layers", "max_layers", "n_mutations")}
        return {"type": "ReadingSpace", **numbers, "starts": [start.to_json() for start in self.starts]}

    def key(self, point: Point) -> str:
        """Returns the canonical form of the graph, which the order of layers does not change."""
        return point_key(ReadingGraph.from_json(point).canonical().to_json())

    def decide(self, ask: Ask) -> Point:
        """Asks for the number of layers, their kinds and inputs, and the outputs."""
        return decide_graph(ask, at_least=self.min_layers, at_most=self.max_layers).to_json()

    def decisions(self, point: Point) -> list[Decision]:
        """Returns the answers that give the point; ``2.input.0`` is of the first layer."""
        return decisions_of(self.graph(point), at_least=self.min_layers, at_most=self.max_layers)

    def features(self, point: Point) -> Counter[str]:
        """Returns the names of the layers and of the outputs."""
        graph = self.graph(point).canonical()
        names = graph.names(self.width)
        outputs = (f"{size} = {names[id]}" for size, id in zip(("passage", "question"), graph.outputs, strict=True))
        return Counter([*(name for id, name in names.items() if id > 1), *outputs])

    def feature_distance(self, first: Mapping[str, int], second: Mapping[str, int]) -> float:
        """Returns the share of names that only one of the graphs has (Jaccard distance)."""
        one, other = Counter(first), Counter(second)
        return 1.0 - (one & other).total() / (one | other).total()

    @property
    def n_points(self) -> None:
        """None: too many to count."""
        return None

    def points(self) -> Iterator[Point]:
        """Raises ConfigurationError, since the graphs are not listed."""
        raise ConfigurationError("reading graphs can't be listed. Use a tuner that draws them.")

    def _mutated(self, graph: ReadingGraph, rng: random.Random) -> ReadingGraph | None:
        return mutated(graph, rng, at_least=self.min_layers, at_most=self.max_layers)

    def _start(self, index: int, start: Point) -> ReadingGraph:
        try:
            return self.graph(start)
        except PointError as error:
            raise ConfigurationError(f"starts[{index}]: {error}") from error
