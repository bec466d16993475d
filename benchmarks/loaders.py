"""Seconds of an epoch with a data loader's processes: inside a trial, and in plain Python.

    $ python benchmarks/loaders.py --rounds 5

Both run in turn, so that other load on the machine affects both. The target is a ratio of at most 1.5.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from nas import Int, Metric, ParameterSpace, Problem, TrialRun
from nas.core.spec import Spec
from nas.core.trial import Proposal, Trial
from nas.executors.process_pool import ProcessPool
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.messages import Assignment, RuntimeSpec

EPOCHS = 3
DATA = ("tensors", "array")


def epoch_s(data: str) -> float:
    """Returns the median seconds of an epoch: 2,000 small tensors, or an array of 150 MB."""
    import numpy as np
    import torch
    from torch.utils.data import DataLoader

    rows: list[torch.Tensor] | np.ndarray
    rows = [torch.zeros(8) for _ in range(2000)] if data == "tensors" else np.zeros((50_000, 3072), np.uint8)
    found = []
    for _ in range(EPOCHS + 1):
        began = time.perf_counter()
        for _ in DataLoader(rows, batch_size=50 if data == "tensors" else 1000, num_workers=2):  # type: ignore[arg-type]
            pass
        found.append(time.perf_counter() - began)
    return statistics.median(found[1:])


class LoaderProblem(Problem):
    """Measures an epoch as its score."""

    metrics = (Metric("seconds", "minimize"),)
    space = ParameterSpace({"data": Int(0, len(DATA) - 1)})

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Returns the seconds of an epoch."""
        return {"seconds": epoch_s(DATA[run.point["data"]])}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--plain", choices=DATA, help="print the seconds of this process alone")
    given = parser.parse_args()
    if given.plain:
        print(epoch_s(given.plain))
        return
    print("| data | plain Python | trial | ratio |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        problem = Spec(f"{Path(__file__).stem}.{LoaderProblem.__name__}")
        spec = RuntimeSpec(problem=problem, url=folder, options={}, session=1)
        records, pool = Records(open_root(folder)), ProcessPool(spec, 1)
        for index, data in enumerate(DATA):
            plain, inside = [], []
            for step in range(given.rounds):
                command = [sys.executable, os.path.abspath(__file__), "--plain", data]
                plain.append(float(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
                number = index * given.rounds + step
                trial = Trial(number=number, index=number, proposal=Proposal(point={"data": index}), slot=0, attempt=1)
                records.propose(trial)
                result = pool.run(Assignment(trial), lambda event: None)
                assert result is not None, data
                inside.append(result.metrics["seconds"])
            a, b = statistics.median(plain), statistics.median(inside)
            print(f"| {data} | {a:.2f} s | {b:.2f} s | {b / a:.2f} |", flush=True)
        pool.close()


if __name__ == "__main__":
    main()
