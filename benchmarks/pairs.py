"""What inheritance saves, and where it does not pay: the same points trained with and without, Fashion-MNIST.

    python benchmarks/pairs.py --data DIR                        # 60 points, 3 epochs; goes on where it was ended
    python benchmarks/pairs.py --data DIR --points 30 --seed 1   # another search, which may run beside it
    python benchmarks/pairs.py                                   # the figures of the results that are kept

``DIR`` holds the four files. The warm arm is a search by ``evolution`` on network graphs in which every trial trains
for all its epochs and inherits from its parent. The cold arm trains each of its points once more right after it, from
scratch: the same initial weights where nothing is inherited, the same order of batches, augmentation and schedule. The
short arm trains it a third time, inheriting what the warm one did, with a schedule of a third of the epochs. Points
without a donor are alike in all arms and trained once. Networks take at most 25 million FLOPs, and train in bfloat16 on
one thread, whatever the processor, so that sittings on several machines compare.

* A trial is scored on all 10,000 validation images before its first step, after 1/16 and 1/8 of an epoch and after
  each quarter. What it takes to reach a score is told by the first scoring that has it, of either arm alike; and once
  more by the first from which on all have it, as the one-cycle learning rate lowers inherited accuracy before it rises.
* Seconds are processor time of building, inheriting and training; loading images, scoring and publishing don't count.
* The score to be reached is the cold trial's last. A parent's own training is not in its child's epochs: the question
  is what a search saves that has the parent anyway. A child that is as good before its first step takes 0 epochs, as
  many are that compute what their parent does: this says more of the parent's epochs than of the child's.
* So the short arm asks more: whether a third of the epochs, learning rate and all, is enough to end as high.
* What does count all is the best accuracy at equal total seconds, where each arm is all its trials in their order. The
  cold arm has no choice of its own in this: its points are children of what was best with inheritance.
* Pairs of one search share ancestors, so that intervals (95 %, percentile bootstrap over pairs) tell of this search.

Each point is one or two rows of docs/pairs.csv; those that are there are not run again. The search lies below
``--root``, whose weights are needed to go on with it, and for nothing else.
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
from pair_figures import SHORT, Scoring, told
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
"""An accuracy, None where it was not finite, and the curve of what was reported."""
EARLY = (1 / 16, 1 / 8)
"""Shares of the first epoch after which there is a scoring; further ones follow each quarter."""


@cache
def loaded(data: str) -> tuple[Images, Images]:
    """Images to train on and to validate with, once a process."""
    return FashionMnistProblem(data).data


class Watch:
    """Scores a network on its way, and reports it with the seconds that training took so far."""

    def __init__(self, network: nn.Module, validation: Images, run: TrialRun, at: set[int], began_s: float) -> None:
        self.network, self.validation, self.run, self.at = network, validation, run, at
        self.n_done, self.seconds, self.since_s = 0, 0.0, began_s

    def step(self, *_: object) -> None:
        """After a step of the optimizer."""
        if self.n_done == 0:  # of this attempt
            self.n_done, last = self.run.curve[-1]
            self.seconds = last["seconds"]
        self.n_done += 1
        if self.n_done in self.at:
            self.look()

    def look(self) -> None:
        """Scores and reports."""
        self.seconds += time.process_time() - self.since_s
        accuracy = score(self.network, self.validation, PRECISION)
        self.network.train()
        self.run.report(self.n_done, accuracy=accuracy, seconds=self.seconds)
        self.since_s = time.process_time()


class PairedProblem(Problem):
    """The networks of ``problem=fashion_mnist`` and their recipe, scored more often.

    Args:
        data_root: The folder of the four files.
        n_images: To train on.
        n_epochs: Of each training.
        saves: Whether weights are published.
    """

    metrics = (Metric("accuracy"),)
    policies = frozenset({Policy.SHARE_PARAMS})

    def __init__(self, data_root: str, *, n_images: int, n_epochs: int, saves: bool = True) -> None:
        self.whole = FashionMnistProblem(data_root, n_epochs=n_epochs, precision=PRECISION, max_flops=MAX_FLOPS)
        self.space = self.whole.space
        self.n_images = n_images
        self.saves = saves

    def train(self, run: TrialRun) -> dict[str, float]:
        """Returns the last of the accuracies that it reports."""
        train, validation = loaded(self.whole.data_root)
        train, recipe = train[: self.n_images], self.whole.recipe
        n_batches = len(train) // recipe.batch_size
        quarters = {n_batches * quarter // 4 for quarter in range(4 * recipe.n_epochs + 1)}
        began_s = time.process_time()
        network = self.whole.build(run.point)
        watch = Watch(network, validation, run, quarters | {int(n_batches * share) for share in EARLY}, began_s)
        if run.resumed_from() is None:
            if Policy.SHARE_PARAMS in run.policies:
                run.inherit(network)
            watch.look()
        hook = register_optimizer_step_post_hook(watch.step)
        try:
            start = Start(optimizer=optimizer_of(network, run.point))
            for _ in fit(network, train, recipe, n_epochs=recipe.n_epochs, run=run, start=start):
                pass
        finally:
            hook.remove()
        if self.saves:
            run.save(network)
        return {"accuracy": run.curve[-1][1]["accuracy"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One search: where it lies, and what is trained."""

    data: str
    root: str
    images: int
    epochs: int
    seed: int

    @property
    def key(self) -> tuple[int, int, int]:
        """What rows of it have in common."""
        return self.images, self.epochs, self.seed

    @property
    def name(self) -> str:
        """The search's."""
        return "pairs-{}-{}-{}".format(*self.key)

    def trained(self, number: int) -> Lineage:
        """Returns the search, after those of its trials up to this one that are missing were run."""
        search = Search(
            problem=Spec.of(PairedProblem, data_root=self.data, n_images=self.images, n_epochs=self.epochs),
            tuner=Spec("nas.tuners.evolution.EvolutionTuner"),
            plan=PolicyPlan((Stage(name="search", policies=frozenset({Policy.SHARE_PARAMS})),)),
            seed=self.seed,
        )
        return run_search(search, root=self.root, name=self.name, budget=Budget(trials=number + 1)).lineage

    def again(self, trial: Trial, n_epochs: int, donor: Trial | None = None) -> Trained:
        """Returns a trial's point and seed for so many epochs; without a donor from scratch."""
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
        """How many trials the search has, all of them below its root."""
        trials, _ = Records(open_root(self.root).subfolder(self.name)).load()
        return sum(trial.is_finished for trial in trials)


