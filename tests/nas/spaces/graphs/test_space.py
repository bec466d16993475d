"""The space of network graphs: what holds for every space, and what is its own."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings

from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError, PointError, SpaceExhaustedError
from nas.core.metric import Metric
from nas.core.point import is_json, point_key
from nas.core.spec import Spec
from nas.inheritance.donors.point_entries import architecture_entries
from nas.search.definition import Search
from nas.spaces.domain import Domain
from nas.spaces.graphs.canonical import digest
from nas.spaces.graphs.crossover import Crossing, bottlenecks, crossed
from nas.spaces.graphs.derivation import Derivation
from nas.spaces.graphs.distance import edit_distance
from nas.spaces.graphs.inserting import InsertConv
from nas.spaces.graphs.layers import Activation, GlobalPool, Linear
from nas.spaces.graphs.limits import Limits
from nas.spaces.graphs.moves import draw_move
from nas.spaces.graphs.network import INPUT, Network, Node
from nas.spaces.graphs.space import GraphSpace
from nas.spaces.graphs.starts import mlp, plain_cnn, resnet
from nas.spaces.parameters.space import Choice, Float
from nas.spaces.space import Variation
from nas.testing import check_tuner
from nas.training.problem import Problem
from nas.training.trial_run import TrialRun
from nas.tuners.network_morphism import NetworkMorphismTuner
from nas.tuners.random import RandomTuner
from tests.support.graph_networks import LIMITS, SHAPE, STARTS, seeds, small

SPACE = GraphSpace(STARTS[:2], {"rate": Float(0.01, 0.2, log=True), "norm": Choice("a", "b")}, limits=LIMITS)
CHEAP = GraphSpace(STARTS[:2], limits=Limits(nodes=40, size=24, flops=200_000), n_moves=20)
SMALL = GraphSpace(STARTS[:2], limits=Limits(nodes=40, size=24, activations=6_000), n_moves=20)
METRICS = (Metric("accuracy"), Metric("latency_ms", "minimize"))


@settings(max_examples=25)
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
    assert point_key(mutant) != point_key(first)
    assert point_key([first, second]) == before


@settings(max_examples=25)
@given(seeds)
def test_equal_seeds_give_equal_points(seed: int) -> None:
    """The generator alone decides, in whatever order a store has put the keys, and in a copy of the space."""
    point = SPACE.sample(random.Random(seed))
    stored, space = json.loads(point_key(point)), pickle.loads(pickle.dumps(SPACE))

    for method in (space.mutate, lambda one, rng: space.cross(one, one, rng).point):
        assert point_key(method(stored, random.Random(seed))) == point_key(method(point, random.Random(seed)))
    assert point_key(space.sample(random.Random(seed))) == point_key(point)
    assert space.to_json() == SPACE.to_json()


@pytest.mark.parametrize("space", [SPACE, CHEAP], ids=["any", "cheap"])
@settings(max_examples=25)
@given(seed=seeds)
def test_decisions_give_the_point_back(space: GraphSpace, seed: int) -> None:
    """The decisions of a point make it again, and a name has one domain in all points."""
    point = space.sample(random.Random(seed))
    decisions = space.decisions(point)
    answers = {decision.name: decision for decision in decisions}

    def ask(name: str, domain: Domain) -> float:
        assert DOMAINS.setdefault((space is CHEAP, name), domain) == domain == answers[name].domain
        return answers[name].answer

    assert len(answers) == len(decisions)
    assert point_key(space.decide(ask)) == point_key(point)


DOMAINS: dict[tuple[bool, str], Domain] = {}


@pytest.mark.parametrize("space", [SPACE, CHEAP], ids=["any", "cheap"])
@settings(max_examples=25)
@given(seed=seeds)
def test_any_answers_give_a_point(space: GraphSpace, seed: int) -> None:
    """Whatever is answered, the point lies in the space."""
    rng = random.Random(seed)

    space.validate(space.decide(lambda _, domain: domain.sample(rng)))


@pytest.mark.parametrize(
    ("space", "cost", "most", "told"),
    [
        (CHEAP, "flops", 200_000, r"takes 22\d,\d+ FLOPs an example; at most 200,000 are allowed"),
        (SMALL, "activations", 6_000, r"has 6,171 activations an example; it must have at most 6,000"),
    ],
)
def test_networks_cost_at_most_so_much(space: GraphSpace, cost: str, most: int, told: str) -> None:
    """Samples, mutants, crossings and what is answered keep the limit, and some come near to it; else it is refused."""
    rng = random.Random(0)
    points = [space.sample(rng) for _ in range(10)]
    points += [space.cross(*rng.sample(points, 2), rng).point for _ in range(10)]
    points += [space.decide(lambda _, domain: domain.sample(rng)) for _ in range(10)]
    for place in range(20):
        points.append(space.mutate(points[place], rng))
    costs = [getattr(space.network(point), cost) for point in points]

    assert 0.75 * most < max(costs) <= most
    with pytest.raises(PointError, match=f"network: the network {told}"):
        space.validate({"network": plain_cnn(SHAPE, 3, widths=[24, 24], pool_after=[0]).to_json()})


def test_returned_points_are_the_callers() -> None:
    """To change a point in place changes neither the space nor what it gives later."""
    before = point_key(SPACE.to_json())
    point = SPACE.sample(random.Random(3))
    point["network"]["nodes"].clear()
    SPACE.to_json()["parameters"]["network"]["starts"].clear()

    assert point_key(SPACE.to_json()) == before
    SPACE.validate(SPACE.sample(random.Random(3)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"network": None}, r"a network must be a dict of input and nodes, not None"),
        (
            {"network": small().to_json()},
            r"network: its input is \(2, 4, 4\) and its output \(2,\); they must be \(2, 8, 8\)",
        ),
        ({"rate": 3.0}, r"rate=3.0 \(float\): must be a float from 0.01 to 0.2"),
        ({"width": 3}, r"width=3: must be one of the parameters"),
        ({"network": resnet(SHAPE, 3, widths=[32]).to_json()}, r"node 1 \(conv\): size=32: must be at most 24"),
        ({"network": resnet(SHAPE, 3, widths=[4], depth=9).to_json()}, r"the network has 68 nodes; .* at most 60"),
    ],
    ids=range(6),
)
def test_points_outside_are_refused(change: dict[str, Any], message: str) -> None:
    """A point outside the space is refused by a line that names the node or parameter."""
    space = GraphSpace(STARTS[:2], {"rate": Float(0.01, 0.2, log=True)}, limits=Limits(nodes=60, size=24))

    with pytest.raises(PointError, match=message):
        space.validate({"network": STARTS[0].to_json(), "rate": 0.1} | change)
    with pytest.raises(PointError, match=message):
        space.mutate({"network": STARTS[0].to_json(), "rate": 0.1} | change, random.Random(0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"starts": []}, r"starts=\[\]: must hold a network or more"),
        ({"starts": [{"input": [2]}]}, r"starts\[0\]: a network must be a dict of input and nodes"),
        (
            {"starts": [STARTS[0], STARTS[3]]},
            r"starts\[1\]: its input is \(5,\) and its output \(3,\); they must be",
        ),
        ({"parameters": {"network": 3}}, "the name 'network' is the network's"),
        ({"moves": ["widen", "lengthen"]}, r"moves=\['widen', 'lengthen'\]: must hold one or more of"),
        ({"moves": []}, r"moves=\[\]: must hold one or more of"),
        ({"n_moves": -1}, r"n_moves=-1: must be a whole number of at least 0"),
        ({"starts": None}, r"starts=NoneType: must be a list"),
        ({"starts": STARTS[0]}, r"starts=Network: must be a list"),
        ({"moves": None}, r"moves=NoneType: must be a list"),
        ({"moves": [["widen"]]}, r"must hold one or more of"),
        ({"limits": {"nodes": 3}}, r"limits=dict: must be a Limits. Give Limits\(...\)"),
        ({"limits": Limits(kernel=1)}, r"starts\[0\]: node 1 \(conv\): kernel=3: must be at most 1"),
    ],
    ids=range(13),
)
def test_spaces_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    """A start, name or number that can't be is refused at once."""
    with pytest.raises(ConfigurationError, match=message):
        GraphSpace(**{"starts": STARTS[:1]} | arguments)
    with pytest.raises(ConfigurationError, match=r"limits.size=0: must be a whole number from 1 to 65536"):
        Limits(size=0)


