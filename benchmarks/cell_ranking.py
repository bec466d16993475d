"""Ranks of NAS-Bench-201 cells by shared weights and by short training; oneshot.py runs it.

The searches are those of a user. ``problem=cells`` trains on the CIFAR-10 subset, and a tuner proposes supernet epochs
and then listed cells. Searches stay in a root, so that a long run can be resumed, and their trials hold all figures.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from ranks import Difference, Rank, Scores, ranks_of

from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.spec import Spec
from nas.core.supernet import EPOCH, epoch_of
from nas.core.trial import Proposal, State
from nas.problems.cells import CellsProblem
from nas.problems.images.cell_costs import EDGES
from nas.problems.images.fit import evaluate
from nas.problems.nasbench201 import NasBench201Problem
from nas.search.definition import Search
from nas.spaces.space import Space
from nas.supernets.connectivity import is_connected
from nas.supernets.module import subnet
from nas.supernets.operations import NAS_BENCH_201
from nas.supernets.paths import N_PANEL
from nas.training.problem import Ability
from nas.training.proxies import ProxyScorer
from nas.training.trial_run import TrialRun
from nas.tuners.base import STOP, Answer, Tuner

EPOCH_STEPS = {"pool": 2_000, "residual": 1_400}
"""Steps of a supernet epoch; eight epochs then take as long with either reduction."""
N_EPOCHS = 8
BATCH = 64
BATCHES = 65
"""Steps of an epoch of a network alone: five sixths of 5,000 images."""
N_FULL_STEPS = 24 * BATCHES
PROXIES = "naswot + live FLOPs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A way to score a cell.

    Attributes:
        inherits: Whether its network inherits from the last supernet epoch.
        n_steps: The steps of its own training.
    """

    inherits: bool
    n_steps: int

    @property
    def policies(self) -> frozenset[Policy]:
        """The policies of its trials."""
        share = {Policy.SHARE_PARAMS} if self.inherits else set()
        return frozenset({Policy.QUICK_EVAL, *share, *({Policy.SKIP_TRAIN} if self.n_steps == 0 else set())})


ARMS: Mapping[str, Arm] = {
    "bare": Arm(inherits=True, n_steps=0),
    "inherited 10": Arm(inherits=True, n_steps=10),
    "inherited 75": Arm(inherits=True, n_steps=75),
    "scratch 10": Arm(inherits=False, n_steps=10),
    "scratch 75": Arm(inherits=False, n_steps=75),
}


ASKED_S: list[float] = []
"""The processor time at each proposal of this process."""


def epoch_proposal(number: int) -> Proposal:
    """Returns a supernet epoch that continues the one before it."""
    before = (number - 1,) if number else ()
    return Proposal(point={EPOCH: number}, parents=before, donors=before, policies=frozenset({Policy.SHARE_PARAMS}))


