"""Savings by inheritance: the same points trained with and without it, on Fashion-MNIST.

    $ python benchmarks/pairs.py --data DIR                        # 60 points, 3 epochs; resumes
    $ python benchmarks/pairs.py --data DIR --points 30 --seed 1   # another search; may run at the same time
    $ python benchmarks/pairs.py                                   # prints the results so far

``DIR`` holds the four files. There are three arms:

* warm: a search by ``evolution`` on network graphs. Each trial trains for all epochs and inherits from its parent.
* cold: each of its points once more, from scratch. Layers that the warm trial did not inherit have the same initial
  weights. The order of batches, augmentation and schedule are also the same.
* short: each of its points once more, with the warm trial's inheritance and a schedule of a third of the epochs.

Points without a donor are the same in all arms and trained once. Networks have at most 25 million FLOPs. They train in
bfloat16 on one thread on any processor, so that runs on several machines can be compared.

How it measures:

* A trial is scored on all validation images before its first step and after 1/16, 1/8 and each quarter epoch. The score
  to reach is the cold trial's last.
* The cost to reach it is that of the first scoring with this score. Since a one-cycle learning rate lowers inherited
  accuracy before it rises, the first scoring from which all have it is also reported.
* Seconds are processor time of building, inheriting and training, without loading images, scoring and publishing.
* The epochs of the parent do not count, since the search has the parent anyway. A child that starts as good takes 0
  epochs. Many morphed children do, since they compute the same function as their parent.
* Therefore the short arm shows whether a third of the epochs, with its whole schedule, gives the same final accuracy.
* The best accuracy after equal total seconds counts all costs of an arm. The cold arm has no search of its own: its
  points are children of the best networks with inheritance.
* Pairs of one search have common ancestors. So the intervals (95 %, percentile bootstrap over pairs) are about this
  search only.

Each point is one to three rows of docs/pairs.csv. Existing points are not run again. The search is below ``--root``,
and its weights are needed only to resume it.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

import torch
from pair_figures import SHORT, Scoring, report_lines
from rows import Results
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from nas import Budget, Lineage, Metric, Policy, PolicyPlan, Problem, Search, Spec, Stage, Trial, TrialRun, run_search
from nas.core.trial import DonorWeights
from nas.problems.fashion_mnist import FashionMnistProblem
from nas.problems.images.fit import Start, fit, optimizer_of, score
from nas.problems.images.pixels import Images
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.seeds import seed_everything

FIELDS = (
    "images", "epochs", "seed", "trial", "arm", "parent", "parameters", "inherited", "accuracy", "curve",
)  # fmt: skip
RESULTS = Path(__file__).parents[1] / "docs" / "pairs.csv"
N_IMAGES = 50_000
PRECISION = "bfloat16"
MAX_FLOPS = 25_000_000
Trained: TypeAlias = tuple[float | None, Sequence[tuple[int, Mapping[str, float]]]]
"""The last accuracy (None if it was not finite) and the reported curve."""
EARLY = (1 / 16, 1 / 8)
"""The first scorings, as shares of an epoch; others follow each quarter."""


@cache
def loaded(data: str) -> tuple[Images, Images]:
    """Returns the images for training and validation, loaded once per process."""
    return FashionMnistProblem(data).data


class Scorer:
    """Scores a network during training, and reports the accuracy and the seconds so far."""

    def __init__(self, network: nn.Module, validation: Images, run: TrialRun, at: set[int], began_s: float) -> None:
        self.network, self.validation, self.run, self.at = network, validation, run, at
        self.n_done, self.seconds, self.started_s = 0, 0.0, began_s

    def step(self, *_: object) -> None:
        """Counts a step of the optimizer, and scores if it is time."""
        if self.n_done == 0:  # the first step of this attempt
            self.n_done, last = self.run.curve[-1]
            self.seconds = last["seconds"]
        self.n_done += 1
        if self.n_done in self.at:
            self.score()

    def score(self) -> None:
        """Scores the network and reports."""
        self.seconds += time.process_time() - self.started_s
        accuracy = score(self.network, self.validation, PRECISION)
        self.network.train()
        self.run.report(self.n_done, accuracy=accuracy, seconds=self.seconds)
        self.started_s = time.process_time()


class PairedProblem(Problem):
    """The networks and recipe of ``problem=fashion_mnist``, scored more often.

    Args:
        data_root: The folder of the four files.
        n_images: The number of training images.
        n_epochs: The epochs of each training.
        saves: Whether weights are published.
    """

    metrics = (Metric("accuracy"),)
    policies = frozenset({Policy.SHARE_PARAMS})

    def __init__(self, data_root: str, *, n_images: int, n_epochs: int, saves: bool = True) -> None:
        self.problem = FashionMnistProblem(data_root, n_epochs=n_epochs, precision=PRECISION, max_flops=MAX_FLOPS)
        self.space = self.problem.space
        self.n_images = n_images
        self.saves = saves

    def train(self, run: TrialRun) -> dict[str, float]:
        """Returns the last reported accuracy."""
        train, validation = loaded(self.problem.data_root)
        train, recipe = train[: self.n_images], self.problem.recipe
        n_batches = len(train) // recipe.batch_size
        quarters = {n_batches * quarter // 4 for quarter in range(4 * recipe.n_epochs + 1)}
        began_s = time.process_time()
        network = self.problem.build(run.point)
        scorer = Scorer(network, validation, run, quarters | {int(n_batches * share) for share in EARLY}, began_s)
        if run.resumed_from() is None:
            if Policy.SHARE_PARAMS in run.policies:
                run.inherit(network)
            scorer.score()
        hook = register_optimizer_step_post_hook(scorer.step)
        try:
            start = Start(optimizer=optimizer_of(network, run.point))
            for _ in fit(network, train, recipe, n_steps=recipe.n_epochs * n_batches, run=run, start=start):
                pass
        finally:
            hook.remove()
        if self.saves:
            run.save(network)
        return {"accuracy": run.curve[-1][1]["accuracy"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One search: its data, root and size."""

    data: str
    root: str
    images: int
    epochs: int
    seed: int

    @property
    def key(self) -> tuple[int, int, int]:
        """The fields that identify its rows."""
        return self.images, self.epochs, self.seed

    @property
    def name(self) -> str:
        """The name of the search."""
        return "pairs-{}-{}-{}".format(*self.key)

    def trained(self, number: int) -> Lineage:
        """Runs the missing trials up to this one and returns the lineage."""
        search = Search(
            problem=Spec.of(PairedProblem, data_root=self.data, n_images=self.images, n_epochs=self.epochs),
            tuner=Spec("nas.tuners.evolution.EvolutionTuner"),
            plan=PolicyPlan((Stage(name="search", policies=frozenset({Policy.SHARE_PARAMS})),)),
            seed=self.seed,
        )
        return run_search(search, root=self.root, name=self.name, budget=Budget(trials=number + 1)).lineage

    def retrain(self, trial: Trial, n_epochs: int, donor: Trial | None = None) -> Trained:
        """Trains a trial's point again with its seed, from the donor's weights or from scratch."""
        problem = PairedProblem(self.data, n_images=self.images, n_epochs=n_epochs, saves=False)
        donors = [] if donor is None or donor.checkpoint is None else [DonorWeights(donor.number, donor.checkpoint)]
        files = open_root(self.root).subfolder(self.name)
        run = TrialRun(trial, files, donors=donors, resume_every_s=math.inf)
        torch.set_num_threads(1)
        try:
            run.load_donors()
            seed_everything(trial.seed)
            return problem.train(run)["accuracy"], run.curve
        except FloatingPointError:
            return None, run.curve
        finally:
            run.close()

    def n_trained(self) -> int:
        """Returns the number of finished trials below the root."""
        trials, _ = Records(open_root(self.root).subfolder(self.name)).load()
        return sum(trial.is_finished for trial in trials)


