"""A small NFS share that is filled and made read-only, and a clock that jumps: for two_machines.py.

The file systems and the clock are the guest's own.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nas.api.results import Results
from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError, StorageError
from nas.core.reference import Reference
from nas.core.spec import Spec
from nas.search.definition import Search
from nas.search.lease import SearchLease, check_free
from nas.storage.maintenance.verification import verify_search
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.trial_run import TrialRun
from tests.support.problems import InOrderTuner, ScoreProblem

YEAR_S = 365 * 86_400
LET_GO = "exportfs -f"
"""Makes the server close the files that it keeps open for NFSv3, for some seconds after they were used or deleted."""
JUMPS_S = (10 * YEAR_S, -25 * YEAR_S, 3600, -3600, 15 * YEAR_S)


def shell(line: str) -> None:
    """Runs what an administrator would."""
    subprocess.run(["bash", "-euc", line], check=True, stdout=sys.stderr)


def mount_small(kind: str) -> tuple[str, str]:
    """An export of 4 MB, mounted twice."""
    shell("mkdir /mnt/small /mnt/sa /mnt/sb; mount -t tmpfs -o size=4m tmpfs /mnt/small")
    shell("exportfs -o rw,no_root_squash,fsid=3,no_subtree_check,sync,insecure 127.0.0.0/8:/mnt/small")
    source, how = ("/mnt/small", "vers=3,nolock,mountport=20048") if kind == "3" else ("/small", f"vers={kind}")
    for place in ("/mnt/sa", "/mnt/sb"):
        shell(f"mount -t nfs -o {how},nosharecache 127.0.0.1:{source} {place}")
    return "/mnt/sa", "/mnt/sb"


def refusal(call: Any) -> str:
    """Returns the error of a call to the storage."""
    try:
        call()
    except (StorageError, ConfigurationError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def search(root: str, problem: type[ScoreProblem] = ScoreProblem) -> Results:
    """Runs a small search, or what is left of it."""
    tuner = Spec.of(InOrderTuner, xs=[3, 1, 4, 1, 5])
    return run_search(
        Search(problem=Spec.of(problem), tuner=tuner, seed=1), root=root, name="search", budget=Budget(trials=5)
    )


class FillingProblem(ScoreProblem):
    """Fills the share while its third trial trains."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """The table's score."""
        if run.number == 2 and not FILL.exists():
            fill()
        return super().train(run)


FILL = Path("/mnt/sa/fill")


def fill() -> None:
    """Takes all the room that there is."""
    shell(f"dd if=/dev/zero of={FILL} bs=4k 2>/dev/null || true")


def wait_for_room() -> None:
    """Waits for the server to give back the room of what was deleted."""
    shell(LET_GO)
    until_s = time.monotonic() + 60
    while os.statvfs("/mnt/small").f_bavail * 4096 < 3_000_000 and time.monotonic() < until_s:
        time.sleep(0.1)


def full(here: str, there: str) -> dict[str, Any]:
    """One mount fills the share; the other reads what was published."""
    writer, reader = open_root(f"{here}/root", retry_s=5), open_root(f"{there}/root", retry_s=5)
    whole: list[tuple[Reference, bytes]] = []
    said = ""
    writer.replace("beat", b"first" * 100)
    while not said:
        data = bytes([len(whole)]) * 300_000
        try:
            whole.append((writer.publish(f"packs/{len(whole)}", [data]), data))
        except StorageError as error:
            said = str(error)
    fill()
    beat = refusal(lambda: writer.replace("beat", b"next" * 20_000))
    left = sorted(path.name for path in Path(f"{here}/root").rglob("*") if path.is_file())
    found = {
        "said": said,
        "beat": beat,
        "is_whole": all(reader.read(reference) == data for reference, data in whole),
        "old_beat": reader.read_if_present("beat") == b"first" * 100,
        "n_whole": len(whole),
        "left": left,
    }
    FILL.unlink()
    for reference, _ in whole:
        writer.delete(reference.path)
    wait_for_room()
    again = writer.publish("packs/again", [b"again"])
    return {**found, "again": reader.read(again) == b"again"}


