"""The bundled default problem: it learns, follows its policies, and children inherit."""

from __future__ import annotations

import inspect
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor
from torch.export import Dim

from nas.core.errors import ConfigurationError, TrialDeadlineExceeded, TrialInterrupted, TrialStopped
from nas.core.policy import Policy
from nas.core.trial import Trial
from nas.problems.digits import DigitsProblem
from nas.problems.images.conv_net import ConvNet
from nas.storage.blobs import BlobStore
from nas.storage.lazy_weights import StoredWeights
from nas.training.trial_run import TrialRun

SEARCH = frozenset(Policy) - {Policy.SKIP_TRAIN}
Train = Callable[..., Any]
POINT = {
    "n_blocks": 2, "width_1": 16, "kernel_1": 3, "width_2": 24, "kernel_2": 3,
    "norm": "batch", "dropout": 0.1, "learning_rate": 0.1,
}  # fmt: skip
DEEPER = {**POINT, "n_blocks": 3, "width_3": 24, "kernel_3": 3}
EPOCH = 1 / 60


class DeadlineChannel:
    """A channel whose reports are answered by the deadline after some seconds."""

    def __init__(self, after_s: float) -> None:
        self.deadline_s = time.time() + after_s

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Raises the deadline when it has passed."""
        if time.time() >= self.deadline_s:
            raise TrialDeadlineExceeded


@pytest.fixture(scope="module")
def problem() -> DigitsProblem:
    """Returns one warm problem for all tests, as in a worker."""
    return DigitsProblem()


def rows(*parts: Tensor) -> list[list[int]]:
    return sorted(torch.cat(parts).flatten(1).tolist())


@pytest.mark.slow
def test_construction_loads_nothing() -> None:
    """The driver builds the problem without reading images; the first training reads them once."""
    problem = DigitsProblem()

    assert "data" not in vars(problem)
    assert problem.data is problem.data


def test_parts_are_disjoint_and_whole(problem: DigitsProblem) -> None:
    """Training, validation and test images are 60, 20 and 20 %, and each image is in one part."""
    from sklearn.datasets import load_digits

    (train, validation), test = problem.data, problem.load_test()

    assert (len(train), len(validation), len(test)) == (1077, 360, 360)
    every = torch.from_numpy(load_digits().data).to(torch.uint8)
    assert rows(train.pixels, validation.pixels, test.pixels) == rows(every)
    for part in (train, validation, test):
        assert part.labels.bincount().div(len(part)).sub(0.1).abs().max() < 0.01


def test_split_seed_decides_the_parts(problem: DigitsProblem) -> None:
    """A split seed gives the same parts in the same order, and another seed other parts."""
    same, other = DigitsProblem(split_seed=0), DigitsProblem(split_seed=1)

    assert torch.equal(same.data[1].pixels, problem.data[1].pixels)
    assert torch.equal(same.load_test().pixels, problem.load_test().pixels)
    assert rows(other.data[1].pixels) != rows(problem.data[1].pixels)
    with pytest.raises(ConfigurationError, match=r"split_seed=-1: "):
        DigitsProblem(split_seed=-1)
    with pytest.raises(ConfigurationError, match=r"split_seed=4294967296: must be .* below 2 \*\* 32"):
        DigitsProblem(split_seed=2**32)


@pytest.mark.slow
def test_full_training_learns(problem: DigitsProblem, train: Train) -> None:
    """A full training is far above chance on validation and test images, and reports each epoch."""
    trained = train(problem, POINT)

    assert trained.accuracy > 0.95
    assert trained.accuracies[-1] == trained.accuracy
    assert [step for step, _ in trained.run.curve] == list(range(1, 61))
    assert problem.test(trained.again)["accuracy"] > 0.95


def test_same_seed_same_bits(problem: DigitsProblem, train: Train) -> None:
    """A seed gives the same weights and accuracies to the bit, with and without donor."""
    one, same, other = (train(problem, POINT, SEARCH, seed=seed) for seed in (1, 1, 2))
    child, twin = (train(problem, POINT, SEARCH, seed=3, donors=[one]) for _ in range(2))

    for left, right in ((one, same), (child, twin)):
        assert left.accuracies == right.accuracies
        assert all(torch.equal(left.weights[name], right.weights[name]) for name in left.weights)
    assert not torch.equal(one.weights["head.weight"], other.weights["head.weight"])


@pytest.mark.parametrize(
    ("change", "share"),
    [
        ({"width_2": 32}, 0.77), ({"width_1": 24}, 0.70), ({"n_blocks": 3, "width_3": 24, "kernel_3": 3}, 0.46),
        ({"norm": "group"}, 1.0),
    ],
    ids=["wider", "wider below", "deeper", "other norm"],
)  # fmt: skip
@pytest.mark.slow
def test_child_starts_ahead(problem: DigitsProblem, train: Train, change: Mapping[str, object], share: float) -> None:
    """After one epoch a child with one change is ahead of a cold start, over four seeds."""
    child = {**POINT, **change}
    cold, warm = [], []
    for seed in range(4):
        parent = train(problem, POINT, SEARCH, seed=seed)
        cold.append(train(problem, child, SEARCH, seed=seed + 10, fidelity=EPOCH))
        warm.append(train(problem, child, SEARCH, seed=seed + 10, fidelity=EPOCH, donors=[parent]))

    assert warm[0].run.inheritance is not None
    assert warm[0].run.inheritance.share == pytest.approx(share, abs=0.01)
    assert {len(trained.accuracies) for trained in (*cold, *warm)} == {1}
    assert mean(trained.accuracy for trained in warm) > mean(trained.accuracy for trained in cold) + 0.1


def test_policies_make_trials_cheaper(problem: DigitsProblem, train: Train) -> None:
    """EARLY_STOP trains fewer epochs; DOWNSCALE halves widths and training images."""
    cheap = train(problem, POINT, SEARCH)
    early = train(problem, POINT, {Policy.EARLY_STOP})

    assert len(cheap.accuracies) == len(early.accuracies) == 5
    assert cheap.weights["blocks.1.conv.weight"].shape == (12, 8, 3, 3)
    assert early.weights["blocks.1.conv.weight"].shape == (24, 16, 3, 3)
    assert cheap.n_parameters < early.n_parameters / 3
    assert cheap.weights["blocks.0.norm.num_batches_tracked"] == 5 * (538 // 16)
    assert early.weights["blocks.0.norm.num_batches_tracked"] == 5 * (1077 // 16)


def test_quick_eval_scores_on_a_part(train: Train) -> None:
    """QUICK_EVAL scores on the first validation images only."""
    problem = DigitsProblem()
    problem.recipe = replace(problem.recipe, n_validation_quick=7)
    sevenths = {n_right / 7 for n_right in range(8)}

    assert set(train(problem, POINT, SEARCH).accuracies) <= sevenths
    assert not set(train(problem, POINT, SEARCH - {Policy.QUICK_EVAL}).accuracies) <= sevenths


def test_weights_are_shared_only_if_asked(problem: DigitsProblem, train: Train) -> None:
    """Without SHARE_PARAMS a donor has no effect."""
    donor = train(problem, POINT, SEARCH, seed=5)
    cold, offered = (train(problem, POINT, SEARCH - {Policy.SHARE_PARAMS}, donors=d) for d in ([], [donor]))

    assert offered.run.inheritance is None
    assert offered.accuracies == cold.accuracies


@pytest.mark.parametrize("rules", [{}, {"shrink": 0.5, "perturb": 0.1, "statistics": "reset"}])
def test_skip_train_scores_inherited_weights(problem: DigitsProblem, train: Train, rules: dict[str, Any]) -> None:
    """With SKIP_TRAIN the inherited weights are scored and saved unchanged, whatever the rules for children."""
    donor = train(problem, POINT, SEARCH)
    scored = train(DigitsProblem(rules=rules), POINT, SEARCH | {Policy.SKIP_TRAIN}, donors=[donor])

    assert scored.accuracies == []
    assert scored.accuracy == donor.accuracy
    assert all(torch.equal(scored.weights[name], donor.weights[name]) for name in donor.weights)


def test_fidelity_is_a_share_of_the_epochs(problem: DigitsProblem, train: Train) -> None:
    """A fidelity sets the number of steps, also with EARLY_STOP, and also less than an epoch."""
    trained = {share: train(problem, POINT, SEARCH, fidelity=share) for share in (0.05, 0.001)}

    assert [len(one.accuracies) for one in trained.values()] == [3, 1]
    assert [one.run.shares["epochs_share"] for one in trained.values()] == [
        pytest.approx(share, rel=0.2) for share in trained
    ]


@pytest.mark.slow
def test_a_shortened_training_ends_in_the_time_allowed(train: Train) -> None:
    """It trains for the seconds that there are, not for the planned share; the learning rate falls with the time.

    Its last report may come after the deadline.
    """
    problem = DigitsProblem()
    problem.recipe = replace(problem.recipe, n_epochs=600, n_epochs_early=1)  # no machine trains so many in 2 s
    train(problem, POINT, fidelity=0.001)  # the first steps of a process are slow
    cut = train(problem, POINT, fidelity=0.001, train_for_s=2, channel=DeadlineChannel(2))

    assert 1 / 600 <= cut.run.shares["epochs_share"] < 1
    assert cut.run.shares["epochs_share"] == pytest.approx(len(cut.accuracies) / 600, abs=1 / 600)
    assert cut.accuracy > 0.5


def test_a_training_without_time_has_not_ended(problem: DigitsProblem, make_run: Callable[..., TrialRun]) -> None:
    """A shortened training that can't even train as long as a cheap trial is stopped by the deadline."""
    run = make_run(POINT, fidelity=0.001, train_for_s=0.0, channel=DeadlineChannel(0.0))
    with pytest.raises(TrialDeadlineExceeded):
        problem.train(run)

    assert len(run.curve) == 1
    assert run.shares["epochs_share"] < 1 / 60


