"""Zero-cost proxies: scores of an untrained network, of which more is better.

* ``naswot`` (Mellor et al. 2021, arXiv:2006.04647v3): log-determinant of the kernel of signs before the activations.
  Counts rectifiers and their smooth kin.
* ``jacov`` (the first version of the same paper): how little the gradients by the inputs of a batch correlate.
* ``snip`` (Lee et al. 2019, arXiv:1810.02340): the sum of ``|weight * gradient of the loss|``.
* ``synflow`` (Tanaka et al. 2020, arXiv:2006.05467): the logarithm of 1 + the sum of ``|weight * gradient|``. The
  network has absolute weights and no normalization, and its input is ones. It needs no data.

As in Abdelfattah et al. 2021 (arXiv:2101.08134), batch norm uses statistics of the batch. ``snip`` and ``synflow``
leave out biases and weights of normalization. Differs: dropout is off.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nas.core.point import Point
from nas.inheritance.module_state import lazy_layers
from nas.training.problem import Problem
from nas.training.seeds import random_state, seed_everything, set_random_state

_JITTER = 1e-5
_NORMS = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, _InstanceNorm)
_aten = torch.ops.aten
_RECTIFIERS = frozenset(
    {
        *(_aten.relu, _aten.relu_, _aten.hardtanh, _aten.hardtanh_, _aten.leaky_relu, _aten.leaky_relu_),
        *(_aten.elu, _aten.elu_, _aten.silu, _aten.silu_, _aten.gelu, _aten.mish, _aten.hardswish, _aten.hardswish_),
        *(_aten._prelu_kernel, _aten.clamp_min, _aten.clamp_min_, _aten.threshold, _aten.threshold_),
    }
)


class ProxyScorer:
    """Computes proxies of points. The same seed gives a network the same initial weights.

    Args:
        problem: Builds the networks.
        names: The proxies: keys of ``PROXIES``, or ``synflow``.
        seed: The seed of the initial weights.
        device: ``cpu``, ``cuda`` or ``mps``.
    """

    def __init__(self, problem: Problem, names: Sequence[str], *, seed: int, device: str) -> None:
        self._problem = problem
        self._names = names
        self._seed = seed
        self._device = device
        state = random_state()
        try:
            seed_everything(seed)
            needs_data = any(name in PROXIES for name in names)
            self._batch = tuple(tensor.to(device) for tensor in problem.example_batch()) if needs_data else ()
        finally:
            set_random_state(state)

    def score(self, point: Point) -> dict[str, float]:
        """Returns the proxies of a point. Random states do not change."""
        state = random_state()
        try:
            return {name: self._score(name, point) for name in self._names}
        finally:
            set_random_state(state)

    def _score(self, name: str, point: Point) -> float:
        seed_everything(self._seed)
        network = self._problem.build(copy.deepcopy(point)).to(self._device)
        given = self._batch[:1] if name in PROXIES else self._problem.example_inputs()
        inputs = [tensor.to(self._device) for tensor in given]
        if lazy_layers(network):
            with torch.no_grad():
                network.eval()(*inputs)  # gives them their sizes
        return PROXIES[name](_in_training(network), *self._batch) if name in PROXIES else synflow(network, inputs)


def naswot(network: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """Returns the log-determinant of the numbers of equal signs; NaN without activations.

    Args:
        network: Computes the outputs.
        inputs: ``(n, ...)``.
        labels: Not used.
    """
    with torch.no_grad(), _SignKernel(len(inputs)) as signs:
        network(inputs)
    return float(torch.linalg.slogdet(signs.kernel).logabsdet) if signs.n_signs else math.nan


def jacov(network: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """Returns the score of the correlations of the gradients of the summed outputs by each input.

    Raises:
        ValueError: the inputs are whole numbers other than bytes.
    """
    if not inputs.is_floating_point() and inputs.dtype != torch.uint8:
        raise ValueError(f"jacov needs inputs of floating point or bytes, not {inputs.dtype}")
    inputs = inputs.detach().to(torch.float32, copy=True).requires_grad_()
    [gradient] = torch.autograd.grad(_output(network, [inputs]).sum(), [inputs])
    correlations = torch.corrcoef(gradient.flatten(1).double().cpu())
    if not correlations.isfinite().all():  # an input has no effect
        return math.nan
    values = torch.linalg.eigvalsh(correlations) + _JITTER
    return -float((values.log() + 1 / values).sum())


def snip(network: nn.Module, inputs: Tensor, labels: Tensor) -> float:
    """Returns the sum of ``|weight * gradient|``: cross-entropy for classes, else the mean squared error."""
    outputs = _output(network, [inputs])
    loss = functional.mse_loss if labels.is_floating_point() else functional.cross_entropy
    return _saliency(network, loss(outputs, labels))


def synflow(network: nn.Module, inputs: Sequence[Tensor]) -> float:
    """Returns the logarithm of 1 + the synaptic flow; the network is changed.

    The first layers with weights get ones instead of the inputs, since normalized inputs may be negative.

    Args:
        network: Computes the outputs.
        inputs: A batch of one.
    """
    network = network.double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.abs_()
    for module in network.modules():
        if isinstance(module, _NORMS):
            module.forward = lambda x, *rest: x  # type: ignore[method-assign]
        elif any(parameter.dim() > 1 for parameter in module.parameters(recurse=False)):
            module.register_forward_pre_hook(_positive)
    return math.log1p(_saliency(network, _output(network, inputs).sum()))


PROXIES: Mapping[str, Callable[[nn.Module, Tensor, Tensor], float]] = {"jacov": jacov, "naswot": naswot, "snip": snip}
"""The proxies that need data, as functions of a network in training mode, inputs and labels."""


class _SignKernel(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums, for each two examples, the activations whose inputs have equal signs."""

    def __init__(self, n_examples: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kernel = torch.zeros(n_examples, n_examples, dtype=torch.float64)
        self.n_signs = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func._overloadpacket in _RECTIFIERS:
            self._add(args[0])
        return func(*args, **(kwargs or {}))

    def _add(self, x: Tensor) -> None:
        if not x.dim() or len(x) % len(self.kernel):  # its first dimension is not the batch
            return
        signs = (x > 0).reshape(len(self.kernel), -1).float() * 2 - 1  # (n, activations): 1 and -1
        self.n_signs += signs.shape[1]
        self.kernel += ((signs @ signs.T + signs.shape[1]) / 2).double().cpu()


def _in_training(network: nn.Module) -> nn.Module:
    network.train()
    for module in network.modules():
        if isinstance(module, _DropoutNd):
            module.eval()
    return network


def _output(network: nn.Module, inputs: Sequence[Tensor]) -> Tensor:
    """Returns the network's first output."""
    output: Tensor = next(leaf for leaf in tree_leaves(network(*inputs)) if isinstance(leaf, Tensor))
    return output


def _saliency(network: nn.Module, value: Tensor) -> float:
    """Returns the sum of ``|weight * gradient of the value|`` over weights that are no vectors."""
    weights = [parameter for parameter in network.parameters() if parameter.dim() > 1 and parameter.requires_grad]
    gradients = torch.autograd.grad(value, weights, allow_unused=True)
    pairs = zip(weights, gradients, strict=True)
    sums = [(weight.detach() * gradient).abs().sum() for weight, gradient in pairs if gradient is not None]
    return math.fsum(map(float, sums))


def _positive(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns a layer's inputs in its precision; ones if they do not depend on weights."""
    dtype = next(parameter.dtype for parameter in module.parameters(recurse=False))

    def changed(arg: Any) -> Any:
        if not isinstance(arg, Tensor) or not arg.is_floating_point():
            return arg
        return arg.to(dtype) if arg.requires_grad else torch.ones_like(arg, dtype=dtype)

    return tuple(changed(arg) for arg in args)
