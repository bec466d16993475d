"""Cost of a trial in Heirloom and in other libraries: the same trials, slots and machine.

    $ python benchmarks/peers.py                                              # hours
    $ python benchmarks/peers.py --counts 100 --only heirloom,optuna          # minutes

Trials that train nothing give the milliseconds a trial, from the start of the first to the end of the last. Trials
that sleep for a second give the idle share of the slots. The peers get an environment of their own, made at the first
run. Compare figures of one run only. A side whose trials take long is measured with fewer of them.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from overhead import trial_times

HERE = Path(__file__).parent
PINNED = ("ray[tune]==2.60.0", "optuna==5.0.0", "syne-tune==0.15.0", "pyarrow==20.0.0")
N_OF_A_SECOND = 40


@dataclass(frozen=True, slots=True)
class Side:
    """One library with its settings.

    Attributes:
        name: What ``--only`` selects by its beginning.
        syncs: Whether a trial's record is on the disk (fsync) before the next step.
        most: The largest number of trials to measure.
    """

    name: str
    syncs: bool
    most: int = 10_000

    def times(self, n: int, seconds: float, slots: int, python: Path) -> list[tuple[float, float]]:
        """Returns the start and the end of each trial."""
        peer, _, runner = self.name.partition(" ")
        if peer == "heirloom":
            return trial_times(n, runner, slots, seconds)
        with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
            program = [str(python), str(HERE / "peer_trials.py"), self.name, str(n), str(seconds), str(slots)]
            done = subprocess.run(program, cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-3000:]
            lines = Path(folder, "times").read_text().splitlines()
        return [(float(start), float(end)) for start, end in map(str.split, lines)]


SIDES = (
    *(Side(f"heirloom {runner}", syncs=True) for runner in ("debug", "threads", "processes", "dask", "ray")),
    Side("ray reused", syncs=False, most=1000),
    Side("ray fresh", syncs=False, most=100),
    *(
        Side(f"optuna {storage} {sampler}", syncs=storage != "memory", most=1000 if sampler == "tpe" else 10_000)
        for storage in ("memory", "sqlite", "journal")
        for sampler in ("random", "tpe")
    ),
    Side("syne-tune", syncs=False, most=100),
)


def peers_python(folder: Path) -> Path:
    """Returns the Python of the peers' environment, which is created if it is not there."""
    python = folder / "bin" / "python"
    stamp = folder / "installed"
    if not stamp.exists() or stamp.read_text() != "\n".join(PINNED):
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PINNED], check=True)
        stamp.write_text("\n".join(PINNED))
    return python


def ms_a_trial(times: list[tuple[float, float]]) -> float:
    """Returns the milliseconds from the first start to the last end, per trial."""
    return (max(end for _, end in times) - min(start for start, _ in times)) / len(times) * 1000


def idle_share(times: list[tuple[float, float]], seconds: float, slots: int) -> float:
    """Returns the share of the slots' time in which no trial sleeps."""
    return 1 - len(times) * seconds / (slots * ms_a_trial(times) / 1000 * len(times))


def row(side: Side, counts: list[int], slots: int, python: Path) -> str:
    """Returns a side's line of the table."""
    slots = 1 if side.name == "heirloom debug" else slots
    cells = []
    for n in counts:
        times = side.times(n, 0.0, slots, python) if n <= side.most else []
        assert not times or len(times) >= n, f"{side.name}: {len(times)} of {n} trials"
        cells.append(f"{ms_a_trial(times):.1f}" if times else "")
    idle = idle_share(side.times(N_OF_A_SECOND, 1.0, slots, python), 1.0, slots)
    return f"| {side.name} | {'yes' if side.syncs else 'no'} | {' | '.join(cells)} | {idle:.1%} |"


def main() -> None:
    """Prints versions and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", default="100,1000,10000", help="numbers of trials")
    parser.add_argument("--only", default="", help="beginnings of the sides' names")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--environment", type=Path, default=Path.home() / ".cache" / "heirloom" / "peers")
    given = parser.parse_args()
    runners = {path.stem for path in (HERE.parent / "conf" / "runner").glob("*.yaml")}
    wanted = tuple(given.only.split(","))
    sides = [
        side
        for side in SIDES
        if side.name.startswith(wanted)
        and not (side.name.startswith("heirloom") and side.name.split()[1] not in runners)
    ]
    counts = [int(count) for count in given.counts.split(",")]
    python = peers_python(given.environment)
    print(f"Python {platform.python_version()}, {', '.join(PINNED)}, prefect=={importlib.metadata.version('prefect')}")
    print(f"\n| {given.slots} slots | fsync | {' | '.join(f'{n:,} trials, ms each' for n in counts)} | 1 s: idle |")
    print("| --- " * (len(counts) + 3) + "|", flush=True)
    for side in sides:
        print(row(side, counts, given.slots, python), flush=True)


if __name__ == "__main__":
    main()
