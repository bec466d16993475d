"""One driver per search, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from nas.core.errors import AlreadyPublishedError, ConfigurationError, SearchBusyError
from nas.core.names import check_name
from nas.search.host_process import HostProcess
from nas.search.lease import SearchLease, check_free
from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from nas.storage.record_format import encode_record
from nas.storage.records import Records
from nas.storage.sessions import past_sessions
from tests.support.commands import until

REPOSITORY = Path(__file__).parents[3]

HOLDER = """
import sys, time
from nas.storage.records import Records
from nas.search.lease import SearchLease
from nas.storage.open import open_root

lease = SearchLease(Records(open_root(sys.argv[1])), takeover="takeover" in sys.argv)
print(lease.number, flush=True)
time.sleep(60)
"""

WATCHER = """
import sys
from functools import partial
from nas.core.errors import SearchBusyError
from nas.search.lease import check_free
from nas.storage.open import open_root
from nas.storage.records import Records

try:
    check_free(Records(open_root(sys.argv[1])), timeout_s=6, notify=partial(print, flush=True))
    print("free")
except SearchBusyError as error:
    print(error)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(open_root(str(tmp_path / "root" / "search")))


@pytest.fixture
def in_memory() -> Records:
    return Records(open_root(f"memory://session/{uuid4().hex}", retry_s=0))


@pytest.fixture
def start(records: Records) -> Iterator[Start]:
    """Starts a process that holds the search's lease. Returns once it does."""
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HOLDER, records.files.url, *arguments]
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline().strip().isdigit()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def elsewhere(records: Records, *, beat: int = 1, ended: bool = False, **changes: Any) -> None:
    """Returns session 1 of another host."""
    record = {
        "session": 1,
        "host": "elsewhere",
        "pid": 4321,
        "boot": "b",
        "process_started": "1",
        "machine": "",
        "started": time.time(),
    }
    if records.read("sessions/0001.json") is None:
        records.publish("sessions/0001.json", {**record, "flow_run": None, "settings": {}, **changes})
    at = {"count": beat, "time": time.time(), "hours": 0.5, "ended": ended}
    records.files.replace("sessions/0001.beat", encode_record(at))


def beat_later(records: Records, *, ended: bool = False) -> Callable[[str], None]:
    """Returns a ``notify`` for ``check_free``, which makes session 1 beat again once it is watched."""
    return lambda message: threading.Timer(0.7, elsewhere, [records], {"beat": 2, "ended": ended}).start()


