"""Backend checks by two hosts, or two mounts: whether each sees the other's files.

Both hosts run ``check_with_peer`` at the same time. They exchange messages (``peer.py``).
"""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from nas.core.errors import AlreadyPublishedError, StorageError
from nas.core.names import CHECKS
from nas.core.reference import Reference
from nas.storage.blobs import BlobStore
from nas.storage.maintenance.backend_checks.check import (
    BUDGET_S,
    N_TRIES,
    CheckResult,
    CheckStatus,
    FailedCheckError,
    Location,
    check_heartbeat,
    failed,
    heartbeat,
    timed,
)
from nas.storage.maintenance.backend_checks.folder import existing_folder
from nas.storage.maintenance.backend_checks.peer import TIMEOUT_S, Peer
from nas.storage.record_values import checked_as

CLOCKS_AGREE_S = 30.0
"""Half the time after which a session without a new heartbeat counts as ended."""
_HELLO_TIMEOUT_S = 30.0
_ROOT = "both hosts see one root"
_FILES = "files of the other host are read"
_RECORDS = "records of the other host are seen"
_CLOCKS = "clocks agree"
_RACE = "one of two hosts wins"
_HEARTBEAT = "heartbeats of the other host are whole"

_Step: TypeAlias = Callable[[Peer], list[CheckResult]]


def check_with_peer(peer: Peer) -> Iterator[CheckResult]:
    """Yields the results of all checks, the same on both hosts.

    It ends with the first check that failed.
    """
    steps: tuple[tuple[str, _Step], ...] = (
        (_ROOT, _greet),
        (_FILES, _read_files),
        (_RECORDS, _measure_latency),
        (_RACE, _race),
        (_HEARTBEAT, _watch_heartbeats),
    )
    location = Location.of(peer.files)
    try:
        for name, step in steps:
            try:
                yield from step(peer)
            except (FailedCheckError, OSError) as error:
                peer.send_failure(f"{name}: {error}")
                yield failed(name, error, location)
                return
    finally:
        peer.close()


def check_two_mounts(
    one: BlobStore, other: BlobStore, *, timeout_s: float = TIMEOUT_S, n_tries: int = N_TRIES
) -> Iterator[CheckResult]:
    """Yields the results of the same checks for two mounts of one root on this machine.

    Args:
        one: A folder of the root that nothing else uses.
        other: The same folder by the second mount.
        timeout_s: Seconds to wait for a message.
        n_tries: Maximum number of tries of each check.
    """
    peers = [Peer(files, name, timeout_s=timeout_s, n_tries=n_tries) for files, name in ((one, "a"), (other, "b"))]
    paths = [files.local_path("x") for files in (one, other)]
    devices = {os.stat(existing_folder(path)).st_dev for path in paths if path is not None}
    has_failed = False
    with ThreadPoolExecutor(1, thread_name_prefix="heirloom-peer-b") as pool:
        there = pool.submit(lambda: list(check_with_peer(peers[1])))
        for result in check_with_peer(peers[0]):
            has_failed |= result.status == CheckStatus.FAILED
            yield result
        there.result()
    if not has_failed and len(devices) == 1 and None not in paths:
        yield CheckResult(
            name="the mounts have separate caches",
            status=CheckStatus.WARNING,
            observed="both paths are on one mount, or on two that share their cache",
            hint="mount the second one with nosharecache, so that it sees what another machine would see",
        )


def _greet(peer: Peer) -> list[CheckResult]:
    """Exchanges host, user and mount."""
    mount = " ".join(Location.of(peer.files).mount or ())
    root = peer.files.url.partition(f"/{CHECKS}/")[0]
    here = {"host": socket.gethostname(), "uid": os.geteuid(), "root": root, "mount": mount}
    peer.send("hello", **here)
    try:
        there = peer.receive("hello", min(_HELLO_TIMEOUT_S, peer.timeout_s))
    except StorageError as error:
        hint = "both must be mounts of one folder; if they are, a client shows old contents: see docs/reference/nfs.md"
        raise FailedCheckError(str(error), hint) from error
    observed = f"the other host: {there['root']} on {there['host']} {there['mount']}".rstrip()
    results = [CheckResult(name=_ROOT, observed=observed)]
    if here["uid"] != there["uid"]:
        results.append(
            CheckResult(
                name="both hosts use one user id",
                status=CheckStatus.WARNING,
                observed=f"uid {here['uid']} here, {there['uid']} there",
                hint="run as the same numeric uid on both, or give the root's group write permission (chmod g+ws)",
            )
        )
    return results