def full_in_a_search(here: str, there: str) -> dict[str, Any]:
    """A search in whose middle the share is full, and the same search when there is room again."""
    said = refusal(lambda: search(here, FillingProblem))
    records = Records(open_root(f"{there}/search"))
    committed = [t.number for t in records.load()[0] if t.is_finished]
    damages = checked(there)
    with FILL.open("w"):  # takes no room, but is there
        pass
    wait_for_room()
    found = told(search(here, FillingProblem))
    return {"said": said, "committed": committed, "damages": damages, "later": found, "checked": checked(there)}


def told(summary: Results) -> list[list[Any]]:
    """Returns the results of a search."""
    return [[t.number, t.stage, t.point["x"], t.state, *t.metrics.values()] for t in summary.lineage]


def checked(root: str) -> list[str]:
    """What the other mount misses."""
    return [str(damage) for damage in verify_search(open_root(f"{root}/search"), pause_s=0).damages]


def read_only(here: str, there: str, by: str, how: str) -> dict[str, Any]:
    """The mount, or the server's own file system, is made read-only meanwhile."""
    files = open_root(f"{here}/root", retry_s=1)
    before = files.publish(f"packs/before-{by}", [b"before"])
    shell(f"{LET_GO}; for n in {{1..100}}; do mount -o remount,ro {how} && exit; sleep 0.2; done; exit 1")
    found = {
        "publish": refusal(lambda: files.publish("packs/during", [b"1"])),
        "start": refusal(files.check_writable),
        "is_read": files.read(before) == b"before",
    }
    shell(f"mount -o remount,rw {how}")
    after = files.publish(f"packs/after-{by}", [b"after"])
    return {**found, "after": open_root(f"{there}/root").read(after) == b"after"}


class JumpingProblem(ScoreProblem):
    """Sets the machine's clock while it trains."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """The table's score."""
        jump(JUMPS_S[run.number % len(JUMPS_S)])
        return super().train(run)


def jump(by_s: float) -> None:
    """Sets the clock."""
    time.clock_settime(time.CLOCK_REALTIME, time.time() + by_s)


def jumping(here: str, there: str) -> dict[str, Any]:
    """A whole search while the clock jumps, a second one, and a driver that was killed before another jump."""
    began_s, began = time.monotonic(), time.time()
    summary = search(here, JumpingProblem)
    again = search(here, JumpingProblem)
    records = Records(open_root(f"{there}/search"))
    with suppress(ConfigurationError):
        SearchLease(records).close()
    readable, writable = os.pipe()
    driver = multiprocessing.get_context("fork").Process(target=drive, args=(f"{here}/search", writable))
    driver.start()
    os.read(readable, 1)
    alive = refusal(lambda: check_free(records, timeout_s=2))
    jump(-5 * YEAR_S)
    alive_later = refusal(lambda: check_free(records, timeout_s=2))
    driver.kill()
    driver.join()
    took = time.monotonic()
    free = refusal(lambda: check_free(records, timeout_s=30))
    return {
        "lineage": told(summary),
        "again": told(again),
        "seen": [t.number for t in records.load()[0]],
        "longest_s": max(t.duration_s or 0.0 for t in summary.lineage),
        "learned": [list(t.learned) for t in records.load()[0]],
        "hours": hours(records),
        "alive": [alive, alive_later],
        "free": [free, time.monotonic() - took < 10],
        "damages": checked(there),
        "moved": abs(time.time() - began - (time.monotonic() - began_s)) > YEAR_S,
    }


def hours(records: Records) -> float:
    """What the search says that it has taken."""
    from nas.storage.sessions import spent_hours

    return spent_hours(records)


def drive(root: str, writable: int) -> None:
    """Holds the search until it is killed."""
    SearchLease(Records(open_root(root)))
    os.write(writable, b"1")
    time.sleep(600)


def suffer(kind: str) -> dict[str, Any]:
    """Returns what was found of full and read-only shares, and last of the clock."""
    here, there = mount_small(kind)
    return {
        "full": full(here, there),
        "filled": full_in_a_search(here, there),
        "remounted": read_only(here, there, "client", here),
        "server": read_only(here, there, "server", "/mnt/small"),
        "jumping": jumping(os.environ["NFS_A"], os.environ["NFS_B"]),
    }
