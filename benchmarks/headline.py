"""How good a network is found from nothing in a given time: Fashion-MNIST, two cores.

    python benchmarks/headline.py --data DIR                          # 20 minutes, 3 seeds, all arms: 4 hours
    python benchmarks/headline.py --data DIR --minutes 60 --seeds 0   # the one-hour run of each arm
    python benchmarks/headline.py                                     # the table of the results that are kept

``DIR`` holds the four files; ``--results`` names another csv file for runs of your own. Each row of docs/headline.csv
is one run of a command, with nothing beside it but what docs/benchmarks.md says. The arms: the search by
``network_morphism``; by ``random`` on the same space; and ``hand``, a network made by hand (five 3x3 convolutions of
32, 32, 64, 64 and 128 channels with batch-norm), trained alone for the same time, which is as many epochs as that has
room for by a run of two. Both searches have the options of their row: an hour has two finals of 24 epochs; half an hour
or less has one trial at a time, on both cores, networks of half the FLOPs of the one made by hand and, where they grow,
no more activations, and one final that goes on from its trial's weights. That has a third of the epochs of the network
made by hand where each trial has gone on from its parent's weights, and four fifths of them where it was drawn and has
had one epoch.

Machines differ by seven times: ``epoch_s`` is what an epoch of the network made by hand took on this one, in
``precision``. So arms are compared within a seed that one kind of machine ran all of; a seed that has no such rows
is run here, but for those of its arms that this kind of machine ran.
"""

from __future__ import annotations

import argparse
import itertools
import json
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
from nas.problems.images.fit import precision_of
from nas.search.finals import newest_best
from nas.spaces.graphs.starts import plain_cnn
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.sessions import spent_hours

FIELDS = (
    "arm", "minutes", "seed", "options", "precision", "epoch_s", "epochs", "hours", "final_minutes", "trials",
    "validation", "test", "parameters", "line",
)  # fmt: skip
RESULTS = Path(__file__).parents[1] / "docs" / "headline.csv"
ARMS = ("network_morphism", "random", "hand")
HAND = plain_cnn((1, 28, 28), 10, widths=[32, 32, 64, 64, 128], pool_after=[1, 3])
SHORT_MINUTES = 30.0
"""A search that has no more than these has time for one final."""
SHORT_SHARES = {"network_morphism": 1 / 3, "random": 0.8}
"""Of the epochs that the network made by hand has: what a final has in a short one."""
LONG_EPOCHS_PER_MINUTE = 0.4
"""Of a final of a longer one, which has two: 24 epochs in an hour."""
ALONE = ("slots=1", "threads=2")
SHORT = ("policy=warm_final", "finalists=1", *ALONE, "problem.max_flops=20000000")
SHORT_OF = {"network_morphism": (*SHORT, "problem.max_activations=250000"), "random": SHORT}
"""As many activations as the network made by hand has; of draws of the space five in a thousand have more."""
SAME_KIND = 1.25
"""Machines of one kind differ in the seconds of an epoch by at most so many times."""
RESERVE = 0.97
"""The share of the time that the network made by hand trains; the rest is for loading, testing and the export."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One arm to run once.

    Attributes:
        arm: Of ``ARMS``.
        data: The folder of the four files.
        minutes: In all.
        seed: Of the search.
        machine: Its ``precision``, and the seconds of an epoch of the network made by hand (``epoch_s``).
    """

    arm: str
    data: Path
    minutes: float
    seed: int
    machine: dict[str, str]


def options_of(arm: str, minutes: float) -> tuple[str, ...]:
    """What the command of a search is given beside its hours and the epochs of a final."""
    return SHORT_OF.get(arm, ()) if minutes <= SHORT_MINUTES else ()


def epochs_of(arm: str, minutes: float, epoch_s: float) -> int:
    """Of the network made by hand, or of a final."""
    by_hand = 60 * minutes * RESERVE / epoch_s
    if arm != "hand" and minutes > SHORT_MINUTES:
        return round(LONG_EPOCHS_PER_MINUTE * minutes)
    return max(1, int(by_hand * SHORT_SHARES.get(arm, 1.0)))


def searched(arm: str, data: Path, minutes: float, seed: int, root: str, n_epochs: int) -> None:
    """Runs a search by the command."""
    given = (f"seed={seed}", f"problem.n_epochs={n_epochs}", *options_of(arm, minutes))
    run(data, root, f"+tuner={arm}", f"budget.hours={minutes / 60}", *given)