def _read_files(peer: Peer) -> list[CheckResult]:
    """Reads files that the other host just published and this host looked up too early."""
    times_ms: list[float] = []
    n_hidden, deadline = 0, time.monotonic() + 2 * BUDGET_S
    for n in range(peer.n_tries):
        path = f"published-{peer.other}/{n}"
        _is_hidden(peer.files, path)  # this client may now cache that there is no such file
        peer.exchange(f"looked-{n}")
        published = peer.files.publish(f"published-{peer.name}/{n}", [_contents(peer.name, n)])
        more = n + 1 < peer.n_tries and time.monotonic() < deadline
        message = peer.exchange(f"published-{n}", reference=published.to_json(), more=more)
        n_hidden += _is_hidden(peer.files, path)
        reference = checked_as(Reference, message["reference"])
        started = time.perf_counter()
        if peer.files.read(reference) != _contents(peer.other, n):
            raise FailedCheckError(f"try {n}: wrong contents", "check the network and the memory of both machines")
        times_ms.append((time.perf_counter() - started) * 1000)
        if not (more if peer.name == "a" else message["more"]):
            break
    owners = {
        "own": _owner(peer.files, f"published-{peer.name}/0"),
        "others": _owner(peer.files, f"published-{peer.other}/0"),
    }
    there = peer.exchange("read", times_ms=times_ms, n_hidden=n_hidden, **owners)
    all_times_ms = tuple(sorted((*times_ms, *there["times_ms"])))
    observed = f"{len(all_times_ms)} of {len(all_times_ms)}"
    if peer.files.local_path("x") is not None:
        observed += f"; a plain look-up did not find {n_hidden + there['n_hidden']} of them"
    results = [CheckResult(name=_FILES, times_ms=all_times_ms, observed=observed)]
    if (owners["own"], owners["others"]) != (there["others"], there["own"]):
        results.append(
            CheckResult(
                name="a file has one owner on both hosts",
                status=CheckStatus.WARNING,
                observed=f"files of uid {owners['own']} belong to {there['others']} there, "
                f"and those of {there['own']} to {owners['others']} here",
                hint="one host maps user ids or NFSv4 names: see idmap in docs/reference/nfs.md",
            )
        )
    return results


def _measure_latency(peer: Peer) -> list[CheckResult]:
    """Measures the latency of new records (half a round trip) and the offset of the clocks."""
    round_trips: list[tuple[float, float]] = []  # seconds, and the offset of the other host's clock

    def ping(n: int) -> None:
        sent, started = time.time(), time.perf_counter()
        there = peer.exchange(f"ping-{n}", more=True)
        took_s = time.perf_counter() - started
        round_trips.append((took_s, there["time"] - (sent + took_s / 2)))

    n_changes = peer.n_changes
    if peer.name == "a":
        timed(ping, peer.n_tries)
        peer.send(f"ping-{len(round_trips)}", more=False)
        measured: dict[str, Any] = {
            "times_ms": [took_s * 500 for took_s, _ in round_trips],
            "offset_s": min(round_trips)[1],
            "n_changes": peer.n_changes - n_changes,
        }
        peer.send("pinged", **measured)
    else:
        for n in itertools.count():
            if not peer.receive(f"ping-{n}")["more"]:
                break
            peer.send(f"ping-{n}", time=time.time())
        measured = peer.receive("pinged")
    observed = f"{len(measured['times_ms'])}, looked for continuously"
    if measured["n_changes"]:
        observed += f"; {measured['n_changes']} times after a change of the folder: see NFSv3 in docs/reference/nfs.md"
    offset_s = abs(measured["offset_s"])
    do_agree = offset_s < CLOCKS_AGREE_S
    hint = "set both by a time server (timedatectl set-ntp true): reports use them to tell whether a search runs"
    return [
        CheckResult(name=_RECORDS, times_ms=tuple(measured["times_ms"]), observed=observed),
        CheckResult(
            name=_CLOCKS,
            status=CheckStatus.PASSED if do_agree else CheckStatus.WARNING,
            observed=f"{offset_s:.3f} s apart",
            hint="" if do_agree else hint,
        ),
    ]


