"""Cost of publishing and restoring a checkpoint, as ratios to raw writes and reads.

    $ python benchmarks/store.py                      # a temporary folder beside this program: about 1 minute
    $ python benchmarks/store.py --root /mnt/shared   # another disk, or NFS
    $ python benchmarks/store.py --root $NFS_A --read-root $NFS_B --cold   # two mounts, empty caches of the reader

The measurements of a row alternate in one process, so that they see the same load. Each figure is the median of the
rounds' ratios. A raw write is one file written by large calls, fsync, rename, and fsync of the folder. A raw read is
one file read by large calls into existing memory, without verification. ``torch.save`` and ``torch.load`` are shown for
comparison.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from nas.core.checkpoint import Checkpoint
from nas.storage.blobs import BlobStore
from nas.storage.checkpoints import load_manifest, publish_checkpoint, publish_tensors
from nas.storage.lazy_weights import StoredWeights
from nas.storage.open import open_root

MB = 1 << 20
N_TENSORS = 200
N_ROUNDS = 9


class Network(nn.Module):
    """A module with ``N_TENSORS`` parameters of equal size, ``n_bytes`` in all."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__()
        size = n_bytes // N_TENSORS // 4
        self.layers = nn.ParameterList(nn.Parameter(torch.randn(size)) for _ in range(N_TENSORS))


def seconds(call: Callable[[], object]) -> float:
    """Returns the seconds of a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def turns(
    calls: dict[str, Callable[[], object]], before: Callable[[], object], n_rounds: int
) -> dict[str, list[float]]:
    """Returns the seconds of each call, in alternation. ``before`` runs before each and is not measured."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(n_rounds + 1):
        for name, call in calls.items():
            before()
            found[name].append(seconds(call))
    return {name: times[1:] for name, times in found.items()}


