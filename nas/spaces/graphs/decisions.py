"""Networks as sequences of decisions, for tuners that know nothing of graphs.

Any answers give a valid network. An impossible answer stands for the next possible one. Nodes without a consumer are
left out. A linear layer is added if the output is no vector of the right size. The answers of ``decisions_of`` give
exactly the network that they were made from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nas.spaces.domain import Ask, Categorical, Decision, Domain, Numeric
from nas.spaces.graphs.layers import LAYERS, Activation, Add, Conv, GlobalPool, Layer, Linear, Pool, ReasonError, Shape
from nas.spaces.graphs.limits import Limits
from nas.spaces.graphs.network import INPUT, MAX_NODES, Network, Node
from nas.spaces.graphs.rewiring import pruned

_IDS = tuple(range(MAX_NODES + 1))


def decide_network(ask: Ask, input_shape: Shape, n_outputs: int, limits: Limits) -> Network:
    """Returns the network that the answers give.

    Args:
        ask: Returns the answer for a name and a domain.
        input_shape: The shape of one example.
        n_outputs: The features of the output.
        limits: The limits of the space.
    """
    questions = _Questions(ask)
    shapes: dict[int, Shape] = {INPUT: input_shape}
    nodes: list[Node] = []
    flops_left = limits.flops
    for index in range(questions.number("n_nodes", limits.nodes, log=True)):
        id = questions.option(f"order.{index}", _IDS, [id for id in _IDS if id not in shapes])
        layer = _layer(questions, id, shapes, limits)
        inputs = _inputs(questions, id, layer, shapes, limits)
        taken = [shapes[source] for source in inputs]
        layer = _affordable(layer, taken, flops_left)
        flops_left -= layer.flops(taken)
        nodes.append(Node(id, layer, inputs))
        shapes[id] = layer.shape(taken)
    if len(nodes) + 2 > limits.nodes and shapes[nodes[-1].id] != (n_outputs,):
        del nodes[max(limits.nodes - 2, 0) :]
    network = _completed(nodes, shapes, n_outputs)
    while nodes and limits.costs_too_much(network) is not None:
        del nodes[-1]
        network = _completed(nodes, shapes, n_outputs)
    return network


def _completed(nodes: Sequence[Node], shapes: Mapping[int, Shape], n_outputs: int) -> Network:
    """Returns these nodes as a network with a vector of ``n_outputs``, without unused nodes."""
    nodes = list(nodes)
    taken = {INPUT, *(node.id for node in nodes)}
    free = (id for id in _IDS if id not in taken)
    shape = shapes[nodes[-1].id if nodes else INPUT]
    while not nodes or shape != (n_outputs,):
        layer = Linear(n_outputs) if len(shape) == 1 else GlobalPool()
        nodes.append(Node(next(free), layer, (nodes[-1].id if nodes else INPUT,)))
        shape = layer.shape([shape])
    return Network(shapes[INPUT], tuple(pruned(nodes)))


def _affordable(layer: Layer, inputs: Sequence[Shape], flops: int) -> Layer:
    """Returns the layer with as many channels as the FLOPs allow; a relu if none."""
    if layer.flops(inputs) <= flops:
        return layer
    if isinstance(layer, Conv) and (n := flops // replace(layer, channels=1).flops(inputs)):
        return replace(layer, channels=n)
    if isinstance(layer, Linear) and (n := flops // replace(layer, features=1).flops(inputs)):
        return replace(layer, features=n)
    return Activation()


def decisions_of(network: Network, limits: Limits) -> list[Decision]:
    """Returns the answers that give this network, in the order of the questions."""
    answers: dict[str, Any] = {"n_nodes": len(network.nodes)}
    for index, node in enumerate(network.nodes):
        layer = node.layer.to_json()
        answers[f"order.{index}"] = node.id
        answers |= {f"{node.id}.{name}": value for name, value in layer.items()}
        answers |= {f"{node.id}.{node.layer.op}": layer.get("kind"), f"{node.id}.n_inputs": len(node.inputs)}
        answers |= {f"{node.id}.input.{slot}": source for slot, source in enumerate(node.inputs)}
    found = []

    def answer(name: str, domain: Domain) -> float:
        value = answers[name]
        found.append(
            Decision(name, domain, domain.labels.index(str(value)) if isinstance(domain, Categorical) else value)
        )
        return found[-1].answer

    decide_network(answer, network.input_shape, network.output_shape[0], limits)
    return found


class _Questions:
    """Questions for the tuner; those with one possible answer are not asked."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def number(self, name: str, high: int, *, low: int = 1, log: bool = False) -> int:
        """Returns a whole number from ``low`` to ``high``."""
        return low if low == high else int(self._ask(name, Numeric(low, high, log, True)))

    def option(self, name: str, options: Sequence[Any], possible: Collection[Any]) -> Any:
        """Returns the answered option, or the next possible one after it."""
        start = int(self._ask(name, Categorical(len(options), tuple(map(str, options))))) if len(options) > 1 else 0
        return next(one for one in (*options[start:], *options[:start]) if one in possible)


