"""Cost of a supernet epoch in a search, against a bare training loop; oneshot.py runs it."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from tempfile import TemporaryDirectory

import torch
from cell_ranking import BATCH, epoch_proposal, images, point_of
from torch import nn
from torch.nn import functional

from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.policy import PolicyPlan, Stage
from nas.core.spec import Spec
from nas.core.supernet import EPOCH
from nas.core.trial import Proposal
from nas.problems.cells import CellsProblem
from nas.problems.images.fit import evaluate
from nas.problems.images.supernet_schedule import SupernetSchedule
from nas.search.definition import Search
from nas.spaces.space import Space
from nas.supernets.connectivity import is_connected
from nas.supernets.module import select
from nas.training.precision import precision_of
from nas.tuners.base import STOP, Answer, Tuner

STEPS, RATE = 200, 0.05
ASKED_S: list[tuple[float, float]] = []
"""The processor time before and after each proposal of this process."""


class BareLoop:
    """The same training by hand, without paths' samplers, records, checkpoints and resume points."""

    def __init__(self, data: str, n_epochs: int) -> None:
        self.problem = CellsProblem("cifar10", data_file=images(data))
        self.network = self.problem.build({EPOCH: 0})
        self.optimizer = torch.optim.SGD(
            self.network.parameters(), lr=RATE, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        self.schedule = SupernetSchedule(n_epochs=n_epochs, epoch_steps=STEPS, learning_rate=RATE)

    def train(self, epoch: int) -> None:
        """Trains one epoch and scores the panel."""
        train, validation = self.problem.data
        rng, rounding = random.Random(epoch), precision_of(self.problem.recipe.precision, "cpu")
        self.network.train()
        for pixels, labels in self.schedule.batches(
            train, self.problem.recipe, self.optimizer, epoch=epoch, seed=epoch
        ):
            select(self.network, _random_cell(rng))
            self.optimizer.zero_grad()
            with rounding:
                logits = self.network(pixels)
            functional.cross_entropy(logits.float(), labels).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.network.parameters(), 5.0)
            self.optimizer.step()
        for cell in self.problem.panel():
            select(self.network, cell)
            evaluate(self.network, validation, self.problem.recipe.precision)


class EpochsInTurn(Tuner):
    """Trains an epoch by hand before it proposes one.

    Args:
        space: The space of `CellsProblem`.
        metrics: Not used.
        seed: Not used.
        data: The folder of the images.
        n_epochs: The number of epochs.
    """

    def __init__(self, space: Space, metrics: tuple[Metric, ...], *, seed: int = 0, data: str, n_epochs: int) -> None:
        super().__init__(space, metrics, seed=seed)
        self.n_epochs, self.bare = n_epochs, BareLoop(data, n_epochs)

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the next epoch; STOP after the last."""
        began_s = time.process_time()
        if number < self.n_epochs:
            self.bare.train(number)
        ASKED_S.append((began_s, time.process_time()))
        return epoch_proposal(number) if number < self.n_epochs else STOP


def epochs(data: str, n_epochs: int = 6) -> Iterator[str]:
    """Yields the figure ``epochs``: processor time of an epoch in a search, and by hand."""
    torch.set_num_threads(1)
    problem = Spec.of(
        CellsProblem, data="cifar10", data_file=images(data), epoch_steps=STEPS, n_supernet_epochs=n_epochs
    )
    tuner = Spec.of(EpochsInTurn, data=data, n_epochs=n_epochs)
    with TemporaryDirectory() as root:
        search = Search(problem=problem, tuner=tuner, plan=PolicyPlan((Stage(name="search"),)))
        run_search(search, root=root, budget=Budget(trials=n_epochs + 1))
    own = [after - before for before, after in ASKED_S[1:n_epochs]]  # the first one loads data and code
    searched = [ASKED_S[index + 1][0] - ASKED_S[index][1] for index in range(1, n_epochs)]
    ratios = [one / other for one, other in zip(searched, own, strict=True)]
    yield "| supernet epoch | processor time, s |"
    yield "| --- | --- |"
    yield f"| bare loop of {STEPS} steps of {BATCH} images | {statistics.median(own):.2f} |"
    yield f"| trial of a search | {statistics.median(searched):.2f} |"
    yield (
        f"Ratio: median {statistics.median(ratios):.3f} of {len(ratios)} pairs, "
        f"from {min(ratios):.3f} to {max(ratios):.3f}."
    )


def _random_cell(rng: random.Random) -> Point:
    while True:
        cell = point_of("".join(rng.choice("01234") for _ in range(6)))
        if is_connected(cell):
            return cell