class TestRecord:
    def test_sessions_are_numbered(self, in_memory: Records) -> None:
        """Each session has the next number, and a record of its process, settings and flow run."""
        SearchLease(in_memory, settings={"slots": 2}).close()
        second = SearchLease(in_memory, flow_run="a-flow-run")
        second.close()

        sessions = past_sessions(in_memory)
        assert list(sessions) == [1, 2]
        assert (sessions[1]["pid"], sessions[1]["settings"]) == (os.getpid(), {"slots": 2})
        assert sessions[2]["flow_run"] == "a-flow-run"
        assert second.number == 2

    def test_numbers_beyond_four_digits(self, in_memory: Records) -> None:
        """Session 10,000 comes after 9,999."""
        for number in (9_999, 10_000):
            session = {
                "host": "far",
                "pid": 1,
                "boot": "",
                "process_started": "",
                "machine": "",
                "started": 1.5,
                "settings": {},
            }
            in_memory.publish(f"sessions/{number:04d}.json", session)

        assert list(past_sessions(in_memory)) == [9_999, 10_000]

    def test_number_of_another_session_is_refused(self, in_memory: Records) -> None:
        """A command counts the sessions before it starts its workers, and ``flows.gc`` may run meanwhile."""
        SearchLease(in_memory, number=1).close()
        with pytest.raises(SearchBusyError, match=r"session 1 .* began and ended while this command started"):
            SearchLease(in_memory, number=1)
        SearchLease(in_memory, number=2).close()

        assert list(past_sessions(in_memory)) == [1, 2]

    def test_hours_add_up(self, in_memory: Records) -> None:
        """The hours of earlier sessions, ended or killed, come from their last heartbeats."""
        elsewhere(in_memory, ended=True)
        for number in (2, 3):
            lease = SearchLease(in_memory)
            lease.close()
            assert lease.number == number
            assert 0.5 <= lease.hours_before <= lease.spent_hours() < 0.6

    def test_session_without_a_heartbeat_counts_nothing(self, in_memory: Records) -> None:
        """A session killed before its first heartbeat counts no hours."""
        here = HostProcess.current()
        elsewhere(in_memory, host=here.host, machine=here.machine, boot=here.boot, process_started="0")
        in_memory.files.delete("sessions/0001.beat")

        lease = SearchLease(in_memory)
        lease.close()

        assert lease.hours_before == 0.0

    def test_heartbeats_count_up(self, in_memory: Records, monkeypatch: pytest.MonkeyPatch) -> None:
        """The heartbeat counts up during the session; closing, also twice, marks it as ended."""
        monkeypatch.setattr("nas.search.lease.HEARTBEAT_S", 0.02)
        lease = SearchLease(in_memory)
        until(lambda: (in_memory.read("sessions/0001.beat") or {})["count"] > 3)
        assert (in_memory.read("sessions/0001.beat") or {})["ended"] is False
        lease.close()
        lease.close()

        last = in_memory.read("sessions/0001.beat") or {}
        assert last["ended"] is True
        time.sleep(0.1)
        assert in_memory.read("sessions/0001.beat") == last

    def test_record_has_no_paths(self, records: Records) -> None:
        """A session's record has no root, mount point or credential."""
        SearchLease(records, settings={"runner": "debug"}).close()

        for name in records.files.names("sessions"):
            assert records.files.url not in (records.files.read_if_present(f"sessions/{name}") or b"").decode()


