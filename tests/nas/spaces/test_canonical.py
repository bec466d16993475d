"""The canonical form of a network, its digest, and the distance of two."""

from __future__ import annotations

import random

from hypothesis import given, settings

from nas.spaces.graphs.canonical import digest
from nas.spaces.graphs.distance import edit_distance, steps_of
from nas.spaces.graphs.layers import Activation, Add, Concat, Conv, GlobalPool, Linear
from nas.spaces.graphs.network import Network, Node
from nas.spaces.graphs.resizing import Widen
from nas.spaces.graphs.skipping import AddSkip
from tests.nas.spaces.networks import STARTS, grown, networks, seeds, small


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
