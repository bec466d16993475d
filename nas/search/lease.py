"""A session: one start of the command on a search. One driver at a time; its heartbeat says that it lives."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nas.core.errors import AlreadyPublishedError, ConfigurationError, SearchBusyError, StorageError
from nas.core.validation import naming, whole
from nas.search.definition import FORMAT, PreparedSearch, differences
from nas.storage.blobs import BlobStore
from nas.storage.records import Records, to_bytes
from nas.storage.search_records import check_header
from nas.storage.sessions import past_sessions, read_heartbeat, spent_hours

HEARTBEAT_S = 10.0
DEAD_AFTER_S = 60.0
HANDOVER_S = 15.0
"""How long a command that takes over waits for a new beat of the one before: it beats, and looks around, every 10 s."""
_LOOK_S = 0.5
_STILL_S = 5.0
"""How long a look may take before somebody stood still: this process, its machine or the storage."""
IN_PROCESS = ("debug", "threads")
"""Runners whose trials share the driver's process."""
logger = logging.getLogger(__name__)


def claim_identity(records: Records, prepared: PreparedSearch) -> None:
    """Creates ``search.json``, or checks that the one that lies there is this search's.

    Raises:
        ConfigurationError: it is another's, or its data files hold other data than when it began; the line names every
            key that differs.
    """
    there = read_header(records)
    if there is None:
        try:
            records.publish("search.json", prepared.search_json)
            return
        except AlreadyPublishedError:
            there = read_header(records)
    if there is None:
        raise StorageError(f"{records.files.url}/search.json is published, but can't be seen")
    if found := differences(there["identity"], prepared.identity):
        raise ConfigurationError(
            f"the search in {records.files.url} is another one: {'; '.join(found)}. "
            "Choose another name=..., or the settings that it was begun with"
        )
    here, begun = prepared.search_json.get("data", {}), there.get("data", {})
    known = [name for name in here if name in begun]
    if found := differences({name: begun[name] for name in known}, {name: here[name] for name in known}):
        raise ConfigurationError(
            f"the search in {records.files.url} was begun with other data: problem.{'; problem.'.join(found)}. Its "
            "scores can't be compared with those to come: choose another name=..., or the data that it was begun with"
        )


def read_header(records: Records) -> dict[str, Any] | None:
    """What ``search.json`` says, or None where there is no search.

    Raises:
        ConfigurationError: another version of Heirloom wrote it.
        CorruptError: it is none of Heirloom's.
    """
    record = records.read("search.json")
    if record is None:
        return None
    with naming(records.place("search.json")):
        found = whole(record.get("format"), "format")
        if found == FORMAT:
            check_header(record)
            return record
    raise ConfigurationError(
        f"the search in {records.files.url} has format {found}; this Heirloom reads format {FORMAT}"
    )


@dataclass(frozen=True, slots=True)
class Driver:
    """Where a session's process runs."""

    host: str
    pid: int
    boot: str
    """Tells one start of the host from the next; empty where the system does not say."""
    born: str
    """Tells one process from a later one of the same pid; empty where the system does not say."""
    place: str
    """Tells machines of one name apart, and containers, which see their own processes only."""

    @classmethod
    def this(cls) -> Driver:
        """This very process."""
        pid, boot = os.getpid(), _read("/proc/sys/kernel/random/boot_id")
        processes = os.readlink("/proc/self/ns/pid") if os.path.exists("/proc/self/ns/pid") else ""
        return cls(socket.gethostname(), pid, boot, _born(pid), f"{_read('/etc/machine-id')} {processes}".strip())

    def is_beside(self, other: Driver) -> bool:
        """Returns whether the two see each other's processes."""
        return (self.host, self.place) == (other.host, other.place)

    def is_gone(self) -> bool:
        """Returns whether it ran on this host and certainly does not any more."""
        here = Driver.this()
        if not self.is_beside(here):
            return False  # only its beat can tell
        if self.boot != here.boot:
            return True
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return self.born != _born(self.pid)


def _read(path: str) -> str:
    with suppress(OSError):
        return Path(path).read_text().strip()
    return ""


