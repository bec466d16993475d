"""Credentials of a storage root appear in no file and no output line."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import TIMED, Command, Done, run, until
from tests.support.servers import SECRET, sftp_server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TOKEN = "token-Zk93mVq"
"""In storage.options."""
SCRIPT = """
import sys
import nas
from nas.tuners.random import RandomTuner
from timed_problem import TimedProblem

if __name__ == "__main__":
    root, token = sys.argv[1:]
    found = nas.run_search(
        TimedProblem, tuner=RandomTuner, root=root, options={"passphrase": token}, name="mine", budget=3, slots=2
    )
    print(*{trial.state.name for trial in found.lineage}, found.url, found, sep="\\n")
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with sftp_server() as port:
        yield port


def holds(data: bytes) -> bool:
    return SECRET.encode() in data or TOKEN.encode() in data


def leaks(folder: Path, *done: Done) -> list[str]:
    """Returns the places of a secret: files below the folder, and printed lines."""
    found = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and holds(path.read_bytes())]
    for number, command in enumerate(done):
        for stream, text in (("output", command.out), ("error", command.err)):
            found += [f"{stream} {number}: {line}" for line in text.splitlines() if holds(line.encode())]
    return found


def test_the_urls_password_is_nowhere(tmp_path: Path, port: int) -> None:
    """Over sftp, with workers and a Prefect server: records, logs, reports, artifacts and lines hold no credential."""
    here, served = tmp_path / "here", tmp_path / "served"
    here.mkdir()
    url = f"sftp://me:{SECRET}@127.0.0.1:{port}{served}"
    storage = (f"storage.root={url}", f"storage.options.passphrase={TOKEN}")
    private = {"TMPDIR": str(tmp_path / "tmp"), "HEIRLOOM_CACHE": str(tmp_path / "cache")}
    (tmp_path / "tmp").mkdir()
    search = (*TIMED, *storage, "runner=processes", "slots=2", "name=mine", "problem.seconds=0.5")
    first = run(here, *search, "budget.trials=3", **private)
    again = run(here, *search, "budget.trials=3", **private)
    with Command(here, *search, "budget.trials=50", forked=True, **private) as command:
        until(lambda: len(list(served.glob("mine/trials/*.proposal.json"))) > 6, what="more trials")
        command.send(signal.SIGINT)
        stopped = command.wait()
    failing = run(here, *TIMED, *storage, "runner=debug", "name=bad", "problem.fail=raise", "max_failures=2", **private)
    reports = [
        run(here, "name=mine", *storage, f"format={kind}", f"out={here}/{kind}", module="flows.report", **private)
        for kind in ("html", "json")
    ]
    shown = [
        run(here, *what, *storage, module="flows.report", **private)
        for what in ([], ["name=mine"], ["name=mine", "trial=1"])
    ]
    away = [
        run(here, *TIMED, f"storage.root={root}", storage[1], "runner=debug", **private)
        for root in (f"sftp://me:{SECRET}@127.0.0.1:1/x", url.replace("me:", "you:"), f"{url}\\n")
    ]

    assert [done.status for done in (first, again, stopped, failing)] == [0, 0, 130, 1], first.err + stopped.err
    assert all(done.status in (1, 2) for done in away[:1])
    assert [done.status for done in (*reports, *shown)] == [0] * 5
    assert leaks(tmp_path, first, again, stopped, failing, *reports, *shown, *away) == []
    assert (tmp_path / "cache").exists()


def test_the_urls_password_is_nowhere_after_a_call(tmp_path: Path, port: int) -> None:
    """Workers of ``run_search`` get the URL's password; nothing shows or keeps it, also if refused."""
    here, served = tmp_path / "here", tmp_path / "served"
    here.mkdir()
    (here / "call.py").write_text(SCRIPT)
    url = f"sftp://me:{SECRET}@127.0.0.1:{port}{served}"
    done, refused = (run(here, line=f"python call.py {root} {TOKEN}") for root in (url, url.replace("@", "x@")))

    assert (done.status, refused.status) == (0, 1), done.err
    assert done.out.splitlines()[:2] == ["COMPLETE", f"{url.replace(SECRET, '***')}/mine"]
    assert leaks(tmp_path, done, refused) == []