def test_a_training_in_full_has_ended_if_early_epochs_are_more(train: Train) -> None:
    """EARLY_STOP trains at most all epochs, so after them a training without time is complete."""
    problem = DigitsProblem()
    problem.recipe = replace(problem.recipe, n_epochs=1, n_epochs_early=2)
    trained = train(problem, POINT, train_for_s=0.0, channel=DeadlineChannel(0.0))

    assert trained.run.shares["epochs_share"] == 1


def test_enough_time_changes_no_bit(train: Train) -> None:
    """A training that ends before its time is the same as one without a limit."""
    problem = DigitsProblem()
    problem.recipe = replace(problem.recipe, n_epochs=3)
    free, timed = (train(problem, POINT, train_for_s=limit) for limit in (None, 1000.0))

    assert timed.run.shares == free.run.shares
    assert timed.accuracies == free.accuracies
    assert all(torch.equal(timed.weights[name], free.weights[name]) for name in free.weights)


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_a_clock_that_is_set_does_not_change_the_time_left(
    jump_s: float, make_run: Callable[..., TrialRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall clock counts only when an attempt starts."""
    run = make_run(POINT, train_for_s=20.0)
    run.epochs(full=60, early=1)
    set_s = time.time() + jump_s
    monkeypatch.setattr(time, "time", lambda: set_s)
    time.sleep(0.2)

    assert 0.005 < run.time_share < 1


def test_an_endless_time_trains_in_full(train: Train) -> None:
    """The fidelity of a training whose end is infinite does not count."""
    problem = DigitsProblem()
    problem.recipe = replace(problem.recipe, n_epochs=3)
    free, endless = train(problem, POINT), train(problem, POINT, fidelity=0.1, train_for_s=math.inf)

    assert endless.run.shares == free.run.shares
    assert endless.accuracies == free.accuracies


def test_a_resumed_training_goes_on_from_its_share_of_the_time(
    problem: DigitsProblem, make_run: Callable[..., TrialRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The seconds of the attempts before count, so the learning rate does not rise again."""
    first = make_run(POINT, resume_every_s=0.0, train_for_s=1000.0)
    save = first.save_resume_point

    def interrupted(step: int, *parts: object) -> None:
        save(step, *parts)
        if step == 6:
            raise TrialInterrupted

    monkeypatch.setattr(first, "save_resume_point", interrupted)
    with pytest.raises(TrialInterrupted):
        problem.train(first)
    second = make_run(POINT, attempt=2, train_for_s=0.05)
    problem.train(second)

    assert second.resume_point_saver.earlier_s > 0.05
    assert 6 <= len(second.curve) < 60
    assert second.curve[-1][1]["accuracy"] > 0.5


def test_rules_reach_inherit(train: Train) -> None:
    """``rules`` are passed to ``run.inherit``: weights are shrunk, statistics reset."""
    donor = train(DigitsProblem(), POINT, SEARCH)
    problem = DigitsProblem(rules={"shrink": 0.5, "statistics": "reset", "freeze_epochs": 5})
    weights = train(problem, DEEPER, SEARCH, donors=[donor]).weights
    n_steps = "blocks.0.norm.num_batches_tracked"

    assert torch.equal(weights["blocks.0.conv.weight"], 0.5 * donor.weights["blocks.0.conv.weight"])
    assert weights[n_steps] == donor.weights[n_steps]


def test_rules_freeze_copied_layers(train: Train) -> None:
    """Copied layers stay frozen for the rule's epochs, while new ones learn."""
    donor = train(DigitsProblem(), POINT, SEARCH)
    held, thawed = (
        train(DigitsProblem(rules={"freeze_epochs": n}), DEEPER, SEARCH, donors=[donor]).weights for n in (5, 4)
    )
    copied = "blocks.0.conv.weight"

    assert torch.equal(held[copied], donor.weights[copied])
    assert not torch.equal(thawed[copied], donor.weights[copied])
    assert not torch.equal(held["blocks.2.conv.weight"], thawed["blocks.2.conv.weight"])


def test_rules_warm_up_children(train: Train) -> None:
    """The learning rate rises for the rule's steps if something was inherited, else not."""
    slow = DigitsProblem(rules={"warm_up_steps": 10**9})
    donor = train(DigitsProblem(), POINT, SEARCH)
    child = train(slow, POINT, SEARCH, donors=[donor]).weights
    first = train(slow, POINT, SEARCH)
    name = "blocks.0.conv.weight"

    assert torch.allclose(child[name], donor.weights[name], atol=1e-5)
    assert first.accuracies == donor.accuracies


def test_rules_pass_on_the_optimizer(train: Train) -> None:
    """Momentum is published and inherited by rule, changes the training, and is left out of tests."""
    plain, momentum = DigitsProblem(), DigitsProblem(rules={"optimizer": "inherit"})
    donors = [train(problem, POINT, SEARCH) for problem in (plain, momentum)]
    children = [
        train(problem, POINT, SEARCH, donors=[donor]) for problem, donor in zip((plain, momentum), donors, strict=True)
    ]
    kept = {name for name in children[1].weights if name.startswith("optimizer/")}

    assert donors[0].accuracies == donors[1].accuracies
    assert "optimizer/momentum_buffer/blocks.0.conv.weight" in kept
    assert not any(name.startswith("optimizer/") for name in children[0].weights)
    name = "blocks.0.conv.weight"
    assert not torch.equal(children[0].weights[name], children[1].weights[name])
    assert 0 <= momentum.test(children[1].again)["accuracy"] <= 1


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"shrnk": 0.5}, r"rules\.shrnk: must be one of .*; did you mean shrink"),
        ({"shrink": 2}, r"rules.shrink=2: must be a number from 0 to 1"),
        ({"optimizer": "keep"}, r"rules.optimizer='keep': must be fresh or inherit"),
        ("shrink", r"rules='shrink': must be a dict"),
    ],
)
def test_invalid_rules_are_refused(rules: Any, message: str) -> None:
    """An unknown rule or value is refused by name."""
    with pytest.raises(ConfigurationError, match=message):
        DigitsProblem(rules=rules)


