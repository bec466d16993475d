"""Test accuracy of networks found in a given time on two cores.

The images are Fashion-MNIST, or 5,000 of CIFAR-10.

    $ python benchmarks/headline.py --data DIR                          # 20 minutes, 3 seeds, all arms: 7 hours
    $ python benchmarks/headline.py --data DIR --minutes 6 --seeds 0    # 0.1 hours: three quarters of an hour
    $ python benchmarks/headline.py --data DIR --minutes 60 --seeds 0   # the one-hour run of each arm
    $ python benchmarks/headline.py --problem cifar10 --data FILE --minutes 60 --seeds 0
    $ python benchmarks/headline.py                                     # prints the results so far

``DIR`` holds the four files, ``FILE`` is an npz of images; ``--results`` names another csv file for your own runs. Each
row of docs/headline.csv is one run of a command. Nothing else runs beside it, except what docs/benchmarks.md names.

The arms are the searches ``network_morphism``, ``random`` and ``screened`` on the same space, ``spos``, ``tpe``,
``hand`` and ``start``. ``spos`` scores cells with shared weights on images of 16x16 pixels; finals go on from these
weights. ``tpe`` is Optuna's sampler with Heirloom's median stopper on chains of blocks, trained by the same code. Each
trial has a quarter of the epochs that fit into the time. CIFAR-10 has no chains of blocks, so no ``tpe``.

``hand`` and ``start`` train one network until the deadline, after a search trial of one epoch. ``hand`` is a hand-made
one: five 3x3 convolutions of 32, 32, 64, 64 and 128 channels with batch-norm. ``start`` is the searches' largest
initial network.

Searches without such options plan trials and finals by the hours alone. Rows with other options or epochs are of
earlier versions.

Machines differ in speed by a factor of seven. ``epoch_s`` is the time of an epoch of the hand-made network, in
``precision``. So arms are compared only within a seed, and only if machines of one kind ran all arms. If no such rows
exist for a seed, the arms that this kind of machine has not run are run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rows import Results

from nas.core.lineage import Lineage
from nas.problems.cifar10 import Cifar10Problem
from nas.problems.fashion_mnist import FashionMnistProblem
from nas.problems.images.image_problem import ImageProblem
from nas.problems.images.pixels import N_CLASSES
from nas.search.finals import newest_best
from nas.spaces.graphs.network import Network
from nas.spaces.graphs.starts import plain_cnn
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.sessions import spent_hours
from nas.training.precision import precision_of

FIELDS = (
    "problem", "arm", "minutes", "seed", "options", "precision", "epoch_s", "epochs", "hours", "final_minutes",
    "trials", "validation", "test", "parameters", "line",
)  # fmt: skip
RESULTS = Path(__file__).parents[1] / "docs" / "headline.csv"
ARMS = {
    "fashion_mnist": ("network_morphism", "random", "screened", "spos", "tpe", "hand", "start"),
    "cifar10": ("network_morphism", "random", "screened", "spos", "hand", "start"),
}
PROBLEMS: dict[str, type[ImageProblem]] = {"fashion_mnist": FashionMnistProblem, "cifar10": Cifar10Problem}
DATA = {"fashion_mnist": "problem.data_root", "cifar10": "problem.data_file"}
"""The option that names the data."""
FULL_EPOCHS = {"fashion_mnist": 96, "cifar10": 300}
"""The epochs of a full training in a search on graphs; 5,000 images need more."""
UNTIL_DEADLINE = 100_000
"""The epochs of a full training that always ends by the time."""
PRUNED_SHARE = 0.25
"""The epochs of a trial of ``tpe``, as a share of those that fit."""
ALONE = ("slots=1", "threads=2")
"""The options of the arms ``hand`` and ``start``."""
PRUNED = ("stopper=median", "policy=plain", "problem.space=blocks")
SHARED = ("policy=warm_final",)
MOST_TIME = 1.1
"""The greatest ratio of the time of a run to the time given."""
SAME_KIND = 1.25
"""The greatest ratio of ``epoch_s`` within one kind of machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run of one arm.

    Attributes:
        problem: ``fashion_mnist`` or ``cifar10``.
        arm: One of its ``ARMS``.
        data: The folder of the four files, or the npz.
        minutes: The time of the whole run.
        seed: The seed of the search.
        machine: The machine's ``precision`` and ``epoch_s``.
    """

    problem: str
    arm: str
    data: Path
    minutes: float
    seed: int
    machine: dict[str, str]


def options_of(arm: str) -> tuple[str, ...]:
    """Returns the options of an arm's command."""
    return {"tpe": PRUNED, "spos": SHARED}.get(arm, ())


def epochs_of(problem: str, arm: str, minutes: float, epoch_s: float) -> int:
    """Returns the epochs of a full training."""
    if arm == "tpe":
        return max(1, int(PRUNED_SHARE * 60 * minutes / epoch_s))
    return UNTIL_DEADLINE if arm in ("hand", "start") else FULL_EPOCHS[problem]


