"""Time to load a lineage, and to find the best donor for a new network.

    $ python benchmarks/lineage.py             # ten searches of 10,000 trials: minutes, most to write 300,000 files

The records are as Heirloom writes them. Networks have 200 tensors and weights in up to 16 packs, and each differs from
its parent by one change. The machine's own limit, taken in the same run, is printed beside each figure. For loading,
it is a raw read of as many files of the same size. For a query, it is opening as many names as the query looks up.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from pathlib import Path

from store import seconds

from nas.core.checkpoint import Checkpoint
from nas.core.reference import Reference
from nas.core.trial import Proposal, State, Trial
from nas.inheritance.donors.index import DonorIndex
from nas.storage.manifest import TensorEntry
from nas.storage.open import open_root
from nas.storage.record_format import FORMAT, encode_record
from nas.storage.records import Records
from nas.storage.signature import Signature

N_SEARCHES = 10
N_TRIALS = 10_000
N_QUERIES = 200
MAX_PACKS = 16
N_BLOCKS = 40  # each has a convolution and a batch-norm: five tensors

Widths = list[int]


def network(widths: Widths) -> dict[str, TensorEntry]:
    """Returns the manifest entries of a chain of blocks."""
    shapes: dict[str, tuple[int, ...]] = {}
    for block, (before, width) in enumerate(zip([3, *widths], widths, strict=False)):
        shapes[f"blocks.{block}.conv.weight"] = (width, before, 3, 3)
        for name in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"blocks.{block}.norm.{name}"] = (width,)
    return {
        name: TensorEntry(pack="", offset=0, bytes=0, dtype="float32", shape=shape, digest="")
        for name, shape in shapes.items()
    }


def child(widths: Widths, rng: random.Random) -> Widths:
    """Returns the widths with one of them changed."""
    place = rng.randrange(len(widths))
    return [*widths[:place], rng.randrange(8, 512, 8), *widths[place + 1 :]]


def write_search(folder: Path, rng: random.Random) -> list[Widths]:
    """Writes a search of ``N_TRIALS`` finished trials, without fsync, and returns their networks."""
    (folder / "trials").mkdir(parents=True)
    header = {
        "format": FORMAT,
        "identity": {
            "problem": {"target": "benchmark", "arguments": {}},
            "space": {"type": "none"},
            "tuner": {"target": "benchmark", "arguments": {}},
            "policy": [{"name": "search", "policies": [], "warm": False}],
            "stopper": None,
            "seed": 0,
            "on_missing_weights": "ancestor",
            "deterministic": False,
        },
        "metrics": [{"name": "accuracy", "direction": "maximize", "reference": None}],
    }
    (folder / "search.json").write_bytes(encode_record(header))
    lineage: list[Trial] = []
    networks: list[Widths] = []
    for number in range(N_TRIALS):
        parent = lineage[rng.randrange(max(0, number - 64), number)] if number else None
        networks.append(child(networks[parent.number], rng) if parent else [64] * N_BLOCKS)
        lineage.append(finished(number, parent, networks[-1], rng))
        write_trial(folder, lineage[-1])
    return networks


def write_trial(folder: Path, trial: Trial) -> None:
    """Writes the three records of a trial."""
    where = {"slot": 0, "donor": trial.donor, "session": 1, "host": "machine", "pid": 12345, "time": trial.started}
    start = {"trial": trial.number, "attempt": 1, **where}
    records = {"proposal": trial.proposal_record(), "start-1": start, "result": trial.result_record()}
    for kind, record in records.items():
        (folder / f"trials/{trial.number:06d}.{kind}.json").write_bytes(encode_record(record))


def finished(number: int, parent: Trial | None, widths: Widths, rng: random.Random) -> Trial:
    """Returns a finished trial, as evolution makes it."""
    stem = f"{number:06d}-{rng.randbytes(4).hex()}"

    def reference(path: str) -> Reference:
        return Reference(path, rng.randrange(10**5, 10**7), f"blake3:{rng.randbytes(32).hex()}")

    inherited = parent.checkpoint.packs if parent and parent.checkpoint else ()
    checkpoint = Checkpoint(
        manifest=reference(f"manifests/{stem}.json"),
        packs=(reference(f"packs/{stem}.safetensors"), *(inherited if len(inherited) < MAX_PACKS else ())),
        signature=Signature.of(network(widths)).text,
    )
    changed = {f"blocks.{place}.conv.weight": "(64, 64, 3, 3) into (96, 64, 3, 3)" for place in range(2)}
    return Trial(
        number=number,
        index=number,
        proposal=Proposal(
            point={f"width_{place}": width for place, width in enumerate(widths)} | {"learning_rate": rng.random()},
            parents=() if parent is None else (parent.number,),
            derivation={"mutated": ["width_3"]},
            reason=f"child of {parent and parent.number}",
        ),
        created=1e9 + number,
        learned=(number - 3,) if number > 2 else (),
        state=State.COMPLETE,
        metrics={"accuracy": rng.random()},
        curve=tuple((step, {"accuracy": rng.random()}) for step in range(1, 6)),
        cost={"seconds": 10 * rng.random(), "gpu_seconds": 0.0},
        checkpoint=checkpoint,
        donor=None if parent is None else parent.number,
        inherited=rng.random(),
        inheritance={"share": 0.97, "n_copied": 194, "n_sliced": 6, "n_new": 0, "not_copied": changed},
        attempt=1,
        slot=0,
        started=1e9 + number,
        finished=1e9 + number + rng.random(),
    )


def raw_reading_s(folder: Path) -> float:
    """Returns the seconds to list the folder and read all proposals and results."""
    began = time.perf_counter()
    for name in os.listdir(folder):
        if name.endswith((".proposal.json", ".result.json")):
            fd = os.open(f"{folder}/{name}", os.O_RDONLY)
            os.read(fd, 1 << 20)
            os.close(fd)
    return time.perf_counter() - began


def raw_opening_s(folder: Path, n: int) -> float:
    """Returns the seconds to open ``n`` missing files."""
    began = time.perf_counter()
    for number in range(n):
        try:
            os.open(f"{folder}/{number:09d}", os.O_RDONLY)
        except FileNotFoundError:
            continue
    return time.perf_counter() - began


def main() -> None:
    """Prints the table."""
    rng = random.Random(0)
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        root = Path(folder)
        networks = [write_search(root / f"search-{number}", rng) for number in range(N_SEARCHES)]
        trials = root / "search-0" / "trials"
        sizes = [path.stat().st_size for path in trials.glob("*.result.json")]
        records = Records(open_root(str(root / "search-0")))
        raw = statistics.median(raw_reading_s(trials) for _ in range(3))
        load = statistics.median(seconds(records.load) for _ in range(3))

        index = DonorIndex(open_root(folder), "search-0", others="all")
        signatures = [Signature.of(network(child(rng.choice(rng.choice(networks)), rng))) for _ in range(N_QUERIES)]
        build = seconds(lambda: index.best_donor(signatures[0]))
        idle = [seconds(lambda w=w: index.best_donor(w)) for w in signatures]  # type: ignore[misc]
        busy = []
        for number, signature in enumerate(signatures[:50]):
            write_trial(root / "search-0", finished(N_TRIALS + number, None, child(networks[0][0], rng), rng))
            busy.append(seconds(lambda s=signature: index.best_donor(s)))  # type: ignore[misc]
        opening = statistics.median(raw_opening_s(trials, 2 * N_SEARCHES) for _ in range(20))

    n = N_SEARCHES * N_TRIALS
    print(f"result records: {statistics.median(sizes):.0f} bytes, at most {max(sizes)}")
    print("\n| what | measured | machine's limit | target |\n| --- | --- | --- | --- |")
    print(f"| load the lineage of {N_TRIALS:,} trials | {load:.2f} s | {raw:.2f} s (raw reading) | under 3 s |")
    print(f"| build the index of {n:,} checkpoints | {build:.1f} s | {N_SEARCHES * raw:.1f} s (raw reading) | |")
    for what, found in (("best donor", idle), ("the same right after a commit", busy)):
        median, worst = 1000 * statistics.median(found), 1000 * max(found)
        limit = f"{1000 * opening:.2f} ms (raw opening)"
        print(f"| {what} among {n:,} | {median:.1f} ms, at worst {worst:.1f} | {limit} | under 50 ms |")


if __name__ == "__main__":
    main()
