"""Networks as graphs of typed layers: what is refused, and how it is told."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from nas.core.errors import ConfigurationError, PointError
from nas.spaces.graphs.layers import Linear
from nas.spaces.graphs.module import GraphModule
from nas.spaces.graphs.network import Network, Node
from nas.spaces.graphs.starts import CELL_OPERATIONS, mlp, nas_bench_201, plain_cnn, resnet
from nas.training.costs import NetworkCost
from tests.support.graph_networks import CELL, STARTS, networks, small


@settings(max_examples=12)
@given(networks)
def test_shapes_are_those_of_torch(network: Network) -> None:
    """Each node has the shape of the tensor that the torch module makes there; FLOPs and activations are torch's."""
    module = GraphModule(network).eval()
    seen: dict[int, tuple[int, ...]] = {0: network.input_shape}
    for id, layer in module.layers.items():
        layer.register_forward_hook(lambda _, __, y, id=id: seen.update({int(id): tuple(y.shape[1:])}))

    module(torch.randn(2, *network.input_shape))

    assert seen == network.shapes
    assert network.activations == sum(math.prod(shape) for id, shape in seen.items() if id != 0)
    cost = NetworkCost(lambda: GraphModule(network), lambda: (torch.zeros(1, *network.input_shape),))
    assert network.flops == cost["flops"]


@settings(max_examples=30)
@given(networks)
def test_json_gives_the_network_back(network: Network) -> None:
    """A network goes through JSON, in any order of the keys."""
    assert Network.from_json(json.loads(json.dumps(network.to_json(), sort_keys=True))) == network


def changed(place: int, **changes: Any) -> dict[str, Any]:
    """The small network's JSON with another node; None removes a key."""
    data = small().to_json()
    data["nodes"][place] = {k: v for k, v in {**data["nodes"][place], **changes}.items() if v is not None}
    return data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], r"a network must be a dict of input and nodes, not \[\]"),
        ({"input": [2, 0, 4], "nodes": []}, r"input=\[2, 0, 4\]: must be \[channels, height, width\]"),
        ({"input": [2, 70_000, 4], "nodes": []}, r"input=\[2, 70000, 4\]: must .* from 1 to 65536"),
        ({"input": [2], "nodes": []}, "the network has 0 nodes"),
        ({"input": [2], "nodes": [3]}, r"nodes\[0\]=3: must be a dict with an id"),
        (changed(0, id=0), r"node 0 \(conv\): its id must be a whole number from 1 to 512"),
        (changed(0, id=[1]), r"node \[1\] \(conv\): its id must be"),
        (changed(1, id=1), r"node 1 \(norm\): another node has this id"),
        (changed(0, op="cnv"), r"node 1 \(cnv\): op='cnv': must be one of conv, "),
        (changed(0, op=None), r"node 1 \(None\): op=None: must be one of"),
        (changed(0, kernel=4), r"node 1 \(conv\): kernel=4: must be odd"),
        (changed(0, kernel="3"), r"node 1 \(conv\): kernel='3': must be a whole number from 1 to 31"),
        (changed(0, channels=0), r"node 1 \(conv\): channels=0: must be a whole number"),
        (changed(0, channels=True), r"node 1 \(conv\): channels=True: must be a whole number"),
        (changed(0, bias=1), r"node 1 \(conv\): bias=1: must be true or false"),
        (changed(0, stride=None), r"node 1 \(conv\): stride \(missing\) must be given"),
        (changed(1, channels=3), r"node 2 \(norm\): channels=3: unknown, it has no attribute"),
        (changed(1, inputs=3), r"node 2 \(norm\): inputs=3: must be a list of ids"),
        (changed(1, inputs=[3]), r"node 2 \(norm\): input=3: must be 0 \(the network's\) or an earlier node's"),
        (changed(1, inputs=[0, 1]), r"node 2 \(norm\): it has 2 inputs and takes 1"),
        (changed(1, op="add"), r"node 2 \(add\): it has 1 inputs and needs at least 2"),
        (changed(1, op="add", inputs=[1, 1]), r"node 2 \(add\): its inputs \[1, 1\] must be different"),
        (changed(1, op="add", inputs=[0, 1]), r"node 2 \(add\): its inputs \(2, 4, 4\) and \(3, 4, 4\) must have the"),
        (changed(1, inputs=[0]), r"node 1 \(conv\): no node takes its output, and it is not the last"),
        (changed(2, op="norm"), r"node 4 \(linear\): its input \(3, 4, 4\) must be a vector. Put a flatten"),
        (changed(3, op="flatten", features=None, bias=None), r"node 4 \(flatten\): its input \(3,\) must be an image"),
        (
            {**changed(1, op="pool", kind="max", kernel=2, stride=1), "input": [2, 1, 1]},
            r"node 2 \(pool\): kernel=2: is larger than its input \(3, 1, 1\)",
        ),
        (changed(1, op="pool", kind="least", kernel=2, stride=1), r"node 2 \(pool\): kind='least': must be one of"),
        (changed(1, op="activation", kind=["relu"]), r"node 2 \(activation\): kind=\['relu'\]: must be one of relu"),
    ],
    ids=range(29),
)  # fmt: skip
def test_ill_formed_networks_are_refused(data: Any, message: str) -> None:
    """What is no network is refused by a line that names the node and the reason."""
    with pytest.raises(PointError, match=message):
        Network.from_json(data)


