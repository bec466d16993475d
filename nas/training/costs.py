"""What a network costs, without training it: its parameters, the FLOPs of one example, and how long that takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

N_PASSES = 10
PASSES_S = 0.25


class NetworkCost(Mapping[str, int]):
    """The network's ``parameters``, and the ``flops`` of one forward pass in eval mode, found out when it is asked for.

    FLOPs as torch's counter has them: those of matrix products, convolutions and attention, a multiplication and an
    addition being two; they take several times as long as the parameters. All of it on torch's meta device: no memory
    is filled, nothing is computed, and torch's random state stays as it is.

    Args:
        build: Gives the network.
        example_inputs: Gives a batch of one.
    """

    def __init__(self, build: Callable[[], nn.Module], example_inputs: Callable[[], tuple[Tensor, ...]]) -> None:
        with torch.device("meta"):
            self._network = build()
        self._example_inputs = example_inputs
        self._find_out = {"parameters": self._parameters, "flops": self._flops}

    def __getitem__(self, name: str) -> int:
        return self._find_out[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._find_out)

    def __len__(self) -> int:
        return len(self._find_out)

    def _parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._network.parameters())

    def _flops(self) -> int:
        with torch.device("meta"):
            inputs = self._example_inputs()
        network = self._network.to("meta").eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            network(*(tensor.to("meta") for tensor in inputs))
        return int(counter.get_total_flops())


def forward_latency_s(network: nn.Module, inputs: tuple[Tensor, ...], device: str) -> float:
    """Seconds of one forward pass in eval mode: the least of ten after a first, or of as many as 0.25 s have room for.

    With as many threads as torch has here, and whatever else the machine does meanwhile.

    Args:
        network: It is moved to the device, and left in eval mode.
        inputs: A batch of one.
        device: ``cpu``, ``cuda`` or ``mps``.
    """
    network = network.to(device).eval()
    inputs = tuple(tensor.to(device) for tensor in inputs)
    synchronize = {"cuda": torch.cuda.synchronize, "mps": torch.mps.synchronize}.get(device, lambda: None)
    seconds: list[float] = []
    with torch.no_grad():
        network(*inputs)
        synchronize()
        while len(seconds) < N_PASSES and sum(seconds) < PASSES_S:
            began = time.perf_counter()
            network(*inputs)
            synchronize()
            seconds.append(time.perf_counter() - began)
    return min(seconds)