class TestThisHost:
    def test_ended_session_is_followed_at_once(self, records: Records) -> None:
        """After an ended session the next command starts without waiting."""
        SearchLease(records).close()
        began_s = time.monotonic()

        lease = SearchLease(records)
        lease.close()

        assert lease.number == 2
        assert time.monotonic() - began_s < 20  # it would wait for a minute

    def test_second_command_is_refused(self, records: Records, start: Start) -> None:
        """While a process drives the search another is refused with host, pid and age of the heartbeat."""
        holder = start()
        began_s = time.monotonic()

        with pytest.raises(SearchBusyError) as caught:
            SearchLease(records)
        assert f"pid {holder.pid} on {HostProcess.current().host} (last heartbeat " in str(caught.value)
        assert str(caught.value).endswith("Wait for it or stop it; a command can add takeover=true")
        assert isinstance(caught.value, ConfigurationError)
        assert time.monotonic() - began_s < 20  # it would wait for a minute
        assert list(past_sessions(records)) == [1]

    @pytest.mark.parametrize("reaped", [True, False], ids=["gone", "zombie"])
    def test_killed_process_is_replaced_at_once(self, records: Records, start: Start, reaped: bool) -> None:
        """After kill -9 the next command takes over at once, even if the process is a zombie."""
        holder = start()
        os.kill(holder.pid, signal.SIGKILL)
        if reaped:
            holder.wait()
        until(lambda: HostProcess(**driver_of(records, 1)).is_gone())
        began_s = time.monotonic()
        lease = SearchLease(records)
        lease.close()

        assert lease.number == 2
        assert time.monotonic() - began_s < 20  # it would wait for a minute

    def test_reused_pid_does_not_hold_the_lease(self, in_memory: Records) -> None:
        """A later process with the same pid does not hold the lease."""
        here = HostProcess.current()
        assert replace(here, pid=os.getppid(), process_started="1").is_gone()
        assert not here.is_gone()

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
    def test_pid_reused_by_another_user_does_not_hold_the_lease(self, records: Records, start: Start) -> None:
        """A process that this user may not signal holds the lease only if it started when the driver did."""
        start()
        driver = driver_of(records, 1)
        held, reused = (Records(open_root(f"memory://session/{uuid4().hex}", retry_s=0)) for _ in range(2))
        elsewhere(held, **driver)
        elsewhere(reused, **{**driver, "process_started": "1"})
        os.setresuid(65534, 65534, 0)
        try:
            with pytest.raises(SearchBusyError):
                check_free(held, timeout_s=0)
            check_free(reused, timeout_s=0)
        finally:
            os.setresuid(0, 0, 0)

    def test_clone_of_this_machine_is_watched(self, in_memory: Records) -> None:
        """A host of the same name and machine id in another boot may be a clone: its heartbeat decides."""
        here = HostProcess.current()
        clone = {"host": here.host, "machine": here.machine, "boot": "another", "pid": 2**22}
        elsewhere(in_memory, **clone)
        assert not HostProcess(**driver_of(in_memory, 1)).is_gone()

        with pytest.raises(SearchBusyError, match=f"driven by pid {2**22} on {here.host}"):
            check_free(in_memory, timeout_s=60, notify=beat_later(in_memory))
        check_free(in_memory, timeout_s=0.5)

    def test_overtaken_driver_names_the_session_that_took_over(self, in_memory: Records) -> None:
        """A record that exists already is an error that names the newer session, if there is one."""
        first = SearchLease(in_memory)
        with pytest.raises(AlreadyPublishedError), first.naming_takeover():
            in_memory.publish("sessions/0001.json", {})
        newer = {**past_sessions(in_memory)[1], "session": 2, "host": "other", "pid": 77}
        in_memory.publish("sessions/0002.json", newer)

        taken = r"session 2 on other \(pid 77\) took the search over"
        with pytest.raises(SearchBusyError, match=taken), first.naming_takeover():
            in_memory.publish("sessions/0001.json", {})
        first.close()

    def test_pid_of_another_container_says_nothing(self) -> None:
        """For another machine or container only the heartbeat counts."""
        gone = replace(HostProcess.current(), pid=2**22)

        assert gone.is_gone()
        assert not replace(gone, machine="another").is_gone()
        assert not replace(gone, host="another").is_gone()

    def test_of_many_at_once_one_wins(self, records: Records) -> None:
        """Of eight processes started at once one gets the lease, and the others are refused."""
        barrier = threading.Barrier(8)

        def begin() -> SearchLease | None:
            barrier.wait()
            try:
                return SearchLease(records)
            except SearchBusyError:
                return None

        with ThreadPoolExecutor(8) as pool:
            got = [lease for lease in pool.map(lambda _: begin(), range(8)) if lease is not None]
        for lease in got:
            lease.close()

        assert len(got) == 1
        assert list(past_sessions(records)) == [1]


class TestOtherHosts:
    def test_session_with_a_changing_heartbeat_is_busy(self, in_memory: Records) -> None:
        """A session of another host whose heartbeat changes during the wait drives the search."""
        elsewhere(in_memory)

        with pytest.raises(SearchBusyError, match=r"driven by pid 4321 on elsewhere \(last heartbeat \d+ s ago\)"):
            check_free(in_memory, timeout_s=60, notify=beat_later(in_memory))

    def test_session_without_a_new_heartbeat_is_taken_over(self, in_memory: Records) -> None:
        """Without a new heartbeat the lease of another host expires, by this machine's clock alone."""
        elsewhere(in_memory, started=time.time() + 10**6)
        began_s = time.monotonic()

        check_free(in_memory, timeout_s=0.7)

        assert 0.7 <= time.monotonic() - began_s < 20

    def test_timeout_of_zero_does_not_wait(self, in_memory: Records) -> None:
        """With timeout_s=0 a session of unknown state is not waited for."""
        elsewhere(in_memory)
        told: list[str] = []

        check_free(in_memory, timeout_s=0, notify=told.append)

        assert told == []

    @pytest.mark.slow
    def test_wait_starts_again_after_a_pause(self, records: Records) -> None:
        """If the waiting process was paused, or the share hung, the wait starts again."""
        elsewhere(records)
        command = [sys.executable, "-c", WATCHER, records.files.url]
        with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as watcher:
            assert watcher.stdout is not None
            assert watcher.stdout.readline().startswith("watching for 6 s")
            watcher.send_signal(signal.SIGSTOP)
            time.sleep(6.5)
            watcher.send_signal(signal.SIGCONT)
            time.sleep(1)
            elsewhere(records, beat=2)

            assert "driven by pid 4321 on elsewhere" in watcher.stdout.readline()

    def test_session_that_ends_meanwhile_is_free(self, in_memory: Records) -> None:
        """If the other session ends, the wait is over."""
        elsewhere(in_memory)
        began_s = time.monotonic()

        check_free(in_memory, timeout_s=60, notify=beat_later(in_memory, ended=True))

        assert time.monotonic() - began_s < 30

    def test_new_search_is_free(self, in_memory: Records) -> None:
        """Without any session there is no wait."""
        check_free(in_memory, timeout_s=30)