def run_tuner(task: Task, root: str, n_epochs: int) -> None:
    """Runs the search of a tuner."""
    cells = ("problem=cells", f"problem.data={task.problem}") if task.arm == "spos" else ()
    given = (f"seed={task.seed}", f"problem.n_epochs={n_epochs}", *options_of(task.arm))
    run(task, root, f"+tuner={task.arm}", f"budget.hours={task.minutes / 60}", *given, *cells)


def hand_made(problem: str) -> Network:
    """Returns the hand-made network for a problem's images."""
    return plain_cnn(PROBLEMS[problem].image_shape, N_CLASSES, widths=[32, 32, 64, 64, 128], pool_after=[1, 3])


def train_alone(task: Task, root: str, n_epochs: int, *length: str) -> None:
    """Trains the network of ``hand`` or ``start``; ``length`` are options of budget and policy."""
    largest = PROBLEMS[task.problem].graph_space().starts[-1]
    network = largest if task.arm == "start" else hand_made(task.problem)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as points:
        json.dump([{"network": network.to_json(), "learning_rate": 0.05}], points)
        points.flush()
        alone = ("+tuner=random", f"init.points={points.name}", "budget.trials=1", *length, *ALONE)
        run(task, root, *alone, f"seed={task.seed}", f"problem.n_epochs={n_epochs}")


def epoch_seconds(problem: str, data: Path) -> float:
    """Returns the seconds of an epoch of the hand-made network on this machine, with scoring."""
    task = Task(problem=problem, arm="hand", data=data, minutes=0, seed=0, machine={})
    with tempfile.TemporaryDirectory(prefix="heirloom-headline-") as root:
        train_alone(task, root, 2, "policy=full")
        [trial] = records_of(root).load()[0]
        return (trial.cost["seconds"] - trial.cost["setup_seconds"]) / 2


def precision() -> str:
    """Returns the default precision of this machine."""
    with precision_of("auto", "cpu"):
        return "bfloat16" if torch.is_autocast_enabled("cpu") else "float32"


def records_of(root: str) -> Records:
    """Returns the records of the only search under a root."""
    [folder] = Path(root).iterdir()
    return Records(open_root(str(folder)))


def run(task: Task, root: str, *overrides: str) -> None:
    """Runs the search command; later overrides win.

    Raises:
        SystemExit: it failed, and has told why.
    """
    given = [f"problem={task.problem}", f"{DATA[task.problem]}={task.data}", f"storage.root={root}"]
    if status := subprocess.run([sys.executable, "-m", "flows.search", *given, *overrides]).returncode:
        raise SystemExit(f"{task.arm}, seed {task.seed}: the search ended with status {status}")


def kept_its_time(one: dict[str, str]) -> bool:
    """Returns whether a run took no more than the minutes that it was given."""
    return 60 * float(one["hours"]) <= MOST_TIME * float(one["minutes"])


def are_of_one_kind(rows: list[dict[str, str]]) -> bool:
    """Returns whether machines of one kind ran all rows."""
    seconds = [float(one["epoch_s"]) for one in rows]
    return len({one["precision"] for one in rows}) == 1 and max(seconds) <= SAME_KIND * min(seconds)


def comparable(rows: list[dict[str, str]], minutes: float, seed: int, arms: Sequence[str]) -> list[dict[str, str]]:
    """Returns a row for each arm, or an empty list if one is missing.

    The rows have today's options and no more than the time given, and machines of one kind ran them.
    """
    found = [
        [
            one
            for one in rows
            if (one["arm"], float(one["minutes"]), int(one["seed"]), one["options"], int(one["epochs"]))
            == (
                arm,
                minutes,
                seed,
                " ".join(options_of(arm)),
                epochs_of(one["problem"], arm, minutes, float(one["epoch_s"])),
            )
            and kept_its_time(one)
        ]
        for arm in arms
    ]
    return next((list(together) for together in itertools.product(*found) if are_of_one_kind(list(together))), [])


def tasks_of(
    rows: list[dict[str, str]], problem: str, data: Path, minutes: float, seeds: list[int], arms: list[str]
) -> list[Task]:
    """Returns the missing runs: those that this kind of machine has not done of incomplete seeds."""
    if not (missing := [seed for seed in seeds if not comparable(rows, minutes, seed, arms)]):
        return []
    here = {"precision": precision(), "epoch_s": f"{epoch_seconds(problem, data):.1f}"}
    ran_here = [one for one in rows if are_of_one_kind([one, here])]
    return [
        Task(problem=problem, arm=arm, data=data, minutes=minutes, seed=seed, machine=here)
        for seed in missing
        # All arms again, if each has a row of a similar machine, but two of these rows differ too much.
        for arm in [arm for arm in arms if not comparable(ran_here, minutes, seed, [arm])] or arms
    ]


