"""The lease of a search, which only one process holds at a time.

The holder writes a heartbeat to ``sessions/NNNN.beat`` every 10 s. Another command gets the lease if the holder's
process has ended or its heartbeat has not changed for 60 s. With ``takeover=true`` it takes the lease at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

from nas.core.errors import AlreadyPublishedError, SearchBusyError, StorageError
from nas.search.host_process import HostProcess
from nas.storage.record_format import encode_record
from nas.storage.records import Records
from nas.storage.sessions import newest_number, newest_session, past_sessions, read_heartbeat, spent_hours

HEARTBEAT_S = 10.0
LEASE_TIMEOUT_S = 60.0
TAKEOVER_TIMEOUT_S = 15.0
"""Longest wait for a new heartbeat of the session that is taken over; longer than ``HEARTBEAT_S``."""
ORPHANS_END_S = 120.0
"""The longest that trials on other machines run after the last heartbeat of a killed driver.

Twice what docs/explanation/failure_modes.md tells.
"""
_POLL_S = 0.5
_STALLED_S = 5.0
"""A poll that takes longer does not count: the process, machine or storage stood still."""
IN_PROCESS = ("debug", "threads")
"""Runners whose trials share the driver's process."""
logger = logging.getLogger(__name__)


class SearchLease:
    """The right of this process to drive a search, from a session's start to ``close``.

    Args:
        records: The search's records.
        settings: The session's settings, for its record (no paths, no credentials).
        code: Fields of its record that describe the code (``nas.search.session_code``).
        number: The session's number; None: the next one.
        takeover: Take the lease whatever the last session's heartbeat says.
        on_takeover: Called from the heartbeat's thread, with a message, when a newer session has taken the lease.
        flow_run: The Prefect flow run of the session, or None.
        notify: Called with a message before a long wait.
        now_s: The clock that counts the search's hours.

    Raises:
        SearchBusyError: another command drives the search, or has begun a session of this number.
    """

    def __init__(
        self,
        records: Records,
        *,
        settings: Mapping[str, Any] | None = None,
        code: Mapping[str, Any] | None = None,
        number: int | None = None,
        takeover: bool = False,
        on_takeover: Callable[[str], None] = lambda message: None,
        flow_run: str | None = None,
        notify: Callable[[str], None] = lambda message: None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._records = records
        self._now_s = now_s
        self._on_takeover = on_takeover
        earlier = past_sessions(records)
        if not takeover:
            check_free(records, notify=notify)
        self.number = max(earlier, default=0) + 1 if number is None else number
        self.hours_before = spent_hours(records, earlier)
        self._started_s = now_s()
        self._looked = time.time()
        self._n_heartbeats = 0
        self.is_in_process = (settings or {}).get("runner") in IN_PROCESS
        self._heartbeat_lock = threading.Lock()
        self._is_stopping = self._is_complete = self._is_released = False
        self._closed = threading.Event()
        record = {
            "session": self.number,
            **asdict(HostProcess.current()),
            "started": time.time(),
            "flow_run": flow_run,
            "settings": dict(settings or {}),
            **(code or {}),
        }
        self._thread = threading.Thread(target=self._keep_heartbeat, name=_thread_name(record), daemon=True)
        self._thread.start()
        try:
            self._acquire(record, earlier, takeover, notify)
        except BaseException:
            self._closed.set()
            self._thread.join()  # while it runs, this process counts as the session's driver
            raise

    def _acquire(
        self,
        record: dict[str, Any],
        earlier: Mapping[int, dict[str, Any]],
        takeover: bool,
        notify: Callable[[str], None],
    ) -> None:
        records = self._records
        try:
            records.publish(f"sessions/{self.number:04d}.json", record)
        except AlreadyPublishedError as error:  # by another command, which started at the same moment
            other = past_sessions(records).get(self.number)
            if other is None:  # the storage lists new names late
                raise
            if _has_ended(other, read_heartbeat(records, self.number)):
                raise SearchBusyError(
                    f"session {self.number} of the search in {records.files.url} began and ended while this command "
                    "started. Run the command again"
                ) from error
            raise _busy(records, other, time.time() - other["started"]) from error
        self._heartbeat(ended=False)
        if takeover and earlier:
            _wait_for_end(records, max(earlier), earlier[max(earlier)], notify)

    def spent_hours(self) -> float:
        """Returns the hours of all sessions of the search."""
        return self.hours_before + self._session_hours()

    def mark_stopping(self) -> None:
        """Records that the session was asked to stop: no trial caused the end of its process."""
        self._is_stopping = True
        try:
            self._heartbeat(ended=False)
        except StorageError as error:  # the session stops without the mark
            logger.warning("the heartbeat of a stopping session could not be written: %s", error)

    def mark_complete(self) -> None:
        """Notes that the search is complete: trials that still wait have no time left."""
        self._is_complete = True

    def close(self) -> None:
        """Releases the lease; a later command gets it at once.

        If the storage fails, the lease expires by itself.
        """
        if not self._closed.is_set():
            self._closed.set()
            self._thread.join()
            with suppress(StorageError):  # it would hide an error of the session
                self._heartbeat(ended=True)

    def overtaken_by(self) -> str | None:
        """Returns a message on a newer session that drives the search, or None.

        It looks only if this process stood still. Else its heartbeat's thread has looked, and the other would wait.
        """
        stood_still = abs(time.time() - self._looked) > TAKEOVER_TIMEOUT_S
        return self._takeover() if stood_still else None

    @contextmanager
    def naming_takeover(self) -> Iterator[None]:
        """Names the session that took the search over, if a record exists already.

        Raises:
            SearchBusyError: instead of AlreadyPublishedError, if there is a newer session.
        """
        try:
            yield
        except AlreadyPublishedError as error:
            if (message := self._takeover()) is None:
                raise
            raise SearchBusyError(f"{message}. This command stops; the other one continues the search") from error

    def _takeover(self) -> str | None:
        """Returns a message on the newer session that took the lease, or None."""
        self._looked = time.time()
        if (newest_number(self._records) or 0) <= self.number or (newest := newest_session(self._records)) is None:
            return None
        number, record, _ = newest
        return f"session {number} on {record['host']} (pid {record['pid']}) took the search over"

    def _session_hours(self) -> float:
        return (self._now_s() - self._started_s) / 3600

    def _keep_heartbeat(self) -> None:
        """Writes heartbeats until ``close``, also after a takeover: the newer session waits for the last one."""
        has_reported = False
        while not self._closed.wait(HEARTBEAT_S):
            try:
                self._heartbeat(ended=False)
                if not has_reported and (message := self._takeover()) is not None:
                    self._on_takeover(message)
                    has_reported = True
            except StorageError as error:  # the controller, which uses the same storage, reports it
                logger.warning("a heartbeat could not be written: %s", error)

    def _heartbeat(self, *, ended: bool) -> None:
        with self._heartbeat_lock:
            self._n_heartbeats += 1
            self._is_released |= ended  # a late mark does not take it back
            heartbeat = {
                "count": self._n_heartbeats,
                "time": time.time(),
                "hours": self._session_hours(),
                "ended": self._is_released,
                "stopping": self._is_stopping,
                "complete": self._is_complete,
            }
            self._records.files.replace(f"sessions/{self.number:04d}.beat", encode_record(heartbeat))


def check_free(
    records: Records, *, timeout_s: float = LEASE_TIMEOUT_S, notify: Callable[[str], None] = lambda message: None
) -> None:
    """Returns when no other command drives the search.

    Returns at once if the last session has ended, or if its process ran on this host and is gone. Otherwise watches the
    heartbeat, and returns if it stays the same for ``timeout_s`` of this machine's clock while the storage responds.
    With ``timeout_s=0`` only a driver on this host is detected.

    Raises:
        SearchBusyError: another command drives the search.
    """
    earlier = past_sessions(records)
    if not earlier:
        return
    number = max(earlier)
    last, first_heartbeat = earlier[number], read_heartbeat(records, number)
    if _has_ended(last, first_heartbeat):
        return
    is_alive = HostProcess.of_session(last).is_beside(HostProcess.current()) and last["process_started"] != ""
    if not is_alive and timeout_s:
        notify(f"watching for {timeout_s:g} s whether pid {last['pid']} on {last['host']} still drives the search")
        for heartbeat in _watch_heartbeat(records, number, timeout_s):
            if _has_ended(last, heartbeat):
                return
            is_alive = heartbeat != first_heartbeat
            if is_alive:
                break
    if is_alive:
        heartbeat = read_heartbeat(records, number) or {}
        raise _busy(records, last, time.time() - heartbeat.get("time", last["started"]))


def have_ended(records: Records) -> bool:
    """Returns whether all sessions so far have certainly ended, with their trials on other machines."""
    beats = ((session, read_heartbeat(records, number)) for number, session in past_sessions(records).items())
    return all(_has_ended(session, beat) and not _left_trials(session, beat) for session, beat in beats)


def _left_trials(session: Mapping[str, Any], heartbeat: Mapping[str, Any] | None) -> bool:
    """Returns whether trials of a session killed on this host may still run on other machines."""
    if heartbeat is not None and heartbeat.get("ended"):
        return False
    last = session["started"] if heartbeat is None else heartbeat["time"]
    return abs(time.time() - float(last)) < ORPHANS_END_S


def _watch_heartbeat(records: Records, number: int, timeout_s: float) -> Iterator[dict[str, Any] | None]:
    """Yields a session's heartbeat repeatedly, until it has been the same for ``timeout_s``.

    Only time in which this process runs and the storage responds counts: the other process may have been held up too.
    """
    last, unchanged_s = read_heartbeat(records, number), 0.0
    yield last
    while unchanged_s < timeout_s:
        step_s = min(_POLL_S, timeout_s - unchanged_s)
        poll_started_s = time.monotonic()
        time.sleep(step_s)
        heartbeat = read_heartbeat(records, number)
        is_unchanged = heartbeat == last and time.monotonic() - poll_started_s < _STALLED_S
        unchanged_s = unchanged_s + step_s if is_unchanged else 0.0
        last = heartbeat
        yield heartbeat


def _busy(records: Records, last: Mapping[str, Any], age_s: float) -> SearchBusyError:
    return SearchBusyError(
        f"the search in {records.files.url} is driven by pid {last['pid']} on {last['host']} "
        f"(last heartbeat {max(0.0, age_s):.0f} s ago). Wait for it or stop it; a command can add takeover=true"
    )


def _wait_for_end(records: Records, number: int, last: Mapping[str, Any], notify: Callable[[str], None]) -> None:
    """Waits until the session that was taken over has ended: two drivers would collide."""
    has_notified = False
    for heartbeat in _watch_heartbeat(records, number, TAKEOVER_TIMEOUT_S):
        if _has_ended(last, heartbeat):
            return
        if not has_notified:
            notify(f"waiting until pid {last['pid']} on {last['host']} has stopped")
            has_notified = True


def _has_ended(record: Mapping[str, Any], heartbeat: Mapping[str, Any] | None) -> bool:
    """Returns whether a session has certainly ended."""
    if heartbeat is not None and heartbeat.get("ended"):
        return True
    process = HostProcess.of_session(record)
    if process == HostProcess.current():  # a lease whose last heartbeat could not be written
        return not any(thread.name == _thread_name(record) for thread in threading.enumerate())
    return process.is_gone()


def _thread_name(record: Mapping[str, Any]) -> str:
    """Returns the name of the thread that runs while the session holds the lease."""
    return f"heirloom-heartbeat-{record['started']}"
