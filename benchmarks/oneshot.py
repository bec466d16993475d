"""Value of cheap scores of networks, on published tables.

    $ python benchmarks/oneshot.py screening --data DIR               # 500 searches for each row; prints the table
    $ python benchmarks/oneshot.py screening --data DIR --inner evolution --candidates 1,8 --seeds 100

``screening``: searches of NAS-Bench-201 with ``+tuner=screened``, by the protocol of search_quality.py. One simulated
worker has 12,000 s, and the best is chosen by validation accuracy after 12 epochs. A cell is the mean test accuracy
after 200 epochs of the best trial so far. It has the standard deviation over searches, and half of the mean's 95 %
interval in brackets. The paired difference to one candidate follows.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from search_quality import TUNERS, cell, problem, search

from nas.core.spec import Spec

SECONDS = (1_000, 3_000, 12_000)
PROXY = "live_flops_m"
Found = dict[tuple[int, int], list[float]]
"""Test accuracies by candidates and seconds, in the order of the seeds."""


def screened(inner: str, n_candidates: int) -> Spec:
    """Returns the inner tuner of search_quality.py, screened unless ``n_candidates`` is 1."""
    if n_candidates == 1:
        return TUNERS[inner]
    described = {"_target_": TUNERS[inner].target, **TUNERS[inner].arguments}
    options = {"inner": described, "n_candidates": n_candidates, "proxies": [PROXY]}
    return Spec("nas.tuners.screened.ScreenedTuner", options)


def accuracies(seed: int, inner: str, n_candidates: int, data: str) -> list[float]:
    """Returns the test accuracy of one search's best trial after each of ``SECONDS``."""
    trials = search("nasbench201", screened(inner, n_candidates), seed, data)
    found = []
    for seconds in SECONDS:
        in_time = [trial for trial in trials if trial.finished is not None and trial.finished <= seconds]
        best = max(in_time, key=lambda trial: trial.metrics["accuracy"])
        found.append(problem("nasbench201", data).value(best.point, "c10_test_200"))
    return found


def lines(inner: str, found: Found, candidates: Sequence[int]) -> Iterator[str]:
    """Yields the table's lines, as markdown."""
    yield "| inner tuner | candidates | " + " | ".join(f"{seconds} s" for seconds in SECONDS) + " |"
    yield "| --- | --- |" + " --- |" * len(SECONDS)
    for n in candidates:
        cells = [inner, str(n)]
        for seconds in SECONDS:
            own, alone = found[n, seconds], found.get((1, seconds))
            paired = [] if n == 1 or alone is None else [a - b for a, b in zip(own, alone, strict=True)]
            cells.append(cell(own, paired))
        yield "| " + " | ".join(cells) + " |"


def main() -> None:
    """Runs the searches and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", choices=["screening"])
    parser.add_argument("--data", required=True, help="the folder of the tables")
    parser.add_argument("--inner", default="random", choices=[name for name in TUNERS if name != "metis"])
    parser.add_argument("--candidates", default="1,2,4,8,32")
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = parser.parse_args()
    candidates = [int(text) for text in given.candidates.split(",")]
    found: Found = {}
    began_s = time.perf_counter()
    with ProcessPoolExecutor(given.processes) as pool:
        for n in candidates:
            one = partial(accuracies, inner=given.inner, n_candidates=n, data=given.data)
            for seconds, column in zip(SECONDS, zip(*pool.map(one, range(given.seeds)), strict=True), strict=True):
                found[n, seconds] = list(column)
    print("\n".join(lines(given.inner, found, candidates)))
    print(f"{given.seeds} searches for each row, {time.perf_counter() - began_s:.0f} s")


if __name__ == "__main__":
    main()
