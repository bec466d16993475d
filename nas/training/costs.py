"""Costs of a network without training: parameters, FLOPs and latency of one example."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import torch
from torch import Tensor, nn

from nas.inheritance.module_state import lazy_layers, size_lazy_layers
from nas.training.live_flops import count_flops

N_PASSES = 10
"""Most forward passes that are timed."""
PASSES_S = 0.25
"""Seconds after which no other pass is timed."""


class NetworkCost(Mapping[str, int]):
    """A network's ``parameters``, and the ``flops`` and ``live_flops`` of one forward pass, computed when read.

    FLOPs are those of torch's counter in eval mode: matrix products, convolutions and attention; a multiplication and
    an addition are two. ``live_flops`` leaves out what does not lie on a path from the inputs to the outputs. Counting
    FLOPs takes several times as long as counting parameters. Torch's meta device is used: no memory is filled, nothing
    is computed, and torch's random state does not change.

    Args:
        build: Returns the network.
        example_inputs: Returns a batch of one.
    """

    def __init__(self, build: Callable[[], nn.Module], example_inputs: Callable[[], tuple[Tensor, ...]]) -> None:
        with torch.device("meta"):
            self._network = build()
        self._example_inputs = example_inputs
        self._counts: dict[str, Callable[[], int]] = {
            "parameters": self._parameters,
            "flops": lambda: self._flops[0],
            "live_flops": lambda: self._flops[1],
        }

    def __getitem__(self, name: str) -> int:
        return self._counts[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._counts)

    def __len__(self) -> int:
        return len(self._counts)

    def _parameters(self) -> int:
        if lazy_layers(self._network):
            _ = self._flops  # a forward pass gives them their sizes
        return sum(parameter.numel() for parameter in self._network.parameters())

    @cached_property
    def _flops(self) -> tuple[int, int]:
        with torch.device("meta"):
            inputs = self._example_inputs()
        network = self._network.to("meta").eval()
        if lazy_layers(network):
            size_lazy_layers(network, inputs)
        return count_flops(network, [tensor.to("meta") for tensor in inputs])


def forward_latency_s(network: nn.Module, inputs: tuple[Tensor, ...], device: str) -> float:
    """Returns the seconds of one forward pass in eval mode.

    The first pass is not timed. The result is the least of the next ten, or of as many as start within 0.25 s. It
    depends on torch's number of threads and on the load of the machine.

    Args:
        network: Is moved to the device and left in eval mode.
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
