"""``python -m flows.report``: its output and status, and that it only reads."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from flows.cli.command import run_command
from flows.report import report
from nas.core.metric import Metric
from nas.core.trial import State
from nas.search.lease import SearchLease
from nas.storage.open import open_root
from nas.views.searches import find_searches
from nas.views.snapshot import read_snapshot
from tests.support.commands import Done, environment, run
from tests.support.record_files import write_record
from tests.support.sample_searches import BEGAN, evolved, trial, write_search

N = 40


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a root with two searches; the first by name is the older."""
    folder = tmp_path_factory.mktemp("root")
    tests = {N - 1: {"metrics": {"accuracy": 0.75}}, N - 2: {"metrics": {"accuracy": 0.5}}}
    records = write_search(folder, "newer-evolution-1a", evolved(N), active=BEGAN + 500, tests=tests)
    records.files.replace("logs/000012.log", "hällo\n\x1b[1mepoch 1\x1b[0m".encode() + b"\xff\n")
    write_search(folder, "a-random-2b", [trial(0, score=0.25)], active=BEGAN + 100)
    return folder


def report_on(root: Path, *arguments: str) -> Done:
    """Runs the command as a user does."""
    return run(root.parent, f"storage.root={root}", *arguments, module="flows.report")


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


def asked(root: Path, *arguments: str) -> int:
    """Returns the status of the command within this process."""
    return run_command("report", report, [f"storage.root={root}", *arguments])


def test_list(root: Path) -> None:
    """Without a name it lists the searches, newest first, with trials, states, best score and last activity."""
    done = report_on(root)

    assert (done.status, done.err) == (0, "")
    header, *lines = done.out.splitlines()
    assert [line.split()[0] for line in lines] == ["newer-evolution-1a", "a-random-2b"]
    assert header.split()[:3] == ["name", "standing", "trials"]
    assert "accuracy 0.25 (trial 0)" in lines[1]
    assert "2026-11-21 10:26:40 UTC" in lines[1]
    assert "1 complete" in lines[1]


def test_list_as_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The list as json has plain values: whole counts, times in seconds."""
    assert asked(root, "format=json") == 0

    newest, oldest = json.loads(capsys.readouterr().out)
    assert (newest["name"], newest["trials"]) == ("newer-evolution-1a", N)
    assert (oldest["complete"], oldest["best"], oldest["last_activity"]) == (1, 0.25, BEGAN + 100)


def test_list_without_searches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A root without searches gives an empty list, and a line on standard error."""
    assert asked(tmp_path / "none", "format=json") == 0

    shown = capsys.readouterr()
    assert json.loads(shown.out) == []
    assert "no search under" in shown.err
    assert not (tmp_path / "none").exists()


def test_list_skips_unreadable_folders(tmp_path: Path) -> None:
    """Foreign and broken folders are one line each on standard error; the others are listed."""
    write_search(tmp_path, "whole", [trial(0, score=0.5)])
    for name in ("torn", "strange", "future", "gap"):
        write_search(tmp_path, name, [trial(0, score=0.5), trial(1, score=0.5)])
    (tmp_path / "torn" / "search.json").write_text('{"format":')
    write_record(tmp_path / "strange" / "trials" / "000001.result.json", {})
    (tmp_path / "whole" / "trials" / "._000000.result.json").write_text("a Mac was here")
    write_record(tmp_path / "future" / "search.json", {"format": 99})
    (tmp_path / "gap" / "trials" / "000000.proposal.json").unlink()
    (tmp_path / "README.txt").write_text("mine")
    (tmp_path / "photos").mkdir()

    done = report_on(tmp_path, "format=csv")
    assert done.status == 0
    assert pd.read_csv(io.StringIO(done.out))["name"].tolist() == ["whole"]
    lines = done.err.splitlines()
    assert len(lines) == 5
    for name in ("torn", "strange", "future", "gap"):
        assert any(line.startswith(f"heirloom: {name} is left out: ") for line in lines)
    assert "heirloom: not searches, left out: README.txt, photos" in lines


