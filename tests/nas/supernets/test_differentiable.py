"""Tests of `nas.supernets.differentiable`: gradients against those by hand, and what one step changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from nas.supernets import differentiable
from nas.supernets.alphas import Alphas
from nas.supernets.choices import LayerChoice, choices_of, mix
from nas.supernets.differentiable import (
    RelaxedTraining,
    add_alphas,
    alpha_metrics,
    alpha_optimizer_of,
    dirichlet_weights,
    gumbel_gates,
    relaxation_of,
    softmax_weights,
    temperature,
    weights_of,
)
from nas.supernets.method import Method
from nas.supernets.module import space_of
from tests.support.supernets import CellNetwork, ConcatNetwork, images

Batch = tuple[Tensor, Tensor]


class Zero(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * 0.0


def edge(label: str) -> LayerChoice:
    options = {"none": Zero(), "skip_connect": nn.Identity(), "linear": nn.Linear(3, 3)}
    return LayerChoice(options | {"tanh": nn.Sequential(nn.Linear(3, 3), nn.Tanh())}, label)


def tiny() -> nn.Module:
    """Returns a supernet of two choices with alphas, in float64."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), edge("a"), nn.Tanh(), edge("b"), nn.Linear(3, 1)).double()
    add_alphas(network, torch.Generator().manual_seed(1))
    for values in network.get_submodule("alphas").parameters():
        values.data = torch.randn(4, dtype=torch.float64)
    return network


def loss(network: nn.Module, batch: Batch) -> Tensor:
    outputs: Tensor = network(batch[0])
    return (outputs - batch[1]).square().mean()


