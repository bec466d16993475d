"""Supernet epochs that train alphas: what they continue, the images that they see, and interruptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from nas.core.errors import TrialInterrupted
from nas.core.policy import Policy
from nas.problems.cells import CellsProblem
from nas.problems.images import alpha_epoch
from nas.problems.images.alpha_epoch import parts_of
from nas.problems.images.pixels import Images
from nas.supernets.differentiable import Loss, RelaxedTraining
from nas.supernets.method import METHODS, Method
from nas.training.trial_run import TrialRun

Train = Callable[..., Any]
SHARE = frozenset({Policy.SHARE_PARAMS})
SUBNET = frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN, Policy.QUICK_EVAL})
EPOCHS = [{"supernet_epoch": 0}, {"supernet_epoch": 1}]
LABELS = ("op_0_1", "op_0_2", "op_1_2", "op_0_3", "op_1_3", "op_2_3")
SMALL: dict[str, Any] = {"channels": 2, "epoch_steps": 6, "n_epochs": 1, "precision": "float32"}


@pytest.fixture(scope="module")
def problem() -> CellsProblem:
    """Returns one warm problem for all tests, as in a worker."""
    return CellsProblem(**SMALL)


def derivation(method: str = "darts", **options: Any) -> dict[str, Any]:
    return Method(method=method, n_epochs=2, **options).to_json()


@pytest.mark.slow
def test_alphas_continue_those_of_the_epoch_before(problem: CellsProblem, train: Train) -> None:
    """An epoch inherits weights, alphas and both optimizers, and publishes them."""
    first = train(problem, EPOCHS[0], SHARE, derivation=derivation())
    second = train(problem, EPOCHS[1], SHARE, derivation=derivation(), donors=[first])
    anew = train(problem, EPOCHS[1], SHARE, derivation=derivation())

    assert second.run.inheritance.share == 1.0
    assert {f"alphas.{label}" for label in LABELS} <= first.weights.keys()
    assert {f"optimizer/exp_avg/alphas.{label}" for label in LABELS} <= first.weights.keys()
    assert "optimizer/momentum_buffer/head.weight" in first.weights
    assert [float(done.weights["optimizer/step/alphas.op_0_1"]) for done in (first, second, anew)] == [6, 12, 6]
    moved = [float((done.weights["alphas.op_0_1"] - first.weights["alphas.op_0_1"]).norm()) for done in (second, anew)]
    assert 0 < moved[0] < 0.12
    assert moved[1] > 0


SLOW_METHODS = [name if name == "gdas" else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]


@pytest.mark.parametrize("method", SLOW_METHODS)
def test_epoch_suggests_a_cell(problem: CellsProblem, train: Train, method: str) -> None:
    """It is the cell of the largest alphas, but with DARTS-PT. Metrics tell skips, nones, entropy and distance."""
    epoch = train(problem, EPOCHS[0], SHARE, derivation=derivation(method))
    [cell] = epoch.run.suggested
    largest = {label: int(epoch.weights[f"alphas.{label}"].argmax()) for label in LABELS}

    problem.space.validate(cell)
    assert method == "darts_pt" or cell == problem.space.decide(lambda name, domain: largest[name])
    assert epoch.metrics["skips"] == list(cell.values()).count("skip_connect")
    assert epoch.metrics["nones"] == list(cell.values()).count("none")
    assert 1.5 < epoch.metrics["entropy"] < 1.6095
    assert 0.01 < epoch.metrics["alpha_distance"] < 0.4


@pytest.mark.slow
def test_a_cell_may_have_to_be_without_none(problem: CellsProblem, train: Train) -> None:
    """With ``allows_none=false`` the operation none is left out, whatever its alpha is."""
    seeds = range(2)
    given = [train(problem, EPOCHS[0], SHARE, seed=seed, derivation=derivation()) for seed in seeds]
    without = [train(problem, EPOCHS[0], SHARE, seed=seed, derivation=derivation(allows_none=False)) for seed in seeds]

    assert sum(epoch.metrics["nones"] for epoch in given) > 0
    assert sum(epoch.metrics["nones"] for epoch in without) == 0
    pairs = zip(given, without, strict=True)
    assert all(torch.equal(a.weights["alphas.op_0_1"], b.weights["alphas.op_0_1"]) for a, b in pairs)


@pytest.mark.slow
def test_subnet_of_the_suggested_cell(problem: CellsProblem, train: Train) -> None:
    """It takes all its weights from the epoch; alphas are no part of it."""
    epoch = train(problem, EPOCHS[0], SHARE, derivation=derivation())
    subnet = train(problem, epoch.run.suggested[0], SUBNET, donors=[epoch])

    assert subnet.run.inheritance.share == 1.0
    assert not any("alphas" in name for name in subnet.weights)


@pytest.mark.parametrize("share", [pytest.param(0.5, marks=pytest.mark.slow), 0.2])
def test_alphas_and_weights_never_see_the_same_image(
    train: Train, monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    """The images of alphas are the same in all epochs, and disjoint from those of weights."""
    problem = CellsProblem(**SMALL)
    images, validation = problem.data
    pixels = images.pixels.clone()
    pixels[:, 0, 0, 0] = torch.arange(len(images)) % 256
    pixels[:, 0, 0, 1] = torch.arange(len(images)) // 256
    problem.__dict__["data"] = (Images(pixels, images.labels), validation)
    seen: dict[str, set[int]] = {"weights": set(), "alphas": set()}
    step = RelaxedTraining.step

    def recorded(self: Any, batch: Any, alpha_batch: Any, done: float) -> float:
        for kind, (shown, _) in (("weights", batch), ("alphas", alpha_batch)):
            seen[kind] |= set((shown[:, 0, 0, 0].int() + 256 * shown[:, 0, 0, 1].int()).tolist())
        return step(self, batch, alpha_batch, done)

    monkeypatch.setattr(RelaxedTraining, "step", recorded)
    first = train(problem, EPOCHS[0], SHARE, derivation=derivation(alpha_share=share))
    train(problem, EPOCHS[1], SHARE, derivation=derivation(alpha_share=share), donors=[first], seed=5)

    assert len(seen["weights"]) > 300
    assert len(seen["alphas"]) > 150
    assert not seen["weights"] & seen["alphas"]
    assert max(seen["alphas"]) < round(share * len(images)) <= min(seen["weights"])


def test_parts() -> None:
    """Each part has an image at least, and together they are all images."""
    images = Images(torch.arange(10).view(10, 1, 1, 1).to(torch.uint8), torch.arange(10))
    sizes = [[len(part) for part in parts_of(images, share)] for share in (0.001, 0.3, 0.5, 0.999)]

    assert sizes == [[9, 1], [7, 3], [5, 5], [1, 9]]
    of_weights, of_alphas = parts_of(images, 0.3)
    assert [*of_alphas.labels.tolist(), *of_weights.labels.tolist()] == list(range(10))


@pytest.mark.parametrize("method", [pytest.param(None, id="paths"), *SLOW_METHODS])
def test_an_interrupted_epoch_resumes(
    problem: CellsProblem, make_run: Callable[..., TrialRun], monkeypatch: pytest.MonkeyPatch, method: str | None
) -> None:
    """It continues after the last resume point, and gives the same alphas, weights, cell and metrics to the bit."""
    given = None if method is None else derivation(method)
    whole, first, second = (
        make_run(EPOCHS[0], SHARE, attempt=attempt, resume_every_s=every_s, derivation=given)
        for attempt, every_s in ((1, 1e9), (1, 0), (2, 0))
    )
    metrics = problem.train(whole)
    save = first.save_resume_point

    def interrupted(step: int, *parts: object) -> bool:
        if step == 4:
            raise TrialInterrupted
        return save(step, *parts)

    monkeypatch.setattr(first, "save_resume_point", interrupted)
    torch.manual_seed(0)
    with pytest.raises(TrialInterrupted):
        problem.train(first)
    torch.manual_seed(1)
    assert (resumed := second.resumed_from()) is not None
    assert resumed.step == 3

    assert problem.train(second) == metrics
    assert second.suggested == whole.suggested
    weights, expected = second.unpublished()[0], whole.unpublished()[0]
    assert weights.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights.items())


@pytest.mark.slow
def test_second_order_is_trained_in_float32(monkeypatch: pytest.MonkeyPatch, train: Train) -> None:
    """Its finite differences are too small for bfloat16."""
    used: list[str] = []
    make = alpha_epoch._loss

    def recorded(precision: str, device: str) -> Loss:
        used.append(precision)
        return make(precision, device)

    monkeypatch.setattr(alpha_epoch, "_loss", recorded)
    problem = CellsProblem(**(SMALL | {"precision": "bfloat16", "epoch_steps": 2}))
    epochs = [train(problem, EPOCHS[0], SHARE, derivation=derivation(order=order)) for order in (1, 2)]

    assert used == ["bfloat16", "float32"]
    assert not torch.equal(*[epoch.weights["alphas.op_0_1"] for epoch in epochs])
