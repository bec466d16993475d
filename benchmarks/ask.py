"""Median time of an ask, by tuner and number of trials.

    $ python benchmarks/ask.py                     # about 3 minutes
    $ python benchmarks/ask.py --tuners evolution,anneal

The lineage has random points with random scores. A new result arrives before each ask. The ratio compares the time
after many trials with the time after few, in the same run.

Targets: random, evolution and anneal take at most twice as long at 10,000 trials as at 1,000. TPE takes under a second
at 2,000 trials, and GP at 300 and, limited to 500 points, at 1,000.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

from nas import Choice, Float, Int, Metric, ParameterSpace, Spec
from nas.core.lineage import LineageLog
from nas.core.trial import Proposal, State, Trial

METRIC = Metric("accuracy")
SPACE = ParameterSpace(
    {
        **{f"layer_{i}": Choice("conv3", "conv5", "pool", "skip") for i in range(6)},
        "width": Int(8, 128, log=True),
        "lr": Float(1e-4, 1e-1, log=True),
    }
)
SIZES: dict[str, tuple[Spec, tuple[int, int]]] = {
    "random": (Spec("nas.tuners.random.RandomTuner"), (1_000, 10_000)),
    "evolution": (Spec("nas.tuners.evolution.EvolutionTuner"), (1_000, 10_000)),
    "anneal": (Spec("nas.tuners.anneal.AnnealTuner"), (1_000, 10_000)),
    "reinforce": (Spec("nas.tuners.reinforce.ReinforceTuner"), (1_000, 10_000)),
    "tpe": (Spec("nas.tuners.optuna.OptunaTuner", {"sampler": "tpe"}), (200, 2_000)),
    "gp": (Spec("nas.tuners.optuna.OptunaTuner", {"sampler": "gp", "max_points": 500}), (300, 1_000)),
    "metis": (Spec("nas.tuners.metis.MetisTuner"), (100, 300)),
    "smac": (Spec("nas.tuners.smac.SmacTuner", {"random_share": 0.0}), (100, 300)),
}


def finished(number: int) -> Trial:
    """Returns a finished trial of a random point."""
    rng = random.Random(number)
    point = SPACE.sample(rng)
    score = rng.random() + point["width"] / 128
    return Trial(
        number=number,
        index=number,
        proposal=Proposal(point=point),
        state=State.COMPLETE,
        metrics={"accuracy": score},
    )


def cost_s(spec: Spec, n_trials: int, n_asks: int) -> float:
    """Returns the median seconds of an ask after ``n_trials`` trials."""
    tuner = spec.build(SPACE, (METRIC,), seed=1)
    log = LineageLog()
    for number in range(n_trials):
        log.add_proposed(trial := finished(number))
        log.append(trial)
    tuner.ask(log.view(), n_trials, 0)  # fills the caches that are kept between asks
    times = []
    for number in range(n_trials, n_trials + n_asks):
        log.add_proposed(trial := finished(number))
        log.append(trial)
        lineage = log.view()
        began = time.perf_counter()
        tuner.ask(lineage, number + 1, 0)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tuners", default=",".join(SIZES))
    arguments = parser.parse_args()
    print("| tuner | trials | an ask | trials | an ask | ratio |\n| --- | --- | --- | --- | --- | --- |")
    for name in arguments.tuners.split(","):
        spec, (few, many) = SIZES[name]
        n_asks = 200 if many == 10_000 else 5
        first, second = cost_s(spec, few, n_asks), cost_s(spec, many, n_asks)
        cells = (name, few, f"{first * 1000:.2f} ms", many, f"{second * 1000:.2f} ms", f"{second / first:.2f}")
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
