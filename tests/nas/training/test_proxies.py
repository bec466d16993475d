"""Each proxy against a computation by hand in numpy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from nas.core.point import Point
from nas.core.spec import Spec
from nas.training.messages import ProxyRequest, RuntimeSpec
from nas.training.problem import Problem
from nas.training.proxies import ProxyScorer, jacov, naswot, snip, synflow
from nas.training.runtime import TrialRuntime
from nas.training.seeds import random_state

INPUTS = torch.tensor([[1.0, -2.0, 0.5], [0.5, 1.0, -1.0], [-1.0, 0.25, 2.0], [2.0, 1.5, 1.0]])
LABELS = torch.tensor([0, 1, 1, 0])


def perceptron(activation: nn.Module | None = None) -> nn.Sequential:
    """A network with fixed weights: ``(n, 3) -> (n, 2)``."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 5, bias=False), activation or nn.ReLU(), nn.Linear(5, 2, bias=False))


def weights(network: nn.Module) -> list[NDArray[Any]]:
    return [parameter.detach().double().numpy() for parameter in network.parameters()]


def test_naswot_is_the_log_determinant_of_equal_signs() -> None:
    """Entry (i, j) of the kernel is the number of activations whose inputs have equal signs for examples i and j."""
    network = perceptron()
    positive = (INPUTS.double().numpy() @ weights(network)[0].T) > 0
    kernel = np.array([[(a == b).sum() for b in positive] for a in positive], dtype=float)

    assert naswot(network, INPUTS, LABELS) == pytest.approx(np.linalg.slogdet(kernel)[1])


@pytest.mark.parametrize("activation", [nn.ReLU(inplace=True), nn.GELU(), nn.SiLU(), nn.LeakyReLU(), nn.ReLU6()])
def test_naswot_knows_activations_of_the_same_sign(activation: nn.Module) -> None:
    """Their signs are those of the rectifier, in place or not, as modules or functions."""
    assert naswot(perceptron(activation), INPUTS, LABELS) == naswot(perceptron(), INPUTS, LABELS)


def test_naswot_of_equal_examples_and_without_activations() -> None:
    """Two examples with equal signs give minus infinity; a linear network gives NaN."""
    assert naswot(perceptron(), INPUTS[[0, 1, 1, 2]], LABELS) < -20
    assert math.isnan(naswot(nn.Sequential(nn.Linear(3, 2)), INPUTS, LABELS))


class Scaled(nn.Module):
    """A perceptron whose outputs are scaled by a rectified number."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = perceptron(), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x) * functional.relu(self.scale)
        return y


def test_naswot_leaves_out_single_numbers() -> None:
    """A rectified parameter is no activation of the examples."""
    assert naswot(Scaled(), INPUTS, LABELS) == naswot(perceptron(), INPUTS, LABELS)


def test_jacov_is_the_score_of_the_gradients_correlations() -> None:
    """The gradient of the summed outputs by example i is ``w2.sum(0) * (w1 @ x > 0) @ w1``."""
    network = perceptron()
    first, second = weights(network)
    active = (INPUTS.double().numpy() @ first.T) > 0
    eigenvalues = np.linalg.eigvalsh(np.corrcoef((active * second.sum(0)) @ first)) + 1e-5

    assert jacov(network, INPUTS, LABELS) == pytest.approx(-(np.log(eigenvalues) + 1 / eigenvalues).sum(), rel=1e-2)


def test_jacov_takes_bytes_but_no_other_whole_numbers() -> None:
    """Pixels are converted; tokens have no gradient."""
    network = nn.Sequential(nn.Flatten(), perceptron())
    pixels = torch.tensor([[1, 250, 3], [200, 4, 5], [6, 7, 99], [90, 80, 4]])

    assert jacov(network, pixels.to(torch.uint8), LABELS) == jacov(network, pixels.float(), LABELS)
    with pytest.raises(ValueError, match=r"jacov needs inputs of floating point or bytes, not torch\.int64"):
        jacov(network, pixels, LABELS)


def test_jacov_without_effect_is_nan() -> None:
    """An input on which no output depends has no correlation."""
    network = perceptron()
    nn.init.zeros_(network[2].weight)

    assert math.isnan(jacov(network, INPUTS, LABELS))


def test_snip_is_the_sum_of_weights_times_gradients() -> None:
    """The gradients of the mean cross-entropy are those of the formula."""
    network = perceptron()
    first, second = weights(network)
    x = INPUTS.double().numpy()
    hidden = np.maximum(x @ first.T, 0)
    logits = hidden @ second.T
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    errors = (shares - np.eye(2)[LABELS.numpy()]) / len(x)
    gradients = [((errors @ second) * (hidden > 0)).T @ x, errors.T @ hidden]
    expected = sum(np.abs(w * g).sum() for w, g in zip((first, second), gradients, strict=True))

    assert snip(network, INPUTS, LABELS) == pytest.approx(expected, rel=1e-5)


def test_snip_of_numbers_is_by_the_squared_error() -> None:
    """Labels of floating point are regression targets."""
    network = nn.Sequential(nn.Linear(3, 1, bias=False))
    [[weight]] = weights(network)
    x = INPUTS.double().numpy()
    gradient = 2 * (x @ weight) @ x / 4

    assert snip(network, INPUTS, torch.zeros(4, 1)) == pytest.approx(np.abs(weight * gradient).sum(), rel=1e-5)


class Normalizing(nn.Module):
    """Maps pixels to negative numbers before the first of two convolutions, with batch norm between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, bias=False), nn.Conv2d(4, 3, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, pixels: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.first((pixels.float() - 9.0) / 4.0)))
        y: Tensor = self.second(x)
        return y