def rows_of(task: tuple[Setting, int]) -> list[dict[str, object]]:
    """Trains a point of the search, and twice more where it inherited."""
    setting, number = task
    lineage = setting.trained(number)
    trial = lineage[number]
    donor = None if trial.donor is None else lineage[int(trial.donor)]
    arms: dict[str, Trained] = {"both" if donor is None else "warm": (trial.value("accuracy"), trial.curve)}
    if donor is not None:
        arms["cold"] = setting.again(trial, setting.epochs)
        arms["short"] = setting.again(trial, max(1, round(SHORT * setting.epochs)), donor)
    images, epochs, seed = setting.key
    whole = FashionMnistProblem(setting.data, n_epochs=epochs, max_flops=MAX_FLOPS)
    known = {
        "images": images,
        "epochs": epochs,
        "seed": seed,
        "trial": number,
        "parent": "" if trial.donor is None else trial.donor,
        "parameters": sum(parameter.numel() for parameter in whole.build(trial.point).parameters()),
        "inherited": f"{trial.inherited or 0.0:.3f}",
    }
    n_batches = images // whole.recipe.batch_size
    rows: list[dict[str, object]] = []
    for arm, (accuracy, curve) in arms.items():
        scorings = [Scoring(step / n_batches, found["accuracy"], found["seconds"]) for step, found in curve]
        final = "" if accuracy is None else f"{accuracy:.4f}"
        rows.append({**known, "arm": arm, "accuracy": final, "curve": " ".join(map(str, scorings))})
    return rows


def show(results: Results) -> None:
    """The figures, one block for each number of epochs and images."""
    rows = results.kept()
    for kind in sorted({(int(row["epochs"]), int(row["images"])) for row in rows}):
        for line in told([row for row in rows if (int(row["epochs"]), int(row["images"])) == kind]):
            print(line)


def main() -> None:
    """Reads the arguments, trains what is missing one after the other, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of the four files; without it nothing is trained")
    parser.add_argument("--root", type=Path, default=Path("heirloom"), help="the folder of the searches")
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--images", type=int, default=N_IMAGES, help="of the 50,000 to train on, to try it out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the csv file; another one to try it out")
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
        there = {int(row["trial"]) for row in kept}
        if there and setting.n_trained() <= max(there):
            parser.error(
                f"--root ({given.root}) must hold the search {setting.name} with its {max(there) + 1} trials, as "
                f"{given.results} has rows of them; bring that folder back, or begin another search with --seed"
            )
        tasks = [(setting, number) for number in range(given.points) if number not in there]
        for n_done in results.run(rows_of, tasks, 1):
            print(f"{n_done} of {len(tasks)} points", file=sys.stderr)
    show(results)


if __name__ == "__main__":
    main()
