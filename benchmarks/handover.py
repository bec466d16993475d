"""How long a reader on another machine waits for what a writer has just published, beside the raw round trip.

    tests/support/nfs/with-nfs -- python benchmarks/handover.py     # two mounts of one NFS server: about 20 seconds
    python benchmarks/handover.py --root /mnt/a/root --read-root /mnt/b/root

Hand-overs take turns with raw ones, so that they share the machine's moods. In a hand-over the reader has looked the
name up before it was published, as a worker does that starts early: its client denies it for half a minute. "Raw" is
the least that any store must do: open and read a file of as many bytes under a name that the reader never asked for.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import time
from pathlib import Path

from nas.storage.blobs import BlobStore
from nas.storage.open import open_root

LIMIT_MS = 50.0


def handed(writer: BlobStore, reader: BlobStore, path: str, data: bytes) -> tuple[float, bool]:
    """Seconds until the reader has read and verified what was published, and whether its cache denied the name."""
    place = Path(str(reader.local_path(path)))
    place.exists()
    reference = writer.publish(path, [data])
    began = time.perf_counter()
    is_denied = not place.exists()
    looked = time.perf_counter()
    if reader.read(reference) != data:
        raise AssertionError(f"{path} was read wrongly")
    return time.perf_counter() - (looked if is_denied else began), is_denied


def raw(writer: BlobStore, reader: BlobStore, path: str, data: bytes) -> float:
    """Seconds to open and read a file that was published likewise."""
    writer.publish(path, [data])
    place = str(reader.local_path(path))
    began = time.perf_counter()
    with open(place, "rb", buffering=0) as file:
        found = file.readall()
    took = time.perf_counter() - began
    if found != data:
        raise AssertionError(f"{path} was read wrongly")
    return took


def quantile(times: list[float], share: float) -> float:
    """Milliseconds that this share of them keeps below."""
    return 1000 * sorted(times)[min(len(times) - 1, int(share * len(times)))]


def main() -> None:
    """Prints the table; status 1 where a hand-over failed or the target was missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default=os.environ.get("NFS_A"), help="where to write")
    parser.add_argument("--read-root", default=os.environ.get("NFS_B"), help="the same folder by another mount")
    parser.add_argument("--n", type=int, default=1000, help="hand-overs")
    parser.add_argument("--bytes", type=int, default=100_000, help="of each file")
    given = parser.parse_args()
    if not given.root or not given.read_root:
        parser.error(
            "--root and --read-root must name the same folder by two mounts (or run it by tests/support/nfs/with-nfs)"
        )
    folder = f"handover-{secrets.token_hex(4)}"
    writer, reader = open_root(f"{given.root}/{folder}"), open_root(f"{given.read_root}/{folder}")
    ours, raws, n_denied = list[float](), list[float](), 0
    try:
        for n in range(given.n):
            data = secrets.token_bytes(given.bytes)
            took, is_denied = handed(writer, reader, f"packs-{n // 50}/{n:06d}", data)
            ours.append(took)
            n_denied += is_denied
            raws.append(raw(writer, reader, f"raw-{n // 50}/{n:06d}", data))
    finally:
        shutil.rmtree(f"{given.root}/{folder}", ignore_errors=True)
    print(f"{len(ours)} hand-overs of {given.bytes} bytes, none failed; {n_denied} names were denied until then")
    print(f"{'ms':10}{'p50':>8}{'p99':>8}{'max':>8}")
    for name, times in (("handed", ours), ("raw", raws)):
        print(f"{name:10}" + "".join(f"{quantile(times, share):8.1f}" for share in (0.5, 0.99, 1)))
    beyond = quantile(ours, 0.99) - quantile(raws, 0.5)
    print(f"p99 beyond the raw round trip's median: {beyond:.1f} ms (target: under {LIMIT_MS:.0f})")
    raise SystemExit(beyond >= LIMIT_MS)


if __name__ == "__main__":
    main()