def trained_by_hand(data: Path, seed: int, root: str, n_epochs: int) -> None:
    """Trains the one network for so many epochs."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as points:
        json.dump([{"network": HAND.to_json(), "learning_rate": 0.05}], points)
        points.flush()
        alone = ("+tuner=random", f"init.points={points.name}", "budget.trials=1", "policy=full", *ALONE)
        run(data, root, *alone, f"seed={seed}", f"problem.n_epochs={n_epochs}")


def epoch_seconds(data: Path) -> float:
    """What an epoch of the network made by hand takes on this machine, its scoring included."""
    with tempfile.TemporaryDirectory(prefix="heirloom-headline-") as root:
        trained_by_hand(data, 0, root, n_epochs=2)
        [trial] = records_of(root).load()[0]
        return trial.cost["seconds"] / 2


def precision() -> str:
    """What this machine trains in, where nobody says."""
    with precision_of("auto", "cpu"):
        return "bfloat16" if torch.is_autocast_enabled("cpu") else "float32"


def records_of(root: str) -> Records:
    """Of the one search below a root."""
    [folder] = Path(root).iterdir()
    return Records(open_root(str(folder)))


def run(data: Path, root: str, *overrides: str) -> None:
    """The command, as a user gives it."""
    given = ["problem=fashion_mnist", f"problem.data_root={data}", f"storage.root={root}"]
    subprocess.run([sys.executable, "-m", "flows.search", *given, *overrides], check=True)


def are_of_one_kind(rows: list[dict[str, str]]) -> bool:
    """Returns whether one kind of machine ran them."""
    seconds = [float(one["epoch_s"]) for one in rows]
    return len({one["precision"] for one in rows}) == 1 and max(seconds) <= SAME_KIND * min(seconds)


def compared(rows: list[dict[str, str]], minutes: float, seed: int, arms: Sequence[str]) -> list[dict[str, str]]:
    """Returns a row an arm, with the options of today, that one kind of machine ran; none where an arm is missing."""
    found = [
        [
            one
            for one in rows
            if (one["arm"], float(one["minutes"]), int(one["seed"]), one["options"], int(one["epochs"]))
            == (arm, minutes, seed, " ".join(options_of(arm, minutes)), epochs_of(arm, minutes, float(one["epoch_s"])))
        ]
        for arm in arms
    ]
    return next((list(together) for together in itertools.product(*found) if are_of_one_kind(list(together))), [])


def tasks_of(rows: list[dict[str, str]], data: Path, minutes: float, seeds: list[int], arms: list[str]) -> list[Task]:
    """What is to run: of each seed that no kind of machine ran all arms of, those that this kind has not run."""
    if not (missing := [seed for seed in seeds if not compared(rows, minutes, seed, arms)]):
        return []
    here = {"precision": precision(), "epoch_s": f"{epoch_seconds(data):.1f}"}
    ran_here = [one for one in rows if are_of_one_kind([one, here])]
    return [
        Task(arm=arm, data=data, minutes=minutes, seed=seed, machine=here)
        for seed in missing
        # All of them where each has a row near this machine's, but two rows are too far apart.
        for arm in [arm for arm in arms if not compared(ran_here, minutes, seed, [arm])] or arms
    ]


def row(task: Task) -> list[dict[str, object]]:
    """Runs one arm once."""
    arm, data, minutes, seed = task.arm, task.data, task.minutes, task.seed
    with tempfile.TemporaryDirectory(prefix="heirloom-headline-") as root:
        n_epochs = epochs_of(arm, minutes, float(task.machine["epoch_s"]))
        if arm == "hand":
            trained_by_hand(data, seed, root, n_epochs)
        else:
            searched(arm, data, minutes, seed, root, n_epochs)
        records = records_of(root)
        trials, _ = records.load()
        best = newest_best(records)
        assert best is not None, "the command has exported nothing"
        winner = trials[best["trial"]]
        known = {"arm": arm, "minutes": minutes, "seed": seed, "options": " ".join(options_of(arm, minutes))}
        found = {
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


def show(rows: list[dict[str, str]]) -> None:
    """The table, a line an arm and time."""
    for minutes in sorted({float(one["minutes"]) for one in rows}):
        for arm, options, rounding in dict.fromkeys((one["arm"], one["options"], one["precision"]) for one in rows):
            wanted = (minutes, arm, options, rounding)
            found = [
                one for one in rows if (float(one["minutes"]), one["arm"], one["options"], one["precision"]) == wanted
            ]
            if not found:
                continue
            tests = [100 * float(one["test"]) for one in found]
            told = ", ".join(f"{test:.2f}" for test in tests)
            print(
                f"{minutes:g} min, {arm}{options and chr(32) + options}, {rounding}: "
                f"test {statistics.mean(tests):.2f} % ({told}), "
                f"validation {statistics.mean(100 * float(one['validation']) for one in found):.2f} %, "
                f"{statistics.mean(int(one['trials']) for one in found):.0f} trials, "
                f"{statistics.mean(float(one['hours']) for one in found):.3f} h"
            )
            for one in found:
                print(f"  seed {one['seed']}, epoch {one['epoch_s']} s: the winner and its ancestors: {one['line']}")
        for seed in sorted({int(one["seed"]) for one in rows}):
            if together := compared(rows, minutes, seed, ARMS):
                told = ", ".join(f"{one['arm']} {100 * float(one['test']):.2f}" for one in together)
                print(f"{minutes:g} min, seed {seed}, {together[0]['precision']}: {told}")


def main() -> None:
    """Reads the arguments, runs what is missing one after the other, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--results", type=Path, default=RESULTS, help="the csv file; another one for your own runs")
    arguments = parser.parse_args()
    results = Results(path=arguments.results, fields=FIELDS)
    if arguments.data is not None:
        data, seeds, arms = arguments.data.resolve(), map(int, arguments.seeds.split(",")), arguments.arms.split(",")
        tasks = tasks_of(results.kept(), data, arguments.minutes, list(seeds), arms)
        for n_done in results.run(row, tasks, 1):
            print(f"{n_done} of {len(tasks)} runs", file=sys.stderr)
    show(results.kept())


if __name__ == "__main__":
    main()
