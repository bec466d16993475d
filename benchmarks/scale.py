"""Cost of the controller, and idle time with a generational barrier: 10,000 workers, 100,000 trials.

    $ python benchmarks/scale.py                                  # about 2 minutes and 600 MB on one core
    $ python benchmarks/scale.py --workers 1000 --trials 10000
    $ python benchmarks/scale.py --driver-ms 8,80,200             # milliseconds of the driver for each trial

Asynchronous evolution runs on simulated workers. Trials have lognormal durations, half of them between 0.5 and 2 times
the median. In an hour 1 % of the workers are lost. The controller does all of its work: each proposal and result
becomes a record in memory.

Idle is the share of the workers' time without a trial that finishes, up to the start of the last trial. Work of lost
workers counts as idle. The line with a barrier is the same evolution, but a generation starts when the previous one is
complete. With ``--driver-ms`` each start also takes so many milliseconds of the one driver, for which all trials queue.
"""

from __future__ import annotations

import argparse
import math
import random
import resource
import time
from collections.abc import Mapping
from uuid import uuid4

from nas import Choice, Float, Metric, ParameterSpace, Problem
from nas.core.budget import Budget
from nas.core.lineage import Lineage
from nas.core.policy import Stage
from nas.core.trial import Proposal, Trial
from nas.executors.simulated import SimulatedExecutor, Workers
from nas.search.controller import ControllerSettings, SearchController
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.messages import Assignment
from nas.training.problem import Simulation
from nas.training.trial_run import TrialRun
from nas.tuners.base import WAIT, Answer, Tuner
from nas.tuners.evolution import EvolutionTuner

LOST_AN_HOUR = 0.01  # share of the workers
MEDIAN_S = 600.0
SPREAD = 1.0277  # standard deviation of the logarithm: half of the durations are within a factor of two
MEAN_S = MEDIAN_S * math.exp(SPREAD**2 / 2)


class Networks(Problem):
    """A simulated problem: the score is the number of right layers out of ten."""

    metrics = (Metric("score"),)

    def __init__(self) -> None:
        layers = {f"layer_{i}": Choice(*"abcde") for i in range(10)}
        self.space = ParameterSpace({**layers, "lr": Float(1e-4, 1e-1, log=True)})

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Raises NotImplementedError, since trials are simulated."""
        raise NotImplementedError

    def simulate(self, trial: Trial) -> Simulation:
        """Returns a random duration and the score, both a function of the trial."""
        rng = random.Random(trial.number)
        n_right = sum(trial.point[f"layer_{i}"] == "abcde"[i % 5] for i in range(10))
        return Simulation(MEDIAN_S * rng.lognormvariate(0.0, SPREAD), {"score": n_right + rng.random() / 10})


class BusyDriver(SimulatedExecutor):
    """Simulated workers of a driver that needs time for each trial.

    Attributes:
        driver_s: Seconds of the virtual clock before an attempt starts, in which nothing else is handled.
    """

    driver_s = 0.0

    def submit(self, assignment: Assignment) -> None:
        """Starts the attempt after the driver's work."""
        self._clock_s += self.driver_s
        super().submit(assignment)


class GenerationalTuner(Tuner):
    """A tuner that waits for all trials of a generation."""

    def __init__(self, tuner: Tuner, generation_size: int) -> None:
        super().__init__(tuner.space, tuner.metrics, seed=tuner.seed)
        self.tuner = tuner
        self.generation_size = generation_size

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns WAIT at the end of a generation while trials are running."""
        if number % self.generation_size == 0 and lineage.pending:
            return WAIT
        return self.tuner.ask(lineage, number, job)


def measure(name: str, n_workers: int, n_trials: int, *, barrier: bool = False, driver_ms: float = 0.0) -> str:
    """Runs a search and returns its line of the table."""
    from fsspec.implementations.memory import MemoryFileSystem

    problem = Networks()
    records = Records(open_root(f"memory://{uuid4().hex}"))
    workers = Workers(loss_rate=LOST_AN_HOUR * MEAN_S / 3600)
    executor = BusyDriver(problem, records, slots=n_workers, workers=workers)
    executor.driver_s = driver_ms / 1000
    tuner: Tuner = EvolutionTuner(problem.space, problem.metrics, population_size=1000, sample_size=25)
    if barrier:
        tuner = GenerationalTuner(tuner, n_workers)
    settings = ControllerSettings(budget=Budget(trials=n_trials), max_failures=n_trials)
    controller = SearchController(records, executor, settings, tuner=tuner, space=problem.space)
    began = time.process_time()
    controller.search(Stage(name="search"))
    seconds = time.process_time() - began
    MemoryFileSystem.store.clear()
    trials = controller.trials
    last_s = max(trial.started or 0.0 for trial in trials if trial.attempt == 1)
    ends = ((trial.started or 0.0, problem.simulate(trial).seconds) for trial in trials)
    busy = sum(min(started_s + seconds, last_s) - started_s for started_s, seconds in ends if started_s < last_s)
    idle = 1 - busy / (n_workers * last_s)
    best = max(trial.metrics.get("score", 0.0) for trial in trials)
    hours = max(trial.finished or 0.0 for trial in trials) / 3600
    cells = (name, f"{len(trials)}", f"{seconds:.0f} s", f"{seconds / len(trials) * 1000:.2f} ms", f"{idle:.2%}")
    return f"| {' | '.join(cells)} | {hours:.1f} h | {best:.2f} |"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=10_000)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--driver-ms", default="", help="milliseconds a trial, separated by commas")
    given = parser.parse_args()
    print(
        "| evolution | trials | CPU | a trial | idle | simulated | best |\n| --- | --- | --- | --- | --- | --- | --- |"
    )
    if given.driver_ms:
        for ms in map(float, given.driver_ms.split(",")):
            print(measure(f"{ms:g} ms of the driver", given.workers, given.trials, driver_ms=ms), flush=True)
    else:
        print(measure("asynchronous", given.workers, given.trials), flush=True)
        print(measure("with a barrier", given.workers, given.trials, barrier=True), flush=True)
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
