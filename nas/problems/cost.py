"""What a network costs, without training it: its parameters, and the FLOPs of one example."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


def network_cost(build: Callable[[], nn.Module], example_inputs: Callable[[], tuple[Tensor, ...]]) -> dict[str, int]:
    """The network's ``parameters``, and the ``flops`` of one forward pass in eval mode.

    FLOPs as torch's counter has them: those of matrix products, convolutions and attention, a multiplication and an
    addition being two. All of it on torch's meta device: no memory is filled, nothing is computed, and torch's random
    state stays as it is.

    Args:
        build: Gives the network.
        example_inputs: Gives a batch of one.
    """
    with torch.device("meta"):
        network = build()
        inputs = example_inputs()
    network = network.to("meta").eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network(*(tensor.to("meta") for tensor in inputs))
    return {
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "flops": int(counter.get_total_flops()),
    }