def _layer(questions: _Questions, id: int, shapes: dict[int, Shape], limits: Limits) -> Layer:
    """Returns a layer that can take the outputs of earlier nodes."""
    possible = [op for op, kind in LAYERS.items() if _sources(_least(kind), shapes)]
    op = questions.option(f"{id}.op", tuple(LAYERS), possible)
    kernels = range(1, limits.kernel + 1)

    def bias() -> bool:
        return bool(questions.option(f"{id}.bias", (True, False), (True, False)))

    if op == "linear":
        return Linear(questions.number(f"{id}.features", limits.size, log=True), bias())
    if op == "conv":
        size = questions.number(f"{id}.channels", limits.size, log=True)
        kernel = questions.option(f"{id}.kernel", kernels, kernels[::2])
        return Conv(size, kernel, questions.number(f"{id}.stride", limits.stride), bias())
    if op == "pool":
        kind = questions.option(f"{id}.pool", ("max", "mean"), ("max", "mean"))
        kernel = questions.option(f"{id}.kernel", kernels, [k for k in kernels if _sources(Pool("max", k, 1), shapes)])
        return Pool(kind, kernel, questions.number(f"{id}.stride", limits.stride))
    if op == "activation":
        return Activation(questions.option(f"{id}.activation", ("relu", "prelu"), ("relu", "prelu")))
    return LAYERS[op]()


def _least(kind: type[Layer]) -> Layer:
    """Returns a layer of this kind that takes every input that the kind allows."""
    attributes: dict[type[Layer], tuple[Any, ...]] = {Conv: (1, 1), Linear: (1,), Pool: ("max", 1, 1)}
    return kind(*attributes.get(kind, ()))


def _sources(layer: Layer, shapes: dict[int, Shape], beside: Sequence[int] = ()) -> list[int]:
    """Returns the possible next inputs of a layer; a join's first input needs a partner."""
    if layer.joins:
        like = (lambda shape: shape) if isinstance(layer, Add) else (lambda shape: (len(shape), shape[1:]))
        groups: dict[Any, list[int]] = {}
        for id, shape in shapes.items():
            groups.setdefault(like(shape), []).append(id)
        if beside:
            return [id for id in groups[like(shapes[beside[0]])] if id not in beside]
        return [id for group in groups.values() if len(group) > 1 for id in group]
    return [id for id, shape in shapes.items() if _takes(layer, shape)]


def _takes(layer: Layer, shape: Shape) -> bool:
    try:
        layer.shape([shape])
    except ReasonError:
        return False
    return True


def _inputs(questions: _Questions, id: int, layer: Layer, shapes: dict[int, Shape], limits: Limits) -> tuple[int, ...]:
    n_inputs = questions.number(f"{id}.n_inputs", limits.inputs, low=2) if layer.joins else 1
    inputs: list[int] = []
    for slot in range(n_inputs):
        if possible := _sources(layer, shapes, inputs):
            inputs.append(questions.option(f"{id}.input.{slot}", _IDS, possible))
    return tuple(inputs)