def batch(seed: int) -> Batch:
    inputs = torch.randn(16, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return inputs, inputs.prod(1, keepdim=True)


def training(network: nn.Module, method: Method) -> RelaxedTraining:
    return RelaxedTraining(
        network,
        loss,
        optimizer=torch.optim.SGD(weights_of(network), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
        alpha_optimizer=alpha_optimizer_of(network, method),
        method=method,
        generator=torch.Generator().manual_seed(3),
    )


def state(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def test_first_order_gradient() -> None:
    """The gradient of a logit is ``s (g - sum of s g)``, with g the inner product of option and output gradient."""
    choice = edge("a").double()
    network = nn.Sequential(choice)
    alphas = add_alphas(network, torch.Generator().manual_seed(1)).double()
    inputs = torch.randn(5, 3, dtype=torch.float64)

    mix(network, softmax_weights(alphas, 0.0, torch.Generator()))
    torch.autograd.backward(network(inputs).square().sum())

    shares = alphas.logits()["a"].detach().softmax(0)
    outputs = torch.stack([option(inputs) for option in choice.options.values()]).detach()
    upstream = 2 * torch.einsum("o,onf->nf", shares, outputs)
    by_option = torch.einsum("nf,onf->o", upstream, outputs)
    expected = shares * (by_option - (shares * by_option).sum())
    torch.testing.assert_close(alphas.logits()["a"].grad, expected)


def exact_unrolled(network: nn.Module, trainer: RelaxedTraining, first: Batch, second: Batch) -> list[Tensor]:
    """Returns the gradient of alphas through one step of SGD, by second derivatives."""
    alphas = [*network.get_submodule("alphas").parameters()]
    named: dict[str, Tensor] = {
        name: value for name, value in network.named_parameters() if not name.startswith("alphas.")
    }

    def mixed_loss(weights: dict[str, Tensor], examples: Batch) -> Tensor:
        mix(network, softmax_weights(trainer.alphas, 0.0, torch.Generator()))
        outputs: Tensor = functional_call(network, weights, (examples[0],))
        return (outputs - examples[1]).square().mean()

    gradients = torch.autograd.grad(mixed_loss(named, first), list(named.values()), create_graph=True)
    moved = {}
    for (name, value), gradient in zip(named.items(), gradients, strict=True):
        buffer = trainer._optimizer.state.get(value, {}).get("momentum_buffer", torch.zeros_like(value))
        moved[name] = value - 0.1 * (gradient + 5e-4 * value + 0.9 * buffer)
    return list(torch.autograd.grad(mixed_loss(moved, second), alphas))


@pytest.mark.parametrize(("n_steps", "move", "tolerance"), [(0, 0.01, 1e-3), (3, 0.01, 1e-3), (3, 1e-4, 1e-6)])
def test_second_order_gradient(n_steps: int, move: float, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finite difference of DARTS equals exact second derivatives, and leaves the network unchanged."""
    monkeypatch.setattr(differentiable, "_MOVE", move)
    network = tiny()
    trainer = training(network, Method(method="darts", order=2))
    for step in range(n_steps):
        trainer.step(batch(step), batch(100 + step), 0.0)
    before = state(network)
    exact = torch.cat(exact_unrolled(network, trainer, batch(50), batch(60)))
    found = torch.cat(trainer.unrolled_gradients(batch(50), batch(60), 0.0))
    first_order = torch.cat(trainer._gradients(batch(60), 0.0, [*trainer.alphas.parameters()]))

    assert (found - exact).norm() < tolerance * exact.norm()
    assert (first_order - exact).norm() > 0.02 * exact.norm()
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


@pytest.mark.parametrize("method", ["darts", "gdas", "drnas"])
def test_alphas_do_not_see_the_batch_of_the_weights(method: str) -> None:
    """With first order, alphas depend on their own batch alone."""
    moved = []
    for weights_seed in (1, 2):
        network = tiny()
        training(network, Method(method=method)).step(batch(weights_seed), batch(7), 0.5)
        moved.append(network.get_submodule("alphas").state_dict())

    assert all(torch.equal(moved[0][label], moved[1][label]) for label in ("a", "b"))


def test_a_step_of_alphas_leaves_weights() -> None:
    """It changes alphas only, also with second order, and leaves no gradients."""
    network = tiny()
    before = state(network)
    training(network, Method(method="darts", order=2)).step_alphas(batch(1), batch(2), 0.0)

    changed = {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"alphas.a", "alphas.b"}
    assert all(parameter.grad is None for parameter in network.parameters())


def count_calls(network: nn.Module) -> Counter[str]:
    """Returns a counter of the options that later forward passes compute."""
    calls: Counter[str] = Counter()
    for label, choice in choices_of(network).items():
        assert isinstance(choice, LayerChoice)
        for name, option in choice.options.items():
            option.register_forward_hook(lambda *_, key=f"{label}.{name}": calls.update([key]))
    return calls


def test_gdas_computes_the_sampled_option_only() -> None:
    """Each of the two forward passes of a step computes one option of each choice; weights of others stay the same."""
    network = tiny()
    calls = count_calls(network)
    trainer = training(network, Method(method="gdas"))
    for step in range(8):
        before, calls_before = state(network), calls.copy()
        trainer.step(batch(step), batch(100 + step), 0.5)

        now = calls - calls_before
        assert sum(n for key, n in now.items() if key.startswith("a.")) == 2
        assert sum(n for key, n in now.items() if key.startswith("b.")) == 2
        for index, label in ((2, "a"), (4, "b")):
            for name in ("linear", "tanh"):
                if f"{label}.{name}" not in now:
                    own = [key for key in before if key.startswith(f"{index}.options.{name}.")]
                    assert own
                    assert all(torch.equal(before[key], network.state_dict()[key]) for key in own)
    assert len(calls) > 4


def test_gdas_gradient() -> None:
    """The gate's gradient is that of the softmax with noise; a weight of an option that is not computed is added."""
    choice = edge("a").double()
    network = nn.Sequential(choice)
    alphas = add_alphas(network, torch.Generator().manual_seed(1)).double()
    inputs = torch.randn(5, 3, dtype=torch.float64)

    weights = gumbel_gates(alphas, 2.0, torch.Generator().manual_seed(4))["a"]
    chosen = int(weights.argmax())
    mix(network, {"a": weights})
    output = network(inputs)
    torch.autograd.backward(output.square().sum())

    upstream = 2 * output.detach()
    by_option = upstream.sum().repeat(4)
    by_option[chosen] = (upstream * list(choice.options.values())[chosen](inputs).detach()).sum()
    noise = -torch.empty(4).exponential_(generator=torch.Generator().manual_seed(4)).double().log()
    logits = alphas.logits()["a"].detach().clone().requires_grad_()
    torch.autograd.backward(((logits.log_softmax(0) + noise) / 2.0).softmax(0), by_option)
    torch.testing.assert_close(alphas.logits()["a"].grad, logits.grad)
    assert weights.detach().sort().values[:3].tolist() == [0.0, 0.0, 0.0]


def test_gdas_samples_by_the_softmax() -> None:
    """The share of samples of an option is its softmax, at any temperature."""
    network = tiny()
    alphas, generator = network.get_submodule("alphas"), torch.Generator().manual_seed(0)
    assert isinstance(alphas, Alphas)
    draws = [int(gumbel_gates(alphas, 0.3, generator)["a"].argmax()) for _ in range(4000)]

    shares = torch.bincount(torch.tensor(draws), minlength=4) / 4000
    torch.testing.assert_close(shares.double(), alphas.logits()["a"].detach().softmax(0), atol=0.03, rtol=0)


def test_temperature_falls_linearly() -> None:
    """It is the first one at the start of the search, and the last one at its end."""
    method = Method(method="gdas", temperature=(10.0, 0.1))

    assert [round(temperature(method, done), 6) for done in (0.0, 0.5, 1.0)] == [10.0, 5.05, 0.1]


def test_drnas_draws_from_the_dirichlet_distribution() -> None:
    """The mean of weights, and that of their gradients, are those of the distribution's mean; global states stay."""
    network = tiny()
    alphas, generator = network.get_submodule("alphas"), torch.Generator().manual_seed(0)
    assert isinstance(alphas, Alphas)
    before = torch.get_rng_state()
    total = torch.zeros(4, dtype=torch.float64)
    for _ in range(1000):
        weights = dirichlet_weights(alphas, 0.0, generator)["a"]
        assert float(weights.detach().sum()) == pytest.approx(1.0)
        torch.autograd.backward(weights[0])
        total += weights.detach()

    logits = alphas.logits()["a"].detach().clone().requires_grad_()
    concentration = functional.elu(logits) + 1
    mean = concentration / concentration.sum()
    torch.autograd.backward(mean[0])
    torch.testing.assert_close(total / 1000, mean.detach(), atol=0.03, rtol=0)
    gradient = alphas.logits()["a"].grad
    assert gradient is not None
    torch.testing.assert_close(gradient / 1000, logits.grad, atol=0.03, rtol=0)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("method", ["darts", "gdas", pytest.param("drnas", marks=pytest.mark.slow), "darts_pt"])
def test_training_learns(method: str) -> None:
    """The loss falls and alphas move, with each method."""
    network = tiny()
    chosen = Method(method=method, alpha_rate=0.02)
    trainer = training(network, chosen)
    alphas = trainer.alphas
    before = alphas.flat()
    losses = [trainer.step(batch(step), batch(1000 + step), step / 200) for step in range(200)]
    metrics = alpha_metrics(alphas, before, alphas.point())

    assert sum(losses[-40:]) < 0.8 * sum(losses[:40])
    assert metrics["alpha_distance"] > 0.5
    assert 0 < metrics["entropy"] < 1.3863


def test_relaxation_of_each_method() -> None:
    """Only GDAS has weights that are 0; DARTS-PT mixes as DARTS does."""
    network = tiny()
    alphas = network.get_submodule("alphas")
    assert isinstance(alphas, Alphas)
    drawn = {
        method: relaxation_of(Method(method=method))(alphas, 0.5, torch.Generator().manual_seed(0))["a"]
        for method in ("darts", "gdas", "drnas", "darts_pt")
    }

    assert {method: int((weights == 0).sum()) for method, weights in drawn.items()} == {
        "darts": 0, "gdas": 3, "drnas": 0, "darts_pt": 0,
    }  # fmt: skip
    assert torch.equal(drawn["darts"], drawn["darts_pt"])
    assert not torch.equal(drawn["darts"], drawn["drnas"])


@pytest.mark.parametrize("make", [CellNetwork, ConcatNetwork])
@pytest.mark.parametrize(("method", "order"), [("darts", 1), ("darts", 2), ("gdas", 1), ("drnas", 1)])
def test_cells(make: Callable[[], nn.Module], method: str, order: int) -> None:
    """Cells of both styles are trained, and the alphas give a point of their space; inputs of nodes have alphas too."""
    network = make()
    space = space_of(network)
    alphas = add_alphas(network, torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    chosen = Method(method=method, order=order)
    trainer = RelaxedTraining(
        network,
        lambda net, inputs: functional.cross_entropy(net(inputs), labels),
        optimizer=torch.optim.SGD(weights_of(network), 0.05, momentum=0.9),
        alpha_optimizer=alpha_optimizer_of(network, chosen),
        method=chosen,
        generator=torch.Generator().manual_seed(0),
    )
    before, weights_before = alphas.flat(), state(network)
    for step in range(3):
        trainer.step(images(seed=step), images(seed=10 + step), 0.5)

    space.validate(alphas.point())
    assert alphas.point().keys() == choices_of(network).keys()
    assert bool((alphas.flat() != before).all())
    assert not torch.equal(weights_before["stem.weight"], network.state_dict()["stem.weight"])
