"""A supernet of three choices of layer on random images; commands import it by name."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from nas import Choice, Metric, ParameterSpace, Policy, Problem, Trial, TrialRun
from nas.core.point import Point, point_key
from nas.core.supernet import epoch_of
from nas.spaces.supernet import SupernetSpace
from nas.training.problem import Simulation

if TYPE_CHECKING:
    import torch

OPTIONS = ("linear", "wide", "skip")
N_LAYERS, WIDTH, BATCH = 3, 24, 64
SUBNETS = ParameterSpace({f"layer_{layer}": Choice(*OPTIONS) for layer in range(N_LAYERS)})


class SupernetProblem(Problem):
    """Trains shared weights by random paths, scores subnets with them, and trains finals of their own.

    ``weights`` is a checksum of all shared weights that a score was measured with.

    Args:
        n_steps: Steps of a supernet epoch.
        suggests: How many random points each epoch suggests.
        epoch_s: Seconds of a simulated epoch; a subnet takes one.
        seconds: How long a trial waits before it begins.
    """

    metrics = (Metric("accuracy"),)
    policies = frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN, Policy.QUICK_EVAL})
    space = SupernetSpace(SUBNETS)

    def __init__(self, *, n_steps: int = 20, suggests: int = 0, epoch_s: float = 100.0, seconds: float = 0.0) -> None:
        self.n_steps = n_steps
        self.suggests = suggests
        self.epoch_s = epoch_s
        self.seconds = seconds

    def train(self, run: TrialRun) -> Mapping[str, float]:
        time.sleep(self.seconds)
        if epoch_of(run.point) is not None:
            return self._train_epoch(run)
        layers = supernet() if Policy.SKIP_TRAIN in run.policies else own_network(run.point)
        run.inherit(layers)
        if Policy.SKIP_TRAIN not in run.policies:
            steps(layers, [run.point] * self.n_steps, run.seed)
        run.save(layers)
        n_images = 100 if Policy.QUICK_EVAL in run.policies else 297
        return {"accuracy": accuracy(layers, run.point, n_images), "weights": checksum(layers)}

    def _train_epoch(self, run: TrialRun) -> Mapping[str, float]:
        layers = supernet()
        run.inherit(layers)
        rng = random.Random(run.seed)
        steps(layers, [SUBNETS.sample(rng) for _ in range(self.n_steps)], run.seed)
        run.save(layers)
        if self.suggests:
            run.suggest_points([SUBNETS.sample(rng) for _ in range(self.suggests)])
        panel = [accuracy(layers, SUBNETS.sample(random.Random(seed)), 100) for seed in range(4)]
        return {"accuracy": sum(panel) / len(panel), "weights": checksum(layers)}

    def static_metrics(self, point: Point) -> Mapping[str, float]:
        return {"size": float(sum(point[f"layer_{layer}"] != "skip" for layer in range(N_LAYERS)))}

    def simulate(self, trial: Trial) -> Simulation:
        is_shared = epoch_of(trial.point) is not None or Policy.SKIP_TRAIN not in trial.policies
        score = zlib.crc32(point_key(trial.point).encode()) / 2**32
        return Simulation(self.epoch_s if is_shared else 1.0, {"accuracy": score})


def supernet() -> torch.nn.ModuleDict:
    """Returns all options of all layers."""
    from torch import nn

    layers: dict[str, nn.Module] = {"stem": nn.Linear(64, WIDTH)}
    for layer in range(N_LAYERS):
        layers[f"{layer}_linear"] = nn.Linear(WIDTH, WIDTH)
        layers[f"{layer}_wide"] = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.ReLU(), nn.Linear(2 * WIDTH, WIDTH))
    return nn.ModuleDict({**layers, "head": nn.Linear(WIDTH, 10)})


def own_network(point: Point) -> torch.nn.ModuleDict:
    """Returns the layers that the point uses."""
    from torch import nn

    used = {"stem", "head", *(f"{layer}_{point[f'layer_{layer}']}" for layer in range(N_LAYERS))}
    return nn.ModuleDict({name: layer for name, layer in supernet().items() if name in used})


def forward(layers: torch.nn.ModuleDict, point: Point, x: torch.Tensor) -> torch.Tensor:
    """Returns the logits of a subnet: ``(images, 10)``."""
    x = layers["stem"](x).relu()
    for layer in range(N_LAYERS):
        if (option := point[f"layer_{layer}"]) != "skip":
            x = (x + layers[f"{layer}_{option}"](x)).relu()
    logits: torch.Tensor = layers["head"](x)
    return logits


def steps(layers: torch.nn.ModuleDict, paths: list[Point], seed: int) -> None:
    """Takes a step of gradient descent for each path."""
    import torch

    x, y = images()
    generator = torch.Generator().manual_seed(seed)
    for path in paths:
        batch = torch.randint(1500, (BATCH,), generator=generator)
        layers.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(forward(layers, path, x[batch]), y[batch]).backward()
        with torch.no_grad():
            for weights in layers.parameters():
                if weights.grad is not None:
                    weights -= 0.1 * weights.grad


def accuracy(layers: torch.nn.ModuleDict, point: Point, n_images: int) -> float:
    """Returns the share of right answers on the first validation images."""
    import torch

    x, y = images()
    with torch.no_grad():
        right = forward(layers, point, x[1500:][:n_images]).argmax(1) == y[1500:][:n_images]
    return float(right.float().mean())


def checksum(layers: torch.nn.ModuleDict) -> float:
    """Returns a checksum of all weights."""
    content = b"".join(weights.detach().numpy().tobytes() for weights in layers.parameters())
    return float(zlib.crc32(content))


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns 1,797 random images ``(1797, 64)``, and for each the largest output of a random layer."""
    import torch

    generator = torch.Generator().manual_seed(0)
    x = torch.rand(1797, 64, generator=generator)
    return x, (x @ torch.randn(64, 10, generator=generator)).argmax(1)
