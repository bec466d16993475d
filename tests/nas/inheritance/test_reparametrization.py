"""Children inherit reparametrized layers whole or not at all."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn, optim
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from nas.inheritance.inherit import inherit
from nas.inheritance.optimizer_state import inherit_optimizer, optimizer_tensors
from nas.inheritance.rules import Rules

Layer = Callable[[nn.Module], nn.Module]


class Symmetric(nn.Module):
    """A user's own parametrization."""

    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).T


def old(reparametrize: Callable[..., nn.Module]) -> Layer:
    def wrapped(layer: nn.Module) -> nn.Module:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            return reparametrize(layer)

    return wrapped


def symmetric(layer: nn.Module) -> nn.Module:
    return parametrize.register_parametrization(layer, "weight", Symmetric())


def pruned(layer: nn.Module) -> nn.Module:
    return prune.random_unstructured(layer, "weight", amount=0.5)


def both(layer: nn.Module) -> nn.Module:
    """Prunes the bias of a layer whose weight has a norm."""
    return prune.random_unstructured(old(weight_norm)(layer), "bias", amount=0.5)


KINDS: dict[str, Layer] = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "orthogonal": parametrizations.orthogonal,
    "symmetric": symmetric,
    "old weight_norm": old(weight_norm),
    "old spectral_norm": old(spectral_norm),
    "pruned": pruned,
    "pruned bias": both,
}


def network(reparametrize: Layer, width: int) -> nn.Sequential:
    """Returns a network in use: the estimates of a spectral norm have settled."""
    made = nn.Sequential(nn.Linear(6, width), reparametrize(nn.Linear(width, width)), nn.ReLU())
    for _ in range(30):
        made(torch.randn(4, 6))
    return made.eval()


def weight_of(made: nn.Sequential) -> Tensor:
    """Returns the weight with which the second layer computes."""
    made(torch.zeros(1, 6))  # hooks set it before each pass
    weight: Tensor = made[1].weight
    return weight.detach().clone()


@pytest.mark.parametrize("kind", KINDS)
class TestKinds:
    def test_equal_layer_is_copied(self, kind: str) -> None:
        """A child with the same layers computes what its donor computes."""
        torch.manual_seed(0)
        donor, child = network(KINDS[kind], 6), network(KINDS[kind], 6)

        report = inherit(child, [donor.state_dict()])

        assert {tensor.how for tensor in report.tensors.values()} == {"copied"}
        torch.testing.assert_close(child(x := torch.randn(5, 6)), donor(x), rtol=0, atol=0)

    @pytest.mark.parametrize("width", [5, 7])
    def test_layer_of_another_width_stays_new(self, kind: str, width: int) -> None:
        """The weight of a wider or narrower layer stays as it was, and the report says why; other layers inherit."""
        torch.manual_seed(0)
        donor, child = network(KINDS[kind], 6), network(KINDS[kind], width)
        before = weight_of(child)

        report = inherit(child, [donor.state_dict()])
        weights = [t for name, t in report.tensors.items() if name.startswith("1.") and "weight" in name]

        assert {tensor.how for tensor in weights} == {"new"}
        assert all("whole or not at all" in tensor.why for tensor in weights)
        assert report.tensors["0.weight"].how == "sliced"
        torch.testing.assert_close(weight_of(child), before, rtol=0, atol=0)

    def test_layer_comes_from_one_donor(self, kind: str) -> None:
        """The best donor that has the whole layer gives all of it, though a better one has parts."""
        torch.manual_seed(0)
        best, second, child = (network(KINDS[kind], 6) for _ in range(3))
        partial = best.state_dict()
        del partial[[name for name in partial if name.startswith("1.") and "weight" in name][-1]]

        inherit(child, [partial, second.state_dict()])

        torch.testing.assert_close(weight_of(child), weight_of(second), rtol=0, atol=0)

    def test_layer_with_a_damaged_tensor_stays_new(self, kind: str) -> None:
        """If one tensor of the layer holds a NaN, all of them keep their values."""
        torch.manual_seed(0)
        donor, child = network(KINDS[kind], 6), network(KINDS[kind], 6)
        before, state = weight_of(child), donor.state_dict()
        name = [name for name in state if name.startswith("1.") and "weight" in name][-1]
        state[name] = torch.full_like(state[name], float("nan"))

        report = inherit(child, [state])

        assert {t.how for name, t in report.tensors.items() if name.startswith("1.") and "weight" in name} == {"new"}
        torch.testing.assert_close(weight_of(child), before, rtol=0, atol=0)

    def test_renamed_layer_is_copied(self, kind: str) -> None:
        """A layer of another name inherits by structure, whole."""
        torch.manual_seed(0)
        donor, inner = network(KINDS[kind], 6), network(KINDS[kind], 6)
        child = nn.Sequential()
        child.add_module("stem", inner[0])
        child.add_module("body", inner[1])

        inherit(child, [donor.state_dict()])

        torch.testing.assert_close(child(x := torch.randn(5, 6)), donor[:2](x), rtol=0, atol=0)

    def test_rules_do_not_shrink_it(self, kind: str) -> None:
        """Shrinking and perturbing leave the layer as the donor has it, since its tensors depend on one another."""
        torch.manual_seed(0)
        donor, child = network(KINDS[kind], 6), network(KINDS[kind], 6)

        inherit(child, [donor.state_dict()], rules=Rules(shrink=0.5, perturb=0.5))

        torch.testing.assert_close(weight_of(child), weight_of(donor), rtol=0, atol=0)

    def test_optimizer_state_is_not_sliced(self, kind: str) -> None:
        """The optimizer's state of a layer of another width is new too."""
        torch.manual_seed(0)
        donor, child = network(KINDS[kind], 6), network(KINDS[kind], 7)
        trained, new = optim.Adam(donor.parameters()), optim.Adam(child.parameters())
        donor(torch.randn(4, 6)).sum().backward()
        trained.step()

        report = inherit_optimizer(new, child, [optimizer_tensors(trained, donor)])
        weights = [name for name in report.tensors if "/1." in name and "weight" in name]

        assert weights
        assert {report.tensors[name].how for name in weights} == {"new"}
        assert report.tensors["optimizer/exp_avg/0.weight"].how == "sliced"


@pytest.mark.parametrize(("given", "wanted"), [("spectral_norm", "symmetric"), ("symmetric", "spectral_norm")])
def test_other_parametrization_is_not_taken(given: str, wanted: str) -> None:
    """A layer takes nothing from a layer whose weight is computed from other tensors, though one has its name."""
    torch.manual_seed(0)
    donor, child = network(KINDS[given], 6), network(KINDS[wanted], 6)
    before = weight_of(child)

    report = inherit(child, [donor.state_dict()])

    assert report.tensors["1.parametrizations.weight.original"].how == "new"
    torch.testing.assert_close(weight_of(child), before, rtol=0, atol=0)


def test_bias_comes_with_its_weight() -> None:
    """With several donors the bias of a parametrized layer comes from the donor of its weight."""
    torch.manual_seed(0)
    best, second, child = (network(parametrizations.spectral_norm, 6) for _ in range(3))
    state = best.state_dict()
    del state["1.parametrizations.weight.0._u"]

    report = inherit(child, [state, second.state_dict()])

    assert {t.donor for name, t in report.tensors.items() if name.startswith("1.")} == {1}
    assert report.tensors["0.weight"].donor == 0
