"""Delay until another machine can read a published file, compared with a raw read.

    $ tests/support/nfs/with-nfs -- python benchmarks/nfs_visibility.py   # two mounts of one server: about 20 seconds
    $ python benchmarks/nfs_visibility.py --root /mnt/a/root --read-root /mnt/b/root

Published and raw files alternate, so that both see the same load. The reader looks each published name up before it
exists, as a worker that starts early does. An NFS client may then deny the name for half a minute. A raw read
only opens and reads a file of the same size, under a name that the reader never looked up.
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


def published_s(writer: BlobStore, reader: BlobStore, path: str, data: bytes) -> tuple[float, bool]:
    """Returns the seconds until the file is verified, and whether the reader's cache denied it."""
    local = Path(str(reader.local_path(path)))
    local.exists()
    reference = writer.publish(path, [data])
    began = time.perf_counter()
    is_denied = not local.exists()
    looked_up = time.perf_counter()
    if reader.read(reference) != data:
        raise AssertionError(f"{path} was read wrongly")
    return time.perf_counter() - (looked_up if is_denied else began), is_denied


def raw_s(writer: BlobStore, reader: BlobStore, path: str, data: bytes) -> float:
    """Returns the seconds to open and read a published file directly."""
    writer.publish(path, [data])
    local = str(reader.local_path(path))
    began = time.perf_counter()
    with open(local, "rb", buffering=0) as file:
        found = file.readall()
    seconds = time.perf_counter() - began
    if found != data:
        raise AssertionError(f"{path} was read wrongly")
    return seconds


def quantile(times: list[float], share: float) -> float:
    """Returns a quantile of the times, in milliseconds."""
    return 1000 * sorted(times)[min(len(times) - 1, int(share * len(times)))]


def main() -> None:
    """Prints the table. The exit status is 1 if the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default=os.environ.get("NFS_A"), help="folder to write in")
    parser.add_argument("--read-root", default=os.environ.get("NFS_B"), help="the same folder, mounted a second time")
    parser.add_argument("--n", type=int, default=1000, help="number of files")
    parser.add_argument("--bytes", type=int, default=100_000, help="size of each file")
    arguments = parser.parse_args()
    if not arguments.root or not arguments.read_root:
        parser.error(
            "--root and --read-root must be the same folder under two mounts; or run tests/support/nfs/with-nfs"
        )
    folder = f"visibility-{secrets.token_hex(4)}"
    writer, reader = open_root(f"{arguments.root}/{folder}"), open_root(f"{arguments.read_root}/{folder}")
    ours, raws, n_denied = list[float](), list[float](), 0
    try:
        for n in range(arguments.n):
            data = secrets.token_bytes(arguments.bytes)
            seconds, is_denied = published_s(writer, reader, f"packs-{n // 50}/{n:06d}", data)
            ours.append(seconds)
            n_denied += is_denied
            raws.append(raw_s(writer, reader, f"raw-{n // 50}/{n:06d}", data))
    finally:
        shutil.rmtree(f"{arguments.root}/{folder}", ignore_errors=True)
    print(f"{len(ours)} files of {arguments.bytes} bytes, none failed; {n_denied} names were denied at first")
    print(f"{'ms':10}{'p50':>8}{'p99':>8}{'max':>8}")
    for name, times in (("published", ours), ("raw", raws)):
        print(f"{name:10}" + "".join(f"{quantile(times, share):8.1f}" for share in (0.5, 0.99, 1)))
    beyond = quantile(ours, 0.99) - quantile(raws, 0.5)
    print(f"p99 beyond the raw round trip's median: {beyond:.1f} ms (target: under {LIMIT_MS:.0f})")
    raise SystemExit(beyond >= LIMIT_MS)


if __name__ == "__main__":
    main()
