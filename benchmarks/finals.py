"""Whether a final should begin with the weights of the search: the same finalist from them, and from scratch.

    python benchmarks/finals.py --data DIR               # 8 seeds, what is missing of them: 5 minutes each on a core
    python benchmarks/finals.py                          # the table of the rows that are kept

``DIR`` holds the four files of Fashion-MNIST. A search by ``network_morphism`` of 16 cheap trials on the first 12,000
images (of which a sixth is for validation), networks of up to 40 million FLOPs; its best is trained again for 10
epochs, with ``policy=warm_final`` and with the plan of the default. Both commands have the seed, so that their searches
come to the same network; a pair that does not is an error. Each row of docs/finals.csv is one final, tested on the
10,000 test images. Told is the mean difference of the pairs, with its 95 % confidence interval.
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


def cut(data: Path, folder: Path) -> None:
    """The files of the data, with the first training images alone."""
    for path in data.glob("*-ubyte.gz"):
        content = path.read_bytes()
        if path.name.startswith("train"):
            whole = gzip.decompress(content)
            head = 4 + 4 * whole[3]  # the kind of numbers, how many dimensions, and as many lengths
            size = math.prod(struct.unpack(f">{whole[3] - 1}i", whole[8:head]))
            kept = whole[:4] + struct.pack(">i", N_IMAGES) + whole[8 : head + N_IMAGES * size]
            content = gzip.compress(kept, compresslevel=1)
        (folder / path.name).write_bytes(content)


def pair(task: tuple[Path, int]) -> list[dict[str, object]]:
    """Both finals of one seed."""
    data, seed = task
    rows: list[dict[str, object]] = []
    networks = set()
    with tempfile.TemporaryDirectory(prefix="heirloom-finals-") as scratch:
        images = Path(scratch, "images")
        images.mkdir()
        cut(data, images)
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
        raise SystemExit(f"seed {seed}: its two searches came to different networks, so their finals are no pair")
    return rows


def show(rows: Sequence[dict[str, str]]) -> None:
    """The mean of each start, and of the differences within a seed, in points of accuracy."""
    by = {(row["seed"], row["start"]): row for row in rows}
    seeds = [seed for seed, start in by if start == "warm" and (seed, "cold") in by]
    if not seeds:
        print("no pairs yet; give --data DIR")
        return
    for score in SCORES:
        means = {start: statistics.mean(100 * float(by[seed, start][score]) for seed in seeds) for start in PLANS}
        gains = [100 * (float(by[seed, "warm"][score]) - float(by[seed, "cold"][score])) for seed in seeds]
        told = f"{statistics.mean(gains):+.2f}"
        if len(seeds) > 1:
            error = statistics.stdev(gains) / len(seeds) ** 0.5 * student.ppf(0.975, len(seeds) - 1)
            told += f" +- {error:.2f}"
        print(f"{score:10}  warm {means['warm']:.2f}  cold {means['cold']:.2f}  gain {told} ({len(seeds)} pairs)")


def main() -> None:
    """Reads the arguments, runs what is missing, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    if arguments.data is not None:
        there = {int(row["seed"]) for row in RESULTS.kept()}
        tasks = [(arguments.data.resolve(), seed) for seed in range(arguments.seeds) if seed not in there]
        for n_done in RESULTS.run(pair, tasks, arguments.processes):
            print(f"{n_done} of {len(tasks)} pairs", flush=True)
    show(RESULTS.kept())


if __name__ == "__main__":
    main()