def test_modules_can_be_traced() -> None:
    """The module of each start runs, and torch.fx traces it."""
    for network in STARTS:
        module = GraphModule(network).eval()
        x = torch.randn(2, *network.input_shape)

        assert torch.equal(torch.fx.symbolic_trace(module)(x), module(x))


def test_resnet_is_the_published_one() -> None:
    """Three stages of three units, of 16, 32 and 64 channels, have the parameters of the paper's 20 layers."""
    network = resnet((3, 32, 32), 10, widths=[16, 32, 64], depth=3)
    shortcuts = sum(a * b + 2 * b for a, b in ((16, 32), (32, 64)))  # the paper pads with zeros there

    assert n_parameters(network) - shortcuts == 269_722  # 0.27 million


@pytest.mark.parametrize(("cell", "millions"), [("nor_conv_3x3", 1.531546), ("skip_connect", 0.073306)])
def test_cell_is_the_benchmarks(cell: str, millions: float) -> None:
    """Five cells a stage of one operation on each edge have the parameters that NAS-Bench-201 lists."""
    text = f"|{cell}~0|+|{cell}~0|{cell}~1|+|{cell}~0|{cell}~1|{cell}~2|"
    network = nas_bench_201((3, 32, 32), 10, cell=text, widths=[16, 32, 64], n_cells=5)

    assert n_parameters(network) == round(millions * 1e6)


def test_nodes_and_inputs_are_tuples() -> None:
    """Lists would make a network that is unequal to what its JSON gives back."""
    with pytest.raises(PointError, match=r"nodes=\[Node.*must be a tuple of Node; Network.from_json reads lists"):
        Network((2,), [Node(1, Linear(3), (0,))])  # type: ignore[arg-type]
    with pytest.raises(PointError, match=r"node 1 \(linear\): inputs=\[0\]: must be a tuple of ids"):
        Network((2,), (Node(1, Linear(3), [0]),))  # type: ignore[arg-type]


def test_long_and_broken_names_of_operations_make_short_messages() -> None:
    """What no layer is called is told in little room, and in characters that can be written."""
    for op in ("x" * 100_000, "\ud800"):
        with pytest.raises(PointError) as caught:
            Network.from_json(changed(0, op=op))
        assert len(str(caught.value).encode()) < 400


def test_cells_that_cannot_be_are_refused() -> None:
    """A cell that is written wrongly, or through which nothing comes, is refused by what is wrong."""
    for cell, message in (
        (CELL.replace("none", "nothing"), f"one of {', '.join(CELL_OPERATIONS)}. Correct 'nothing'$"),
        ("conv", "Correct 'conv'"),
        ("|none~0|+|skip_connect~0|skip_connect~1|+|none~0|none~1|none~2|", "it has no path"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            nas_bench_201((3, 32, 32), 10, cell=cell, widths=[16])
    with pytest.raises(ConfigurationError, match=r"input_shape=\(3, 28, 30\): 30 must be a multiple of 4"):
        nas_bench_201((3, 28, 30), 10, cell=CELL, widths=[4, 4, 4])
    with pytest.raises(ConfigurationError, match="widths"):
        plain_cnn((3, 32, 32), 10, widths=[], pool_after=[])
    with pytest.raises(ConfigurationError, match=r"widths=4: must be a list of 1 or more whole numbers. Give one"):
        plain_cnn((3, 32, 32), 10, widths=4, pool_after=[0])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"widths=\[\]: must be a list of 1 or more"):
        plain_cnn((3, 32, 32), 10, widths=[], pool_after=[0])
    with pytest.raises(ConfigurationError, match=r"widths=4: must be a list of 0 or more"):
        mlp((3,), 10, widths=4)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"widths\[1\]='8': must be a whole number of at least 1"):
        plain_cnn((3, 32, 32), 10, widths=[4, "8"], pool_after=[])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match=r"cell=None: must be"):
        nas_bench_201((3, 32, 32), 10, cell=None, widths=[16])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"pool_after=\[0, 4\]: names 4. Choose from 0 to 3"):
        plain_cnn((3, 32, 32), 10, widths=[4] * 4, pool_after=[0, 4])


def n_parameters(network: Network) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in GraphModule(network).parameters())