def test_invalid_split_seed_is_refused() -> None:
    """The split seed must be a whole number."""
    with pytest.raises(ConfigurationError, match=r"problem.split_seed='abc': must be a whole number"):
        DigitsProblem(split_seed="abc")  # type: ignore[arg-type]


@pytest.mark.parametrize("rules", [{}, {"freeze_epochs": 4, "warm_up_steps": 90, "optimizer": "inherit"}])
def test_interrupted_training_resumes(
    train: Train, make_run: Callable[..., TrialRun], files: BlobStore, rules: Mapping[str, Any]
) -> None:
    """A child interrupted in epoch 3 resumes from epoch 2 without its donor, and ends with the same bits."""
    problem = DigitsProblem(rules=rules)
    donor = train(problem, POINT, SEARCH, seed=3)
    trained = train(problem, DEEPER, SEARCH, donors=[donor])

    class InterruptAtThree:
        def started(self) -> None: ...

        def raise_if_stopped(self) -> None: ...

        def resumed(self, curve: Sequence[tuple[int, Mapping[str, float]]], totals: Mapping[str, Any]) -> None: ...

        def extra_result(self, result: str) -> None: ...

        def committed(self, trial: Trial) -> None: ...

        def report(self, step: int, metrics: Mapping[str, float]) -> None:
            if step == 3 and attempt == 1:
                raise TrialInterrupted

    for attempt in (1, 2):
        more = {"attempt": attempt, "resume_every_s": 0}
        run = make_run(DEEPER, SEARCH, donors=[donor], channel=InterruptAtThree(), **more)
        with suppress(TrialInterrupted):
            problem.train(run)

    checkpoint = run.commit_weights()
    assert checkpoint is not None
    weights = StoredWeights(files, checkpoint).read_all()
    assert [step for step, _ in run.curve] == [1, 2, 3, 4, 5]
    assert run.curve == trained.run.curve
    assert all(torch.equal(weights[name], tensor) for name, tensor in trained.weights.items())
    assert run.inheritance is None  # it needed no donor


