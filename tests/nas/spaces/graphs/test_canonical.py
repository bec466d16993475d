"""The canonical form of a network, its digest, and the distance of two."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings

from nas.spaces.graphs.canonical import digest
from nas.spaces.graphs.distance import edit_distance, steps_of
from nas.spaces.graphs.layers import Activation, Add, Concat, Conv, GlobalPool, Layer, Linear, Norm, Pool
from nas.spaces.graphs.network import Network, Node
from nas.spaces.graphs.resizing import Widen
from nas.spaces.graphs.skipping import AddSkip
from tests.support.graph_networks import STARTS, grown, networks, seeds, small


def renamed(network: Network, rng: random.Random) -> Network:
    """The same network: other names, another order of nodes, and of what is added."""
    names = dict(
        zip([0, *(n.id for n in network.nodes)], [0, *rng.sample(range(1, 513), len(network.nodes))], strict=True)
    )
    left, done, nodes = list(network.nodes), {0}, []
    while left:
        ready = [node for node in left if done.issuperset(node.inputs)]
        node = rng.choice([n for n in ready if n != network.output] or ready)
        left.remove(node)
        done.add(node.id)
        inputs = [names[source] for source in node.inputs]
        if isinstance(node.layer, Add):
            rng.shuffle(inputs)
        nodes.append(Node(names[node.id], node.layer, tuple(inputs)))
    return Network(network.input_shape, tuple(nodes))


@settings(max_examples=50)
@given(networks, seeds)
def test_names_and_order_do_not_matter(network: Network, seed: int) -> None:
    """A network whose nodes are renamed, and listed and added in another order, has the same digest and distance 0."""
    other = renamed(network, random.Random(seed))

    assert digest(other) == digest(network)
    assert edit_distance(other, network) == 0.0


def tangle(seed: int) -> Network:
    """Like layers and adds of two to four of what is there, at random; what nobody takes is added up in the end."""
    rng = random.Random(seed)
    nodes: list[Node] = []
    for id in range(1, rng.randint(5, 14)):
        if id > 2 and rng.random() < 0.5:
            inputs = rng.sample(range(1, id), rng.randint(2, min(4, id - 1)))
            nodes.append(Node(id, Add(), tuple(inputs)))
        else:
            nodes.append(Node(id, rng.choice((Activation(), Norm())), (rng.randrange(id),)))
    used = {source for node in nodes for source in node.inputs}
    ends = tuple(node.id for node in nodes if node.id not in used)
    return Network((2, 4, 4), (*nodes, Node(20, Add(), ends)) if len(ends) > 1 else tuple(nodes))


def test_names_and_order_do_not_matter_in_a_tangle() -> None:
    """Of two thousand random graphs of few kinds of layers, each has one digest under two other names and orders."""
    for seed in range(2_000):
        network = tangle(seed)
        others = [renamed(network, random.Random(n)) for n in range(2)]
        assert {digest(other) for other in others} == {digest(network)}, seed


def test_digest_tells_all_else_apart() -> None:
    """Of three hundred random graphs, those with one digest are the same after some renaming of their nodes."""
    found: dict[str, list[Network]] = {}
    for seed in range(300):
        network = tangle(seed)
        if len(network.nodes) <= 7:
            found.setdefault(digest(network), []).append(network)

    pairs = [pair for like in found.values() for pair in itertools.pairwise(like)]
    assert pairs
    assert all(are_same(*pair) for pair in pairs)


def are_same(one: Network, other: Network) -> bool:
    """Whether some renaming of all, tried one by one, makes one of the other."""
    nodes = {(node.id, node.layer, frozenset(node.inputs)) for node in other.nodes}
    for ids in itertools.permutations([node.id for node in other.nodes]):
        names = {0: 0, **dict(zip([node.id for node in one.nodes], ids, strict=True))}
        if {(names[n.id], n.layer, frozenset(names[source] for source in n.inputs)) for n in one.nodes} == nodes:
            return True
    return False


def test_what_uses_the_input_of_an_input_counts() -> None:
    """Two like norms are told apart by relus behind them that are alike but for who else takes them."""

    def network(order: tuple[int, int]) -> Network:
        relus, norms = [Node(id, Activation(), (0,)) for id in (1, 2)], [Node(2 + id, Norm(), (id,)) for id in (1, 2)]
        ends = [Node(5, Add(), order), Node(6, Norm(), (5,)), Node(8, Add(), (6, 2))]
        return Network((2, 4, 4), (*relus, *norms, *ends))

    assert digest(network((3, 4))) == digest(network((4, 3)))
    assert edit_distance(network((3, 4)), network((4, 3))) == 0.0


@pytest.mark.parametrize(
    ("n_layers", "edges"),
    [
        (9, [(a + b, a + c) for a in (0, 3, 6) for b, c in ((0, 1), (1, 2), (0, 2))]),
        (9, [(n, (n + 1) % 9) for n in range(9)]),
        (9, [*((n, (n + 1) % 6) for n in range(6)), (6, 7), (7, 8), (8, 6)]),
        (40, [(2 * n, 2 * n + 1) for n in range(20)]),
    ],
    ids=("three triangles", "a ring of nine", "rings of six and three", "twenty pairs"),
)
def test_like_layers_that_are_added_in_pairs_have_one_form(n_layers: int, edges: list[tuple[int, int]]) -> None:
    """Like convolutions of which each is added to as many, of which the sums are added up: no layer stands out."""
    convs = [Node(n, Conv(2, 1), (0,)) for n in range(1, n_layers + 1)]
    adds = [Node(100 + n, Add(), (1 + a, 1 + b)) for n, (a, b) in enumerate(edges)]
    relus = [Node(200 + n, Activation(), (100 + n,)) for n in range(len(edges))]
    network = Network((2, 4, 4), (*convs, *adds, *relus, Node(300, Add(), tuple(relu.id for relu in relus))))

    assert {digest(renamed(network, random.Random(seed))) for seed in range(4)} == {digest(network)}


def test_different_networks_differ() -> None:
    """Of many networks, two have the same digest if and only if they are 0 apart."""
    found = [grown(seed, 1 + seed % 5) for seed in range(40)]
    for one in found:
        for other in found:
            if one.input_shape == other.input_shape:
                assert (digest(one) == digest(other)) == (edit_distance(one, other) == 0.0)


def diamond(*, shared: bool, concat: bool = False, swapped: bool = False) -> Network:
    """A relu and a convolution beside it, of one convolution or of two like ones."""
    stem, twin = Node(1, Conv(2, 1), (0,)), Node(2, Conv(2, 1), (0,))
    paths = (Node(3, Activation(), (1,)), Node(4, Conv(2, 1), (1 if shared else 2,)))
    join = Node(5, Concat() if concat else Add(), (4, 3) if swapped else (3, 4))
    nodes = (stem, *(() if shared else (twin,)), *paths, join, Node(6, GlobalPool(), (5,)), Node(7, Linear(2), (6,)))
    return Network((2, 4, 4), nodes)


def test_sharing_and_order_of_a_concat_count() -> None:
    """Two users of one layer are told from users of two like layers, and a concat's inputs have an order."""
    assert digest(diamond(shared=True)) != digest(diamond(shared=False))
    assert digest(diamond(shared=True, concat=True)) != digest(diamond(shared=True, concat=True, swapped=True))
    assert digest(diamond(shared=True)) == digest(diamond(shared=True, swapped=True))


