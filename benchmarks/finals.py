"""Gain of finals that start with the weights of the search, compared with finals from scratch.

    $ python benchmarks/finals.py --data DIR     # runs the missing ones of 8 seeds: 5 minutes each on a core
    $ python benchmarks/finals.py                # prints the results so far

``DIR`` holds the four files of Fashion-MNIST. For each seed, ``network_morphism`` searches with 16 cheap trials on the
first 12,000 images, a sixth of them for validation. Networks have at most 40 million FLOPs. The best one is trained
again for 10 epochs, with ``policy=warm_final`` and with the default plan. Both commands have the same seed, so that
their searches find the same network; a difference is an error.

Each row of docs/finals.csv is one final, tested on the 10,000 test images. The mean difference of the pairs is printed
with its 95 % confidence interval.
"""

from __future__ import annotations

import argparse
import gzip
import math
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rows import Results
from scipy.stats import t as student

from nas.core.lineage import Lineage
from nas.storage.open import open_root
from nas.storage.records import Records

SCORES = ("validation", "test")
FIELDS = ("seed", "start", "generation", "parameters", "searched", *SCORES)
RESULTS = Results(path=Path(__file__).parents[1] / "docs" / "finals.csv", fields=FIELDS)
WARM = "policy=warm_final"
COLD = "policy.stages=[{name: search, policies: [SHARE_PARAMS, EARLY_STOP, QUICK_EVAL]}, {name: final}]"
PLANS = {"warm": WARM, "cold": COLD}
N_IMAGES = 12_000
OPTIONS = (
    "+tuner=network_morphism", "problem=fashion_mnist", "problem.max_flops=40000000", "problem.n_epochs=10",
    "budget.trials=16", "finalists=1", "slots=1", "threads=1",
)  # fmt: skip


def copy_images(data: Path, folder: Path) -> None:
    """Copies the data files with only the first ``N_IMAGES`` training images."""
    for path in data.glob("*-ubyte.gz"):
        content = path.read_bytes()
        if path.name.startswith("train"):
            whole = gzip.decompress(content)
            head = 4 + 4 * whole[3]  # the type, the number of dimensions, and their lengths
            size = math.prod(struct.unpack(f">{whole[3] - 1}i", whole[8:head]))
            kept = whole[:4] + struct.pack(">i", N_IMAGES) + whole[8 : head + N_IMAGES * size]
            content = gzip.compress(kept, compresslevel=1)
        (folder / path.name).write_bytes(content)


def pair(task: tuple[Path, int]) -> list[dict[str, object]]:
    """Runs both finals of one seed and returns their rows."""
    data, seed = task
    rows: list[dict[str, object]] = []
    networks = set()
    with tempfile.TemporaryDirectory(prefix="heirloom-finals-") as scratch:
        images = Path(scratch, "images")
        images.mkdir()
        copy_images(data, images)
        for start, plan in PLANS.items():
            root = Path(scratch, start)
            given = (f"problem.data_root={images}", f"storage.root={root}", f"seed={seed}", plan)
            subprocess.run([sys.executable, "-m", "flows.search", *OPTIONS, *given], check=True)
            [search] = root.iterdir()
            records = Records(open_root(str(search)))
            trials, _ = records.load()
            final = trials[-1]
            [finalist] = final.parents
            networks.add(str(final.point))
            rows.append(
                {
                    "seed": seed,
                    "start": start,
                    "generation": len(Lineage.of(trials).ancestors(finalist)),
                    "parameters": int(final.static_metrics["parameters"]),
                    "searched": f"{trials[finalist].metrics['accuracy']:.4f}",
                    "validation": f"{final.metrics['accuracy']:.4f}",
                    "test": f"{records.tests()[final.number]['metrics']['accuracy']:.4f}",
                }
            )
    if len(networks) > 1:
        raise SystemExit(f"seed {seed}: its two searches found different networks, so their finals cannot be compared")
    return rows


def show(rows: Sequence[dict[str, str]]) -> None:
    """Prints the mean accuracies and the mean of the differences within a seed, in points."""
    table = {(row["seed"], row["start"]): row for row in rows}
    seeds = [seed for seed, start in table if start == "warm" and (seed, "cold") in table]
    if not seeds:
        print("no pairs yet; give --data DIR")
        return
    for score in SCORES:
        means = {start: statistics.mean(100 * float(table[seed, start][score]) for seed in seeds) for start in PLANS}
        gains = [100 * (float(table[seed, "warm"][score]) - float(table[seed, "cold"][score])) for seed in seeds]
        gain = f"{statistics.mean(gains):+.2f}"
        if len(seeds) > 1:
            error = statistics.stdev(gains) / len(seeds) ** 0.5 * student.ppf(0.975, len(seeds) - 1)
            gain += f" +- {error:.2f}"
        print(f"{score:10}  warm {means['warm']:.2f}  cold {means['cold']:.2f}  gain {gain} ({len(seeds)} pairs)")


def main() -> None:
    """Runs the missing pairs and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.data is not None:
        done_seeds = {int(row["seed"]) for row in RESULTS.kept()}
        tasks = [(arguments.data.resolve(), seed) for seed in range(arguments.seeds) if seed not in done_seeds]
        for n_done in RESULTS.run(pair, tasks, arguments.processes):
            print(f"{n_done} of {len(tasks)} pairs", flush=True)
    show(RESULTS.kept())


if __name__ == "__main__":
    main()
