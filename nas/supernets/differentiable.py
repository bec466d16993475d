"""Differentiable search on a supernet: gradients train alphas and weights in turn.

Alphas give the weight of each option of a choice:

* DARTS (Liu et al. 2019, arXiv:1806.09055): softmax weights; the alphas' gradient has first or second order.
* GDAS (Dong and Yang 2019, arXiv:1910.04465): a straight-through Gumbel gate, so that one option is computed.
* DrNAS (Chen et al. 2021, arXiv:2006.10355): weights from a Dirichlet distribution. Differs: no partial channels
  and no pruning during the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.core.point import Point
from nas.supernets.alphas import Alphas
from nas.supernets.choices import mix
from nas.supernets.method import Method, n_nones, n_skips

Loss: TypeAlias = Callable[[nn.Module, Any], Tensor]
"""Returns the loss of a network on a batch."""
Relaxation: TypeAlias = Callable[[Alphas, float, torch.Generator], dict[str, Tensor]]
"""Returns the weights of options by label, each ``(n_options,)``.

They depend on the alphas, and on the share of the search that is done.
"""

MAX_NORM = 5.0
"""The norm to which the gradient of weights is clipped."""
_MOVE = 0.01
"""The length of the finite difference of DARTS, in weights."""


def relaxation_of(method: Method) -> Relaxation:
    """Returns the relaxation of a method."""
    if method.method == "gdas":
        return lambda alphas, done, generator: gumbel_gates(alphas, temperature(method, done), generator)
    return dirichlet_weights if method.method == "drnas" else softmax_weights


def softmax_weights(alphas: Alphas, done: float, generator: torch.Generator) -> dict[str, Tensor]:
    """Returns the softmax of the logits, as in DARTS."""
    return {label: logits.softmax(0) for label, logits in alphas.logits().items()}


def gumbel_gates(alphas: Alphas, temperature: float, generator: torch.Generator) -> dict[str, Tensor]:
    """Returns weights of 1 for a sampled option and 0 for the others, as in GDAS.

    The gradient is that of the softmax of logits with Gumbel noise, at this temperature.
    """
    return {label: _gate(logits, temperature, generator) for label, logits in alphas.logits().items()}


def _gate(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    waiting = torch.empty(logits.shape).exponential_(generator=generator).clamp_min(1e-30).to(logits)
    soft = ((logits.log_softmax(0) - waiting.log()) / temperature).softmax(0)
    hard = functional.one_hot(soft.argmax(), len(soft)).to(soft)
    return hard - soft.detach() + soft


def temperature(method: Method, done: float) -> float:
    """Returns the temperature of GDAS, which falls linearly."""
    first, last = method.temperature
    return first + (last - first) * done


def dirichlet_weights(alphas: Alphas, done: float, generator: torch.Generator) -> dict[str, Tensor]:
    """Returns weights drawn from Dirichlet distributions with concentrations ``elu(alpha) + 1``, as in DrNAS."""
    seed = int(torch.randint(2**62, (1,), generator=generator))
    with torch.random.fork_rng(devices=[]):  # the distribution takes no generator
        torch.manual_seed(seed)
        drawn = {label: _dirichlet(logits.cpu()) for label, logits in alphas.logits().items()}
    return {label: weights.to(alphas.logits()[label]) for label, weights in drawn.items()}


def _dirichlet(logits: Tensor) -> Tensor:
    weights: Tensor = torch.distributions.Dirichlet(functional.elu(logits) + 1).rsample()
    return weights


class RelaxedTraining:
    """Trains alphas and weights in turn, on batches that have no example in common.

    Args:
        network: The supernet. Its submodule ``alphas`` holds the alphas.
        loss: The loss of the network on a batch.
        optimizer: SGD of the weights.
        alpha_optimizer: The optimizer of the alphas.
        method: The method and its options.
        generator: Draws the samples of GDAS and DrNAS.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Loss,
        *,
        optimizer: torch.optim.Optimizer,
        alpha_optimizer: torch.optim.Optimizer,
        method: Method,
        generator: torch.Generator,
    ) -> None:
        self.network = network
        self.alphas = alphas_of(network)
        self._loss = loss
        self._optimizer, self._alpha_optimizer = optimizer, alpha_optimizer
        self._is_second_order = method.order == 2
        self._relax = relaxation_of(method)
        self._generator = generator
        self._weights = [weight for weight in weights_of(network) if weight.requires_grad]

    def step(self, batch: Any, alpha_batch: Any, done: float) -> float:
        """Makes a step of alphas, then one of weights. Returns the loss of the weights' batch.

        Args:
            batch: Examples for the weights.
            alpha_batch: Examples for the alphas.
            done: The share of the search that is done, from 0 to 1.
        """
        self.step_alphas(batch, alpha_batch, done)
        self._optimizer.zero_grad(set_to_none=True)
        mix(self.network, {label: weights.detach() for label, weights in self._mixture(done).items()})
        loss = self._loss(self.network, batch)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self._weights, MAX_NORM)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())

    def step_alphas(self, batch: Any, alpha_batch: Any, done: float) -> None:
        """Makes a step of the alphas."""
        if self._is_second_order:
            gradients = self.unrolled_gradients(batch, alpha_batch, done)
        else:
            gradients = self._gradients(alpha_batch, done, [*self.alphas.parameters()])
        for alpha, gradient in zip(self.alphas.parameters(), gradients, strict=True):
            alpha.grad = gradient
        self._alpha_optimizer.step()
        self._alpha_optimizer.zero_grad(set_to_none=True)

    def unrolled_gradients(self, batch: Any, alpha_batch: Any, done: float) -> list[Tensor]:
        """Returns the second-order gradients of the alphas: those after one step of the weights.

        The product with the second derivatives is a finite difference, as in DARTS (equation 8). The step has SGD's
        momentum and weight decay, without Nesterov's correction and without clipping.
        """
        alphas, weights = [*self.alphas.parameters()], self._weights
        moved, rate = self._unrolled(self._gradients(batch, done, weights))
        with _placed(weights, moved):
            found = self._gradients(alpha_batch, done, [*alphas, *weights])
        outer, direction = found[: len(alphas)], found[len(alphas) :]
        norm = float(torch.stack([part.norm() for part in direction]).norm())
        if norm == 0.0:
            return outer
        length = _MOVE / norm
        sides = []
        for sign in (1.0, -1.0):
            pairs = zip(weights, direction, strict=True)
            with _placed(weights, [weight.detach() + sign * length * part for weight, part in pairs]):
                sides.append(self._gradients(batch, done, alphas))
        difference = [(plus - minus) / (2 * length) for plus, minus in zip(*sides, strict=True)]
        return [first - rate * second for first, second in zip(outer, difference, strict=True)]

    def _unrolled(self, gradients: Sequence[Tensor]) -> tuple[list[Tensor], float]:
        """Returns the weights after a step, and its learning rate."""
        group = self._optimizer.param_groups[0]
        momentum, decay, rate = group.get("momentum", 0.0), group.get("weight_decay", 0.0), float(group["lr"])
        moved = []
        for weight, gradient in zip(self._weights, gradients, strict=True):
            step = gradient + decay * weight.detach()
            buffer = self._optimizer.state.get(weight, {}).get("momentum_buffer")
            moved.append(weight.detach() - rate * (step if buffer is None else step + momentum * buffer))
        return moved, rate

    def _gradients(self, batch: Any, done: float, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Returns the gradients of a batch's loss; 0 for inputs that it does not depend on."""
        mix(self.network, self._mixture(done))
        loss = self._loss(self.network, batch)
        found = torch.autograd.grad(loss, inputs, allow_unused=True)
        return [torch.zeros_like(one) if part is None else part for one, part in zip(inputs, found, strict=True)]

    def _mixture(self, done: float) -> dict[str, Tensor]:
        return self._relax(self.alphas, done, self._generator)


def add_alphas(network: nn.Module, generator: torch.Generator) -> Alphas:
    """Adds new alphas to a supernet, as its submodule ``alphas``, and returns them."""
    alphas = Alphas(network, generator)
    network.add_module("alphas", alphas)
    return alphas


def alphas_of(network: nn.Module) -> Alphas:
    """Returns the alphas of a supernet that has them.

    Raises:
        AttributeError: it has none; call ``add_alphas``.
    """
    alphas = network.get_submodule("alphas")
    assert isinstance(alphas, Alphas)
    return alphas


def weights_of(network: nn.Module) -> list[nn.Parameter]:
    """Returns the parameters of a supernet that are no alphas."""
    return [weight for name, weight in network.named_parameters() if not name.startswith("alphas.")]


def alpha_optimizer_of(network: nn.Module, method: Method) -> torch.optim.Optimizer:
    """Returns Adam for the alphas, with the momentum of DARTS."""
    alphas = alphas_of(network).parameters()
    return torch.optim.Adam(alphas, method.alpha_rate, betas=(0.5, 0.999), weight_decay=method.alpha_decay)


def alpha_metrics(alphas: Alphas, before: Tensor, point: Point) -> dict[str, float]:
    """Returns the metrics of a supernet epoch that show a collapse, or unmoved alphas.

    Args:
        alphas: The alphas after the epoch.
        before: ``Alphas.flat`` before it.
        point: The point that the epoch suggests.
    """
    distance = float((alphas.flat() - before).norm())
    return {
        "skips": n_skips(point),
        "nones": n_nones(point),
        "entropy": alphas.entropy(),
        "alpha_distance": distance,
    }


@contextmanager
def _placed(weights: Sequence[Tensor], values: Sequence[Tensor]) -> Iterator[None]:
    """Gives weights other values inside the context."""
    own = [weight.detach().clone() for weight in weights]
    try:
        _copy(weights, values)
        yield
    finally:
        _copy(weights, own)


def _copy(weights: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for weight, value in zip(weights, values, strict=True):
            weight.copy_(value)
