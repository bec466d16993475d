"""Workers started as commands of their own: joining, leaving, kills and refusals."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support import timed_problem
from tests.support.commands import ROOT, Command, on_terminal, records, resume_line, run, trials, until
from tests.support.remote_search import RemoteSearch, search_with_remote_workers

pytestmark = pytest.mark.slow

EVOLVED = ("+tuner=evolution", "tuner.population_size=3", "tuner.sample_size=2")
REMOTE = ("runner=remote", "threads=1", "finalists=1")
OWN = ("problem._target_=multi_phase_problem.MultiPhaseProblem", *REMOTE, "name=mine")
PLAIN = ("+tuner=random", "problem._target_=timed_problem.TimedProblem", *REMOTE, "name=mine")


def starts(search: Path) -> list[str]:
    return sorted(path.name for path in (search / "trials").glob("*.start-*.json"))


def worker_of(search: Path, start: str) -> int:
    """Returns the process that trains an attempt; its parent is the worker's command."""
    found = records(search).read(f"trials/{start}")
    assert found is not None
    return int(found["pid"])


def test_two_workers_run_a_search(here: Path, api_url: str) -> None:
    """Jobs, inheritance, finals, tests and export; the workers do all storage access and end with status 0."""
    search = here / "heirloom" / "mine"
    with RemoteSearch(here, *EVOLVED, *OWN, "slots=2", "budget.trials=8", PREFECT_API_URL=api_url) as remote:
        first, second = remote.join(), remote.join()
        until(lambda: starts(search), what="a trial")
        seen = b"".join(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
        done = remote.wait()
        ends = [worker.wait() for worker in (first, second)]
        token = remote.line[1]

    found = trials(search)
    assert done.status == 0, done.err
    assert [t.state for t in found] == ["COMPLETE"] * 9
    assert {t.job for t in found if t.stage == "search"} == {0, 1}
    assert any((t.inherited or 0) > 0 for t in found)
    assert "test: score" in done.out
    assert (search / "best-0001.json").exists()
    assert [end.status for end in ends] == [0, 0]
    assert all("heirloom: the driver has ended the session" in end.err for end in ends)
    assert {worker_of(search, s) for s in starts(search)}.isdisjoint({first.process.pid, second.process.pid})
    assert b"flows.worker" in seen
    assert token.encode() not in seen
    assert not any(token.encode() in path.read_bytes() for path in search.rglob("*") if path.is_file())


def test_the_table_is_that_of_warm_workers(here: Path, api_url: str) -> None:
    """A deterministic search gives the same trials on remote workers, fewer than slots, as on local ones."""
    plan = (*EVOLVED, OWN[0], *REMOTE[1:], "slots=2", "budget.trials=8", "deterministic=true", "problem.most=3")
    near = run(here, *plan, "name=near", "runner=processes", PREFECT_API_URL=api_url)
    far = search_with_remote_workers(here, *plan, "name=far", "runner=remote", n_workers=1, PREFECT_API_URL=api_url)

    assert near.status == far.status == 0, near.err + far.err
    tables = [
        [(t.job, t.parents, t.donor, t.state, t.slot, t.learned, t.metrics, t.curve, t.point) for t in trials(search)]
        for search in (here / "heirloom" / "near", here / "heirloom" / "far")
    ]
    assert tables[0] == tables[1]


@pytest.mark.parametrize("target", ["training", "command"])
def test_a_killed_worker_costs_an_attempt(here: Path, api_url: str, target: str) -> None:
    """kill -9 of the training process or the whole worker leads to attempt 2 of the same trial and job."""
    search = here / "heirloom" / "mine"
    plan = (*EVOLVED, *OWN, "slots=1", "budget.trials=4", "problem.seconds=1", "channel.lost_after_s=3")
    with RemoteSearch(here, *plan, PREFECT_API_URL=api_url) as remote:
        worker = remote.join()
        until(lambda: "000001.start-1.json" in starts(search), what="the second trial")
        if target == "training":
            os.kill(worker_of(search, "000001.start-1.json"), signal.SIGKILL)
        else:
            worker.kill(to_group=False)
            until(lambda: not worker.leftovers(), 10, what="the end of what it had started")
            remote.workers.remove(worker)
            remote.join()
        done = remote.wait()

    found = trials(search)
    assert done.status == 0, done.err
    assert [t.attempt for t in found] == [1, 2, 1, 1, 1]
    assert [t.job for t in found] == [0, 0, 0, 0, 4]
    why = "its worker was killed by SIGKILL (on " if target == "training" else "was lost: not heard of for 3 s"
    assert "trial 1 was lost: " in done.err
    assert why in done.err


def test_a_worker_that_is_interrupted_leaves(here: Path, api_url: str) -> None:
    """Ctrl-C of a worker: status 130, and its trial runs elsewhere without a loss; SIGTERM: 143.

    The process is signaled and then its group, as ``timeout`` does: that is no second signal.
    """
    search = here / "heirloom" / "mine"
    plan = (*PLAIN, "slots=1", "budget.trials=1", "problem.seconds=2", "max_attempts=1")
    with RemoteSearch(here, *plan, PREFECT_API_URL=api_url) as remote:
        ends = []
        for n, number in enumerate((signal.SIGINT, signal.SIGTERM), 1):
            worker = remote.join()
            until(lambda: len(starts(search)) == n, what="an attempt")  # noqa: B023
            worker.send(number, to_group=False)
            worker.send(number)
            ends.append(worker.wait(30))
            until(lambda: not worker.leftovers(), 5, what="the end of all processes")  # noqa: B023
        remote.join("problem.seconds=0")
        done = remote.driver.wait()

    assert [end.status for end in ends] == [130, 143]
    assert all("Traceback" not in end.err for end in ends)
    assert "interrupted (SIGINT): its trial runs again elsewhere" in ends[0].err
    assert done.status == 0, done.err
    assert [t.attempt for t in trials(search)] == [3, 1]
    logs = records(search).other_logs(trials(search)[0])
    assert all("told by TrialInterrupted" in logs[attempt] for attempt in ("attempt 1", "attempt 2"))


def test_an_interrupted_driver_ends_its_workers(here: Path, api_url: str) -> None:
    """Ctrl-C of the driver: status 130, workers end with 0; the same command continues with new workers."""
    search = here / "heirloom" / "mine"
    plan = (*PLAIN, "slots=2", "budget.trials=3", "problem.seconds=1")
    with RemoteSearch(here, *plan, PREFECT_API_URL=api_url) as remote:
        workers = [remote.join(), remote.join()]
        until(lambda: len(starts(search)) >= 2, what="two trials")
        remote.driver.send(signal.SIGINT)
        first = remote.driver.wait(30)
        ends = [worker.wait(30) for worker in workers]
    line = resume_line(first.err)
    last = search_with_remote_workers(here, *plan, n_workers=2, PREFECT_API_URL=api_url)

    assert first.status == 130
    assert line.startswith("python -m flows.search +tuner=random")
    assert [end.status for end in ends] == [0, 0]
    assert last.status == 0, last.err
    assert {t.attempt for t in trials(search)} == {1, 2}
    assert all(t.state == "COMPLETE" for t in trials(search))


def test_a_killed_driver_is_noticed(here: Path, api_url: str) -> None:
    """After kill -9 of the driver the worker interrupts its trial and ends with 0; finished trials are kept."""
    search = here / "heirloom" / "mine"
    plan = (*PLAIN, "slots=1", "budget.trials=2", "problem.seconds=1.5", "channel.lost_after_s=3")
    with RemoteSearch(here, *plan, PREFECT_API_URL=api_url) as remote:
        worker = remote.join("problem.seconds=20")
        until(lambda: starts(search), what="a trial")
        remote.driver.kill()
        end = worker.wait(60)
        until(lambda: not worker.leftovers(), 5, what="the end of all processes")

    assert end.status == 0
    assert end.err.splitlines()[-1] == "heirloom: the driver was not heard of for 3 s"
    assert not trials(search)[0].is_finished
    assert "told by TrialInterrupted" in records(search).log(0)


def test_a_trial_past_its_time_is_killed(here: Path, api_url: str) -> None:
    """trial_timeout_s applies on workers, and the job continues there."""
    plan = (
        "+tuner=random",
        "problem._target_=multi_phase_problem.SleepyProblem",
        *OWN[1:],
        "trial_timeout_s=2",
        "slots=1",
    )
    done = search_with_remote_workers(here, *plan, "budget.trials=3", n_workers=1, PREFECT_API_URL=api_url)

    found = trials(here / "heirloom" / "mine")
    assert done.status == 0, done.err
    assert [(t.state, t.reason) for t in found[:3]] == [("COMPLETE", None), ("FAILED", "timeout"), ("COMPLETE", None)]
    assert {t.job for t in found[:3]} == {0}


def test_mismatched_workers_are_refused(here: Path, api_url: str) -> None:
    """Another token, root, code or device is one line with status 2; no driver is status 1."""
    (here / "other").mkdir()
    with RemoteSearch(here, *PLAIN, "slots=1", "budget.trials=1", "device=cpu", PREFECT_API_URL=api_url) as remote:
        token = remote.line[1]
        channel, root, target = remote.line[2].split()

        def refused(*overrides: str, token: str = token, status: int = 2) -> str:
            with Command(here, *overrides, module="flows.worker", HEIRLOOM_CHANNEL_TOKEN=token) as command:
                done = command.wait()
            assert done.status == status, done.err
            return done.complaint

        wrong = refused(channel, root, target, token="not the token")
        missing = refused(channel, root, target, token="")
        elsewhere = refused(channel, f"storage.root={here / 'other'}", target)
        untrusted = refused(channel, root)
        gpu = refused(channel, root, target, "device=cuda")
        threads = refused(channel, root, target, "threads=2")
        nowhere = refused(root, target)
        remote.join()
        done = remote.wait()

    assert "HEIRLOOM_CHANNEL_TOKEN must be the one that this driver printed" in wrong
    assert missing.startswith("no token: set HEIRLOOM_CHANNEL_TOKEN")
    assert "holds no search mine: name the driver's own root" in elsewhere
    assert (
        "the driver names timed_problem.TimedProblem as its problem, but a channel is not trusted with code"
        in untrusted
    )
    assert "device=cuda: the driver's device=cpu holds for every worker" in gpu
    assert "threads=2: the driver's threads=1 holds for every worker" in threads
    assert "channel=None: must be http://HOST:PORT" in nowhere
    assert done.status == 0, done.err


def test_a_worker_with_another_root_or_code_leaves(here: Path, api_url: str) -> None:
    """A worker with other proposals or another problem leaves with status 2, and the trial runs elsewhere."""
    copy, old = here / "copy", here / "old"
    (copy / "mine").mkdir(parents=True)
    old.mkdir()
    source = Path(timed_problem.__file__).read_text()
    (old / "timed_problem.py").write_text(f"{source}# before the change\n")
    with RemoteSearch(here, *PLAIN, "slots=1", "budget.trials=1", PREFECT_API_URL=api_url) as remote:
        channel, root, target = remote.line[2].split()
        until(lambda: (here / "heirloom/mine/search.json").exists(), what="the search")
        (copy / "mine/search.json").write_bytes((here / "heirloom/mine/search.json").read_bytes())
        with Command(
            here, channel, f"storage.root={copy}", target, module="flows.worker", HEIRLOOM_CHANNEL_TOKEN=remote.line[1]
        ) as strayed:
            end = strayed.wait()
        variables = {"HEIRLOOM_CHANNEL_TOKEN": remote.line[1], "PYTHONPATH": f"{old}:{ROOT}"}
        with Command(old, channel, root, target, module="flows.worker", **variables) as outdated:
            refused = outdated.wait()
        remote.join()
        done = remote.wait()

    assert end.status == 2
    assert "holds a search of the same name, but not the driver's trial 0" in end.err
    assert (refused.status, "timed_problem.py changed" in refused.err) == (2, True), refused.err
    assert done.status == 0, done.err
    assert [t.state for t in trials(here / "heirloom" / "mine")] == ["COMPLETE"] * 2
    assert not list(copy.rglob("*.start-*"))


def test_a_given_port_and_token(here: Path, api_url: str) -> None:
    """Workers started first wait for a driver with the agreed port and token; the printed line hides the token."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    token = "agreed-on-beforehand"
    plan = (*PLAIN, "slots=1", "budget.trials=1", f"channel.port={port}")
    environment = {"HEIRLOOM_CHANNEL_TOKEN": token, "PREFECT_API_URL": api_url}
    pairs = (f"channel=http://127.0.0.1:{port}", f"storage.root={here / 'heirloom'}", PLAIN[1])
    with Command(here, *pairs, module="flows.worker", HEIRLOOM_CHANNEL_TOKEN=token) as worker:
        with Command(here, *plan, **environment) as driver:
            done = driver.wait()
        end = worker.wait(60)

    assert done.status == 0, done.err
    assert end.status == 0, end.err
    assert 'HEIRLOOM_CHANNEL_TOKEN="$HEIRLOOM_CHANNEL_TOKEN" python -m flows.worker' in done.err
    assert token not in done.err


def test_a_terminal_says_that_trials_wait_for_workers(here: Path) -> None:
    """Without a worker the terminal shows how to start one; Ctrl-C ends the command."""
    status, raw = on_terminal(here, *PLAIN, "slots=1", columns=200, interrupt_at="waiting for a worker to join")

    assert status == 130
    assert "python -m flows.worker channel=http://127.0.0.1:" in raw
    assert "interrupted (SIGINT); 0 finished trials kept. Resume: python -m flows.search" in raw


def test_finals_on_remote_workers(here: Path, api_url: str) -> None:
    """``flows.final`` works with the same runner."""
    local = [override.replace("runner=remote", "runner=processes") for override in PLAIN]
    assert run(here, *local, "slots=2", "budget.trials=4", PREFECT_API_URL=api_url).status == 0
    finals = ("name=mine", "finalists=2", "slots=1", "threads=1", "runner=remote", PLAIN[1])
    with RemoteSearch(here, *finals, module="flows.final", PREFECT_API_URL=api_url) as remote:
        remote.join()
        done = remote.wait()

    assert done.status == 0, done.err
    assert sum(t.stage == "final" for t in trials(here / "heirloom" / "mine")) == 2
