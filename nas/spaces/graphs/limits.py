"""Limits on the size of the networks of a space."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nas.core.validation import check_int
from nas.spaces.graphs.layers import MAX_KERNEL, MAX_SIZE, Conv, Layer, Linear, Pool
from nas.spaces.graphs.network import MAX_NODES, Network

MAX_COST = 10**15
_MOST = {
    "nodes": MAX_NODES,
    "size": MAX_SIZE,
    "kernel": MAX_KERNEL,
    "stride": MAX_SIZE,
    "inputs": MAX_NODES,
    "flops": MAX_COST,
    "activations": MAX_COST,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The greatest allowed values for a network of a space.

    Attributes:
        nodes: The number of nodes.
        size: The channels of a convolution, the features of a linear layer.
        kernel: The side of the kernel of a convolution or pool.
        stride: The stride of a convolution or pool.
        inputs: The inputs of an add or concat.
        flops: The FLOPs of one example, two for a multiplication with addition (``Network.flops``).
        activations: The output values of all nodes for one example (``Network.activations``). FLOPs alone do not tell
            the run time: many narrow layers wait for memory (Radosavovic et al. 2020, arXiv:2003.13678).

    Raises:
        ConfigurationError: a limit is no whole number of at least 1 (inputs: 2), or too large for any network.
    """

    nodes: int = 96
    size: int = 256
    kernel: int = 7
    stride: int = 4
    inputs: int = 8
    flops: int = MAX_COST
    activations: int = MAX_COST

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 2 if field.name == "inputs" else 1
            check_int(f"limits.{field.name}", getattr(self, field.name), least, _MOST[field.name])

    def refusal(self, network: Network) -> str | None:
        """Returns why the network is over the limits, or None."""
        if len(network.nodes) > self.nodes:
            return f"the network has {len(network.nodes)} nodes; it must have at most {self.nodes}. Remove some."
        if (too_costly := self.costs_too_much(network)) is not None:
            return too_costly
        for node in network.nodes:
            found = _measures(node.layer) | {"inputs": len(node.inputs)}
            for name, value in found.items():
                if value > getattr(self, name):
                    return f"{node}: {name}={value}: must be at most {getattr(self, name)}. Make it smaller."
        return None

    def costs_too_much(self, network: Network) -> str | None:
        """Returns why FLOPs or activations are over the limits, or None."""
        if self.flops < MAX_COST and (flops := network.flops) > self.flops:
            return f"the network takes {flops:,} FLOPs an example; at most {self.flops:,} are allowed. Make it smaller."
        if self.activations < MAX_COST and (activations := network.activations) > self.activations:
            return (
                f"the network has {activations:,} activations an example; it must have at most {self.activations:,}. "
                "Remove layers"
            )
        return None


def _measures(layer: Layer) -> dict[str, int]:
    match layer:
        case Conv(channels, kernel, stride):
            return {"size": channels, "kernel": kernel, "stride": stride}
        case Pool(_, kernel, stride):
            return {"kernel": kernel, "stride": stride}
        case Linear(features):
            return {"size": features}
    return {}