class Disk:
    """One disk, with a folder to write in and the same folder to read from."""

    def __init__(self, folder: Path, read_folder: Path, *, cold: bool, n_rounds: int) -> None:
        self.folder = folder
        self.read_folder = read_folder
        self.cold = cold
        self.n_rounds = n_rounds
        self.files: BlobStore = open_root(str(folder))
        self.read_files: BlobStore = open_root(str(read_folder))
        self.n_published = 0

    def drop_caches(self) -> None:
        """Drops the reader's caches, if ``cold``."""
        gc.collect()
        for path in self.read_folder.rglob("*") if self.cold else ():
            if path.is_file():
                fd = os.open(path, os.O_RDONLY)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)

    def raw_write(self, data: memoryview) -> None:
        """Writes one file durably."""
        path = self.folder / f"raw-{self.n_published}"
        self.n_published += 1
        fd = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        for begin in range(0, data.nbytes, MB):
            os.write(fd, data[begin : begin + MB])
        os.fsync(fd)
        os.close(fd)
        os.rename(f"{path}.tmp", path)
        folder = os.open(self.folder, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def raw_read(self, path: Path, memory: memoryview) -> None:
        """Reads a file into existing memory."""
        fd = os.open(path, os.O_RDONLY)
        offset = 0
        while offset < memory.nbytes and (n := os.preadv(fd, [memory[offset : offset + MB]], offset)):
            offset += n
        os.close(fd)

    def torch_save(self, model: nn.Module) -> None:
        """Saves a model by ``torch.save``, durably."""
        path = self.folder / f"torch-{self.n_published}"
        self.n_published += 1
        with path.open("wb") as file:
            torch.save(model.state_dict(), file)
            file.flush()
            os.fsync(file.fileno())

    def publish(self, model: nn.Module, donor: Checkpoint | None = None) -> Checkpoint:
        """Publishes a checkpoint: digests, pack, manifest."""
        stem = f"{self.n_published:06d}-benchmark"
        self.n_published += 1
        donors = [] if donor is None else [load_manifest(self.files, donor)]
        saved = publish_tensors(self.files, f"packs/{stem}.safetensors", model.state_dict(), donors)
        return publish_checkpoint(self.files, stem, saved)

    def restore(self, checkpoint: Checkpoint, model: nn.Module) -> None:
        """Reads and verifies a checkpoint into a model."""
        StoredWeights(self.read_files, checkpoint).read_into(model.state_dict())

    def restore_part(self, checkpoint: Checkpoint, model: nn.Module, n: int) -> None:
        """Reads and verifies ``n`` tensors, and copies them into a model as a child does."""
        weights, state = StoredWeights(self.read_files, checkpoint), model.state_dict()
        for name, tensor in weights.read(list(state)[:n]):
            state[name].copy_(tensor)

    def delete_all(self) -> None:
        """Deletes all written files, so that the disk does not fill up."""
        for path in [*self.folder.glob("raw-*"), *self.folder.glob("torch-*"), *self.folder.glob("*/*-benchmark*")]:
            path.unlink()


def ratio(found: dict[str, list[float]], name: str, base: str) -> float:
    """Returns the median of the rounds' ratios of one call's seconds to another's."""
    return statistics.median(a / b for a, b in zip(found[name], found[base], strict=True))


def row(what: str, value: float, target: str, note: str = "") -> None:
    """Prints a line of the table."""
    print(f"| {what} | {value:.2f} | {target} | {note} |", flush=True)


def milliseconds(found: dict[str, list[float]], name: str) -> str:
    return f"{statistics.median(found[name]) * 1000:.1f} ms"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parent, help="the disk to measure")
    parser.add_argument("--read-root", type=Path, help="the same folder, mounted a second time")
    parser.add_argument("--cold", action="store_true", help="drop the files from the caches before each read")
    parser.add_argument("--rounds", type=int, default=N_ROUNDS)
    options = parser.parse_args()
    print("| what | ratio | target | medians |\n| --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir=options.root) as folder:
        read_root = Path(options.read_root or options.root) / Path(folder).name
        disk = Disk(Path(folder), read_root, cold=options.cold, n_rounds=options.rounds)
        small = measure(disk)
        if not options.cold:
            memory()
    assert small


def measure(disk: Disk) -> bool:
    """Prints the rows about 50 MB. Returns whether the restored weights are right."""
    model, other = Network(50 * MB), Network(50 * MB)
    data = torch.randint(0, 255, (50 * MB,), dtype=torch.uint8).numpy().data.cast("B")
    calls: dict[str, Callable[[], object]] = {
        "raw": lambda: disk.raw_write(data),
        "publish": lambda: disk.publish(model),
        "torch": lambda: disk.torch_save(model),
    }
    write = turns(calls, disk.delete_all, disk.n_rounds)
    note = f"{milliseconds(write, 'publish')} to {milliseconds(write, 'raw')}"
    row("publish 50 MB, 200 tensors / raw write and fsync", ratio(write, "publish", "raw"), "1.3", note)
    row("torch.save and fsync / the same", ratio(write, "torch", "raw"), "", milliseconds(write, "torch"))

    disk.delete_all()
    donor = disk.publish(model)
    child = Network(50 * MB)
    child.load_state_dict(model.state_dict())
    with torch.no_grad():
        for layer in list(child.layers)[::5]:
            layer.add_(1)
    sizes = []

    def keep_donor() -> None:
        for path in disk.folder.glob("*/*-benchmark*"):
            if donor.manifest.path.partition("/")[2].partition(".")[0] not in path.name:
                path.unlink()

    delta = turns(
        {"full": lambda: disk.publish(child), "delta": lambda: sizes.append(disk.publish(child, donor).own_bytes)},
        keep_donor,
        disk.n_rounds,
    )
    note = f"{milliseconds(delta, 'delta')} to {milliseconds(delta, 'full')}"
    row("child that changed 20 %: seconds / full publish", ratio(delta, "delta", "full"), "0.5", note)
    row("the same: bytes / full publish", sizes[-1] / donor.own_bytes, "0.25", f"{sizes[-1] / MB:.1f} MB")

    disk.delete_all()
    checkpoint = disk.publish(model)
    disk.raw_write(data)
    raw = disk.read_folder / next(path.name for path in disk.folder.glob("raw-*"))
    disk.torch_save(model)
    saved = disk.read_folder / next(path.name for path in disk.folder.glob("torch-*"))
    memory = memoryview(bytearray(50 * MB))
    part = memory[: 15 * MB]
    read = turns(
        {
            "raw": lambda: disk.raw_read(raw, memory),
            "restore": lambda: disk.restore(checkpoint, other),
            "torch": lambda: other.load_state_dict(torch.load(saved, weights_only=True)),
            "raw part": lambda: disk.raw_read(raw, part),
            "part": lambda: disk.restore_part(checkpoint, other, N_TENSORS * 3 // 10),
        },
        disk.drop_caches,
        disk.n_rounds,
    )
    same = all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values(), strict=True))
    note = f"{milliseconds(read, 'restore')} to {milliseconds(read, 'raw')}"
    kind = "cold" if disk.cold else "warm"
    row(f"restore it {kind}, verified / raw read", ratio(read, "restore", "raw"), "1.8" if disk.cold else "2.2", note)
    row("torch.load into the model / raw read", ratio(read, "torch", "raw"), "", milliseconds(read, "torch"))
    if disk.cold:
        row(
            "restore 30 % of the tensors / raw read of all",
            ratio(read, "part", "raw"),
            "0.7",
            milliseconds(read, "part"),
        )
    else:
        note = milliseconds(read, "part")
        row("restore 30 % of the tensors / full restore", ratio(read, "part", "restore"), "0.5", note)
    return same


def memory() -> None:
    """Prints the peak memory of a process that restores 500 MB, without the model's (Linux)."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from store import MB, Disk, Network, Path
import tempfile
def peak():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
with tempfile.TemporaryDirectory(dir={str(Path(__file__).parent)!r}) as folder:
    disk = Disk(Path(folder), Path(folder), cold=False, n_rounds=1)
    small = Network(MB)
    disk.restore(disk.publish(small), small)  # loads all code
    model = Network(500 * MB)
    checkpoint = disk.publish(model)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = peak()
    disk.restore(checkpoint, model)
    print(peak() - before, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    extra = int(done.stderr.split()[-1]) / 1024
    print(f"| restore 500 MB: memory beyond the model's own | {extra:.0f} MB | 64 MB | |")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
