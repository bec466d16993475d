"""``python -m flows.gc``: its output, and the files that it deletes and keeps."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from flows.cli.command import run_command
from flows.gc import gc
from flows.report import report
from nas.core.trial import State, Trial
from nas.search.host_process import HostProcess
from nas.search.lease import SearchLease
from nas.spaces.transformer import TransformerSpace
from nas.storage.open import open_root
from nas.storage.record_format import encode_record
from nas.storage.records import Records
from tests.support.commands import ROOT, TIMED, Command, environment, records, run, trials, until
from tests.support.sample_searches import write_search
from tests.support.stored_trials import all_files, real_checkpoint, trial

TUNER = {"target": "nas.tuners.evolution.EvolutionTuner", "arguments": {"population_size": 3, "sample_size": 1}}
KILLED = """
import itertools, os, runpy, signal, sys
left = itertools.count(int(sys.argv[1]), -1)
def watch(event, arguments):
    if event == "os.remove" and "/mine/" in str(arguments[0]) and next(left) == 0:
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(watch)
sys.argv[1:] = sys.argv[2:]
runpy.run_module("flows.gc", run_name="__main__")
"""

OWN_TUNER = """
from nas import ParameterSpace
from nas.tuners.random import RandomTuner
class Own(RandomTuner):
    def __init__(self, space, metrics, *, seed):
        super().__init__(space, metrics, seed=seed)
        if not isinstance(space, ParameterSpace):
            raise TypeError(type(space))
    def may_inherit_from(self, lineage):
        return [9] if self.space.n_points is None or self.space.n_points > 1 else []
    def ranked(self, lineage):
        return super().ranked(lineage)[::-1]
