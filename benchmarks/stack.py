"""Trials an hour on one GPU, one at a time, in a stack, and in processes.

    $ python benchmarks/stack.py --data DIR  # DIR holds the four files of Fashion-MNIST

A trial has 2 epochs of 8,000 images at half the widths of the space ``blocks``. Each way runs evolution, and random
points from scratch. These are the same for all ways, so their accuracies are compared in pairs. A rate counts from the
first attempt's start to the last result: with the loading of data, without the start of processes.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from dataclasses import dataclass

from nas.api.opened import SearchOptions, open_pipeline
from nas.core.budget import Budget
from nas.core.policy import PolicyPlan
from nas.core.spec import Spec
from nas.core.trial import State
from nas.problems.fashion_mnist import FashionMnistProblem
from nas.search.definition import TWO_STAGE, Search
from nas.search.session import Runner, run_session
from nas.storage.records import Records
from nas.tuners.evolution import EvolutionTuner
from nas.tuners.random import RandomTuner

CHEAP = PolicyPlan(TWO_STAGE.stages[:1])
"""The first stage of the default plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to run the trials.

    Attributes:
        n_trials: The trials of evolution.
        n_random: The random trials.
    """

    runner: Runner
    slots: int
    lanes: int = 1
    n_trials: int
    n_random: int

    def __str__(self) -> str:
        return f"{self.runner}, {self.slots} slots, {self.lanes} lanes"


WAYS = (
    Way(runner="debug", slots=1, n_trials=40, n_random=20),
    Way(runner="threads", slots=80, lanes=64, n_trials=1_280, n_random=128),
    Way(runner="processes", slots=8, n_trials=160, n_random=40),
)


def run(way: Way, root: str, tuner: type, n_trials: int, data: str, device: str) -> Records:
    """Runs a search, and returns its records."""
    problem = Spec.of(FashionMnistProblem, data_root=data, space="blocks", lanes=way.lanes)
    search = Search(problem=problem, tuner=Spec.of(tuner), plan=CHEAP, slots=way.slots)
    opened = open_pipeline(search, SearchOptions(root=root, budget=Budget(trials=n_trials)))
    run_session(opened.pipeline, runner=way.runner, code=opened.code, device=device)
    return opened.pipeline.records


def show(way: Way, tuner: type, records: Records) -> dict[int, float]:
    """Prints the rate and the accuracies. Returns these by trial."""
    trials, _ = records.load()
    scores = {trial.number: trial.metrics["accuracy"] for trial in trials if trial.state == State.COMPLETE}
    seconds = max(trial.finished or 0.0 for trial in trials) - min(trial.started or math.inf for trial in trials)
    print(
        f"{way}, {tuner.__name__}: {len(scores)} of {len(trials)} in {seconds:.1f} s = "
        f"{3600 * len(scores) / seconds:,.0f} an hour; accuracy: median {statistics.median(scores.values()):.4f}, "
        f"best {max(scores.values()):.4f}",
        flush=True,
    )
    return scores


def compare(data: str, device: str) -> None:
    """Prints the rates of all ways, and pairs of accuracies against the first way's."""
    first: dict[int, float] = {}
    for way in WAYS:
        for tuner, n_trials in ((EvolutionTuner, way.n_trials), (RandomTuner, way.n_random)):
            with tempfile.TemporaryDirectory(prefix="heirloom-stack-") as root:
                records = run(way, root, tuner, n_trials, data, device)
                scores = show(way, tuner, records)
            if tuner is RandomTuner:
                first = first or scores
                pairs = [100 * (scores[n] - first[n]) for n in first.keys() & scores.keys()]
                error = 1.96 * statistics.stdev(pairs) / math.sqrt(len(pairs))
                print(f"  {len(pairs)} pairs: {statistics.mean(pairs):+.2f} +- {error:.2f} points", flush=True)


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    compare(arguments.data, arguments.device)


if __name__ == "__main__":
    main()
