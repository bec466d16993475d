"""Ctrl-C and SIGTERM: trials stop, records are kept, one line resumes, and no process is left."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from nas.search.lease import check_free
from tests.support.commands import TIMED, Command, on_terminal, records, resume_line, run_printed, trials, until

STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}
PLAIN = re.compile(
    r"policies skipped, .*|search \S+ (starts|resumes after .*), in .*|\[\d+(/\d+)? done\] trial \d+ .*|"
    r"starting Prefect's temporary server|Prefect's temporary server has ended; .*|"
    r"stopping; a second Ctrl-C ends the process at once|"
    r"waiting at most 10 s until Prefect's server has stored the last states; Ctrl-C ends it"
    r"|Prefect's server did not accept everything \(\d+ artifacts and logs lost\); all records are complete, see .*"
)
"""Progress; all else on standard error is noise, but for the last line of an interruption."""

pytestmark = pytest.mark.slow


def attempts(search: Path, number: int) -> list[int]:
    return sorted(int(path.stem.rpartition("-")[2]) for path in (search / "trials").glob(f"{number:06d}.start-*.json"))


def n_started(search: Path) -> int:
    return len(list((search / "trials").glob("*.start-*.json")))


def server_of(command: Command) -> int:
    """Returns the process of a command's temporary server."""
    (server,) = [
        pid for pid in command.leftovers() if b"flows.engine.server" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    return server


def noise(err: str) -> list[str]:
    return [line for line in err.splitlines() if not PLAIN.fullmatch(line)]


@pytest.mark.parametrize(
    ("runner", "number", "to_group"),
    [
        ("processes", signal.SIGINT, True),
        ("processes", signal.SIGTERM, True),
        ("threads", signal.SIGINT, True),
        ("threads", signal.SIGTERM, False),
        ("debug", signal.SIGINT, True),
        ("debug", signal.SIGTERM, False),
    ],
)
def test_an_interruption_is_orderly(
    here: Path, api_url: str, runner: str, number: signal.Signals, to_group: bool
) -> None:
    """Running trials stop without a result; status 130 or 143, and the line that resumes, within seconds.

    The signal goes to the process group, as a terminal's, or to the driver alone. With worker processes the server is
    a temporary one. Only commands that get SIGINT are new processes, as a user's are.
    """
    search, slots = here / "heirloom" / "mine", 1 if runner == "debug" else 2
    command = (*TIMED, f"runner={runner}", f"slots={slots}", "name=mine", "budget.trials=3", "problem.seconds=3")
    command = (*command, f"problem.marks={here}")
    variables = {} if runner == "processes" else {"PREFECT_API_URL": api_url}
    with Command(here, *command, forked=number == signal.SIGTERM, **variables) as driver:
        until((here / str(slots)).exists, what="a trial after the first")
        sent = time.monotonic()
        driver.send(number, to_group=to_group)
        done = driver.wait()
        seconds = time.monotonic() - sent
        until(lambda: not driver.leftovers(), 20, what="the end of all processes")

    found = trials(search)
    running = [t.number for t in found if not t.is_finished and attempts(search, t.number)]
    n_kept = sum(t.is_finished for t in found)
    assert done.status == STATUS[number]
    assert seconds < 60
    assert running
    assert all("told by TrialInterrupted" in records(search).log(number) for number in running)
    assert noise(done.err) == [
        f"heirloom: interrupted ({number.name}); {n_kept} finished trial{'s' * (n_kept != 1)} kept. "
        f"Resume: python -m flows.search {' '.join(command)}"
    ]
    assert done.out == ""


def test_the_line_resumes(here: Path) -> None:
    """The printed line continues the search; the interrupted trial runs as attempt 2."""
    search = here / "heirloom" / "mine"
    overrides = (*TIMED, "runner=debug", "slots=1", "name=mine", "budget.trials=2", f"problem.hold={here}")
    (here / "0").touch()
    with Command(here, *overrides, "finalists=1", forked=True) as driver:
        until(lambda: n_started(search) >= 1, what="a trial")
        driver.send(signal.SIGINT)
        interrupted = driver.wait()
    (here / "0").unlink()
    resumed = run_printed(here, resume_line(interrupted.err))

    assert interrupted.status == 130
    assert resumed.status == 0
    assert [trial.attempt for trial in trials(search)] == [2, 1, 1]
    assert all(trial.state == "COMPLETE" for trial in trials(search))
    assert noise(resumed.err) == []


@pytest.mark.parametrize("runner", ["processes", "threads", "debug"])
def test_code_that_ignores_the_stop_is_ended(here: Path, runner: str, api_url: str) -> None:
    """A trial that never reports is killed 2 s after Ctrl-C in a process; elsewhere a second Ctrl-C ends it."""
    search = here / "heirloom" / "mine"
    command = (*TIMED, f"runner={runner}", "slots=1", "name=mine", "problem.seconds=100", "problem.fail=deaf")
    with Command(here, *command, forked=True, PREFECT_API_URL=api_url) as driver:
        until(lambda: n_started(search) >= 1, what="a trial")
        driver.send(signal.SIGINT)
        sent = time.monotonic()
        if runner != "processes":
            until(lambda: "stopping; a second Ctrl-C ends the process at once" in driver.err, 20)
            until(
                lambda: (records(search).read("sessions/0001.beat") or {}).get("stopping"), 20, what="the beat's mark"
            )
            time.sleep(0.3)  # sooner, it is taken for an echo of the first
            driver.send(signal.SIGINT)
        done = driver.wait(60)
        seconds = time.monotonic() - sent
        until(lambda: not driver.leftovers(), 20, what="the end of all processes")

    assert done.status == 130
    assert seconds < 60  # the trial would take 100 s
    assert (records(search).read("sessions/0001.beat") or {})["stopping"]
    assert not trials(search)[0].is_finished
    assert "Traceback" not in done.err
    assert done.err.splitlines()[-1].endswith(f"Resume: python -m flows.search {' '.join(command)}")


def test_a_search_stays_busy_while_its_trial_runs(here: Path, api_url: str) -> None:
    """After one Ctrl-C, too, no command gets the search before the end of the process, which ends the trial."""
    search = here / "heirloom" / "mine"
    deaf = (*TIMED, "runner=threads", "slots=1", "name=mine", "problem.seconds=100", "problem.fail=deaf")
    with Command(here, *deaf, forked=True, PREFECT_API_URL=api_url) as driver:
        until(lambda: n_started(search) >= 1, what="a trial")
        driver.send(signal.SIGINT)
        heartbeats = []
        while driver.process.poll() is None:
            heartbeats.append(records(search).read("sessions/0001.beat"))
            time.sleep(0.1)
        done = driver.wait()

    assert done.status == 130
    assert not any(heartbeat["ended"] for heartbeat in heartbeats if heartbeat)
    check_free(records(search), timeout_s=0.0)


@pytest.mark.parametrize("moment", [0.0, 1.0, "server"], ids=str)
def test_interruption_before_the_first_trial(here: Path, moment: float | str) -> None:
    """Ctrl-C while the command imports, composes or waits for the server ends it at once with one line.

    Moments are seconds after its first library: before its own code runs, Python ends with a traceback of its own.
    """
    with Command(here, *TIMED, "name=mine") as driver:
        if isinstance(moment, float):
            maps = Path("/proc", str(driver.process.pid), "maps")
            until(lambda: "site-packages" in maps.read_text(), what="a library")
            time.sleep(moment)
        else:
            until(lambda: "starting Prefect's temporary server" in driver.err)
        driver.send(signal.SIGINT)
        sent = time.monotonic()
        done = driver.wait(90)
        seconds = time.monotonic() - sent
        until(lambda: not driver.leftovers(), 20, what="the end of all processes")

    assert seconds < 60
    assert not list(here.glob("heirloom/mine/sessions/*"))  # it did not wait for the server, and then begin
    assert "Traceback" not in done.err
    if done.status != -signal.SIGINT:  # by the signal itself: the engine was not up yet
        assert done.status == 130
        assert done.err.splitlines()[-1].startswith(
            "heirloom: interrupted (SIGINT): no trial was running. Resume: python"
        )


@pytest.mark.parametrize("moment", ["starting Prefect's temporary server", "  running 1"])
def test_a_terminal_gets_a_line_that_can_be_copied(here: Path, moment: str) -> None:
    """On a narrow terminal the last line is whole, below the live lines, and the cursor is visible."""
    command = (*TIMED, "slots=1", "runner=threads", "name=mine", "budget.trials=3", "problem.seconds=20")
    status, raw = on_terminal(here, *command, columns=60, interrupt_at=moment)
    last = raw.rstrip().rpartition("\n")[2]

    assert status == 130
    assert re.sub(r"\x1b\[\S*?[a-zA-Z]", "", last).startswith("heirloom: interrupted (SIGINT)")
    assert last.endswith(f"python -m flows.search {' '.join(command)}")
    assert raw.count("\x1b[?25l") == raw.count("\x1b[?25h")


def test_a_multirun_ends_as_a_whole(here: Path) -> None:
    """Ctrl-C in one job of a multirun ends all jobs; the line resumes the multirun."""
    command = ("-m", *TIMED, "runner=debug", "budget.trials=2", "problem.seconds=0,100,101")
    with Command(here, *command, forked=True) as driver:
        until(lambda: len(list(here.glob("heirloom/*"))) == 2, what="a second job")
        driver.send(signal.SIGINT)
        done = driver.wait(60)

    assert done.status == 130
    assert done.out.count("best: trial") == 1
    assert len(list((here / "heirloom").iterdir())) == 2
    assert done.err.splitlines()[-1].endswith(f"python -m flows.search {' '.join(command)}")


@pytest.mark.parametrize("runner", ["processes", "debug"])
def test_a_long_test_is_interrupted_too(here: Path, runner: str, api_url: str) -> None:
    """Ctrl-C during a finalist's test ends the command; the resumed command repeats the test."""
    search = here / "heirloom" / "mine"
    command = (*TIMED, f"runner={runner}", "slots=1", "name=mine", "budget.trials=1", f"problem.hold={here}")
    (here / "test-1").touch()
    with Command(here, *command, forked=True, PREFECT_API_URL=api_url) as driver:
        until(lambda: all(t.is_finished for t in trials(search)) and len(trials(search)) == 2, what="the finals")
        time.sleep(0.5)
        driver.send(signal.SIGINT)
        done = driver.wait(60)
    tests = records(search).tests()
    (here / "test-1").unlink()
    resumed = run_printed(here, resume_line(done.err), PREFECT_API_URL=api_url)

    assert done.status == 130
    assert tests == {}
    assert resumed.status == 0
    assert "test: score" in resumed.out


def test_a_killed_server_does_not_harm_the_search(here: Path) -> None:
    """After kill -9 of Prefect's temporary server the search completes in time with status 0 and a message."""
    search = here / "heirloom" / "mine"
    few = ("runner=threads", "slots=2", "name=mine", "budget.trials=6", "problem.seconds=0.5")
    with Command(here, *TIMED, *few, forked=True) as c:
        until(lambda: n_started(search) >= 3, what="the third trial")
        os.kill(server_of(c), signal.SIGKILL)
        killed = time.monotonic()
        done = c.wait()
        seconds = time.monotonic() - killed

    assert done.status == 0
    assert seconds < 60  # Prefect's client would wait for minutes
    assert noise(done.err) == []
    assert "Prefect's temporary server has ended; all records are complete" in done.err
    assert all(trial.state == "COMPLETE" for trial in trials(search))
    assert "best: trial" in done.out


def test_the_next_job_of_a_multirun_replaces_a_killed_server(here: Path) -> None:
    """After kill -9 of the temporary server during the first job, the second job has one, and completes."""
    few = ("runner=threads", "slots=1", "budget.trials=1", "finalists=1", "problem.seconds=2", "seed=1,2")
    with Command(here, "-m", *TIMED, *few, forked=True) as c:
        until(lambda: list(here.glob("heirloom/*/trials/*.start-*.json")), what="a trial")
        os.kill(server_of(c), signal.SIGKILL)
        done = c.wait()

    assert done.status == 0, done.err
    assert done.err.count("Prefect's temporary server has ended; all records are complete") == 1
    assert done.out.count("best: trial") == 2


@pytest.mark.parametrize("interrupts", [False, True], ids=["waits", "Ctrl-C"])
def test_a_stopped_server_delays_the_end_for_seconds(here: Path, interrupts: bool) -> None:
    """If Prefect's temporary server hangs, the end waits for it 10 s at most, with a line; Ctrl-C ends the wait."""
    search = here / "heirloom" / "mine"
    few = ("name=mine", "budget.trials=1", "finalists=1", f"problem.hold={here}")
    (here / "0").touch()
    (here / "1").touch()
    with Command(here, *TIMED, "runner=threads", "slots=1", *few, forked=True) as c:
        until(lambda: n_started(search) >= 1, what="the first trial")
        server = server_of(c)
        (here / "0").unlink()
        until(lambda: n_started(search) == 2, what="the final")
        os.kill(server, signal.SIGSTOP)
        (here / "1").unlink()
        until(lambda: "Ctrl-C ends it" in c.err, what="the line on the wait")
        began_s = time.monotonic()
        if interrupts:
            c.send(signal.SIGINT)
        until(lambda: "did not accept everything" in c.err, what="the end of the wait")
        waited_s = time.monotonic() - began_s
        done = c.wait(30)
        left = c.leftovers()

    assert done.status == 0
    assert "waiting at most 10 s until Prefect's server has stored the last states; Ctrl-C ends it\n" in done.err
    assert "best: trial" in done.out
    assert waited_s < (9 if interrupts else 30)  # 9 s are left of the wait
    assert left == []
