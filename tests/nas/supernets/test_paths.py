"""Samplers of points, and connected cells."""

from __future__ import annotations

import itertools
import pickle
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nas.core.errors import ConfigurationError, PointError
from nas.spaces.parameters.space import Choice, Int, ParameterSpace
from nas.supernets.choices import LayerChoice
from nas.supernets.connectivity import is_connected, live_edges
from nas.supernets.module import space_of
from nas.supernets.operations import NAS_BENCH_201, Zero
from nas.supernets.paths import FairPaths, ListedPaths, SandwichPaths, UniformPaths

EDGES = [(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)]
SPACE = ParameterSpace({f"op_{i}_{j}": Choice(*NAS_BENCH_201) for i, j in EDGES})
MIXED = ParameterSpace({"a": Choice(1, 2, 3), "b": Choice("x", "y"), "depth": Int(1, 4), "none": "constant"})


def ways(edges: list[tuple[int, int]], node: int = 0) -> list[list[tuple[int, int]]]:
    """Returns all ways from a node to node 3."""
    if node == 3:
        return [[]]
    return [[edge, *rest] for edge in edges if edge[0] == node for rest in ways(edges, edge[1])]


@given(kept=st.lists(st.booleans(), min_size=6, max_size=6))
def test_live_edges_are_those_on_a_way(kept: list[bool]) -> None:
    """An edge is live if and only if a way from the first to the last node has it."""
    edges = [edge for edge, is_kept in zip(EDGES, kept, strict=True) if is_kept]

    assert live_edges(edges, 4) == [edge for edge in edges if any(edge in way for way in ways(edges))]


def test_share_of_disconnected_cells() -> None:
    """Of the 15,625 cells of NAS-Bench-201, 341 are disconnected: those whose edges form no way."""
    sets = [edges for n in range(7) for edges in itertools.combinations(EDGES, n)]

    assert sum(4 ** len(edges) for edges in sets if not ways(list(edges))) == 341
    assert sum(not is_connected(point) for point in SPACE.points()) == 341


def test_names_that_are_no_edges_are_connected() -> None:
    """Names with two numbers that do not form a cell, and cells that choose their inputs, are not looked at."""
    assert is_connected({"kernel_3_3": "none", "width_1_2": "none", "lr": 0.1})
    assert is_connected({"normal_0_2": "none", "normal_1_2": "none", "normal_inputs_2": [0, 1]})
    assert not is_connected({"op_0_1": "conv", "op_0_2": "none", "op_1_2": "none", "op_inputs_per_node": 2})


def test_layer_named_as_an_edge() -> None:
    """A choice with a label such as ``block_0_1`` is no cell of its own, so samplers draw its option ``none``, too."""
    choice = LayerChoice({"none": Zero(), "conv": nn.Conv2d(3, 3, 1)}, "block_0_1")
    paths = UniformPaths(space_of(choice), 1)

    assert {paths(step)[0]["block_0_1"] for step in range(20)} == {"none", "conv"}


def test_uniform_paths_are_uniform_over_connected_cells() -> None:
    """Each connected cell of three nodes has the same probability, and no other is drawn."""
    space = ParameterSpace({f"op_{i}_{j}": Choice("none", "conv") for i, j in [(0, 1), (0, 2), (1, 2)]})
    paths = UniformPaths(space, 7)
    drawn = Counter(tuple(paths(step)[0].values()) for step in range(5000))
    connected = [tuple(point.values()) for point in space.points() if is_connected(point)]

    assert sorted(drawn) == sorted(connected)
    assert all(abs(n - 1000) < 4 * 28.3 for n in drawn.values())  # four standard deviations of five equal shares


@pytest.mark.parametrize(
    "paths",
    [
        UniformPaths(SPACE, 1),
        FairPaths(SPACE, 1),
        SandwichPaths(space=MIXED, seed=1, largest=next(MIXED.points()), smallest=next(MIXED.points())),
    ],
)
def test_a_step_gives_the_same_points_again(paths: UniformPaths) -> None:
    """Points depend on the seed and the step only, in any order of calls, also after pickling."""
    found = [paths(step) for step in range(5)]

    assert [pickle.loads(pickle.dumps(paths))(step) for step in reversed(range(5))] == found[::-1]
    assert any(one != other for one, other in itertools.pairwise(found))


@given(seed=st.integers(0, 2**32), step=st.integers(0, 10_000))
def test_fair_paths_have_each_option_once(seed: int, step: int) -> None:
    """The points of a step have each option of the longest decision once, and others as evenly as possible."""
    points = FairPaths(MIXED, seed)(step)

    assert sorted(point["a"] for point in points) == [1, 2, 3]
    assert {point["b"] for point in points} == {"x", "y"}
    assert len({point["depth"] for point in points}) == 3


def test_fair_paths_leave_out_disconnected_cells() -> None:
    """Each of a step's points is connected, and most steps have all five."""
    found = [FairPaths(SPACE, 3)(step) for step in range(40)]

    assert all(is_connected(point) for points in found for point in points)
    assert sum(len(points) == 5 for points in found) > 20


def test_listed_paths_follow_the_answers() -> None:
    """Answers of decisions give their points, one a step, again from the start after the last."""
    points = [SPACE.sample(random.Random(seed)) for seed in range(3)]
    answers = [[decision.answer for decision in SPACE.decisions(point)] for point in points]
    paths = ListedPaths.of_answers(SPACE, answers)

    assert [paths(step) for step in range(4)] == [[points[step % 3]] for step in range(4)]


@pytest.mark.parametrize("answers", [[1, 2, 3], [0] * 7, [0, 0, 0, 0, 0, 5], [0, 0, 0, 0, 0, -1], [0.5] * 6])
def test_answers_are_checked(answers: list[float]) -> None:
    """Too few or too many answers, and answers that are no index, are refused."""
    with pytest.raises(PointError, match="paths="):
        ListedPaths.of_answers(SPACE, [answers])


def test_points_that_are_never_accepted_end_the_search_for_them() -> None:
    """A rule that accepts nothing raises an error instead of running forever."""
    for paths in (UniformPaths(MIXED, 0, lambda _: False), FairPaths(MIXED, 0, lambda _: False)):
        with pytest.raises(ConfigurationError, match="Check `accept`"):
            paths(0)
