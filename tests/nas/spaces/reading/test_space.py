"""The space of reading graphs: what holds for every space, and its names."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nas.core.errors import ConfigurationError, PointError, SpaceExhaustedError
from nas.core.metric import Metric
from nas.core.point import Point, is_json, point_key
from nas.core.spec import Spec
from nas.spaces.domain import Domain
from nas.spaces.reading import mutations
from nas.spaces.reading.graph import KINDS, ReadingGraph, ReadingLayer, of_nodes
from nas.spaces.reading.mutations import MUTATIONS, mutated
from nas.spaces.reading.space import BIDAF, GA_SQUAD, ReadingSpace
from nas.testing import check_tuner
from nas.tuners.evolution import EvolutionTuner

SPACE = ReadingSpace(32, min_layers=2, max_layers=5)
seeds = st.integers(0, 2**32)


@settings(max_examples=60)
@given(seeds)
def test_points_are_plain_and_valid(seed: int) -> None:
    """Samples, mutants and crossings are plain JSON in the space; mutants differ, and parents stay as they are."""
    rng = random.Random(seed)
    first, second = SPACE.sample(rng), SPACE.sample(rng)
    before = point_key([first, second])
    mutant, child = SPACE.mutate(first, rng), SPACE.cross(first, second, rng).point

    for point in (first, second, mutant, child):
        assert is_json(point)
        SPACE.validate(json.loads(json.dumps(point, sort_keys=True)))
    assert SPACE.key(mutant) != SPACE.key(first)
    assert point_key([first, second]) == before


@settings(max_examples=30)
@given(seeds)
def test_equal_seeds_give_equal_points(seed: int) -> None:
    """The generator alone decides, in whatever order a store has put the keys, and in a copy of the space."""
    point = SPACE.sample(random.Random(seed))
    stored, space = json.loads(point_key(point)), pickle.loads(pickle.dumps(SPACE))

    assert space.mutate(stored, random.Random(seed)) == SPACE.mutate(point, random.Random(seed))
    assert space.sample(random.Random(seed)) == point
    assert space.to_json() == SPACE.to_json()


@settings(max_examples=60)
@given(seeds)
def test_decisions_give_the_point_back(seed: int) -> None:
    """Any answers give a point; the decisions of a point make it again, and a name has one domain in all points."""
    rng = random.Random(seed)
    for point in (SPACE.sample(rng), SPACE.decide(lambda _, domain: domain.sample(rng))):
        answers = {decision.name: decision for decision in SPACE.decisions(point)}

        def ask(name: str, domain: Domain, answers: Any = answers) -> float:
            assert DOMAINS.setdefault(name, domain) == domain == answers[name].domain
            return float(answers[name].answer)

        SPACE.validate(point)
        assert SPACE.decide(ask) == point


DOMAINS: dict[str, Domain] = {}


@settings(max_examples=30)
@given(seeds)
def test_distance_is_a_metric(seed: int) -> None:
    """The distance is symmetric, at most 1, 0 for a point and itself alone, and keeps the triangle inequality."""
    rng = random.Random(seed)
    one, other = SPACE.sample(rng), SPACE.sample(rng)
    third = SPACE.mutate(other, rng)
    distance = SPACE.distance(one, other)

    assert distance == SPACE.distance(other, one) <= 1
    assert (distance == 0) == (SPACE.key(one) == SPACE.key(other))
    assert distance <= SPACE.distance(one, third) + SPACE.distance(third, other) + 1e-12


@settings(max_examples=40)
@given(seeds)
def test_names_follow_ancestry(seed: int) -> None:
    """Layers keep their names if what they read stays, whatever is added behind or beside them; names are unique."""
    rng = random.Random(seed)
    graph = SPACE.graph(SPACE.sample(rng))
    names = graph.names(32)
    grown = [*graph.to_json()["layers"], ["recurrent", graph.passage]]
    more = ReadingGraph.from_json({"layers": grown, "passage": len(grown) + 1, "question": graph.question})

    assert len({*names.values()}) == len(names)
    assert {id: more.names(32)[id] for id in names} == names
    assert {*names.values()} & {*graph.names(64).values()} == {"passage", "question"}


@settings(max_examples=40)
@given(seeds)
def test_mutants_keep_names(seed: int) -> None:
    """After an addition at an output, all other layers have their names, also if the new one equals an old one."""
    rng = random.Random(seed)
    graph = SPACE.graph(SPACE.sample(rng))
    nodes = dict(enumerate(graph.layers, 2))
    nodes[99] = ReadingLayer("recurrent", (graph.passage,))
    grown = of_nodes(nodes, 99, graph.question)

    assert {*graph.names(32).values()} < {*grown.names(32).values()}


@settings(max_examples=40)
@given(seeds)
def test_order_of_layers_does_not_count(seed: int) -> None:
    """Another order of the layers is the same point: the same key, and no distance."""
    rng = random.Random(seed)
    graph = SPACE.graph(SPACE.sample(rng))
    ids = [*range(2, len(graph.layers) + 2)]
    new = dict(zip(ids, rng.sample(range(2, 50), len(ids)), strict=True)) | {0: 0, 1: 1}
    layers = zip(ids, graph.layers, strict=True)
    moved = {new[id]: ReadingLayer(one.kind, tuple(new[source] for source in one.inputs)) for id, one in layers}
    other = of_nodes(moved, new[graph.passage], new[graph.question]).to_json()

    assert SPACE.key(other) == SPACE.key(graph.to_json())
    assert SPACE.distance(other, graph.to_json()) == 0


def test_equal_layers_have_two_names() -> None:
    """Two live layers of equal kind and inputs have different names, as have the layers behind them."""
    graph = ReadingGraph.from_json(
        {"layers": [["recurrent", 0], ["recurrent", 0], ["attention", 2, 3]], "passage": 4, "question": 1}
    )
    names = graph.names(64)

    assert names[3] == f"{names[2]}_1"
    other = ReadingGraph.from_json({"layers": [["recurrent", 0], ["attention", 2, 2]], "passage": 3, "question": 1})
    assert other.names(64)[2] == names[2]
    assert other.names(64)[3] != names[4]


def test_of_two_equal_layers_each_keeps_its_name() -> None:
    """No mutation gives the younger of two equal layers the name of the older, whose reader here is the last layer."""
    space, first_reader = ReadingSpace(min_layers=2), ["attention", 2, 1]
    twins: Point = {
        "layers": [["recurrent", 0], ["recurrent", 0], ["attention", 3, 1], ["attention", 4, 2]],
        "passage": 5, "question": 1,
    }  # fmt: skip
    n_removed = n_inserted = 0
    for seed in range(300):
        layers = space.mutate(twins, random.Random(seed))["layers"]
        readers = [layer for layer in layers if 2 in layer[1:] and layer != first_reader]
        n_removed += len(layers) < 4
        n_inserted += len(layers) > 4
        assert layers[0] != ["recurrent", 0] or readers, layers

    assert n_removed > 50 < n_inserted


def test_a_graph_below_the_least_size_grows() -> None:
    """Mutations of too small a graph add layers up to the least number, as NNI's tuner did from its first graph."""
    for seed in range(20):
        rng, graph, sizes = random.Random(seed), ReadingGraph.from_json(GA_SQUAD), []
        for _ in range(5):
            found = mutated(graph, rng, at_least=4, at_most=5)
            assert found is not None
            graph = found
            sizes.append(len(graph.layers))

        assert sizes == [3, 4, 5, 4, 5]


