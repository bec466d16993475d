"""Inheritance of a child of two network graphs."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from nas.core.errors import PointError
from nas.inheritance.inherit import inherit
from nas.spaces.graphs.branching import Branch
from nas.spaces.graphs.crossover import Crossing, crossed
from nas.spaces.graphs.derivation import Derivation, derivation_from_json
from nas.spaces.graphs.inserting import InsertResidual
from nas.spaces.graphs.layers import Conv
from nas.spaces.graphs.limits import Limits
from nas.spaces.graphs.module import GraphModule
from nas.spaces.graphs.moves import MOVES as ALL_MOVES
from nas.spaces.graphs.moves import draw_move
from nas.spaces.graphs.network import Network
from nas.spaces.graphs.resizing import Widen
from nas.spaces.graphs.starts import plain_cnn
from tests.support.graph_networks import SHAPE, STARTS

START = plain_cnn(SHAPE, 3, widths=[8, 8, 8], pool_after=[0])
MOVES = ("widen", "narrow", "deepen", "residual", "grow_kernel", "add_skip", "branch", "remove", "disconnect")


def moved(rng: random.Random, n_moves: int = 5) -> Network:
    """Returns the start after random moves; its relatives use one number for different nodes."""
    network = START
    for _ in range(n_moves):
        move = draw_move(network, MOVES, Limits(size=32, nodes=40), rng)
        assert move is not None
        network = move.network
    return network


def filled(network: Network, value: float) -> dict[str, Tensor]:
    """Returns weights that all equal this number."""
    return {name: torch.full_like(tensor, value) for name, tensor in GraphModule(network).state_dict().items()}


def test_each_layer_inherits_from_its_own_parent() -> None:
    """With donors of all 1 and all 2 no layer has the other's number; layers before the cut are 1."""
    n_crossings = n_renamed = 0
    for seed in range(30):
        rng = random.Random(seed)
        crossing = crossed((moved(rng), moved(rng)), seed % 2, rng)
        if crossing is None:
            continue
        n_crossings += 1
        parents = [filled(network, 1.0 + place) for place, network in enumerate(crossing.networks)]
        child = GraphModule(crossing.network)
        with torch.no_grad():
            for parameter in child.parameters():
                parameter.zero_()
        report = inherit(child, parents, derivation=crossing)

        assert report.notes == ()
        for node, (parent, name) in crossing.origins.items():
            n_renamed += name != node
            layer = child.layers[str(node)]
            assert crossing.network[node].layer == crossing.networks[parent][name].layer
            assert not any((tensor == 2.0 - parent).any() for tensor in layer.parameters())
            if parent == crossing.begins:
                assert all((tensor == 1.0 + parent).all() for tensor in layer.parameters())
    assert n_crossings > 20
    assert n_renamed > 20


def test_parents_are_found_by_their_index() -> None:
    """A third donor with the same tensors gives nothing if the parents' indices say so."""
    crossing = crossed((START, START), 0, random.Random(0))
    assert crossing is not None
    child = GraphModule(crossing.network)
    donors = [filled(START, value) for value in (9.0, 1.0, 2.0)]

    report = inherit(child, donors, derivation=crossing, parents=[1, 2])

    assert report.notes == ()
    found = {value for parameter in child.parameters() for value in parameter.unique().tolist()}
    assert found == {1.0, 2.0}


def test_renamed_nodes_get_unused_numbers() -> None:
    """A node of the end with a used number gets one above the greatest of both parents."""
    rng = random.Random(0)
    crossings = [crossed((moved(rng), moved(rng)), 0, rng) for _ in range(30)]
    new = [
        (node, crossing.networks)
        for crossing in crossings
        if crossing is not None
        for node, (_, origin) in crossing.origins.items()
        if node != origin
    ]

    assert len(new) > 20
    assert all(node > max(one.id for network in parents for one in network.nodes) for node, parents in new)


def test_operations_on_a_child_of_two_are_followed() -> None:
    """A widened layer has its parent's part; an inserted layer has no parent."""
    one, other = STARTS[0], plain_cnn(SHAPE, 3, widths=[5, 7], pool_after=[0])
    residual = InsertResidual(one.nodes[0].id, 3)
    crossing = Crossing((one, other), (one.nodes[0].id, other.nodes[0].id), 0, (residual, Widen(one.nodes[0].id, 9)))
    child = GraphModule(crossing.operations[1].apply(residual.apply(crossing.network)))
    report = inherit(child, [filled(one, 1.0), filled(other, 2.0)], derivation=crossing)

    first = report.tensors[f"layers.{one.nodes[0].id}.weight"]
    assert report.notes == ()
    assert (first.how, first.donor) == ("sliced", 0)
    made = [node.id for node in residual.apply(crossing.network).nodes if node.id not in crossing.network]
    convs = [id for id in made if isinstance(child.network[id].layer, Conv)]
    assert convs
    assert all(report.tensors[f"layers.{id}.weight"].how == "new" for id in convs)