def _race(peer: Peer) -> list[CheckResult]:
    """Publishes the same names as the other host; each name must have one winner."""
    won: list[int] = []

    def publish(n: int) -> None:
        try:
            peer.files.publish(f"race/{n}", [peer.name.encode()], exclusive=True)
            won.append(n)
        except AlreadyPublishedError:
            if peer.files.read_if_present(f"race/{n}") != peer.other.encode():
                raise

    peer.exchange("ready")
    times_ms = timed(publish, peer.n_tries)
    there = peer.exchange("raced", won=won, times_ms=times_ms)
    tried = range(max(len(times_ms), len(there["times_ms"])))
    if wrong := [n for n in tried if (n in won) + (n in there["won"]) != 1]:
        hint = "choose another storage.root: two machines could drive one search here"
        raise FailedCheckError(f"{len(wrong)} of {len(tried)} names have two winners, or none", hint)
    fewer, more = sorted((len(won), len(there["won"])))
    all_times_ms = tuple(sorted((*times_ms, *there["times_ms"])))
    return [
        CheckResult(name=_RACE, times_ms=all_times_ms, observed=f"{len(tried)} names, won {fewer} and {more} times")
    ]


def _watch_heartbeats(peer: Peer) -> list[CheckResult]:
    """Replaces a file while the other host reads it, then reads while the other replaces."""
    times_ms: list[float] = []
    n_reads = 0
    for writer in ("a", "b"):
        path = f"beats/{writer}"
        if peer.name == writer:
            peer.files.replace(path, heartbeat(0))
            peer.exchange(f"start-{writer}")
            times_ms = timed(lambda n, path=path: peer.files.replace(path, heartbeat(n + 1)), peer.n_tries)  # type: ignore[misc]
            peer.send(f"end-{writer}", last=len(times_ms))
        else:
            peer.exchange(f"start-{writer}")
            n_reads = _read_heartbeats(peer, path, f"end-{writer}")
    there = peer.exchange("watched", times_ms=times_ms, n_reads=n_reads)
    observed = f"{n_reads + there['n_reads']} whole reads meanwhile, and the last one of the last contents"
    all_times_ms = tuple(sorted((*times_ms, *there["times_ms"])))
    return [CheckResult(name=_HEARTBEAT, times_ms=all_times_ms, observed=observed)]


def _read_heartbeats(peer: Peer, path: str, end_topic: str) -> int:
    """Reads the other host's heartbeat until the last one; returns the number of reads."""
    n_reads = 0
    while True:
        end = peer.poll(end_topic) if n_reads % 5 == 4 else None
        data = peer.files.read_if_present(path)
        check_heartbeat(data)
        n_reads += 1
        if end is not None:
            if data != heartbeat(end["last"]):
                hint = "this client shows old contents of a reopened file: see stale caches in docs/reference/nfs.md"
                raise FailedCheckError("old contents after the last change", hint)
            return n_reads


def _is_hidden(files: BlobStore, path: str) -> bool:
    """Returns whether a plain look-up on this machine does not find the file."""
    local = files.local_path(path)
    return local is not None and not os.path.exists(local)


def _owner(files: BlobStore, path: str) -> int | None:
    local = files.local_path(path)
    return None if local is None else os.stat(local).st_uid


def _contents(name: str, n: int) -> bytes:
    return f"{name} {n} ".encode() * 2000