class CellsInTurn(Tuner):
    """Proposes supernet epochs, then each listed cell in each arm.

    Args:
        space: The space of `CellsProblem`.
        metrics: Not used.
        seed: Not used.
        n_epochs: The number of supernet epochs.
        cells: The cells as six digits, the indices of their operations. All are scored with bare shared weights.
        n_trained: The number of cells, the first ones, that the other arms train.
    """

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        n_epochs: int = N_EPOCHS,
        cells: Sequence[str] = (),
        n_trained: int = 0,
    ) -> None:
        super().__init__(space, metrics, seed=seed)
        self.n_epochs = n_epochs
        self.scored = [(name, cell) for name in ARMS for cell in (cells if name == "bare" else cells[:n_trained])]

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns an epoch, or a cell of an arm; STOP after the last."""
        ASKED_S.append(time.process_time())
        if number < self.n_epochs:
            return epoch_proposal(number)
        if number - self.n_epochs >= len(self.scored):
            return STOP
        name, cell = self.scored[number - self.n_epochs]
        arm = ARMS[name]
        return Proposal(
            point=point_of(cell),
            donors=(self.n_epochs - 1,) if arm.inherits else (),
            policies=arm.policies,
            fidelity=arm.n_steps / N_FULL_STEPS if arm.n_steps else None,
            reason=name,
        )


class TimedCells(CellsProblem):
    """The problem, with the processor time of ``train`` as the metric ``cpu_s``; without tests and exports."""

    @property
    def abilities(self) -> frozenset[Ability]:
        """The abilities without ``test`` and ``export``."""
        return super().abilities - {Ability.TEST, Ability.EXPORT}

    def train(self, run: TrialRun) -> dict[str, float]:
        """Returns the scores and the processor time."""
        _ = self.data  # loaded once per process
        began_s = time.process_time()
        return {**super().train(run), "cpu_s": time.process_time() - began_s}


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One search: a supernet and the cells that it scores.

    Attributes:
        data: The folder with ``nasbench201_cifar10.parquet`` and ``cifar10/``.
        root: The root of the searches. What is finished there is not trained again.
        reduction: The reduction between stages.
        seed: The seed of the search.
        cells: The cells as digits.
        n_trained: The number of cells, the first ones, in arms with training of their own.
        is_whole: Whether to run all arms, or bare shared weights alone.
        scale: The factor on the steps of a supernet epoch.
    """

    data: str
    root: str
    reduction: str
    seed: int
    cells: tuple[str, ...]
    n_trained: int
    is_whole: bool = False
    scale: float = 1.0

    @property
    def epoch_steps(self) -> int:
        """The steps of a supernet epoch."""
        return max(1, round(EPOCH_STEPS[self.reduction] * self.scale))

    def search(self) -> Search:
        """Returns the definition of the search, the same whether it is whole or not."""
        problem = Spec.of(
            TimedCells,
            data="cifar10",
            data_file=images(self.data),
            reduction=self.reduction,
            epoch_steps=self.epoch_steps,
            n_supernet_epochs=N_EPOCHS,
            n_epochs=N_FULL_STEPS // BATCHES,
        )
        tuner = Spec.of(CellsInTurn, cells=list(self.cells), n_trained=self.n_trained)
        return Search(problem=problem, tuner=tuner, plan=PolicyPlan((Stage(name="search"),)), seed=self.seed)

    def run(self) -> Lineage:
        """Runs what is missing and returns all trials.

        Raises:
            RuntimeError: a trial failed.
        """
        torch.set_num_threads(1)
        n_arms = len(ARMS) if self.is_whole else 1
        n_trials = N_EPOCHS + len(self.cells) + (n_arms - 1) * self.n_trained
        name = f"oneshot-{self.reduction}-{self.epoch_steps}-{self.seed}"
        found = run_search(self.search(), root=self.root, name=name, budget=Budget(trials=n_trials))
        for trial in found.lineage:
            if trial.state != State.COMPLETE:
                raise RuntimeError(f"{name}: trial {trial.number} is {trial.state}: {trial.error}")
        return found.lineage


@dataclass(frozen=True, slots=True)
class Found:
    """The results of one task.

    Attributes:
        supernet_s: Processor time of the supernet's epochs.
        seconds: Mean processor time of a cell, by arm.
        scores: Minus the validation loss of each cell, in their order, by arm.
        accuracies: The same for the validation accuracy.
    """

    supernet_s: float
    seconds: Mapping[str, float]
    scores: Mapping[str, Scores]
    accuracies: Mapping[str, Scores]

    @classmethod
    def of(cls, lineage: Lineage) -> Found:
        """Returns the results in the trials of a task."""
        epochs = [trial for trial in lineage if epoch_of(trial.point) is not None]
        cells = [trial for trial in lineage if epoch_of(trial.point) is None]
        by_arm = {name: [trial.metrics for trial in cells if trial.proposal.reason == name] for name in ARMS}
        run = {name: metrics for name, metrics in by_arm.items() if metrics}
        return cls(
            sum(trial.metrics["cpu_s"] for trial in epochs),
            {name: statistics.mean(found["cpu_s"] for found in metrics) for name, metrics in run.items()},
            {name: np.array([-found["loss"] for found in metrics]) for name, metrics in run.items()},
            {name: np.array([found["accuracy"] for found in metrics]) for name, metrics in run.items()},
        )

    def first(self, n: int) -> Found:
        """Returns the results of the first ``n`` cells."""
        parts = [{name: values[:n] for name, values in own.items()} for own in (self.scores, self.accuracies)]
        return replace(self, scores=parts[0], accuracies=parts[1])


def found(task: Task) -> Found:
    """Runs a task and returns its results."""
    return Found.of(task.run())


def images(data: str) -> str:
    """Returns the path of the CIFAR-10 subset."""
    return str(Path(data) / "cifar10" / "cifar10_subset_5k_1k.npz")