def coupled(first: tuple[int, ...], second: tuple[int, ...]) -> Network:
    """Four like convolutions, each with a relu, that are added up at once, while their relus are in pairs."""
    convs = [Node(id, Conv(2, 1), (0,)) for id in (1, 2, 3, 4)]
    relus = [Node(10 + id, Activation(), (id,)) for id in (1, 2, 3, 4)]
    pairs = [
        node
        for place, ids in enumerate((first, second))
        for node in (
            Node(20 + place, Add(), tuple(10 + id for id in ids)),
            Node(30 + place, Activation(), (20 + place,)),
        )
    ]
    joins = [Node(40, Add(), (1, 2, 3, 4)), Node(41, Concat(), (40, 30)), Node(42, Concat(), (40, 31))]
    ends = [Node(43, Add(), (41, 42)), Node(50, GlobalPool(), (43,)), Node(51, Linear(2), (50,))]
    return Network((2, 4, 4), (*convs, *relus, *pairs, *joins, *ends))


def test_like_branches_that_are_used_twice_have_one_form() -> None:
    """Two like convolutions that are added, and again behind relus, have one form in whatever order they stand."""
    a, b = Node(1, Conv(2, 1), (0,)), Node(2, Conv(2, 1), (0,))
    relus = (Node(3, Activation(), (1,)), Node(4, Activation(), (2,)))
    ends = (Node(7, Concat(), (5, 6)), Node(8, GlobalPool(), (7,)), Node(9, Linear(2), (8,)))
    found = {
        digest(Network((2, 4, 4), (a, b, *relus, Node(5, Add(), one), Node(6, Add(), other), *ends)))
        for one in ((1, 2), (2, 1))
        for other in ((3, 4), (4, 3))
    }
    paired = {digest(coupled(*pairs)) for pairs in (((1, 2), (3, 4)), ((1, 3), (2, 4)), ((4, 1), (3, 2)))}

    assert len(found) == 1
    assert len(paired) == 1


def test_digest_is_the_same_everywhere() -> None:
    """The digest of a network is the one that it had when this was written: records may hold it."""
    assert digest(small()) == "92172150be576368c921ae2b7cd15fa7"


@settings(max_examples=60)
@given(networks, networks, networks)
def test_distance_is_a_metric(one: Network, two: Network, three: Network) -> None:
    """It is symmetric, no way around is shorter, and it is at most one edit for each node."""
    a, b, c = map(steps_of, (one, two, three))

    assert edit_distance(a, b) == edit_distance(b, a) >= 0.0
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c) + 1e-9
    assert edit_distance(a, b) <= max(len(a), len(b))


def test_near_networks_are_near() -> None:
    """A wider layer is less than one edit away, a skip as many as it has nodes and a little; all else is farther."""
    network = STARTS[0]
    wider, skipping = Widen(1, 5).apply(network), AddSkip(1, 3).apply(network)

    assert edit_distance(network, wider) == 1 / 5
    assert 2.0 <= edit_distance(network, skipping) < 2.5
    assert edit_distance(network, STARTS[1]) > 5


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        (Conv(32, 3), Conv(48, 3), 1 / 3),
        (Conv(32, 3), Conv(48, 5), 1 / 3 + 2 / 5),
        (Conv(2, 1), Conv(48, 7), 1.0),
        (Conv(32, 3), Conv(32, 3, bias=False), 1.0),
        (Pool("max", 3, 1), Pool("mean", 3, 1), 1.0),
        (Activation("relu"), Activation("prelu"), 1.0),
        (Norm(), Activation("relu"), 1.0),
    ],
)
def test_what_differs_in_a_layer_counts(one: Layer, other: Layer, apart: float) -> None:
    """Numbers count by their ratio, up to a whole edit; any other attribute counts as another kind of layer."""
    networks = [Network((2, 8, 8), (Node(1, layer, (0,)), Node(2, GlobalPool(), (1,)))) for layer in (one, other)]

    assert edit_distance(*networks) == pytest.approx(apart)
