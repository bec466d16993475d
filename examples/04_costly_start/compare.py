"""Time saved by jobs of 16 trials instead of 1: ``python compare.py`` (about a minute)."""

import time
from collections import Counter

from nas import Budget, Search, Spec, run_search

N_TRIALS = 32


def search(trials_per_job):
    """Returns the lineage of a search and its seconds."""
    searched = Search(
        problem=Spec("costly_start.CostlyStart"),
        tuner=Spec("nas.tuners.random.RandomTuner"),
        trials_per_job=trials_per_job,
    )
    began = time.perf_counter()
    found = run_search(searched, root="memory://costly_start", budget=Budget(trials=N_TRIALS))
    return found.lineage, time.perf_counter() - began


if __name__ == "__main__":
    seconds, tables = {}, {}
    for trials_per_job in (1, 16):
        lineage, seconds[trials_per_job] = search(trials_per_job)
        tables[trials_per_job] = [(trial.number, trial.state, trial.point, trial.metrics) for trial in lineage]
        jobs = Counter(trial.job for trial in lineage)
        print(f"trials_per_job={trials_per_job}: {len(lineage)} trials in {len(jobs)} jobs, ", end="")
        print(f"{seconds[trials_per_job]:.1f} s")
    if tables[1] != tables[16]:
        raise SystemExit("the tables differ")
    print(f"the tables agree; jobs of 16 are {seconds[1] / seconds[16]:.1f} times as fast")
