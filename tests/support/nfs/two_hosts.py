"""What two machines on one NFS share see of each other: for two_machines.py.

Writes through the mount $NFS_A and reads through the mount $NFS_B, which has caches of its own, having looked every
name up before it exists.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

from nas.core.errors import AlreadyPublishedError, MissingError, StorageError
from nas.core.reference import Reference
from nas.storage.blobs import BlobStore
from nas.storage.open import open_root

N_HANDOVERS = 1000
N_RECORDS = 50


def hand_over(writer: BlobStore, reader: BlobStore, n: int) -> tuple[bool, float]:
    """Whether the reader's cache still denied the published name, and the seconds until it had read the bytes."""
    folder = f"packs-{n // 10}" if n % 2 else f"new-{n}/deep"
    path, data = f"{folder}/{n:06d}.bin", [bytes([n % 256]) * 100_000, b"end"]
    place = Path(str(reader.local_path(path)))
    assert not place.exists()  # the reader's client now remembers that there is no such file
    reference = writer.publish(path, data, exclusive=n % 3 == 0)
    denied = not place.exists()
    began_s = time.monotonic()
    assert reader.read(reference) == b"".join(data)
    return denied, time.monotonic() - began_s


def late_records(writer: BlobStore, reader: BlobStore) -> int:
    """How many records that were looked up too early are not seen right after they are published.

    They come more than a tick of the server's clock apart: within one, NFSv3 sees no change of a folder.
    """
    late = 0
    for n in range(N_RECORDS):
        path = f"trials-{n // 10}/{n:06d}.result.json"
        time.sleep(0.03)
        assert reader.read_if_present(path) is None
        writer.publish(path, [b"{}"], exclusive=True)
        late += reader.read_if_present(path) != b"{}" or path.rpartition("/")[2] not in reader.names(
            f"trials-{n // 10}"
        )
    return late


def race(one: BlobStore, other: BlobStore) -> list[int]:
    """The number of winners for each of a hundred names that both clients publish at the same time."""
    wins = [0] * 100

    def publish(files: BlobStore, who: bytes) -> None:
        for n in range(len(wins)):
            try:
                files.publish(f"race/{n}", [who * 100], exclusive=True)
            except AlreadyPublishedError:
                continue
            wins[n] += 1

    threads = [threading.Thread(target=publish, args=pair) for pair in ((one, b"a"), (other, b"b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wins


def torn_beats(writer: BlobStore, reader: BlobStore) -> tuple[int, int]:
    """Reads of a name that the other client replaces all the while: how many, and how many were no whole beat."""
    done = threading.Event()

    def beat() -> None:
        for n in range(300):
            writer.replace("sessions/0001.beat", bytes([n % 256]) * 3000)
        done.set()

    writer.replace("sessions/0001.beat", bytes(3000))
    thread = threading.Thread(target=beat)
    thread.start()
    n_reads = n_torn = 0
    while not done.is_set():
        data = reader.read_if_present("sessions/0001.beat")
        n_reads += 1
        n_torn += data is None or len(data) != 3000 or len(set(data)) != 1
    thread.join()
    return n_reads, n_torn


def hand_over_all() -> dict[str, Any]:
    """Returns what was counted."""
    a = open_root(f"{os.environ['NFS_A']}/root/search")
    b = open_root(f"{os.environ['NFS_B']}/root/search")
    failures, denied, slowest_s = [], 0, 0.0
    for n in range(N_HANDOVERS):
        try:
            was_denied, took_s = hand_over(a, b, n)
        except (StorageError, AssertionError) as error:
            failures.append(f"{n}: {error}")
            continue
        denied, slowest_s = denied + was_denied, max(slowest_s, took_s)
    a.check_writable()
    b.check_writable()
    lost = a.publish("packs/lost", [b"1"])
    a.delete("packs/lost")
    try:
        open_root(b.url, retry_s=0.1).read(Reference("packs/lost", lost.bytes, lost.digest))
    except MissingError as error:
        missing = str(error)
    wins = race(a, b)
    n_reads, n_torn = torn_beats(a, b)
    return {
        "handovers": N_HANDOVERS,
        "failures": failures,
        "denied": denied,
        "slowest_ms": round(slowest_s * 1000, 1),
        "late_records": late_records(a, b),
        "wins": sorted(set(wins)),
        "beat_reads": n_reads,
        "torn_beats": n_torn,
        "missing": missing,
    }