def test_stopped_trial_leaves_its_weights(problem: DigitsProblem, make_run: Callable[..., TrialRun]) -> None:
    """A stopped trial saves its current weights before the stop is raised."""

    class StopAtTwo:
        def started(self) -> None: ...

        def report(self, step: int, metrics: Mapping[str, float]) -> None:
            if step == 2:
                raise TrialStopped

    run = make_run(POINT, SEARCH, channel=StopAtTwo())

    with pytest.raises(TrialStopped):
        problem.train(run)
    assert len(run.curve) == 2
    assert run.commit_weights() is not None


def test_export_takes_any_batch(problem: DigitsProblem, train: Train) -> None:
    """The exported network takes raw images in any batch size, with the network's own output."""
    network, (images,) = problem.export(train(problem, POINT, SEARCH).again)

    assert images.shape == (2, 1, 8, 8)
    program = torch.export.export(network, (images,), dynamic_shapes=({0: Dim("batch", min=1)},)).module()
    for n in (1, 7):
        batch = problem.data[1].pixels[:n]
        assert torch.allclose(program(batch), network(batch), atol=1e-6)


def test_every_point_can_be_built(problem: DigitsProblem) -> None:
    """Points from the whole space give networks, downscaled and in full."""
    draw, scale = random.Random(0), {"pixel_mean": problem.pixel_mean, "pixel_std": problem.pixel_std}

    for _ in range(100):
        point = problem.space.sample(draw)
        for network in (ConvNet(point, n_halves=1, **scale), problem.build(point)):
            logits = network.eval()(problem.data[0].pixels[:2])
            assert logits.shape == (2, 10)
            assert logits.isfinite().all()


