"""What two mounts, or two machines, see of each other's files on one root: both run ``hand_over`` at the same time."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from nas.core.errors import AlreadyPublishedError, StorageError
from nas.core.reference import Reference
from nas.storage.blobs import BlobStore
from nas.storage.maintenance.guarantees import (
    BUDGET_S,
    CHECKS,
    N_TRIES,
    BrokenPromiseError,
    Place,
    Promise,
    Verdict,
    broken,
    check_whole,
    existing_folder,
    timed,
)
from nas.storage.maintenance.mailbox import LIMIT_S, Side

CLOCKS_AGREE_S = 30.0
"""Half of the time after which a session without a new beat counts as dead."""
_HELLO_S = 30.0

_Step: TypeAlias = Callable[[Side], list[Promise]]


def hand_over(side: Side) -> Iterator[Promise]:
    """What the sides see of each other; both get the same promises. It ends with the first that is broken."""
    steps: tuple[tuple[str, _Step], ...] = (
        ("both see one root", _greet),
        ("what the other side publishes is read", _hand),
        ("records of the other side are seen", _ping),
        ("one of two sides wins", _race),
        ("the other side's heartbeat is whole", _heartbeat),
    )
    place = Place.of(side.files)
    try:
        for name, step in steps:
            try:
                yield from step(side)
            except (BrokenPromiseError, OSError) as error:
                side.fail(f"{name}: {error}")
                yield broken(name, error, place)
                return
    finally:
        side.leave()


def hand_over_here(
    one: BlobStore, other: BlobStore, *, limit_s: float = LIMIT_S, n_tries: int = N_TRIES
) -> Iterator[Promise]:
    """What two mounts of one root on this machine see of each other.

    Args:
        one: A folder of the root that nobody else uses.
        other: The same folder by the second mount.
        limit_s: How long a side waits for the other.
        n_tries: How often a promise is tried at the most.
    """
    sides = [Side(files, who, limit_s=limit_s, n_tries=n_tries) for files, who in ((one, "a"), (other, "b"))]
    places = [files.local_path("x") for files in (one, other)]
    devices = {os.stat(existing_folder(place)).st_dev for place in places if place is not None}  # while it is there
    is_broken = False
    with ThreadPoolExecutor(1, thread_name_prefix="heirloom-side-b") as pool:
        there = pool.submit(lambda: list(hand_over(sides[1])))
        for promise in hand_over(sides[0]):
            is_broken |= promise.verdict == Verdict.BROKEN
            yield promise
        there.result()
    if not is_broken and len(devices) == 1 and None not in places:
        seen = "both paths lead to one mount, or to two that share their cache"
        remedy = "to learn what another machine would see, mount the second one with nosharecache"
        yield Promise(name="two mounts, two caches", verdict=Verdict.RISK, seen=seen, remedy=remedy)


def _greet(side: Side) -> list[Promise]:
    """They tell each other where they are."""
    mount = " ".join(Place.of(side.files).mount or ())
    root = side.files.url.partition(f"/{CHECKS}/")[0]
    here = {"host": socket.gethostname(), "uid": os.geteuid(), "root": root, "mount": mount}
    side.say("hello", **here)
    try:
        there = side.hear("hello", min(_HELLO_S, side.limit_s))
    except StorageError as error:
        remedy = "both must be mounts of one folder; if they are, one client shows nothing new: see docs/nfs.md"
        raise BrokenPromiseError(str(error), remedy) from error
    seen = f"the other side: {there['root']} on {there['host']} {there['mount']}".rstrip()
    promises = [Promise(name="both see one root", seen=seen)]
    if here["uid"] != there["uid"]:
        seen = f"uid {here['uid']} here, {there['uid']} there"
        remedy = "run as the same numeric uid on both, or give the root's group the right to write (chmod g+ws)"
        promises.append(Promise(name="one user on both", verdict=Verdict.RISK, seen=seen, remedy=remedy))
    return promises


def _hand(side: Side) -> list[Promise]:
    """Returns each reads, by reference, what the other has just published under a name that was looked up too early."""
    times_ms: list[float] = []
    n_denied, until = 0, time.monotonic() + 2 * BUDGET_S
    for n in range(side.n_tries):
        path = f"given-{side.other}/{n}"
        _denies(side.files, path)  # this client may now remember that there is no such file
        side.exchange(f"looked-{n}")
        given = side.files.publish(f"given-{side.name}/{n}", [_contents(side.name, n)])
        more = n + 1 < side.n_tries and time.monotonic() < until
        told = side.exchange(f"told-{n}", reference=given.to_json(), more=more)
        n_denied += _denies(side.files, path)
        reference = Reference.from_json(told["reference"])
        began = time.perf_counter()
        if side.files.read(reference) != _contents(side.other, n):
            raise BrokenPromiseError(f"try {n}: other contents", "check the network and the memory of both machines")
        times_ms.append((time.perf_counter() - began) * 1000)
        if not (more if side.name == "a" else told["more"]):
            break
    mine = {"own": _owner(side.files, f"given-{side.name}/0"), "others": _owner(side.files, f"given-{side.other}/0")}
    there = side.exchange("handed", times_ms=times_ms, n_denied=n_denied, **mine)
    both = tuple(sorted((*times_ms, *there["times_ms"])))
    seen = f"{len(both)} of {len(both)}"
    if side.files.local_path("x") is not None:
        seen += f"; a plain look-up still denied {n_denied + there['n_denied']} of them"
    promises = [Promise(name="what the other side publishes is read", times_ms=both, seen=seen)]
    if (mine["own"], mine["others"]) != (there["others"], there["own"]):
        seen = (
            f"files of uid {mine['own']} are {there['others']}'s there, those of {there['own']} {mine['others']}'s here"
        )
        remedy = "one side maps user ids or NFSv4 names: see idmap in docs/nfs.md"
        promises.append(Promise(name="a file has one owner on both", verdict=Verdict.RISK, seen=seen, remedy=remedy))
    return promises


def _ping(side: Side) -> list[Promise]:
    """Half of the time in which a record is published, seen, and answered by another one; and the clocks."""
    round_trips: list[tuple[float, float]] = []  # seconds, and how far the other's clock is ahead

    def ping(n: int) -> None:
        sent, began = time.time(), time.perf_counter()
        there = side.exchange(f"ping-{n}", more=True)
        took_s = time.perf_counter() - began
        round_trips.append((took_s, there["time"] - (sent + took_s / 2)))

    n_stirred = side.n_stirred
    if side.name == "a":
        timed(ping, side.n_tries)
        side.say(f"ping-{len(round_trips)}", more=False)
        offset_s = min(round_trips)[1]
        mine = {"times_ms": [took_s * 500 for took_s, _ in round_trips], "offset_s": offset_s}
        told: dict[str, Any] = {**mine, "n_stirred": side.n_stirred - n_stirred}
        side.say("pinged", **told)
    else:
        for n in itertools.count():
            if not side.hear(f"ping-{n}")["more"]:
                break
            side.say(f"ping-{n}", time=time.time())
        told = side.hear("pinged")
    seen = f"{len(told['times_ms'])}, looked for all the while"
    if told["n_stirred"]:
        seen += f"; {told['n_stirred']} times the folder had to be changed again first: see NFSv3 in docs/nfs.md"
    promises = [Promise(name="records of the other side are seen", times_ms=tuple(told["times_ms"]), seen=seen)]
    seen = f"{abs(told['offset_s']):.3f} s apart"
    if abs(told["offset_s"]) < CLOCKS_AGREE_S:
        return [*promises, Promise(name="clocks agree", seen=seen)]
    remedy = "set both by a time server (timedatectl set-ntp true): reports judge by it whether a search still runs"
    return [*promises, Promise(name="clocks agree", verdict=Verdict.RISK, seen=seen, remedy=remedy)]


def _race(side: Side) -> list[Promise]:
    """Both want the same names at the same time; each of them must have one winner."""
    won: list[int] = []

    def want(n: int) -> None:
        try:
            side.files.publish(f"race/{n}", [side.name.encode()], exclusive=True)
            won.append(n)
        except AlreadyPublishedError:
            if side.files.read_if_present(f"race/{n}") != side.other.encode():
                raise

    side.exchange("ready")
    times_ms = timed(want, side.n_tries)
    there = side.exchange("raced", won=won, times_ms=times_ms)
    tried = range(max(len(times_ms), len(there["times_ms"])))
    if wrong := [n for n in tried if (n in won) + (n in there["won"]) != 1]:
        remedy = "choose another storage.root: two machines could both drive a search here"
        raise BrokenPromiseError(f"{len(wrong)} of {len(tried)} names have two winners, or none", remedy)
    seen = f"{len(tried)} names, won {' and '.join(map(str, sorted((len(won), len(there['won'])))))} times"
    times = tuple(sorted((*times_ms, *there["times_ms"])))
    return [Promise(name="one of two sides wins", times_ms=times, seen=seen)]


def _heartbeat(side: Side) -> list[Promise]:
    """One replaces a file all the while, the other reads it; then the other way round."""
    times_ms: list[float] = []
    n_reads = 0
    for writer in ("a", "b"):
        path = f"beats/{writer}"
        if side.name == writer:
            side.files.replace(path, bytes(3000))
            side.exchange(f"beating-{writer}")
            times_ms = timed(lambda n, at=path: side.files.replace(at, bytes([(n + 1) % 256]) * 3000), side.n_tries)  # type: ignore[misc]
            side.say(f"beaten-{writer}", last=len(times_ms))
        else:
            side.exchange(f"beating-{writer}")
            n_reads = _watch(side, path, f"beaten-{writer}")
    there = side.exchange("watched", times_ms=times_ms, n_reads=n_reads)
    seen = f"{n_reads + there['n_reads']} whole reads meanwhile, and the last one of the last contents"
    times = tuple(sorted((*times_ms, *there["times_ms"])))
    return [Promise(name="the other side's heartbeat is whole", times_ms=times, seen=seen)]


def _watch(side: Side, path: str, topic: str) -> int:
    """Reads the other's heartbeat until that has ended, and the end of it; how often."""
    n_reads = 0
    while True:
        ended = side.heard(topic) if n_reads % 5 == 4 else None
        beat = side.files.read_if_present(path)
        check_whole(beat)
        n_reads += 1
        if ended is not None:
            if beat is None or beat[0] != ended["last"] % 256:
                remedy = "this client shows old contents when a file is opened anew: see stale caches in docs/nfs.md"
                raise BrokenPromiseError("old contents after the last change", remedy)
            return n_reads


def _denies(files: BlobStore, path: str) -> bool:
    """Returns whether this machine believes, without asking the server, that there is no such file."""
    place = files.local_path(path)
    return place is not None and not os.path.exists(place)


def _owner(files: BlobStore, path: str) -> int | None:
    place = files.local_path(path)
    return None if place is None else os.stat(place).st_uid


def _contents(who: str, n: int) -> bytes:
    return f"{who} {n} ".encode() * 2000