def test_csv(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is the whole table as csv, which pandas reads."""
    assert asked(root, "name=newer-evolution-1a", "format=csv") == 0

    shown = capsys.readouterr()
    table = pd.read_csv(io.StringIO(shown.out))
    assert shown.err == ""
    assert len(table) == N
    assert list(table.columns[:4]) == ["trial", "parent", "donor", "generation"]
    assert table["test.accuracy"].dropna().tolist() == [0.5, 0.75]


def test_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is a json array with an object per trial."""
    assert asked(root, "name=last", "format=json") == 0

    rows = json.loads(capsys.readouterr().out)
    assert [row["trial"] for row in rows] == list(range(N))
    assert rows[0]["parent"] is None


def test_table_that_is_piped(root: Path) -> None:
    """A pipe gets the whole table: every trial and column, without colors."""
    done = report_on(root, "name=last")

    assert (done.status, done.err) == (0, "")
    header, *lines = done.out.splitlines()
    assert {"trial", "metric.accuracy", "point.cell.ops", "checkpoint_bytes", "error"} <= set(header.split())
    assert len(lines) > N
    assert "\x1b" not in done.out
    assert f"best so far: trial {N - 2} (final): accuracy" in done.out
    assert "test accuracy 0.5" in done.out


def on_terminal(root: Path, columns: int, *arguments: str) -> tuple[list[str], str]:
    """Returns the rows on a terminal of so many columns, and standard error."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-m", "flows.report", f"storage.root={root}", *arguments],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=environment() | {"COLUMNS": str(columns), "TERM": "xterm"},
    )
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    error = child.communicate(timeout=60)[1].decode()
    assert child.returncode == 0, error
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode()).splitlines(), error


@pytest.mark.parametrize(
    "columns", [pytest.param(60, marks=pytest.mark.slow), 80, pytest.param(100, marks=pytest.mark.slow)]
)
def test_table_in_a_narrow_terminal(root: Path, columns: int) -> None:
    """No line is wider than the terminal; parent, score and duration are shown before other columns."""
    rows, error = on_terminal(root, columns, "name=last")

    order = ["trial", "parent", "donor", "state", "inherited", "metric.accuracy", "duration_s", "stage"]
    header = rows[0].split()
    assert max(len(row) for row in rows[: N + 1]) <= columns
    assert header == [name for name in order if name in header]
    assert {"trial", "state", "metric.accuracy"} <= set(header)
    assert columns < 80 or "duration_s" in header
    assert re.search(r"\d+ columns do not fit in this terminal: use columns=all or format=csv", error)


def test_all_columns_in_a_narrow_terminal(root: Path) -> None:
    """With columns=all a terminal shows every non-empty column, and times with their zone."""
    rows, error = on_terminal(root, 80, "name=last", "columns=all")

    assert {"point.cell.ops", "checkpoint_bytes", "error", "started"} <= set(rows[0].split())
    assert re.search(r" 2026-11-21 10:\d\d:\d\d UTC ", rows[1])
    assert error == ""


@pytest.mark.parametrize("form", ["csv", "json"])
def test_all_columns_changes_nothing_elsewhere(root: Path, capsys: pytest.CaptureFixture[str], form: str) -> None:
    """columns=all is allowed for other formats, and changes nothing."""
    told = []
    for more in ((), ("columns=all",)):
        assert asked(root, "name=last", f"format={form}", *more) == 0
        told.append(capsys.readouterr().out)

    assert told[0] == told[1] != ""


def test_html(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The page is written to <name>.html here, or to out, and its path is printed."""
    monkeypatch.chdir(tmp_path)
    assert asked(root, "name=last", "format=html") == 0
    assert asked(root, "name=last", "format=html", "out=pages.htm") == 0

    assert capsys.readouterr().out == f"{tmp_path}/newer-evolution-1a.html\n{tmp_path}/pages.htm\n"
    assert (tmp_path / "pages.htm").read_text().startswith("<!DOCTYPE html>")


def test_a_page_is_written_through_a_link(root: Path, tmp_path: Path) -> None:
    """A link of the page's name in the folder out stays, and its target has the page."""
    link, target = tmp_path / "newer-evolution-1a.html", tmp_path / "published.html"
    link.symlink_to(target)

    assert asked(root, "name=last", "format=html", f"out={tmp_path}") == 0
    assert link.is_symlink()
    assert target.read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("form", ["csv", "json", "html"])
def test_a_full_disk_keeps_the_file_before(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """If a file can't be written whole, the old one stays, and nothing else is left."""
    path, given = tmp_path / "found", ("name=last", f"format={form}", f"out={tmp_path / 'found'}")
    path.write_text("before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limits[1]))
    try:
        status = asked(root, *given)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)

    assert (status, contents(tmp_path).keys(), path.read_text()) == (2, {str(path)}, "before")
    assert f"can't write {path} (File too large): set out=PATH to another place" in capsys.readouterr().err
    assert (asked(root, *given), len(path.read_text()) > 1_000) == (0, True)


def test_one_trial(root: Path) -> None:
    """One trial is shown with its fields, ancestors, error and log, whatever bytes the log has."""
    row = next(t for t in evolved(N) if t.state == State.FAILED)
    done = report_on(root, "name=last", f"trial={row.number}")
    logged = report_on(root, "name=last", "trial=12")

    assert done.status == 0
    words = [line.split() for line in done.out.splitlines()]
    assert ["parent", str(row.parents[0])] in words
    assert ["state", "FAILED"] in words
    assert "ancestors\n" in done.out
    assert "  ValueError: width 8\n" in done.out
    assert done.out.endswith("no log\n")
    assert logged.out.endswith("log\n\nhällo\n\ufffd[1mepoch 1\ufffd[0m\ufffd\n")


def test_one_trial_as_json(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One trial as json is an object with its row, ancestors, inheritance, curve and log."""
    assert asked(root, "name=last", "trial=12", "format=json") == 0
    whole = json.loads(capsys.readouterr().out)
    assert asked(root, "name=last", "trial=12", "format=csv") == 0
    table = pd.read_csv(io.StringIO(capsys.readouterr().out))

    assert (whole["trial"], table["trial"].tolist()) == (12, [12])
    assert set(table.columns) <= set(whole)
    assert whole["log"].startswith("hällo")
    assert whole["ancestors"][0] == whole["parent"]
    assert whole["resolved_donor"] == whole["donor"] == whole["parent"]


def test_logs_of_one_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All logs of a trial are shown in order: earlier attempts, the last one, its test, its export; and its error."""
    tests = {0: {"error": "OSError: no data"}}
    records = write_search(tmp_path, "mine", [trial(0, score=0.5, attempt=12)], tests=tests)
    said = {"-2": "two", "-11": "eleven\n", "": "twelve\n", ".test": "tested\n", ".export": "exported\n"}
    for name, text in said.items():
        records.files.replace(f"logs/000000{name}.log", text.encode())
    assert asked(tmp_path, "name=mine", "trial=0") == 0
    shown = capsys.readouterr().out
    assert asked(tmp_path, "name=mine", "trial=0", "format=json") == 0
    record = json.loads(capsys.readouterr().out)

    assert shown.endswith(
        "\nlog of attempt 2\n\ntwo\n\nlog of attempt 11\n\neleven\n\nlog\n\ntwelve\n"
        "\nlog of test\n\ntested\n\nlog of export\n\nexported\n"
    )
    assert "\nerror\n\n  test: OSError: no data\n" in shown
    assert record["error"] == "test: OSError: no data"
    assert record["log"] == "twelve\n"
    assert list(record["other_logs"]) == ["attempt 2", "attempt 11", "test", "export"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["name=newr-evolution-1a"],
            "no search newr-evolution-1a among 2 under {root}; nearest: newer-evolution-1a",
        ),
        (["name=zzz"], "nearest: newer-evolution-1a, a-random-2b"),
        (["name=../root"], "name='../root': must be"),
        (["name=last", "trial=99"], "no trial 99 in newer-evolution-1a: its trials are 0 to 39"),
        (["name=a-random-2b", "trial=1"], "no trial 1 in a-random-2b: it has only trial 0"),
        (["name=last", "trial=best"], "trial='best': must be a whole number of at least 0"),
        (["trial=3"], "trial=3 of which search? Add name=N"),
        (["format=xml"], "format=xml: must be table, csv, json or html"),
        (["format=html"], "format=html shows one search: add name=N"),
        (["name=last", "format=html", "trial=2"], "leave trial out"),
        (["name=last", "live=true"], "live=true keeps a page fresh: add format=html (format is table)"),
        (["name=last", "format=html", "live=5"], "live=5: must be true or false"),
        (["name=last", "columns=most"], "columns=most: must be fit or all"),
        (["name=last", "columns=all", "format=html"], "columns=all is for one search as table, csv or json"),
        (["columns=all"], "columns=all is for one search as table, csv or json: add name=N"),
        (["name=last", "open=true"], "add format=html"),
        (["name=last", "open=perhaps", "format=html"], "open='perhaps': must be true or false"),
        (["name=last", "out=x.txt"], "out=x.txt takes csv, json or html"),
        (["name=last", "format=csv", "out={root}/x.csv"], "must be outside the storage"),
        (["name=last", "format=csv", "out={root}/../none/x.csv"], "(No such file or directory): set out=PATH"),
        (["name=last", "format=csv", "out='~nobody_here/x.csv'"], "/~nobody_here/x.csv (No such file or directory)"),
        (["storage.root={root}/a-random-2b"], "set storage.root={root} name=a-random-2b"),
        (["storage.root=memory://x"], "exists in the searching process only. Use a folder"),
        (["nam=last"], "unknown key nam; did you mean name?"),
        (["last"], "can't read 'last': did you mean name=last?"),
        (["newer-evolution-1a"], "can't read 'newer-evolution-1a': did you mean name=newer-evolution-1a?"),
        (["format"], "can't read 'format': write format=VALUE"),
    ],
)
def test_mistakes(root: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    """A mistake is status 2 and one line with the value, the alternatives and the remedy."""
    status = asked(root, *(text.format(root=root) for text in arguments))

    shown = capsys.readouterr()
    assert (status, shown.out) == (2, "")
    assert len(shown.err.splitlines()) == 1
    assert said.format(root=root) in shown.err


def test_mistake_of_a_process(root: Path) -> None:
    """The process exits with the status of a mistake, and its line goes to standard error."""
    done = report_on(root, "name=nothing")

    assert (done.status, done.out) == (2, "")
    assert done.err.startswith("heirloom: no search nothing among 2 under ")


def test_broken_search(tmp_path: Path) -> None:
    """A search that can't be read is one line and status 1."""
    write_search(tmp_path, "torn", [trial(0, score=0.5)])
    write_record(tmp_path / "torn" / "trials" / "000000.result.json", {"trial": 0})

    done = report_on(tmp_path, "name=torn")
    assert (done.status, done.out) == (1, "")
    assert len(done.err.splitlines()) == 1


@pytest.mark.slow
def test_only_reads(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No report changes anything under the root."""
    before = contents(root)
    assert asked(root) == 0
    for form in ("table", "csv", "json", "html"):
        assert asked(root, "name=last", f"format={form}", *([f"out={tmp_path}"] if form == "html" else [])) == 0

    assert contents(root) == before


@pytest.mark.slow
def test_closed_pipe(root: Path) -> None:
    """A reader that closes the pipe early, like head, gets no traceback."""
    command = f"{sys.executable} -m flows.report storage.root={root} name=last format=json | head -c 10"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment(), cwd=root.parent)

    assert (done.stdout, done.stderr) == ('[\n{"trial"', "")


def test_running_search(tmp_path: Path) -> None:
    """A trial of an active session is RUNNING, with slot and donor; afterwards it is WAITING."""
    files = open_root(str(tmp_path / "live"))
    records = write_search(tmp_path, "live", [trial(0, score=0.5), trial(1, parents=(0,)), trial(2, parents=(1,))])
    lease = SearchLease(records)
    where = {"session": lease.number, "host": "here", "pid": 1, "time": BEGAN + 9}
    records.start(replace(trial(1), attempt=1, slot=3, resolved_donor=0), where)
    during = read_snapshot(files, time.time())
    lease.close()
    after = read_snapshot(files, time.time())

    running = during.lineage[1]
    assert (running.state, running.slot, running.resolved_donor, running.started) == (State.RUNNING, 3, 0, BEGAN + 9)
    assert (during.lineage[2].state, during.standing) == (State.WAITING, "running")
    assert (after.lineage[1].state, after.lineage[1].attempt, after.standing) == (State.WAITING, 1, "not finished")


def test_attempt_of_an_earlier_session(tmp_path: Path) -> None:
    """A trial started by an earlier session, but not yet by the active one, is WAITING."""
    records = write_search(tmp_path, "live", [trial(0)])
    records.start(replace(trial(0), attempt=1, slot=0), {"session": 0, "host": "far", "pid": 1, "time": BEGAN})
    lease = SearchLease(records)
    snapshot = read_snapshot(records.files, time.time())
    lease.close()

    assert snapshot.lineage[0].state == State.WAITING


def test_last_is_the_newest_activity(tmp_path: Path) -> None:
    """name=last is the search with the latest activity; what an aborted check left is no search and no warning."""
    (tmp_path / "_check" / "1f").mkdir(parents=True)
    write_search(tmp_path, "a", [], active=BEGAN + 5)
    write_search(tmp_path, "b", [], active=BEGAN + 9)
    write_search(tmp_path, "c", [], active=BEGAN + 1)

    found = find_searches(open_root(str(tmp_path)), BEGAN, pytest.fail)
    assert [search.name for search in found] == ["b", "a", "c"]


def test_winner(tmp_path: Path) -> None:
    """The best of the last stage wins, whatever the search stage's scores; a stopped trial never wins."""
    stopped: dict[str, Any] = {"state": State.STOPPED}
    trials = [
        trial(0, score=0.9),
        trial(1, score=0.99, **stopped),
        trial(2, parents=(0,), score=0.8, index=0, stage="final"),
    ]
    write_search(tmp_path, "done", trials)
    write_search(tmp_path, "begun", trials[:2])

    assert [read_snapshot(open_root(f"{tmp_path}/{name}"), BEGAN).winner for name in ("done", "begun")] == [
        trials[2],
        trials[0],
    ]


def test_nothing_heavy_is_imported() -> None:
    """Importing the command's module, as spawned workers do, loads neither pandas, rich, Hydra nor torch."""
    script = "import sys, flows.report; print([m for m in ('pandas', 'rich', 'hydra', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment())

    assert done.stdout == "[]\n"


def test_several_objectives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The table marks the front; below are its size, hypervolume and reference point."""
    metrics = (Metric("accuracy"), Metric("flops", "minimize", 9.0))
    scores = [(0.9, 5), (0.8, 2), (0.7, 4)]
    trials = [trial(n, score=a, metrics={"accuracy": a, "flops": f}) for n, (a, f) in enumerate(scores)]
    write_search(tmp_path, "two", trials, metrics=metrics)

    assert asked(tmp_path, "name=two", "format=csv") == 0
    table = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert table["front"].tolist() == [True, True, False]
    assert asked(tmp_path, "name=two") == 0
    printed = capsys.readouterr().out
    line = "front (search): 2 trials (0, 1), hypervolume 1.1 to accuracy 0.7 (the worst seen), flops 9 (given)"
    assert line in printed.splitlines()


def test_sliced_tensors_are_not_called_not_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tensors that are sliced may have inherited everything, so the report lists them as not copied whole."""
    parts = {"share": 1.0, "n_copied": 1, "n_sliced": 1, "not_copied": {"0.weight": "sliced: (4, 8) of (8, 8)"}}
    write_search(tmp_path, "s", [trial(0, score=0.5, inherited=1.0, donor=None, inheritance=parts)])
    assert asked(tmp_path, "name=s", "trial=0") == 0

    shown = capsys.readouterr().out
    assert "not copied whole (sliced, morphed or new)\n    0.weight: sliced: (4, 8) of (8, 8)\n" in shown
    assert "not_copied" not in shown
