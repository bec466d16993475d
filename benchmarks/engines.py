"""Cost of Dask and Ray, against processes of this machine.

    $ python benchmarks/engines.py                    # about 10 minutes on two cores

Trials that train nothing, two slots, the runners in turn. A trial costs the time from the first start to the last end,
per trial. A job's ask is the median time from the end of a trial to the start of the job's next one. Two jobs of
trials that take nothing ask all the time, so it is measured with trials of 0.1 s as well.
The driver's memory is the largest of its own process; a trial's share comes from two numbers of trials. Its start
reaches into the first 200 trials, so the smaller number must not be less.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from overhead import results, run_search

RUNNERS = ("processes", "dask", "ray")
SLOTS = 2
N_LONGER = 200
"""Trials of 0.1 s."""


@dataclass(slots=True)
class Costs:
    """Measurements of one runner, one of each kind a round."""

    trial_ms: list[float] = field(default_factory=list)
    busy_ask_ms: list[float] = field(default_factory=list)
    ask_ms: list[float] = field(default_factory=list)
    few_mb: list[float] = field(default_factory=list)
    many_mb: list[float] = field(default_factory=list)

    def measure(self, runner: str, few: int, many: int) -> None:
        """Adds one round."""
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            self.few_mb.append(run_search(folder, few, runner, SLOTS, 0.0))
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            self.many_mb.append(run_search(folder, many, runner, SLOTS, 0.0))
            found = results(folder)
        began, ended = min(result["started"] for result in found), max(result["finished"] for result in found)
        self.trial_ms.append((ended - began) / len(found) * 1000)
        self.busy_ask_ms.append(ask_ms(runner, many, 0.0))
        self.ask_ms.append(ask_ms(runner, N_LONGER, 0.1))

    def row(self, runner: str, base: Costs, added: int) -> str:
        """Returns the line of the table: medians, and differences to the base within each round."""
        extra = [own - other for own, other in zip(self.trial_ms, base.trial_ms, strict=True)]
        more = [own - other for own, other in zip(self.few_mb, base.few_mb, strict=True)]
        kb = [(many - few) * 1024 / added for few, many in zip(self.few_mb, self.many_mb, strict=True)]
        cells = (
            f"{statistics.median(self.trial_ms):.1f}",
            f"{statistics.median(extra):+.1f} ({min(extra):+.1f} to {max(extra):+.1f})",
            f"{statistics.median(self.busy_ask_ms):.1f}",
            f"{statistics.median(self.ask_ms):.1f}",
            f"{statistics.median(self.few_mb):.0f}",
            f"{statistics.median(more):+.0f}",
            f"{statistics.median(kb):.1f}",
        )
        return f"| {runner} | {' | '.join(cells)} |"


def ask_ms(runner: str, n: int, seconds: float) -> float:
    """Returns the median time that a job waits for its next trial.

    Args:
        runner: The runner's name.
        n: The number of trials.
        seconds: Seconds that each trial takes.
    """
    job = ("problem._target_=nothing.NothingJobProblem", f"problem.seconds={seconds}", "job.trials_per_job=unlimited")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        run_search(folder, n, runner, SLOTS, problem=job)
        waits: list[float] = [result["metrics"]["waited_ms"] for result in results(folder)]
    return statistics.median(waits)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--few", type=int, default=250, help="trials of the smaller search")
    parser.add_argument("--many", type=int, default=1000, help="trials of the larger search")
    given = parser.parse_args()
    costs = {runner: Costs() for runner in RUNNERS}
    for _ in range(given.rounds):
        for runner, found in costs.items():
            found.measure(runner, given.few, given.many)
    print("| runner | ms a trial | over processes | ask, p50 ms | of 0.1 s | driver MB | over processes | kB a trial |")
    print("| --- " * 8 + "|")
    for runner, found in costs.items():
        print(found.row(runner, costs["processes"], given.many - given.few))


if __name__ == "__main__":
    main()