def test_names_are_equal_in_every_process() -> None:
    """Names do not depend on the process or its hash seed, and are those that stored weights have."""
    code = "from nas.spaces.reading.space import *; print(ReadingSpace().graph(BIDAF).names(64)[3])"
    told = {
        subprocess.check_output([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, text=True).strip()
        for seed in ("1", "2")
    }

    assert told == {"recurrent_bda299596712"}


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_changes_the_number_of_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Additions and insertions give one layer more, the two removals give one less or none at all."""
    monkeypatch.setattr(mutations, "MUTATIONS", {name: MUTATIONS[name]})
    graph = ReadingGraph.from_json(GA_SQUAD)
    found = [mutated(graph, random.Random(seed), at_least=0, at_most=64) for seed in range(20)]
    sizes = {len(child.layers) for child in found if child is not None}

    assert sizes == {3 if name in ("add", "insert") else 1}


def test_all_kinds_are_found() -> None:
    """Mutations reach every kind of layer and every allowed number of layers."""
    rng, point, numbers, kinds = random.Random(0), BIDAF, set(), set()
    for _ in range(300):
        point = SPACE.mutate(point, rng)
        numbers.add(len(point["layers"]))
        kinds |= {layer[0] for layer in point["layers"]}

    assert numbers == {2, 3, 4, 5}
    assert kinds == {*KINDS}


def test_exhausted_space_says_so() -> None:
    """If no mutation keeps the number of layers in the range, the search for one ends."""
    space = ReadingSpace(min_layers=2, max_layers=2)

    with pytest.raises(SpaceExhaustedError, match="no mutation gives another graph"):
        space.mutate(BIDAF, random.Random(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"layers": None}, "layers=None: must be a list of lists"),
        ({"layers": [["attention", 0], ["recurrent", 2]]}, r"layers\[0\] \(attention\): must have 2 inputs, not 1"),
        ({"layers": [["convolution", 0]]}, r"layers\[0\]='convolution': must be one of attention"),
        ({"layers": [[["recurrent"], 0]]}, r"layers\[0\]=\['recurrent'\]: must be one of"),
        ({"layers": [["attention", 0, 3], ["recurrent", 2]]}, r"input=3: must be a whole number from 0 to 1"),
        ({"layers": [["recurrent", True]]}, "input=True: must be a whole number"),
        ({"passage": 1}, "passage=1: must be a layer or input of the passage"),
        ({"passage": 2}, r"layers\[1\]: must lead to an output"),
        ({"passage": "x"}, "passage='x': must be a whole number from 0 to 3"),
        ({"width": 3}, "must be a dict of layers, passage and question"),
        ({"layers": [["recurrent", n] for n in range(1, 7)], "question": 7, "passage": 0}, "there must be 2 to 5"),
        ({"layers": [["recurrent", 0]] * 65}, "65 given; there must be at most 64"),
    ],
    ids=range(12),
)
def test_points_outside_are_refused(change: dict[str, Any], message: str) -> None:
    """A point outside the space is refused by a line that names the layer or output."""
    point: Point = {**BIDAF, **change}

    for call in (SPACE.validate, SPACE.decisions, SPACE.features, lambda one: SPACE.mutate(one, random.Random(0))):
        with pytest.raises(PointError, match=message):
            call(point)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 0}, "width=0: must be a whole number of at least 1"),
        ({"max_layers": 65}, "max_layers=65: must be a whole number from 1 to 64"),
        ({"min_layers": 7}, "min_layers=7: must be a whole number from 0 to 6"),
        ({"starts": []}, r"starts=\[\]: must be a list of one point or more. Give"),
        ({"starts": None}, r"starts=None: must be a list"),
        ({"starts": [BIDAF, {"layers": []}]}, r"starts\[1\]: .*must be a dict of layers, passage and question"),
        ({"min_layers": 3}, r"starts\[0\]: layers: 2 given; there must be 3 to 6"),
    ],
    ids=range(7),
)
def test_spaces_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    """A number or start that can't be is refused at once."""
    with pytest.raises(ConfigurationError, match=message):
        ReadingSpace(**arguments)


def test_space_cannot_be_listed() -> None:
    """The graphs have no list, and their number is not known."""
    assert SPACE.n_points is None
    with pytest.raises(ConfigurationError, match="can't be listed"):
        SPACE.points()


def test_evolution_keeps_its_contract() -> None:
    """Evolution with crossover of reading graphs is a function of the lineage."""
    tuner = Spec.of(EvolutionTuner, crossover=0.3, population_size=6, sample_size=2)

    check_tuner(tuner, SPACE, (Metric("f1"),), n_trials=12)