def _born(pid: int) -> str:
    stat = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(stat) > 19 and stat[0] == "Z":
        return "ended"  # a zombie: it runs no more, its parent has not asked yet
    return stat[19] if len(stat) > 19 else ""


class Session:
    """The session that this process holds; ``close`` ends it.

    Args:
        records: The search's.
        settings: What the session was started with, for the record (no paths, no credentials).
        takeover: Take the search over, whatever its last session says.
        on_newer: Called, by the heartbeat's thread, with a line that names a newer session: this one must stop.
        flow_run: The Prefect flow run that shows it, or None.
        say: Told, in a line, what is waited for.
        now_s: The clock by which the search's hours are counted.

    Raises:
        SearchBusyError: another command drives the search.
    """

    def __init__(
        self,
        records: Records,
        *,
        settings: Mapping[str, Any] | None = None,
        takeover: bool = False,
        on_newer: Callable[[str], None] = lambda why: None,
        flow_run: str | None = None,
        say: Callable[[str], None] = lambda text: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records = records
        self._now_s = now_s
        self._on_newer = on_newer
        earlier = past_sessions(records)
        if not takeover:
            check_free(records, say=say)
        self.number = max(earlier, default=0) + 1
        self.hours_before = spent_hours(records, earlier)
        self._began = now_s()
        self._n_heartbeats = 0
        self.is_in_process = (settings or {}).get("runner") in IN_PROCESS
        self._heartbeat_lock = threading.Lock()
        self._is_stopping = self._is_complete = False
        self._ended = threading.Event()
        driver = Driver.this()
        record = {
            "session": self.number,
            "host": driver.host,
            "pid": driver.pid,
            "boot": driver.boot,
            "born": driver.born,
            "place": driver.place,
            "started": time.time(),
            "flow_run": flow_run,
            "settings": dict(settings or {}),
        }
        self._thread = threading.Thread(target=self._keep_heartbeat, name=_heart(record), daemon=True)
        self._thread.start()
        try:
            self._begin(record, earlier, takeover, say)
        except BaseException:
            self._ended.set()
            self._thread.join()  # or the same search, begun anew at once, takes this session for one that lives
            raise

    def _begin(
        self, record: dict[str, Any], earlier: Mapping[int, dict[str, Any]], takeover: bool, say: Callable[[str], None]
    ) -> None:
        records = self._records
        try:
            records.publish(f"sessions/{self.number:04d}.json", record)
        except AlreadyPublishedError as error:  # by another command, which started at the same moment
            other = past_sessions(records).get(self.number)
            if other is None:  # where a storage lists new names late
                raise
            raise _busy(records, other, time.time() - other["started"]) from error
        self._heartbeat(ended=False)
        if takeover and earlier:
            _wait_for_end(records, max(earlier), earlier[max(earlier)], say)

    def spent_hours(self) -> float:
        """Hours that the search has cost, all sessions together."""
        return self.hours_before + (self._now_s() - self._began) / 3600

    def note_stop(self) -> None:
        """Has it on record that the session was asked to stop: if it ends at once now, no trial is to blame."""
        self._is_stopping = True
        try:
            self._heartbeat(ended=False)
        except StorageError as error:
            logger.warning("that the session stops could not be written: %s", error)  # it stops all the same

    def complete(self) -> None:
        """Notes that nothing is left to do of the search: trials that wait have no time."""
        self._is_complete = True

    def close(self) -> None:
        """Ends the session; a later command takes over at once."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            self._heartbeat(ended=True)

    def _keep_heartbeat(self) -> None:
        """Beats until the end, also after a newer session was found: that one waits for the end."""
        is_told = False
        while not self._ended.wait(HEARTBEAT_S):
            try:
                self._heartbeat(ended=False)
                newer = {n: record for n, record in past_sessions(self._records).items() if n > self.number}
                if newer and not is_told:
                    number, record = max(newer.items())
                    self._on_newer(f"session {number} on {record['host']} (pid {record['pid']}) took the search over")
                    is_told = True
            except StorageError as error:
                logger.warning("a heartbeat could not be written: %s", error)  # the loop meets the same store

    def _heartbeat(self, *, ended: bool) -> None:
        with self._heartbeat_lock:
            self._n_heartbeats += 1
            hours = (self._now_s() - self._began) / 3600
            beat = {"beat": self._n_heartbeats, "time": time.time(), "hours": hours, "ended": ended}
            beat |= {"stopping": self._is_stopping, "complete": self._is_complete}
            self._records.files.replace(f"sessions/{self.number:04d}.beat", to_bytes(beat))


def check_free(
    records: Records, *, watch_s: float = DEAD_AFTER_S, say: Callable[[str], None] = lambda text: None
) -> None:
    """Returns where no other command drives the search.

    At once where the last session has ended, or its process was on this host and is gone; else after ``watch_s``
    without a new beat, by this machine's own clock, in which the storage answered all the while. With ``watch_s`` of 0
    it finds only a driver on this host.

    Raises:
        SearchBusyError: it beats, naming host, pid and the age of the beat.
    """
    earlier = past_sessions(records)
    if not earlier:
        return
    number = max(earlier)
    last, seen = earlier[number], read_heartbeat(records, number)
    if _has_ended(last, seen):
        return
    lives = driver_of(last).is_beside(Driver.this()) and last["born"] != ""
    if not lives and watch_s:
        say(f"watching for {watch_s:g} s whether pid {last['pid']} on {last['host']} still drives the search")
        for beat in _beats(records, number, watch_s):
            if _has_ended(last, beat):
                return
            if lives := beat != seen:
                break
    if lives:
        raise _busy(records, last, time.time() - (read_heartbeat(records, number) or {}).get("time", last["started"]))


def _beats(records: Records, number: int, watch_s: float) -> Iterator[dict[str, Any] | None]:
    """Yields the last beat of a session, looked at again and again, until there was no new one for so long.

    Only time in which this process runs and the storage answers counts: what keeps one from reading keeps the other
    from beating.
    """
    seen, quiet_s = read_heartbeat(records, number), 0.0
    yield seen
    while quiet_s < watch_s:
        step_s = min(_LOOK_S, watch_s - quiet_s)
        began_s = time.monotonic()
        time.sleep(step_s)
        beat = read_heartbeat(records, number)
        is_quiet = beat == seen and time.monotonic() - began_s < _STILL_S
        quiet_s = quiet_s + step_s if is_quiet else 0.0
        seen = beat
        yield beat


def have_ended(records: Records) -> bool:
    """Returns whether every session so far certainly has: it said so, or its process was on this host and is gone."""
    return all(
        _has_ended(session, read_heartbeat(records, number)) for number, session in past_sessions(records).items()
    )


def _busy(records: Records, last: Mapping[str, Any], age_s: float) -> SearchBusyError:
    return SearchBusyError(
        f"the search in {records.files.url} is driven by pid {last['pid']} on {last['host']} "
        f"(last beat {max(0.0, age_s):.0f} s ago); wait for it, stop it, or add takeover=true"
    )


def _wait_for_end(records: Records, number: int, last: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Waits until the session that was taken over has ended, is gone, or beats no more: two drivers would collide."""
    is_told = False
    for beat in _beats(records, number, HANDOVER_S):
        if _has_ended(last, beat):
            return
        if not is_told:
            say(f"waiting until pid {last['pid']} on {last['host']} has stopped")
            is_told = True


def _has_ended(record: Mapping[str, Any], beat: Mapping[str, Any] | None) -> bool:
    """Returns whether a session certainly has."""
    if beat is not None and beat.get("ended"):
        return True
    driver = driver_of(record)
    if driver == Driver.this():  # a session that could not say that it ended, because its storage failed
        return not any(thread.name == _heart(record) for thread in threading.enumerate())
    return driver.is_gone()


def _heart(record: Mapping[str, Any]) -> str:
    """Returns the name of the thread that lives, in the session's process, as long as the session."""
    return f"heirloom-heartbeat-{record['started']}"


def driver_of(record: Mapping[str, Any]) -> Driver:
    """Where the session of a record runs, or ran."""
    return Driver(record["host"], record["pid"], record["boot"], record["born"], record.get("place", ""))


def open_records(files: BlobStore) -> Records:
    """Returns the records of a search's folder, after a proof that it can be written."""
    files.check_writable()
    return Records(files)