def test_exhausted_space_says_so() -> None:
    """Where no move is possible and no parameter has a second value, there is no other point."""
    space = GraphSpace(STARTS[:1], moves=["merge"])

    with pytest.raises(SpaceExhaustedError, match="no move is possible"):
        space.mutate(space.sample(random.Random(0)), random.Random(0))
    with pytest.raises(ConfigurationError, match="can't be listed"):
        space.points()


def test_crossing_joins_a_beginning_and_an_end() -> None:
    """The child's nodes begin as one parent's and end as the other's, each under its own name where it is free."""
    first, second = STARTS[0], plain_cnn(SHAPE, 3, widths=[6, 4, 4], pool_after=[1])
    crossings = [crossed((first, second), 0, random.Random(seed)) for seed in range(20)]
    children = [crossing.network for crossing in crossings if crossing is not None]

    assert len(children) == 20
    assert len({*children}) > 5
    for child in children:
        n_first = next(n for n in range(len(child.nodes), 0, -1) if child.nodes[:n] == first.nodes[:n])
        layers = [node.layer for node in child.nodes[n_first:]]
        assert n_first > 0
        assert layers == [node.layer for node in second.nodes[len(second.nodes) - len(layers) :]]


def test_a_crossing_is_the_same_from_either_side() -> None:
    """Named in the other order it makes the same network, each node of which is of the same one of the two."""
    space = GraphSpace([STARTS[0], plain_cnn(SHAPE, 3, widths=[6, 4, 4], pool_after=[1])])
    points = [{"network": start.to_json()} for start in space.starts]
    child = space.vary(space.cross(points[0], points[1], random.Random(0)), random.Random(1))
    swapped = space.swap_parents(child)

    assert swapped.point == child.point
    assert swapped.crossing.networks == child.crossing.networks[::-1]
    assert swapped.crossing.network == child.crossing.network
    assert swapped.crossing.origins == {node: (1 - of, id) for node, (of, id) in child.crossing.origins.items()}
    assert space.swap_parents(swapped) == child
    assert space.swap_parents(space.vary(Variation.of(points[0]), random.Random(0))).crossing is None