class TestTakeover:
    def test_older_session_learns_of_a_newer_one(self, in_memory: Records, monkeypatch: pytest.MonkeyPatch) -> None:
        """The older driver learns once, by host and pid, of a newer session, which waits for its end."""
        monkeypatch.setattr("nas.search.lease.HEARTBEAT_S", 0.02)
        told: list[str] = []
        older = SearchLease(in_memory, on_takeover=told.append)

        def stop_when_told() -> None:
            until(lambda: bool(told))
            time.sleep(0.2)  # a few more beats
            older.close()

        thread = threading.Thread(target=stop_when_told)
        thread.start()
        newer = SearchLease(in_memory, takeover=True)
        has_ended = (in_memory.read("sessions/0001.beat") or {})["ended"]
        thread.join()
        newer.close()

        assert told == [f"session 2 on {HostProcess.current().host} (pid {os.getpid()}) took the search over"]
        assert has_ended

    def test_heartbeats_read_the_newest_session_only(self, in_memory: Records, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many sessions a search has had, its driver does not read them every ten seconds."""
        monkeypatch.setattr("nas.search.lease.HEARTBEAT_S", 0.01)
        SearchLease(in_memory).close()
        lease = SearchLease(in_memory)
        read: list[str] = []
        read_records = type(in_memory.files).read_records

        def note(files: BlobStore, paths: Sequence[str], **more: bool) -> list[bytes | None]:
            read.extend(paths)
            return read_records(files, paths, **more)

        monkeypatch.setattr(type(in_memory.files), "read_records", note)
        until(lambda: (in_memory.read("sessions/0002.beat") or {})["count"] > 5)
        lease.close()

        assert "sessions/0001.json" not in read

    def test_running_process_is_taken_over(self, records: Records, start: Start) -> None:
        """With takeover a second command gets the lease from a running process, once that has ended."""
        holder = start()
        threading.Timer(0.3, holder.kill).start()
        began_s = time.monotonic()

        lease = SearchLease(records, takeover=True)
        lease.close()

        assert lease.number == 2
        assert time.monotonic() - began_s < 14

    def test_third_command_sees_the_newest(self, records: Records, start: Start) -> None:
        """The newest session decides whether the search is busy."""
        start().kill()
        holder = start("takeover")

        with pytest.raises(SearchBusyError, match=f"driven by pid {holder.pid} "):
            check_free(records)


class TestNames:
    @pytest.mark.parametrize("name", ["digits-evolution-0a1b2c3d", "a", "9.b_c+d=e", "x" * 200])
    def test_good_names(self, name: str) -> None:
        """Letters, digits and a few signs make a name."""
        assert check_name(name) == name

    @pytest.mark.parametrize("name", ["", ".", "..", "-a", "a/b", "a b", "ä", "a\n", "x" * 201, "a\0"])
    def test_bad_names(self, name: str) -> None:
        """A name that can't be a folder everywhere, or leaves the root, is refused with what is allowed."""
        with pytest.raises(ConfigurationError, match=r"must be 1 to 200 letters"):
            check_name(name)


def driver_of(records: Records, number: int) -> dict[str, Any]:
    data = json.loads(records.files.read_if_present(f"sessions/{number:04d}.json") or b"{}")
    return {key: data[key] for key in ("host", "pid", "boot", "process_started", "machine")}