@cache
def table(data: str) -> NasBench201Problem:
    """Returns the published table."""
    path = str(Path(data) / "nasbench201_cifar10.parquet")
    return NasBench201Problem(
        path,
        parameters=EDGES,
        metrics={"accuracy": {"column": "c10_valid_12"}},
        known={"flops_m": "c10_flops_m"},
        tests={"accuracy": "c10_test_200"},
    )


def point_of(cell: str) -> Point:
    """Returns the point of six digits."""
    return {edge: NAS_BENCH_201[int(digit)] for edge, digit in zip(EDGES, cell, strict=True)}


def drawn_cells(n: int, draw: int) -> tuple[str, ...]:
    """Returns random cells that are connected."""
    codes = ["".join(digits) for digits in product("01234", repeat=len(EDGES))]
    connected = [code for code in codes if is_connected(point_of(code))]
    return tuple(random.Random(draw).sample(connected, n))


class Truth:
    """The table's values of some cells, and baselines from them.

    Attributes:
        test: Test accuracy after 200 epochs.
        baselines: Scores without shared weights, by name.
    """

    def __init__(self, data: str, cells: Sequence[str]) -> None:
        published, problem = table(data), CellsProblem("cifar10", data_file=images(data))
        naswot = ProxyScorer(problem, ["naswot"], seed=0, device="cpu")
        points = [point_of(cell) for cell in cells]
        self.test: Scores = np.array([published.value(point, "c10_test_200") for point in points])
        flops: Scores = np.array([published.static_metrics(point)["live_flops_m"] for point in points])
        signs: Scores = np.array([naswot.score(point)["naswot"] for point in points])
        self.baselines: dict[str, Scores] = {
            "live FLOPs": flops,
            "naswot": signs,
            PROXIES: ranks_of(flops) + ranks_of(signs),
            "12 epochs of real training": np.array([published.value(point, "c10_valid_12") for point in points]),
        }


ALL_CONVOLUTIONS, OPTIMUM = 93.76, 94.37
"""Test accuracy of the cell of six 3x3 convolutions, and of the best cell."""
HEADER = "| score | seeds | CPU s before | CPU s a cell | tau | better half | best of 10 | first ten |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table: a score of cells, for each seed.

    Attributes:
        name: The name of the score.
        scores: An array for each seed, or one if the score has no seeds.
        supernet_s: Processor time before the first cell.
        cell_s: Processor time of a cell.
    """

    name: str
    scores: Sequence[Scores]
    supernet_s: float = 0.0
    cell_s: float = 0.0

    def line(self, truth: Scores) -> str:
        """Returns the row as markdown."""
        rank = Rank.mean([Rank.of(scores, truth) for scores in self.scores])
        n_seeds = str(len(self.scores)) if len(self.scores) > 1 else ""
        cells = [self.name, n_seeds, f"{self.supernet_s:.0f}", f"{self.cell_s:.3f}", *rank.cells()]
        return "| " + " | ".join(cells) + " |"


def rows_of(name: str, results: Sequence[Found], arm: str, *, kind: str = "loss") -> Row:
    """Returns the row of an arm."""
    before_s = statistics.mean(found.supernet_s for found in results) if ARMS[arm].inherits else 0.0
    return Row(
        name=f"{name}, {kind}",
        scores=[(found.scores if kind == "loss" else found.accuracies)[arm] for found in results],
        supernet_s=before_s,
        cell_s=statistics.mean(found.seconds[arm] for found in results),
    )


def with_proxies(row: Row, truth: Truth) -> Row:
    """Returns the row of the summed ranks of a score and of the proxies."""
    ranks = truth.baselines[PROXIES]
    return replace(row, name=f"{row.name} + proxies", scores=[ranks_of(one) + ranks for one in row.scores])


def lines(rows: Sequence[Row], truth: Truth) -> Iterator[str]:
    """Yields a table with the baselines."""
    yield HEADER
    yield "|" + " --- |" * 8
    baselines = [Row(name=name, scores=[scores]) for name, scores in truth.baselines.items()]
    for row in [*rows, *baselines]:
        yield row.line(truth.test)
    yield (
        f"{len(truth.test)} cells. One at random {truth.test.mean():.2f}, their best {truth.test.max():.2f}; the cell "
        f"of six 3x3 convolutions {ALL_CONVOLUTIONS}, the best of the table {OPTIMUM}."
    )


def difference(one: Row, other: Row, truth: Truth) -> str:
    """Returns a line with the paired difference in tau of two rows."""
    return f"tau, {one.name} - {other.name}: {Difference.of(one.scores, other.scores, truth.test)}"


def ranking(results: Mapping[str, Sequence[Found]], truth: Truth) -> Iterator[str]:
    """Yields the figure ``ranking``: bare shared weights by reduction."""
    bare = {name: rows_of(f"{name}, bare", found, "bare") for name, found in results.items()}
    by_accuracy = [rows_of(f"{name}, bare", found, "bare", kind="accuracy") for name, found in results.items()]
    joined = with_proxies(bare["pool"], truth)
    yield from lines([*bare.values(), *by_accuracy, joined], truth)
    alone = [Row(name=name, scores=[truth.baselines[name]]) for name in ("live FLOPs", PROXIES)]
    for one, other in ((bare["pool"], bare["residual"]), (bare["pool"], alone[0]), *((joined, own) for own in alone)):
        yield difference(one, other, truth)


def inherited(results: Sequence[Found], truth: Truth) -> Iterator[str]:
    """Yields the figure ``inherited``: training of a cell's own, on inherited weights and from scratch."""
    results = [found.first(len(truth.test)) for found in results]
    own = {name: rows_of(name, results, name) for name in ARMS}
    by_accuracy = [rows_of(name, results, name, kind="accuracy") for name in ARMS]
    joined = [with_proxies(row, truth) for row in own.values()]
    yield from lines([*own.values(), *by_accuracy, *joined], truth)
    proxies = Row(name=PROXIES, scores=[truth.baselines[PROXIES]])
    for row in joined:
        yield difference(row, proxies, truth)
    pairs = [(f"inherited {k}", other) for k in (10, 75) for other in (f"scratch {k}", "bare")]
    for one, other in pairs:
        yield difference(own[one], own[other], truth)


