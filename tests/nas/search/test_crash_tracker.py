"""Trials that end the driver's process are given up after three sessions."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import asdict, replace
from typing import Any

import pytest

from nas.core.budget import Budget
from nas.core.errors import SearchInterruptedError
from nas.core.trial import Proposal, Reason, State, Trial
from nas.search.controller import ControllerSettings
from nas.search.crash_tracker import CrashTracker
from nas.search.host_process import HostProcess
from nas.search.lease import SearchLease
from nas.storage.record_format import encode_record
from nas.storage.records import Records
from nas.storage.sessions import past_sessions
from tests.support.scripted_executor import SEARCH, ListTuner, ScriptedExecutor, fresh_records, make_controller

N = 4


@pytest.fixture
def records() -> Records:
    """Returns the records of a search with four proposals."""
    records = fresh_records()
    for number in range(N):
        records.propose(Trial(number=number, index=number, proposal=Proposal(point={"x": number})))
    return records


@pytest.fixture(scope="module")
def gone() -> HostProcess:
    """Returns a process of this machine that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(60)
    return replace(HostProcess.current(), pid=process.pid, process_started="1")


def session_of(
    driver: HostProcess,
    records: Records,
    *numbers: int,
    runner: str = "threads",
    ended: bool = False,
    stopping: bool = False,
) -> None:
    """Writes a session of that process, which began these trials."""
    number = max(past_sessions(records), default=0) + 1
    record = {"session": number, **asdict(driver), "started": time.time(), "flow_run": None}
    records.publish(f"sessions/{number:04d}.json", {**record, "settings": {"runner": runner}})
    beat = {"count": 1, "time": time.time(), "hours": 0.1, "ended": ended, "stopping": stopping}
    records.files.replace(f"sessions/{number:04d}.beat", encode_record(beat))
    trials, starts = records.load()
    for trial in numbers:
        attempt = starts[trial].last_attempt + 1 if trial in starts else 1
        records.start(replace(trials[trial], attempt=attempt), {"session": number})


def go_on(records: Records, *, runner: str = "threads", max_attempts: int = 2) -> tuple[list[Trial], list[int]]:
    """Returns the trials after the next session, and which of them it ran."""
    lease = SearchLease(records, settings={"runner": runner})
    starts = records.load()[1]
    executor = ScriptedExecutor(records, 2, session=lease.number)
    controller = make_controller(
        records,
        executor,
        ListTuner(),
        settings=ControllerSettings(budget=Budget(trials=N), max_attempts=max_attempts),
        crash_tracker=CrashTracker.of(records, starts, lease, max_attempts),
    )
    controller.search(SEARCH)
    lease.close()
    return records.load()[0], [trial.number for trial in executor.submitted]


def test_third_crash_in_a_row_is_the_last(records: Records, gone: HostProcess) -> None:
    """A trial in progress at three crashes of the driver is FAILED(lost) without another attempt."""
    for _ in range(3):
        session_of(gone, records, 2)

    trials, run = go_on(records)
    assert (trials[2].state, trials[2].reason, trials[2].attempt) == (State.FAILED, Reason.LOST, 3)
    assert (trials[2].error or "").startswith("the driver's process died in each of the trial's last 3 attempts")
    assert run == [0, 1, 3]
    assert [t.state for t in trials if t.number != 2] == [State.COMPLETE] * 3


def test_possible_causes_run_alone_and_first(records: Records, gone: HostProcess) -> None:
    """Trials in progress at two crashes in a row run first, one at a time."""
    session_of(gone, records, 0, 1, 3)
    session_of(gone, records, 1, 2, 3)

    trials, run = go_on(records)
    assert run == [1, 3, 0, 2]
    assert {trial.state for trial in trials} == {State.COMPLETE}
    spans = [(trials[number].started or 0.0, trials[number].finished or 0.0) for number in run]
    assert spans[0][1] <= spans[1][0] <= spans[1][1] <= spans[2][0]
    assert spans[3][0] < spans[2][1]


def test_the_cause_is_found_by_running_alone(records: Records, gone: HostProcess) -> None:
    """Of two trials in progress at crashes, the cause is found and the other finishes."""
    for _ in range(2):
        session_of(gone, records, 0, 1)
    lease = SearchLease(records, settings={"runner": "threads"})
    executor = ScriptedExecutor(records, 2, session=lease.number, stop_after=1)
    tracker = CrashTracker.of(records, records.load()[1], lease, 2)
    with pytest.raises(SearchInterruptedError):  # here the driver dies: 0 has finished, 1 runs
        make_controller(records, executor, ListTuner(), crash_tracker=tracker).search(SEARCH)
    assert [trial.number for trial in executor.submitted] == [0, 1]
    records.files.delete(f"sessions/{lease.number:04d}.json")
    lease.close()
    session_of(gone, records)

    trials, run = go_on(records)
    assert (trials[0].state, trials[1].state, trials[1].reason) == (State.COMPLETE, State.FAILED, Reason.LOST)
    assert run == [2, 3]


@pytest.mark.parametrize(
    "last",
    [{"ended": True}, {"stopping": True}, {"runner": "processes"}, {"host": "far"}, {"boot": "older"}, {"pid": None}],
    ids=str,
)
def test_other_ends_do_not_count(records: Records, gone: HostProcess, last: dict[str, Any]) -> None:
    """Normal ends, stops, worker processes, other machines or boots, and a running driver do not count."""
    driver = (
        HostProcess.current() if "pid" in last else replace(gone, **{k: last[k] for k in ("host", "boot") if k in last})
    )
    for _ in range(2):
        session_of(gone, records, 0)
    session_of(driver, records, 0, **{k: last[k] for k in ("ended", "stopping", "runner") if k in last})
    session_of(gone, records)  # whose end is plain, so that the next command begins at once

    trials, run = go_on(records)
    assert (trials[0].state, trials[0].attempt) == (State.COMPLETE, 4)
    assert run == [0, 1, 2, 3]


def test_more_attempts_may_be_allowed(records: Records, gone: HostProcess) -> None:
    """max_attempts above three is used as given; fewer count as three."""
    for _ in range(3):
        session_of(gone, records, 0)

    assert go_on(records, max_attempts=4)[0][0].state == State.COMPLETE


def test_possible_causes_run_normally_in_worker_processes(records: Records, gone: HostProcess) -> None:
    """With worker processes such a trial runs like any other."""
    for _ in range(3):
        session_of(gone, records, 0)

    trials, run = go_on(records, runner="processes")
    assert trials[0].state == State.COMPLETE
    assert run == [0, 1, 2, 3]