def test_synflow_of_a_linear_chain_has_a_closed_form() -> None:
    """Each of L layers contributes ``1' |W_L| ... |W_1| 1``."""
    torch.manual_seed(0)
    chain = nn.Sequential(*(nn.Linear(n, m, bias=False) for n, m in ((3, 4), (4, 6), (6, 2))))
    one, two, three = (np.abs(weight) for weight in weights(chain))
    flow = (three @ two @ one @ np.ones(3)).sum()

    assert synflow(chain, [INPUTS[:1]]) == pytest.approx(math.log1p(3 * flow))


def test_synflow_sees_ones_behind_the_normalization_of_pixels() -> None:
    """Convolutions get ones, ReLU changes nothing, and batch norm is left out."""
    network = Normalizing()
    sums = [np.abs(weight).sum((1, 2, 3) if weight.shape[1] == 1 else (2, 3)) for weight in weights(network)[:2]]
    flow = (sums[1] @ sums[0]).sum()

    assert synflow(network, [torch.zeros(1, 1, 5, 5, dtype=torch.uint8)]) == pytest.approx(math.log1p(2 * flow))


class TinyProblem(Problem):
    """Builds a perceptron of ``width``; counts its batches."""

    error = Exception()
    n_batches = 0

    def build(self, point: Point) -> nn.Module:
        if point["width"] == 13:
            raise self.error
        layers = [nn.LazyLinear(point["width"]), nn.BatchNorm1d(point["width"]), nn.ReLU(), nn.Dropout(0.5)]
        return nn.Sequential(*layers, nn.Linear(point["width"], 2))

    def example_inputs(self) -> tuple[Tensor, ...]:
        return (INPUTS[:1],)

    def example_batch(self) -> tuple[Tensor, Tensor]:
        self.n_batches += 1
        return INPUTS, LABELS


ALL = ("naswot", "jacov", "snip", "synflow")


def scored(width: int, seed: int = 0, names: tuple[str, ...] = ALL) -> dict[str, float]:
    return ProxyScorer(TinyProblem(), names, seed=seed, device="cpu").score({"width": width})


def test_scores_depend_on_the_seed_alone() -> None:
    """The same seed gives the same values, each proxy a network of its own, whatever else is drawn or computed."""
    first = scored(16)
    torch.rand(7)

    assert scored(16) == first
    assert {name: scored(16, names=(name,))[name] for name in ALL} == first
    assert all(scored(16, seed=1)[name] != value for name, value in first.items())
    assert all(math.isfinite(value) for value in first.values())


def test_scoring_changes_no_random_state() -> None:
    """A trial in another thread of the process draws as if nothing was scored."""
    before = random_state()
    scored(8)
    after = random_state()

    assert before["python"] == after["python"]
    assert torch.equal(before["torch"], after["torch"])


@pytest.mark.parametrize(
    ("error", "is_of_device"),
    [(RuntimeError("unlucky width"), False), (torch.OutOfMemoryError("CUDA out of memory at an unlucky width"), True)],
)
def test_a_failing_network_has_nan(error: Exception, is_of_device: bool, tmp_path: Path) -> None:
    """The first error is kept, and the other points are scored; after one of the device, the worker is unfit."""
    problem = TinyProblem()
    problem.error = error
    runtime = TrialRuntime(RuntimeSpec(problem=Spec.of(TinyProblem), url=str(tmp_path), options={}), problem=problem)
    points = tuple({"width": width} for width in (13, 12))
    answer = runtime.proxies(ProxyRequest(number=0, seed=0, names=ALL, points=points))
    bad, good = answer["values"]

    assert all(math.isnan(value) for value in bad.values())
    assert all(math.isfinite(value) for value in good.values())
    assert bad.keys() == good.keys()
    assert "unlucky width" in answer["error"]
    assert problem.n_batches == 1
    assert (runtime.device_error is not None) == is_of_device


class ChangingProblem(TinyProblem):
    """Takes the width out of each point."""

    def build(self, point: Point) -> nn.Module:
        return super().build({"width": point.pop("width")})


def test_building_may_change_the_point() -> None:
    """Each proxy gets the whole point, and that of the caller stays as it is."""
    point = {"width": 16}

    assert ProxyScorer(ChangingProblem(), ALL, seed=0, device="cpu").score(point) == scored(16)
    assert point == {"width": 16}


def test_synflow_needs_no_data() -> None:
    """No batch is loaded for it."""
    problem = TinyProblem()
    ProxyScorer(problem, ["synflow"], seed=0, device="cpu").score({"width": 4})

    assert problem.n_batches == 0