def subnet_cost(data: str, n_cells: int) -> Iterator[str]:
    """Yields the figure ``subnet_cost``: processor time of a subnet, and of what it replaces."""
    n_trained, scale = 8, 0.1
    with TemporaryDirectory() as root:
        task = Task(
            data=data, root=root, reduction="pool", seed=0, cells=drawn_cells(n_cells, 0), n_trained=n_trained,
            is_whole=True, scale=scale,
        )  # fmt: skip
        found = Found.of(task.run())
    asked = ASKED_S[N_EPOCHS : N_EPOCHS + n_cells + 1]
    whole_s = statistics.median(after - before for before, after in pairwise(asked))
    forward_s = statistics.mean(forward_seconds(task))
    step_s = (found.supernet_s - N_EPOCHS * N_PANEL * forward_s) / (N_EPOCHS * task.epoch_steps)
    own_step_s = (found.seconds["scratch 75"] - forward_s) / 75
    twelve_s, supernet_s = 12 * 5_000 / BATCH * own_step_s, N_EPOCHS * EPOCH_STEPS["pool"] * step_s
    yield "| processor time | s |"
    yield "| --- | --- |"
    for name, seconds in (
        ("forward pass of 500 images", forward_s),
        ("`train` of a subnet", found.seconds["bare"]),
        ("trial of a subnet, with records and store (median)", whole_s),
        ("limit: forward pass x 1.15 + 10 ms", 1.15 * forward_s + 0.01),
        ("supernet step of one path", step_s),
        (f"supernet of {N_EPOCHS * EPOCH_STEPS['pool']:,} steps", supernet_s),
        ("12 epochs of a cell alone, from its first 75 steps", twelve_s),
    ):
        yield f"| {name} | {seconds:.4f} |"
    yield f"A subnet is {twelve_s / whole_s:.0f} times cheaper than 12 epochs of its own."
    for n in (200, 1_000, 10_000):
        factor = n * twelve_s / (supernet_s + n * whole_s)
        yield f"A whole search of {n:,} cells, with the supernet, is {factor:.0f} times cheaper."


def forward_seconds(task: Task) -> Iterator[float]:
    """Yields the processor time of each cell's network on the images that score a subnet."""
    problem = CellsProblem(**task.search().problem.arguments)
    validation, supernet = problem.data[1][:500], problem.build({EPOCH: 0})
    for cell in task.cells:
        network = subnet(supernet, point_of(cell))
        began_s = time.process_time()
        evaluate(network, validation, problem.recipe.precision)
        yield time.process_time() - began_s