def test_cuts_are_where_all_goes_through() -> None:
    """Within a residual unit there is no cut."""
    units = resnet(SHAPE, 3, widths=[4])

    assert bottlenecks(units) == [1, 2, 3, 9, 10, 11]


def test_networks_that_share_no_size_are_not_crossed() -> None:
    """Where no two cuts fit, there is no child, and a space gives one of the two networks, and says which."""
    first = Network((4,), (Node(1, Linear(3), (0,)),))
    second = Network((4,), (Node(1, Linear(3), (0,)), Node(2, Activation(), (1,))))
    point = {"network": first.to_json()}

    assert crossed((first, second), 0, random.Random(0)) is None
    space = GraphSpace([first, second])
    variation = space.cross(point, point, random.Random(0))
    assert variation.point == point
    assert Derivation.from_json(space.derivation(variation)) == Derivation(first, ())


def test_a_crossing_that_is_too_large_is_not_the_only_one() -> None:
    """Where some cuts give a network beyond the limits, a child of others is given; beyond all, one of the two."""
    first, second = (plain_cnn(SHAPE, 3, widths=widths, pool_after=[0]) for widths in ([4] * 4, [6] * 3))
    n_nodes = max(len(network.nodes) for network in (first, second))
    points = [{"network": network.to_json()} for network in (first, second)]
    tight = GraphSpace([first, second], limits=Limits(nodes=n_nodes))
    for seed in range(30):
        rng = random.Random(seed)
        child = tight.cross(points[0], points[1], rng)

        assert child.point not in points
        assert isinstance(child.crossing, Crossing)
        tight.validate(child.point)
    assert crossed((first, second), 0, random.Random(0), lambda network: "too large") is None


def test_entries_leave_out_what_is_no_architecture() -> None:
    """What donors are compared by holds the network's nodes first, and no learning rate."""
    point = {"rate": 0.1, "network": STARTS[0].to_json()}
    entries = architecture_entries(point, GraphSpace(STARTS[:1], {"rate": Float(0.0, 1.0)}).to_json())

    assert all(entry.startswith('/"network"/"') for entry in entries)


def test_variations_name_the_operations_that_they_took() -> None:
    """What was done on the way, replayed on the origin's network, gives the child's; parameters change beside it."""
    space, rng = GraphSpace(STARTS[:2], {"rate": Float(0.0, 1.0)}), random.Random(2)
    child = Variation.of(space.sample(rng))
    for _ in range(12):
        child = space.vary(child, rng)
    derivation = space.derivation(child)
    found = Derivation.from_json(derivation)

    assert 4 < len(child.operations) < 12
    assert found is not None
    network = found.network
    assert network == space.network(child.origin)
    for operation in found.operations:
        network = operation.apply(network)
    assert network == space.network(child.point)
    assert derivation["mutated"] == ["network", "rate"]


def test_steps_to_parameters_alone_derive_no_network() -> None:
    """A child with its parent's network says what else was changed, and no operations."""
    n_nodes = len(STARTS[0].nodes)
    space = GraphSpace(STARTS[:1], {"rate": Float(0.0, 1.0)}, limits=Limits(nodes=n_nodes), moves=["deepen"])
    child = space.vary(Variation.of({"network": STARTS[0].to_json(), "rate": 0.5}), random.Random(0))

    assert space.derivation(child) == {"mutated": ["rate"]}


