"""Accuracy of a budget of hours in a real search, with finals and export.

    $ python benchmarks/budgets.py --data DIR # DIR holds fashion_mnist/; 12 minutes
    $ python benchmarks/budgets.py --data DIR --hours 1 problem.n_epochs=8

It runs ``python -m flows.search +experiment=fashion_mnist policy=two_stage budget.hours=...`` with further overrides
from its command line. Finals have one epoch, so that four of them fit in 12 minutes on two cores. It prints, from the
records:

* hours: the hours counted by the sessions, and those of the whole command with its start;
* cost: the median durations of a final and a search trial, their ratio, and the ratio that ``run.epochs`` and
  ``run.scale`` declare;
* ranks: the rank correlation of the finalists' search scores and final scores (Spearman and Kendall).
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scipy.stats import kendalltau, spearmanr

from nas.core.policy import Stage
from nas.core.trial import State, Trial
from nas.search.budget.durations import cost_ratio
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.sessions import spent_hours


def search(data: Path, root: Path, hours: float, overrides: list[str]) -> float:
    """Runs the command and returns its hours."""
    given = [f"problem.data_root={data / 'fashion_mnist'}", f"storage.root={root}", "name=budgets"]
    budget = ["budget.trials=null", f"budget.hours={hours}", "finalists=4", "policy=two_stage"]
    recipe = ["problem.space=blocks", "problem.n_epochs=1", "problem.n_search_images=4000"]
    command = [sys.executable, "-m", "flows.search", "+experiment=fashion_mnist", *given, *budget, *recipe, *overrides]
    began_s = time.monotonic()
    subprocess.run(command, check=True)
    return (time.monotonic() - began_s) / 3600


def show(trials: list[Trial], hours: float, wall_hours: float, allowed: float) -> None:
    """Prints hours, cost and ranks."""
    complete = [t for t in trials if t.state == State.COMPLETE]
    cheap = [t for t in complete if t.stage == "search"]
    finals = [t for t in complete if t.stage == "final"]
    print(f"hours: {hours:.4f} of {allowed:g} by the sessions, {wall_hours:.4f} for the whole command")
    print(f"trials: {len(cheap)} cheap and {len(finals)} finals complete, {len(trials) - len(complete)} others")
    if len(finals) < 2:
        print("too few finals for more")
        return
    seconds = [statistics.median(t.duration_s or 0.0 for t in found) for found in (cheap, finals)]
    declared = cost_ratio(cheap[0], Stage(name="final"))
    cheap_s, full_s = seconds
    print(f"cost: a final takes {full_s:.1f} s, a search trial {cheap_s:.1f} s: {full_s / cheap_s:.1f} times as long")
    print(f"declared: {declared:.1f} times")
    scores = [(trials[t.parents[0]].metrics["accuracy"], t.metrics["accuracy"]) for t in finals]
    low, full = zip(*scores, strict=True)
    print("finalists, cheap and full accuracy: " + ", ".join(f"{cheap:.4f} {final:.4f}" for cheap, final in scores))
    print(f"ranks: Spearman {spearmanr(low, full).statistic:.2f}, Kendall {kendalltau(low, full).statistic:.2f}")


def main() -> None:
    """Runs the search and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--hours", type=float, default=0.2)
    arguments, overrides = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="heirloom-budgets-") as folder:
        root = Path(folder)
        wall_hours = search(arguments.data.resolve(), root, arguments.hours, overrides)
        records = Records(open_root(f"{root}/budgets"))
        trials, _ = records.load()
        show(trials, spent_hours(records), wall_hours, arguments.hours)


if __name__ == "__main__":
    main()