def rows_of(task: tuple[Setting, int]) -> list[dict[str, object]]:
    """Trains a point of the search, and twice more if it inherited. Returns its rows."""
    setting, number = task
    lineage = setting.trained(number)
    trial = lineage[number]
    donor = None if trial.donor is None else lineage[int(trial.donor)]
    arms: dict[str, Trained] = {"both" if donor is None else "warm": (trial.value("accuracy"), trial.curve)}
    if donor is not None:
        arms["cold"] = setting.retrain(trial, setting.epochs)
        arms["short"] = setting.retrain(trial, max(1, round(SHORT * setting.epochs)), donor)
    images, epochs, seed = setting.key
    problem = FashionMnistProblem(setting.data, n_epochs=epochs, max_flops=MAX_FLOPS)
    known = {
        "images": images,
        "epochs": epochs,
        "seed": seed,
        "trial": number,
        "parent": "" if trial.donor is None else trial.donor,
        "parameters": sum(parameter.numel() for parameter in problem.build(trial.point).parameters()),
        "inherited": f"{trial.inherited or 0.0:.3f}",
    }
    n_batches = images // problem.recipe.batch_size
    rows: list[dict[str, object]] = []
    for arm, (accuracy, curve) in arms.items():
        scorings = [Scoring(step / n_batches, found["accuracy"], found["seconds"]) for step, found in curve]
        final = "" if accuracy is None else f"{accuracy:.4f}"
        rows.append({**known, "arm": arm, "accuracy": final, "curve": " ".join(map(str, scorings))})
    return rows


def show(results: Results) -> None:
    """Prints the figures, a block for each number of epochs and images."""
    rows = results.kept()
    for kind in sorted({(int(row["epochs"]), int(row["images"])) for row in rows}):
        for line in report_lines([row for row in rows if (int(row["epochs"]), int(row["images"])) == kind]):
            print(line)


def main() -> None:
    """Trains the missing points one after the other and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of the four files; without it nothing is trained")
    parser.add_argument("--root", type=Path, default=Path("heirloom"), help="the folder of the searches")
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=N_IMAGES, help="number of training images; fewer for a try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the csv file (another one for a try)")
    given = parser.parse_args()
    results = Results(path=given.results, fields=FIELDS)
    if given.data is not None:
        setting = Setting(
            data=str(given.data.resolve()),
            root=str(given.root.resolve()),
            images=given.images,
            epochs=given.epochs,
            seed=given.seed,
        )
        kept = [row for row in results.kept() if tuple(int(row[name]) for name in FIELDS[:3]) == setting.key]
        done = {int(row["trial"]) for row in kept}
        if done and setting.n_trained() <= max(done):
            parser.error(
                f"--root ({given.root}) must hold the search {setting.name} with its {max(done) + 1} trials, since "
                f"{given.results} has rows of them; restore that folder, or start another search with --seed"
            )
        tasks = [(setting, number) for number in range(given.points) if number not in done]
        for n_done in results.run(rows_of, tasks, 1):
            print(f"{n_done} of {len(tasks)} points", file=sys.stderr)
    show(results)


if __name__ == "__main__":
    main()