"""


def write(root: Path, *, name: str = "mine", n: int = 10, tuner: dict[str, Any] = TUNER, **identity: Any) -> Records:
    """Writes a finished search: a chain of ever better children, the first two with a shared pack, and a final."""
    stored, line = Records(open_root(f"{root}/{name}")), list[Trial]()
    for number in range(n):
        packs = line[0].checkpoint.packs if number == 1 and line[0].checkpoint else ()
        line.append(
            trial(
                number,
                parents=[number - 1] if number else [],
                score=number / 10,
                learned=(number - 1,) if number else (),
                checkpoint=real_checkpoint(stored.files, number, packs, size=10_000),
                donor=number - 1 if number else None,
            )
        )
    full = trial(
        n, parents=[n - 1], donors=(), score=0.95, stage="final", index=0, checkpoint=real_checkpoint(stored.files, n)
    )
    return write_search(root, name, [*line, full], identity={"tuner": tuner, **identity})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def clean(root: Path, *arguments: str, name: str = "mine") -> int:
    """Returns the status of the command within this process."""
    return run_command("gc", gc, [f"storage.root={root}", f"name={name}", *arguments])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def weights(search: Path) -> set[str]:
    folders = (search / kind for kind in ("packs", "manifests", "files"))
    return {str(p.relative_to(search)) for folder in folders for p in folder.rglob("*") if p.is_file()}


def named(stored: Records) -> set[str]:
    return {file.path for t in stored.load()[0] if t.checkpoint is not None for file in all_files(t.checkpoint)}


def rows(out: str) -> dict[str, list[str]]:
    """Returns files, bytes and reason of each row of the table, by row."""
    table = out.partition("\n\n")[0].splitlines()[1:]
    return {cells[0]: cells[1:] for cells in (re.split(r" {2,}", line.strip()) for line in table)}


class TestDryRun:
    def test_table_of_a_dry_run(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """It lists the weights to delete with files, bytes and reason, the total, and the kept weights with reasons."""
        write(root)
        before = contents(root)
        status = clean(root, "keep=best:1", "dry_run=true")
        out, err = capsys.readouterr()

        assert (status, err) == (0, "")
        assert rows(out) == {
            "weights of trial 0": ["3", "10.0 kB", "not kept by keep=best:1"],
            **{f"weights of trial {n}": ["3", "10.0 kB", "not kept by keep=best:1"] for n in range(1, 6)},
        }
        total = sum(map(len, before.values()))
        *_, freed, kept = out.strip().splitlines()
        assert freed == f"would free 60.0 kB in 18 files; {(total - 60_048) / 1000:.1f} kB would be left in {root}/mine"
        assert kept == "weights kept: 3 finalists and the best, 2 trials that the tuner may still inherit from"
        assert contents(root) == before

    def test_a_pack_that_others_need_stays(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A trial's row counts deleted files only; a pack that a waiting child names is not one."""
        stored = write(root)
        stored.propose(trial(11, index=10, parents=[1], state=State.WAITING, score=None))
        clean(root, "keep=best:1", "dry_run=true")
        out, _ = capsys.readouterr()

        assert rows(out)["weights of trial 0"][:2] == ["2", "8 B"]
        assert "weights of trial 1" not in rows(out)
        assert rows(out)["weights of trial 2"][:2] == ["3", "10.0 kB"]

    def test_orphans(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Files without a record are listed by path, but not files that may still be written."""
        search = root / "mine"
        stored = write(root, n=2)
        stored.propose(trial(3, index=2, state=State.WAITING, score=None))
        old = ("packs/.tmp-0123", "packs/000003-aa.safetensors", "best/000002-aa/model.safetensors")
        young = ("packs/.tmp-4567", "packs/000003-bb.safetensors")
        for name in (*old, *young, "packs/000001-lost.safetensors"):
            (search / name).parent.mkdir(parents=True, exist_ok=True)
            (search / name).write_bytes(b"x" * 7)
        for name in old:
            os.utime(search / name, (1e9, 1e9))
        clean(root, "dry_run=true")
        out, _ = capsys.readouterr()

        why = "not named by any record, left by a crashed writer"
        assert rows(out) == {
            "best/000002-aa/model.safetensors": ["1", "7 B", why],
            "packs/.tmp-0123": ["1", "7 B", "unfinished file of a crashed writer"],
            "packs/000003-aa.safetensors": ["1", "7 B", why],
            "packs/000001-lost.safetensors": ["1", "7 B", "left by an attempt of trial 1 that did not count"],
        }

    @pytest.mark.parametrize("age_s", [60, 300])
    def test_trials_of_a_killed_driver_go_on(self, root: Path, capsys: pytest.CaptureFixture[str], age_s: int) -> None:
        """On other machines they do for a minute after its last heartbeat, and may still name what they have saved."""
        stored = write(root, n=2)
        stored.propose(trial(3, index=2, state=State.WAITING, score=None))
        pack = root / "mine/packs/000003-aa.safetensors"
        pack.write_bytes(b"saved")
        now = time.time()
        os.utime(pack, (now - 400, now - 400))
        gone = {**asdict(HostProcess.current()), "pid": 2**22}
        session = {"session": 1, **gone, "started": now - 900, "flow_run": None, "settings": {}}
        stored.publish("sessions/0001.json", session)
        beat = {"count": 9, "time": now - age_s, "hours": 0.1, "ended": False, "stopping": False, "complete": False}
        stored.files.replace("sessions/0001.beat", encode_record(beat))
        clean(root, "dry_run=true")
        out, _ = capsys.readouterr()

        assert ("packs/000003-aa.safetensors" in rows(out)) == (age_s == 300)


class TestCollection:
    def test_it_deletes_the_rows_of_the_dry_run(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """It prints the same rows; those weights are gone, others are readable, and all records stay."""
        stored = write(root)
        before = contents(root)
        clean(root, "keep=best:1", "dry_run=true")
        shown, _ = capsys.readouterr()
        status = clean(root, "keep=best:1")
        done, err = capsys.readouterr()

        assert (status, err) == (0, "")
        assert rows(done) == rows(shown)
        assert "freed 60.0 kB in 18 files;" in done
        after = contents(root)
        kept = {path: data for path, data in before.items() if path in after}
        assert len(before) - len(kept) == 18
        assert all(after[path] == data for path, data in kept.items())
        assert weights(root / "mine") == named(stored)
        assert [t.number for t in trials(root / "mine") if t.weights_deleted] == list(range(6))
        assert (records(root / "mine").read("gc/0001.json") or {})["trials"].keys() == {str(n) for n in range(6)}

    def test_again_finds_nothing(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A second collection deletes nothing, and prints what is left."""
        write(root)
        clean(root, "keep=best:1")
        clean(root, "keep=best:1", name="last")
        out, _ = capsys.readouterr()

        assert re.search(r"^nothing to delete; [\d.]+ kB left in ", out, re.MULTILINE)

    def test_by_default_all_weights_stay(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Without a plan only orphans are deleted, and the tuner is not built."""
        stored = write(root, tuner={"target": "nowhere.Tuner", "arguments": {}})
        (root / "mine/packs/000001-lost.safetensors").write_bytes(b"lost")
        status = clean(root)
        out, err = capsys.readouterr()

        assert (status, err) == (0, "")
        assert "packs/000001-lost.safetensors" in out
        assert weights(root / "mine") == named(stored)
        assert not records(root / "mine").weights_deleted()

    def test_the_plan_of_the_storage_applies(self, root: Path) -> None:
        """storage.keep is the plan if keep is not set."""
        write(root)
        clean(root, "storage.keep=best:1", "keep=all")
        assert not records(root / "mine").weights_deleted()
        clean(root, "storage.keep=best:1")

        assert records(root / "mine").weights_deleted() == set(range(6))

    def test_a_disk_budget(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """storage.max_gb deletes the worst first; if needed weights exceed it, one line says so."""
        write(root)
        status = clean(root, "storage.max_gb=0.0003")
        err = capsys.readouterr().err

        assert (status, err) == (0, "")
        weights_deleted = records(root / "mine").weights_deleted()
        assert 0 < len(weights_deleted) < 6
        assert weights_deleted == set(range(len(weights_deleted)))
        assert clean(root, "storage.max_gb=0.0001") == 0
        err = capsys.readouterr().err
        assert re.fullmatch(r"heirloom: storage.max_gb=0.0001 is exceeded: .*\n", err)
        assert records(root / "mine").weights_deleted() == set(range(6))

    def test_a_tuner_that_is_not_loaded_keeps_everything(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A class that only the record names is not loaded; then all trials are kept, with a message."""
        write(root, tuner={"target": "elsewhere.Tuner", "arguments": {}})
        status = clean(root, "keep=best:1")
        out, err = capsys.readouterr()

        assert status == 0
        assert "no weights that the tuner may inherit are deleted, since it can't be built: " in err
        assert "add tuner._target_=elsewhere.Tuner or trust=true" in err
        assert "nothing to delete" in out

    def test_segments_of_a_grown_network_are_deleted(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A tuner of transformers is built from the record of its space, without the problem."""
        tuner = {"target": "nas.tuners.autogrow.AutoGrowTuner", "arguments": {}}
        write(root, tuner=tuner, space=TransformerSpace().to_json())
        status = clean(root, "keep=best:1", "dry_run=true")
        out, err = capsys.readouterr()

        assert (status, err) == (0, "")
        assert {row for row in rows(out) if row.startswith("weights of trial")} == {
            f"weights of trial {number}" for number in range(8)
        }

    def test_a_trial_that_goes_on_is_not_the_tuners(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """In a plan of one stage, no member of pbt has a trial of ``more_epochs``, so its weights need not stay."""
        files = open_root(f"{root}/mine")
        first = trial(0, score=0.5, checkpoint=real_checkpoint(files, 0))
        further = trial(1, index=0, parents=[0], score=0.4, more_epochs=5, checkpoint=real_checkpoint(files, 1))
        first = replace(first, proposal=replace(first.proposal, derivation={"member": 0, "interval": 0}))
        identity = {
            "tuner": {"target": "nas.tuners.pbt.PbtTuner", "arguments": {}},
            "policy": [{"name": "search", "policies": ["SHARE_PARAMS"], "warm": False}],
        }
        write_search(root, "mine", [first, further], identity=identity)
        status = clean(root, "keep=best:1", "finalists=1", "dry_run=true")
        out, err = capsys.readouterr()

        assert (status, err) == (0, "")
        assert list(rows(out)) == ["weights of trial 1"]
        assert out.endswith("\nweights kept: 1 finalists and the best\n")

    def test_own_tuner_reads_the_space(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A tuner outside Heirloom gets the problem's space, and the finalists are those of its order."""
        (tmp_path / "own_gc_tuner.py").write_text(OWN_TUNER)
        monkeypatch.syspath_prepend(tmp_path)
        write(root, tuner={"target": "own_gc_tuner.Own", "arguments": {}})
        status = clean(root, "keep=best:1", "dry_run=true", "tuner._target_=own_gc_tuner.Own")
        out, err = capsys.readouterr()

        assert (status, err) == (0, "")
        assert {row for row in rows(out) if row.startswith("weights of trial")} == {
            f"weights of trial {number}" for number in range(2, 9)
        }

    def test_a_tuner_that_cant_rank_keeps_everything(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """An error of its code is told in one line."""
        (tmp_path / "broken_gc_tuner.py").write_text(OWN_TUNER.replace("return super().ranked", "raise KeyError"))
        monkeypatch.syspath_prepend(tmp_path)
        write(root, tuner={"target": "broken_gc_tuner.Own", "arguments": {}})
        status = clean(root, "keep=best:1", "tuner._target_=broken_gc_tuner.Own")
        out, err = capsys.readouterr()

        assert status == 0
        assert err.count("\n") == 1
        assert "no weights of the search stage are deleted, as the tuner can't rank them: " in err
        assert "nothing to delete" in out

    def test_finalists_are_those_of_the_last_session(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The number of finalists comes from the last session or the command."""
        stored = write(root, n=10)
        SearchLease(stored, settings={"finalists": 6}).close()
        clean(root, "keep=best:1", "dry_run=true")
        clean(root, "keep=best:1", "dry_run=true", "finalists=1")
        out, _ = capsys.readouterr()

        assert [line for line in out.splitlines() if line.startswith("weights kept: ")] == [
            "weights kept: 7 finalists and the best",
            "weights kept: 2 finalists and the best, 3 trials that the tuner may still inherit from",
        ]

    def test_report_marks_deleted_weights(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A trial with deleted weights has no checkpoint bytes and is marked in json, in the table and alone."""
        write(root)
        clean(root, "keep=best:1")
        capsys.readouterr()
        run_command("report", report, [f"storage.root={root}", "name=mine", "format=json"])
        table = json.loads(capsys.readouterr().out)
        run_command("report", report, [f"storage.root={root}", "name=mine"])
        shown = capsys.readouterr().out
        run_command("report", report, [f"storage.root={root}", "name=mine", "trial=3"])
        alone = capsys.readouterr().out

        assert [row["weights_deleted"] for row in table] == [True] * 6 + [False] * 5
        assert [row["checkpoint_bytes"] is None for row in table] == [True] * 6 + [False] * 5
        assert shown.count(" weights_deleted ") == 1  # the head
        assert shown.count(" deleted ") == 6
        assert re.search(r"^  weights_deleted +deleted$", alone, re.MULTILINE)


class TestLiveDriver:
    def test_only_the_driver_deletes(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """While a session is active the command prints the dry run, names the driver, exits 2 and changes nothing."""
        stored = write(root)
        stored.propose(trial(11, index=10, parents=[2], state=State.WAITING, score=None))
        (root / "mine/packs/000011-aa.safetensors").write_bytes(b"of a trial that runs")
        os.utime(root / "mine/packs/000011-aa.safetensors", (1e9, 1e9))
        lease = SearchLease(stored)
        try:
            before = contents(root)
            status = clean(root, "keep=best:1")
            out, err = capsys.readouterr()
            assert contents(root) == before
        finally:
            lease.close()

        assert status == 2
        assert set(rows(out)) == {f"weights of trial {n}" for n in (0, 1, 3, 4, 5)}
        assert "would free" in out
        assert re.fullmatch(
            rf"heirloom: nothing was deleted: the search in \S+ is driven by pid {os.getpid()} on \S+ "
            r"\(last heartbeat \d+ s ago\)\. While a search runs, only its driver deletes weights\. "
            r"It uses the options storage\.keep and storage\.max_gb\.\n",
            err,
        )

    def test_a_dry_run_of_a_running_search(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A dry run of a running search exits 0."""
        lease = SearchLease(write(root))
        try:
            assert clean(root, "keep=best:1", "dry_run=true") == 0
        finally:
            lease.close()
        assert capsys.readouterr().err == ""

    @pytest.mark.slow
    def test_a_real_search_is_left_alone(self, here: Path) -> None:
        """flows.gc beside a running search exits 2 and deletes nothing; a later one succeeds."""
        command = (*TIMED, "runner=debug", "name=mine", "budget.trials=99", "finalists=1", f"problem.hold={here}")
        (here / "1").touch()
        with Command(here, *command, forked=True) as driver:
            until(lambda: len(list(here.glob("heirloom/mine/trials/*.result.json"))) == 1, what="a result")
            before = weights(here / "heirloom/mine")
            done = run(here, "name=mine", "keep=last:1", module="flows.gc")
            assert weights(here / "heirloom/mine") >= before
            driver.kill()
        after = run(here, "name=mine", "keep=last:1", module="flows.gc")

        assert done.status == 2
        assert f"driven by pid {driver.process.pid} on" in done.err
        assert after.status == 0


MISTAKES = {
    "no_name": (("name=null",), r"no name: add name=N, or name=last\."),
    "unknown_search": (("name=nope",), r"no search nope among 1 under"),
    "unknown_plan": (("keep=some",), r"keep=some: must be all, frontier, best:K or last:K"),
    "impossible_budget": (("storage.max_gb=-1",), r"storage\.max_gb=-1: must be a number of gigabytes"),
    "no_switch": (("dry_run=maybe",), r"dry_run='maybe': must be true or false"),
    "unknown_key": (("keeep=all",), r"unknown key keeep; did you mean keep\?"),
    "in_memory": (("storage=memory", "storage.root=memory://x"), "exists in the searching process only"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes(root: Path, capsys: pytest.CaptureFixture[str], mistake: str) -> None:
    """A mistake is one line and status 2, and no file changes."""
    write(root, n=1)
    before = contents(root)
    arguments, line = MISTAKES[mistake]
    status = clean(root, *arguments)
    out, err = capsys.readouterr()

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert re.search(line, err)
    assert contents(root) == before


@pytest.mark.slow
@pytest.mark.parametrize("n_deletes", [0, 1, 7, 19])
def test_a_killed_command_is_finished_by_the_next(root: Path, n_deletes: int) -> None:
    """After kill -9 before a delete all remaining weights are whole, and the next command deletes the rest."""
    stored = write(root)
    arguments = (f"storage.root={root}", "name=mine", "keep=best:1")
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(n_deletes), *arguments], env=environment(), cwd=ROOT, capture_output=True
    )
    assert killed.returncode == -9, killed.stderr
    for file in (f for t in stored.load()[0] if t.checkpoint is not None for f in all_files(t.checkpoint)):
        stored.files.read(file)
    for unfinished in (root / "mine").rglob(".tmp-*"):
        os.utime(unfinished, (1e9, 1e9))  # a minute later
    done = run(root, *arguments, module="flows.gc")

    assert done.status == 0, done.err
    assert records(root / "mine").weights_deleted() == set(range(6))
    assert weights(root / "mine") == named(stored)
    assert not list((root / "mine").rglob(".tmp-*"))


class Watch(threading.Thread):
    """Measures the bytes of a folder on disk repeatedly.

    Files that are gone after a look do not count: others, which the look found, may have taken their room.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = folder
        self.most = 0
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.003):
            found = {}
            for path in self.folder.rglob("*"):
                with contextlib.suppress(FileNotFoundError):
                    found[path] = path.lstat().st_blocks * 512 if path.is_file() else 0
            self.most = max(self.most, sum(size for path, size in found.items() if path.exists()))


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["debug", "threads"])
def test_a_running_search_stays_under_its_budget(here: Path, api_url: str, runner: str) -> None:
    """The folder never exceeds storage.max_gb, although the trials write twice that, and needed weights are whole."""
    watch = Watch(here / "heirloom")
    watch.start()
    done = run(
        here,
        *("+tuner=evolution", "tuner.population_size=3", "tuner.sample_size=2", *TIMED[1:], "problem.weights=100000"),
        *("name=mine", f"runner={runner}", f"slots={1 if runner == 'debug' else 2}", "budget.trials=40"),
        "storage.max_gb=0.008",
        PREFECT_API_URL=api_url,
    )
    watch.done.set()
    watch.join()
    found = trials(here / "heirloom/mine")
    stored = records(here / "heirloom/mine")

    assert done.status == 0, done.err
    assert 5_000_000 < watch.most < 8_000_000
    assert sum(trial.weights_deleted for trial in found) > 20
    assert all(t.inheritance.get("replaced") is None for t in found)
    for file in (f for t in found if t.checkpoint is not None for f in all_files(t.checkpoint)):
        stored.files.read(file)
    assert "deleted the weights of" in done.err
    assert "is exceeded" not in done.err


@pytest.mark.slow
def test_an_exceeded_budget_is_reported_once(here: Path) -> None:
    """A search that needs more than its disk budget says so in one line and continues to its end."""
    done = run(here, *TIMED, "runner=debug", "budget.trials=6", "storage.max_gb=0.00001", "name=mine")

    assert done.status == 0
    assert done.err.count("storage.max_gb=1e-05 is exceeded") == 1


@pytest.mark.slow
def test_collections_and_a_kill_change_nothing(here: Path, api_url: str) -> None:
    """With deterministic=true deleted weights and a kill do not change the results of a search."""
    command = (
        *("+tuner=evolution", "tuner.population_size=3", "tuner.sample_size=2", *TIMED[1:], "problem.seconds=0.3"),
        *("deterministic=true", "slots=2", "runner=processes", "budget.trials=16"),
    )
    collecting = ("storage.keep=last:1", "storage.max_gb=0.0001", "name=collecting")
    with Command(here, *command, *collecting, forked=True, PREFECT_API_URL=api_url) as killed:
        until(lambda: len(list(here.glob("heirloom/collecting/trials/*.result.json"))) >= 7, what="seven results")
        killed.kill()
    again = run(here, *command, *collecting, PREFECT_API_URL=api_url)
    calm = run(here, *command, "name=calm", PREFECT_API_URL=api_url)

    assert again.status == calm.status == 0, again.err
    weights_deleted = trials(here / "heirloom/collecting")
    assert sum(trial.weights_deleted for trial in weights_deleted) >= 8
    tables = [
        [
            (t.number, t.point, t.parents, t.donor, t.inherited, t.state, t.metrics, t.curve, t.inheritance, t.learned)
            for t in found
        ]
        for found in (weights_deleted, trials(here / "heirloom/calm"))
    ]
    assert tables[0] == tables[1]


def test_a_disk_without_any_room_says_how_to_begin(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a full disk the error names the space that a collection needs, and with that space it succeeds."""
    root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", root], capture_output=True).returncode:
        pytest.skip("mounting needs root")
    try:
        write(root)
        filling = root / "filling"
        with contextlib.suppress(OSError), filling.open("wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        errors, filled = [], filling.stat().st_size
        while clean(root, "keep=best:1"):
            errors.append(capsys.readouterr().err)
            pages = 1 + len(errors)  # a failed one leaves a record, so the next gets further
            os.truncate(filling, filling.stat().st_size - 4_096 * pages)
        out, freed = capsys.readouterr().out, filled - filling.stat().st_size
    finally:
        subprocess.run(["umount", "--lazy", root], capture_output=True)

    assert len(errors) > 1
    assert freed <= 65_536
    assert all("the disk is full" in error and "Free 64 kB and run it again." in error for error in errors), errors
    assert "freed" in out