def test_any_move_may_follow_a_crossing() -> None:
    """After any move on a child of two, no layer inherits from the wrong parent, and none fails."""
    n_branched = 0
    for seed in range(60):
        rng = random.Random(seed)
        crossing = crossed((moved(rng, 3), moved(rng, 3)), seed % 2, rng)
        if crossing is None:
            continue
        network, operations = crossing.network, []
        for _ in range(3):
            move = draw_move(network, [*ALL_MOVES], Limits(size=32, nodes=60), rng)
            assert move is not None
            network = move.network
            operations.append(move.operation)
        crossing = replace(crossing, operations=tuple(operations))
        n_branched += any(isinstance(operation, Branch) for operation in operations)
        parents = [filled(parent, 1.0 + place) for place, parent in enumerate(crossing.networks)]
        child = GraphModule(network)
        with torch.no_grad():
            for parameter in child.parameters():
                parameter.zero_()

        assert inherit(child, parents, derivation=crossing).notes == ()
        untouched = [node for node in network.nodes if node in crossing.network.nodes]
        for node in untouched:
            parent, _ = crossing.origins[node.id]
            assert not any((tensor == 2.0 - parent).any() for tensor in child.layers[str(node.id)].parameters())
    assert n_branched > 5


def test_a_missing_parent_leaves_the_other_part() -> None:
    """If a parent's weights are missing, the report says so, and the other part inherits from its own parent."""
    one, other = STARTS[0], plain_cnn(SHAPE, 3, widths=[5, 7], pool_after=[0])
    crossing = Crossing((one, other), (one.nodes[0].id, other.nodes[0].id), 0)
    child = GraphModule(crossing.network)
    report = inherit(child, [filled(other, 2.0)], derivation=crossing)
    elsewhere = inherit(GraphModule(one), [filled(one, 1.0), filled(other, 2.0)], derivation=crossing)

    assert report.notes == ("not crossed: no donor is left that has the network of parent 0",)
    assert (child.layers[str(child.network.output.id)].weight == 2.0).all()
    assert elsewhere.notes == ("not crossed: the crossing makes another network than the child's",)
    assert elsewhere.share == 1.0


def test_layers_without_finite_weights_are_new() -> None:
    """A layer without finite weights in its own parent is new, even if the other parent has its number."""
    one, other = STARTS[0], plain_cnn(SHAPE, 3, widths=[5, 7], pool_after=[0])
    crossing = Crossing((one, other), (one.nodes[0].id, other.nodes[0].id), 0)
    weights = [filled(one, 1.0), filled(other, 2.0)]
    output = crossing.network.output.id
    parent, origin = crossing.origins[output]
    weights[parent][f"layers.{origin}.weight"].fill_(float("nan"))
    report = inherit(GraphModule(crossing.network), weights, derivation=crossing)

    assert report.tensors[f"layers.{output}.weight"].how == "new"
    assert report.tensors[f"layers.{output}.bias"].how == "copied"


def test_crossings_survive_json() -> None:
    """A crossing and older derivations come back from JSON unchanged."""
    one, other = STARTS[0], plain_cnn(SHAPE, 3, widths=[5, 7], pool_after=[0])
    crossing = Crossing((one, other), (1, 1), 1, (Widen(1, 9),))
    derivation = Derivation(one, (Widen(1, 9, 0.5, 3),))

    assert derivation_from_json({"crossed": [3, 1], **json.loads(json.dumps(crossing.to_json()))}) == crossing
    assert derivation_from_json({"mutated": ["network"], **derivation.to_json()}) == derivation
    assert derivation_from_json({"crossed": [3, 1], "mutated": []}) is None
    assert derivation_from_json(None) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cuts": [99, 1]}, r"cuts\[0\]=99: must be a node that all paths go through. Choose one of \[1, "),
        ({"cuts": 7}, r"crossing: cuts=7: must be a list of two"),
        ({"cuts": ["1", 1]}, r"cuts\[0\]='1': must be a node that all paths go through. Choose one of \[1, "),
        ({"begins": 2}, r"crossing: begins=2: must be 0 or 1"),
        ({"operations": {}}, r"crossing: operations=\{\}: must be a list"),
        ({"networks": []}, r"crossing: networks=\[\]: must be a list of two"),
        ({"more": 1}, r"must be a dict of networks, cuts, begins, operations"),
    ],
)
def test_invalid_crossings_are_refused(change: dict[str, object], message: str) -> None:
    """An invalid crossing is refused by name."""
    data = Crossing((STARTS[0], STARTS[0]), (1, 1), 0).to_json()["crossing"]

    with pytest.raises(PointError, match=message):
        derivation_from_json({"crossing": {**data, **change}})
