"""How large the networks of a space may be."""

from __future__ import annotations

from dataclasses import dataclass, fields

from nas.errors import ConfigurationError
from nas.spaces.graphs.layers import MAX_KERNEL, MAX_SIZE, Conv, Layer, Linear, Pool
from nas.spaces.graphs.network import MAX_NODES, Network

MAX_FLOPS = 10**15
_MOST = {
    "nodes": MAX_NODES,
    "size": MAX_SIZE,
    "kernel": MAX_KERNEL,
    "stride": MAX_SIZE,
    "inputs": MAX_NODES,
    "flops": MAX_FLOPS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a network of a space may have at the most.

    Attributes:
        nodes: Nodes.
        size: Channels of a convolution, features of a linear layer.
        kernel: The side of the kernel of a convolution or pool.
        stride: Of a convolution or pool.
        inputs: Of an add or concat.
        flops: Of one example, a multiplication and an addition being two (``Network.flops``).

    Raises:
        ConfigurationError: one is no whole number of at least 1 (inputs: 2), or over what a network may have at all.
    """

    nodes: int = 96
    size: int = 256
    kernel: int = 7
    stride: int = 4
    inputs: int = 8
    flops: int = MAX_FLOPS

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least, most = getattr(self, field.name), 2 if field.name == "inputs" else 1, _MOST[field.name]
            if type(value) is not int or not least <= value <= most:
                raise ConfigurationError(
                    f"limits.{field.name} ({value!r}) must be a whole number from {least} to {most}; correct it"
                )

    def refusal(self, network: Network) -> str | None:
        """What of the network is over the limits, or None."""
        if len(network.nodes) > self.nodes:
            return f"the network has {len(network.nodes)} nodes; it must have at most {self.nodes}; remove some"
        if self.flops < MAX_FLOPS and (flops := network.flops) > self.flops:
            return f"the network takes {flops:,} FLOPs an example; it must take at most {self.flops:,}; make it smaller"
        for node in network.nodes:
            found = _measures(node.layer) | {"inputs": len(node.inputs)}
            for name, value in found.items():
                if value > getattr(self, name):
                    return f"{node}: {name} ({value}) must be at most {getattr(self, name)}; make it smaller"
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