def row(task: Task) -> list[dict[str, object]]:
    """Runs a task and returns its row."""
    with tempfile.TemporaryDirectory(prefix="heirloom-headline-") as root:
        n_epochs = epochs_of(task.problem, task.arm, task.minutes, float(task.machine["epoch_s"]))
        if task.arm in ("hand", "start"):
            train_alone(task, root, n_epochs, f"budget.hours={task.minutes / 60}", "finalists=1")
        else:
            run_tuner(task, root, n_epochs)
        records = records_of(root)
        trials, _ = records.load()
        best = newest_best(records)
        if best is None:
            print(f"{task.arm}, seed {task.seed}: no winner in {task.minutes} minutes", file=sys.stderr)
            return []
        winner = trials[best["trial"]]
        known = {name: getattr(task, name) for name in ("problem", "arm", "minutes", "seed")}
        found = {
            "options": " ".join(options_of(task.arm)),
            **task.machine,
            "epochs": n_epochs,
            "hours": f"{spent_hours(records):.3f}",
            "final_minutes": f"{(winner.duration_s or 0.0) / 60:.1f}",
            "trials": len(trials),
            "validation": f"{winner.metrics['accuracy']:.4f}",
            "test": f"{records.tests()[winner.number]['metrics']['accuracy']:.4f}",
            "parameters": int(winner.static_metrics["parameters"]),
            "line": " < ".join(str(t.number) for t in [winner, *Lineage.of(trials).ancestors(winner.number)]),
        }
    return [{**known, **found}]


def show(rows: list[dict[str, str]], problem: str) -> None:
    """Prints a line for each arm, time and number of epochs of a problem."""
    rows = [one for one in rows if one["problem"] == problem]
    alike: dict[tuple[str, ...], list[dict[str, str]]] = {}
    for one in rows:
        alike.setdefault((one["arm"], one["options"], one["precision"], one["epochs"], one["minutes"]), []).append(one)
    for minutes in sorted({float(one["minutes"]) for one in rows}):
        for (arm, options, rounding, epochs, given), found in alike.items():
            if float(given) != minutes:
                continue
            tests = [100 * float(one["test"]) for one in found]
            told = ", ".join(f"{test:.2f}" for test in tests)
            print(
                f"{minutes:g} min, {arm}{options and chr(32) + options}, {rounding}, {epochs} epochs: "
                f"test {statistics.mean(tests):.2f} % ({told}), "
                f"validation {statistics.mean(100 * float(one['validation']) for one in found):.2f} %, "
                f"{statistics.mean(int(one['trials']) for one in found):.0f} trials, "
                f"{statistics.mean(float(one['hours']) for one in found):.3f} h"
            )
            for one in found:
                print(f"  seed {one['seed']}, epoch {one['epoch_s']} s: the winner and its ancestors: {one['line']}")
        for seed in sorted({int(one["seed"]) for one in rows}):
            if together := comparable(rows, minutes, seed, ARMS[problem]):
                told = ", ".join(f"{one['arm']} {100 * float(one['test']):.2f}" for one in together)
                print(f"{minutes:g} min, seed {seed}, {together[0]['precision']}: {told}")


def minutes(text: str) -> float:
    """Returns a time in minutes."""
    if not 0 < (given := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number greater than 0")
    return given


def seeds(text: str) -> list[int]:
    """Returns the numbers of a list such as ``0,1,2``."""
    return [int(seed) for seed in text.split(",")]


def read_arguments() -> argparse.Namespace:
    """Returns the arguments of the command line.

    Raises:
        SystemExit: one of them is wrong, which is found before anything runs.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", choices=list(ARMS), default="fashion_mnist")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--minutes", type=minutes, default=20.0)
    parser.add_argument("--seeds", type=seeds, default="0,1,2")
    parser.add_argument("--arms", help="some of them; without it all")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the csv file (another one for your own runs)")
    arguments = parser.parse_args()
    known = ARMS[arguments.problem]
    arguments.arms = arguments.arms.split(",") if arguments.arms else list(known)
    if unknown := [arm for arm in arguments.arms if arm not in known]:
        parser.error(f"--arms={unknown[0]}: must be one of {', '.join(known)} with --problem={arguments.problem}")
    if arguments.data is not None and not arguments.data.exists():
        parser.error(f"--data={arguments.data}: must be the folder of the four files, or the npz")
    if not arguments.results.parent.is_dir():
        parser.error(f"--results={arguments.results}: must be in a folder that exists")
    return arguments


def main() -> None:
    """Runs the missing tasks and prints the results."""
    given = read_arguments()
    results, problem = Results(path=given.results, fields=FIELDS), given.problem
    if given.data is not None:
        rows = [one for one in results.kept() if one["problem"] == problem]
        tasks = tasks_of(rows, problem, given.data.resolve(), given.minutes, given.seeds, given.arms)
        for n_done in results.run(row, tasks, 1):
            print(f"{n_done} of {len(tasks)} runs", file=sys.stderr)
    show(results.kept(), problem)


if __name__ == "__main__":
    main()
