"""Lanes of a stack: networks of different points train at once as each would alone."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

from nas import Policy, PolicyPlan, Problem, Search, Spec, Stage
from nas.api.search import run_search
from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.core.spec import spec_of
from nas.core.trial import State
from nas.problems.digits import DigitsProblem
from nas.problems.fashion_mnist import BLOCKS
from nas.problems.images.conv_net import ConvNet
from nas.problems.images.fit import Recipe, Start, fit, optimizer_of
from nas.problems.images.largest_net import LargestConvNet
from nas.problems.images.pixels import Images
from nas.problems.images.stack import NetworkStack
from nas.spaces.parameters.space import ParameterSpace
from nas.tuners.random import RandomTuner

SCALE = {"pixel_mean": 128.0, "pixel_std": 74.0}
RECIPE = Recipe(n_epochs=9, n_epochs_early=2, n_train_downscaled=None, n_validation_quick=8, batch_size=8)


class LaneRun:
    """The part of a trial's run that training needs."""

    device = "cpu"
    train_until = None
    time_share = 0.0
    has_trained_its_time = False

    def __init__(self, seed: int, point: Point) -> None:
        self.seed, self.point = seed, point

    def resumed_from(self) -> None:
        """Returns None: nothing was trained before."""

    def save_resume_point(self, *_: object) -> None:
        """Saves nothing."""


def images(n: int, side: int) -> Images:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (n, 1, side, side), dtype=torch.uint8, generator=generator)
    return Images(pixels, torch.randint(0, 10, (n,), generator=generator))


def networks(points: Sequence[Point], n_halves: int) -> list[ConvNet]:
    torch.manual_seed(0)
    return [ConvNet(point, n_inputs=1, n_halves=n_halves, **SCALE) for point in points]


def points_of(space: ParameterSpace, n: int) -> list[Point]:
    """Returns points without dropout, half of them with each norm; a low rate keeps rounding errors small."""
    rng = random.Random(2)
    changes: dict[str, Any] = {"dropout": 0.0, "learning_rate": 0.01}
    return [{**space.sample(rng), **changes, "norm": ("batch", "group")[i % 2]} for i in range(n)]


def train(trained: Any, network: ConvNet, seed: int, point: Point, n_steps: int, epochs: int | None = None) -> None:
    """Trains a network by a function such as ``fit``, for some epochs of the schedule or all."""
    run: Any = LaneRun(seed, point)
    start = Start(optimizer=optimizer_of(network, point))
    with closing(trained(network, n_steps=n_steps, run=run, start=start)) as fitting:
        for epoch in fitting:
            if epoch == epochs:
                return


@pytest.mark.parametrize(
    ("space", "side", "n_halves", "n"),
    [(DigitsProblem.space, 8, 1, 4), (DigitsProblem.space, 8, 2, 2), (BLOCKS, 28, 1, 2)],
)
def test_lanes_train_as_each_network_alone(space: ParameterSpace, side: int, n_halves: int, n: int) -> None:
    """More networks than lanes, of different sizes, kernels, depths and norms, get the weights of a training alone."""
    data, points = images(24, side), points_of(space, n)
    stacked = networks(points, n_halves)
    alone = copy.deepcopy(stacked)
    initial = copy.deepcopy(stacked)
    stack = NetworkStack(LargestConvNet(space, n_inputs=1, n_halves=n_halves, **SCALE), data, RECIPE, max(n - 1, 2))
    # the second network leaves after its first epoch, in the middle of the others' training
    ends = [1 if i == 1 else None for i in range(n)]
    threads = [
        threading.Thread(target=train, args=(stack.fit, network, i, point, 5, end))
        for i, (network, point, end) in enumerate(zip(stacked, points, ends, strict=True))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    stack.close()

    for i, (network, point, end) in enumerate(zip(alone, points, ends, strict=True)):
        train(lambda *args, **more: fit(args[0], data, RECIPE, **more), network, i, point, 5, end)
        for name, tensor in network.state_dict().items():
            found, before = stacked[i].state_dict()[name], initial[i].state_dict()[name]
            change = (tensor - before).float().norm()
            assert change > 0, name
            assert (found - tensor).float().norm() < 1e-3 * change, (point, name)


def test_an_error_of_a_step_reaches_all_its_trials_and_frees_the_lanes() -> None:
    """A label that does not exist ends both trials with torch's error. Later ones get the lanes, and the error."""
    data, points = images(16, 8), points_of(DigitsProblem.space, 4)
    data.labels.fill_(11)
    stack = NetworkStack(LargestConvNet(DigitsProblem.space, n_inputs=1, n_halves=1, **SCALE), data, RECIPE, 2)
    errors: list[str] = []

    def fails(i: int) -> None:
        try:
            train(stack.fit, networks(points, 1)[i], i, points[i], 4)
        except RuntimeError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=fails, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert errors == ["index 11 is out of bounds for dimension 2 with size 10"] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lanes": 0}, r"^problem.lanes=0: must be a whole number from 1 to 1024"),
        (
            {"lanes": 4, "rules": {"freeze_epochs": 1}},
            r"^problem.rules.freeze_epochs=1: must be 0 with problem.lanes=4",
        ),
        ({"lanes": 4, "rules": {"optimizer": "inherit"}}, r"^problem.rules.optimizer=inherit: must be fresh"),
        ({"lanes": 4, "objectives": ["accuracy", "latency_s"]}, r"^problem.objectives: must not have latency_s"),
    ],
)
def test_what_does_not_go_with_lanes_is_refused(arguments: dict[str, Any], message: str) -> None:
    """Rules that need a training of their own, and a measured latency, are refused with their remedy."""
    with pytest.raises(ConfigurationError, match=message):
        DigitsProblem(**arguments)


def test_lanes_need_threads_from_python_too(tmp_path: Path) -> None:
    """``run_search`` refuses other runners, more lanes than slots, and trials in full."""
    full = PolicyPlan((Stage(name="search", policies=frozenset({Policy.SHARE_PARAMS})),))
    parts = {"problem": Spec.of(DigitsProblem, lanes=2), "tuner": Spec.of(RandomTuner)}
    with pytest.raises(ConfigurationError, match=r"^problem.lanes=2: must be 1 if the search stage trains in full"):
        run_search(Search(plan=full, **parts), root=str(tmp_path), slots=2, runner="threads")
    with pytest.raises(ConfigurationError, match=r"^problem.lanes=2: must be at most slots=1"):
        run_search(DigitsProblem(lanes=2), tuner=RandomTuner, root=str(tmp_path), slots=1, runner="threads")
    for runner, slots in (("processes", 2), ("debug", 1)):
        with pytest.raises(ConfigurationError, match=rf"^problem.lanes=2: must be 1 with runner={runner}"):
            run_search(DigitsProblem(lanes=2), tuner=RandomTuner, root=str(tmp_path), slots=slots, runner=runner)


@pytest.mark.slow
def test_a_problem_with_lanes_is_used_again(tmp_path: Path) -> None:
    """A second search in one process has stacks of its own."""
    problem, cheap = DigitsProblem(lanes=2), frozenset({Policy.EARLY_STOP, Policy.DOWNSCALE})
    found = [
        run_search(
            Search(
                problem=spec_of("problem", problem, Problem),
                tuner=Spec.of(RandomTuner),
                plan=PolicyPlan((Stage(name="search", policies=cheap),)),
                seed=seed,
                slots=2,
            ),
            root=str(tmp_path),
            budget=2,
            runner="threads",
        )
        for seed in range(2)
    ]

    assert [trial.state for results in found for trial in results.lineage] == [State.COMPLETE] * 4