def test_distance_is_that_of_networks_and_parameters() -> None:
    """Equal points are 0 apart, a layer more is an edit, and a parameter counts by its scale."""
    space = GraphSpace(STARTS[:2], {"rate": Float(0.0, 2.0)})
    one, other = ({"network": start.to_json(), "rate": 0.5 + n} for n, start in enumerate(STARTS[:2]))

    assert space.distance(one, {**one}) == 0.0
    assert space.distance(one, {**one, "rate": 1.5}) == 0.5
    assert space.distance(one, other) == edit_distance(*STARTS[:2]) + 0.5


@pytest.mark.parametrize(
    ("tuner", "arguments"),
    [
        ("random.RandomTuner", {}),
        ("evolution.EvolutionTuner", {}),
        pytest.param("network_morphism.NetworkMorphismTuner", {"n_candidates": 24}, marks=pytest.mark.slow),
    ],
)
def test_tuners_search_it(tuner: str, arguments: dict[str, Any]) -> None:
    """Random search, evolution and network morphism keep their contract in it."""
    space = GraphSpace([Network((4,), (Node(1, Linear(3), (0,)),))], {"rate": Float(0.0, 1.0)}, n_moves=2)

    check_tuner(Spec(f"nas.tuners.{tuner}", arguments), space, METRICS, n_trials=10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tuner", "arguments"),
    [
        ("random.RandomTuner", {}),
        ("evolution.EvolutionTuner", {"crossover": 0.5}),
        ("anneal.AnnealTuner", {}),
        ("nsga2.Nsga2Tuner", {}),
        ("pbt.PbtTuner", {}),
    ],
)
def test_more_tuners_search_it(tuner: str, arguments: dict[str, Any]) -> None:
    """So do, in a space of real networks, these and the ones that know of decisions only."""
    check_tuner(Spec(f"nas.tuners.{tuner}", arguments), SPACE, METRICS)


class Sized(Problem):
    """Trains nothing, and scores by the number of nodes; few networks, which moves reach on many ways."""

    metrics = (Metric("nodes", "minimize"),)
    space = GraphSpace(STARTS[:1], moves=("activation",), n_moves=3)

    def train(self, run: TrialRun) -> Mapping[str, float]:
        return {"nodes": float(len(self.space.network(run.point).nodes))}


@pytest.mark.parametrize(
    "tuner",
    [Spec.of(RandomTuner), pytest.param(Spec.of(NetworkMorphismTuner, n_candidates=16), marks=pytest.mark.slow)],
    ids=["random", "network_morphism"],
)
def test_a_search_trains_a_network_once(tuner: Spec) -> None:
    """Points that differ in the numbers and the order of nodes alone are one to a tuner that asks what was there."""
    search = Search(problem=Spec.of(Sized), tuner=tuner)
    found = run_search(search, root="memory://once", budget=Budget(trials=24), finalists=1)

    networks = [Sized.space.network(trial.point) for trial in found.lineage if trial.stage == "search"]
    assert len(networks) == 24
    assert len({digest(network) for network in networks}) == 24


def test_a_key_is_of_the_network_and_the_parameters() -> None:
    """Two orders of the same insertions have one key; another rate or another network has another one."""
    start = STARTS[0]
    one = InsertConv(2, 3).apply(InsertConv(4, 1).apply(start))
    other = InsertConv(4, 1).apply(InsertConv(2, 3).apply(start))
    space = GraphSpace([start], {"rate": Float(0.0, 1.0)})
    keys = [space.key({"network": n.to_json(), "rate": rate}) for n in (one, other, start) for rate in (0.1, 0.2)]

    assert one.to_json() != other.to_json()
    assert keys[:2] == keys[2:4]
    assert len({*keys}) == 4
    for point in ({}, None):
        with pytest.raises(PointError, match=r"the point must be a dict with network\. Add it"):
            space.key(point)  # type: ignore[arg-type]


def test_near_the_limit_no_layer_is_put_on_the_input() -> None:
    """Other moves are drawn instead; a network without inner layers of weights still gets some."""
    start = plain_cnn((3, 32, 32), 10, widths=[16, 32], pool_after=[0])
    limits = Limits(flops=start.flops + 400_000)  # room for convolutions on the three channels of the image
    kinds = ("deepen", "residual", "narrow")
    moves = [draw_move(start, kinds, limits, random.Random(seed)) for seed in range(100)]
    readers = {node.id for move in moves if move for node in move.network.nodes if INPUT in node.inputs}

    assert all(moves)
    assert readers == {start.nodes[0].id}
    assert draw_move(mlp((4,), 2, widths=[]), ["deepen"], Limits(), random.Random(0)) is not None
    pooled = Network((3, 32, 32), (Node(1, GlobalPool(), (INPUT,)), Node(2, Linear(10), (1,))))
    assert draw_move(pooled, ["residual"], Limits(), random.Random(0)) is not None