def test_cost_is_known_before_training(problem: DigitsProblem) -> None:
    """Parameters and FLOPs equal those computed by hand for two convolutions with batch norm and a linear layer."""
    first, second = 8 * 8 * 16 * 1 * 9, 4 * 4 * 24 * 16 * 9  # multiplications of an 8x8 and of a 4x4 image

    assert problem.static_metrics(POINT) == {
        "parameters": 16 * 9 + 2 * 16 + 24 * 16 * 9 + 2 * 24 + 10 * 24 + 10,
        "flops": 2 * (first + second + 24 * 10),
        "live_flops": 2 * (first + second + 24 * 10),
    }


def test_knowing_the_cost_changes_nothing(problem: DigitsProblem) -> None:
    """Torch's random state stays the same, and the next network is built on the CPU."""
    before = torch.get_rng_state()
    problem.static_metrics(POINT)

    assert torch.equal(torch.get_rng_state(), before)
    assert next(problem.build(POINT).parameters()).device == torch.device("cpu")


@pytest.mark.parametrize("objectives", [["parameters"], [], ["accuracy", "latency"], ["accuracy", "accuracy"], "flops"])
def test_invalid_objectives_are_refused(objectives: Any) -> None:
    """Objectives must include accuracy, and be known and distinct."""
    with pytest.raises(ConfigurationError, match=r"problem.objectives=.*: must be accuracy, and any of parameters"):
        DigitsProblem(objectives=objectives)


def test_yaml_holds_the_defaults() -> None:
    """conf/problem/digits.yaml names the class and each argument with its default."""
    text = (Path(__file__).parents[3] / "conf/problem/digits.yaml").read_text()
    arguments = yaml.safe_load(text)

    assert text.startswith("# python -m flows.search +tuner=evolution problem=digits: ")
    assert arguments.pop("_target_") == "nas.problems.digits.DigitsProblem"
    assert arguments == {p.name: p.default for p in inspect.signature(DigitsProblem).parameters.values()}
