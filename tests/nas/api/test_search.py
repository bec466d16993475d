"""Searches from Python: the forms of their parts, their slots, and mistakes."""

from __future__ import annotations

import errno
import io
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast
from uuid import uuid4

import pytest
import torch
from safetensors.torch import save_file

from nas import (
    Budget,
    Callback,
    Choice,
    Int,
    Metric,
    ParameterSpace,
    Problem,
    Results,
    Retention,
    Search,
    Spec,
    TrialRun,
    load,
    run_search,
)
from nas.core.budget import AtDeadline
from nas.core.errors import ConfigurationError, SearchFailedError, SearchInterruptedError, StorageError
from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.spec import spec_of
from nas.search.lease import SearchLease
from nas.search.search_init import SearchInit
from nas.search.session import ONLY_AT_REPORTS, Runner
from nas.stoppers.median import MedianStopper
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.sessions import past_sessions, read_heartbeat
from nas.tuners.evolution import EvolutionTuner
from nas.tuners.grid import GridTuner
from nas.tuners.random import RandomTuner
from tests.support.commands import until
from tests.support.problems import InOrderTuner, PlainProblem, ScoreProblem

ROOT = Path(__file__).parents[3]
SCRIPT = """
import os
import nas
from nas.tuners.random import RandomTuner


class Pid(nas.Problem):
    metrics = (nas.Metric("score"),)
    space = nas.ParameterSpace({"x": nas.Int(0, 9)})

    def __init__(self, offset=0):
        self.offset = offset
        self.data = {"pid": os.getpid()}

    def train(self, run):
        return {"score": run.point["x"] + self.offset, "is_elsewhere": float(self.data["pid"] != os.getpid())}
"""
CALL = 'print(nas.run_search(PROBLEM, tuner=RandomTuner, budget=4, slots=2, name="s").to_frame().to_json())'


class Untidy(Problem):
    """Scores whether settings of torch are the defaults; if it fails, it changes them."""

    metrics = (Metric("score"),)
    space = ParameterSpace({"x": Int(0, 99)})

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def train(self, run: TrialRun) -> Mapping[str, float]:
        if self.fails:
            torch.set_default_dtype(torch.float64)
            torch.set_float32_matmul_precision("medium")
            raise RuntimeError("as told")
        has_defaults = (torch.get_default_dtype(), torch.get_float32_matmul_precision()) == (torch.float32, "highest")
        return {"score": float(has_defaults)}


class Scaled(Problem):
    """Scores ``x`` times a factor, and counts its trainings."""

    metrics = (Metric("score"),)
    space = ParameterSpace({"x": Int(0, 99)})

    def __init__(self, factor: int = 1) -> None:
        self.factor = factor
        self.n_trained = 0

    def train(self, run: TrialRun) -> Mapping[str, float]:
        self.n_trained += 1
        return {"score": self.factor * run.point["x"]}


class Endless(Scaled):
    """Reports until it is stopped."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        for step in range(2_000):
            run.report(step, score=0.0)
            threading.Event().wait(0.01)
        return super().train(run)


class Counting(Scaled):
    """Describes itself by a number."""

    about = cast("Mapping[str, str]", {"rows": 5})


SEARCH = Search(problem=Spec.of(Scaled), tuner=Spec.of(RandomTuner))


class Popping(Scaled):
    """Changes its argument, and has data."""

    data_arguments = frozenset({"table", "path"})

    def __init__(self, sizes: list[int], options: dict[str, list[int]], table: object, path: Path) -> None:
        super().__init__(sizes.pop() + options["more"].pop())


class Table:
    """Large data."""


class Locked(Scaled):
    """Can't be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Nameless(PlainProblem):
    """Its arguments have no names."""

    def __init__(self, *depths: int) -> None:
        self.depths = depths


class Lazy(Scaled):
    """Has names of its own for data, and fills in an argument later."""

    def __init__(self, factor: int = 1, limit: float = float("nan"), size: int | None = None) -> None:
        super().__init__(factor)
        self.limit, self.size = limit, size

    @property
    def _arguments(self) -> str:
        raise LookupError

    def _built(self) -> int:
        return self.factor

    def train(self, run: TrialRun) -> Mapping[str, float]:
        self.size = self._built()
        return super().train(run)


def changed(problem: Problem, **attributes: object) -> Problem:
    """Returns a problem whose attributes were changed after its construction."""
    for name, value in attributes.items():
        setattr(problem, name, value)
    return problem


def memory() -> str:
    return f"memory://{uuid4().hex}"


def script(folder: Path, call: str) -> subprocess.CompletedProcess[str]:
    """Runs a script that defines its problem itself."""
    (folder / "script.py").write_text(f"{SCRIPT}\n\n{call}\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "script.py"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)


class Forking(Problem):
    """Forks a child that leaves ``train`` in one of five ways; the score is the child's exit status."""

    metrics = (Metric("status"),)
    space = ParameterSpace({"leaves_by": Choice("return", "exit", "exit 3", "error", "error, closed output")})

    def train(self, run: TrialRun) -> Mapping[str, float]:
        if (child := os.fork()) == 0:
            match run.point["leaves_by"]:
                case "exit":
                    sys.exit()
                case "exit 3":
                    sys.exit(3)
                case "error":
                    raise RuntimeError("in the child")
                case "error, closed output":
                    sys.stderr.close()
                    raise RuntimeError("in the child")
            return {"status": 9.0}
        return {"status": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}


class Random(Problem):
    """Scores a random number."""

    metrics = (Metric("score"),)
    policies = frozenset({Policy.SHARE_PARAMS})
    space = ParameterSpace({"x": Int(0, 99)})

    def train(self, run: TrialRun) -> Mapping[str, float]:
        run.inherit(torch.nn.Linear(1, 1))
        return {"score": float(torch.rand(1))}


def test_search_that_was_taken_over_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older driver stops its trial, which a newer one repeats, and names the newer one."""
    monkeypatch.setattr("nas.search.lease.HEARTBEAT_S", 0.02)
    records = Records(open_root(str(tmp_path)).subfolder("s"))
    with ThreadPoolExecutor(1) as thread:
        older = thread.submit(run_search, Endless, tuner=RandomTuner, budget=1, root=tmp_path, name="s")
        until(lambda: records.read_start(0, 1) is not None)
        SearchLease(records, takeover=True).close()

        with pytest.raises(SearchInterruptedError, match=r"session 2 on .* took the search over"):
            older.result(timeout=120)
    assert [trial.number for trial in records.unfinished()] == [0]


def test_search_that_was_taken_over_at_its_start_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that learns of a newer one while its session begins exports nothing."""
    monkeypatch.setattr("nas.search.lease.HEARTBEAT_S", 0.02)
    root, told = memory(), threading.Event()
    records = Records(open_root(root).subfolder("s"))
    acquire = SearchLease._acquire

    def acquire_and_lose(lease: SearchLease, record: dict[str, Any], *more: Any) -> None:
        stop = lease._on_takeover

        def tell(message: str) -> None:
            stop(message)
            told.set()

        lease._on_takeover = tell
        acquire(lease, record, *more)
        records.publish("sessions/0002.json", {**record, "session": 2})
        assert told.wait(60)

    monkeypatch.setattr(SearchLease, "_acquire", acquire_and_lose)

    with pytest.raises(SearchInterruptedError, match=r"session 2 on .* took the search over"):
        run_search(Scaled, tuner=RandomTuner, budget=1, root=root, name="s")
    assert records.read("best-0001.json") is None


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("runner", ["debug", pytest.param("processes", marks=pytest.mark.slow)])
def test_a_forked_child_gives_no_result(runner: Runner, tmp_path: Path) -> None:
    """A child that leaves the problem's code ends as elsewhere; the trial has its parent's result."""
    found = run_search(Forking, tuner=GridTuner, root=str(tmp_path), runner=runner, budget=5, finalists=1)

    status_by_way = {t.point["leaves_by"]: t.metrics["status"] for t in found.lineage if t.stage == "search"}
    assert status_by_way == {"return": 0, "exit": 0, "exit 3": 3, "error": 1, "error, closed output": 1}


@pytest.mark.parametrize("has_weights", [False, True])
def test_the_callers_random_numbers_go_on(n_threads: int, tmp_path: Path, has_weights: bool) -> None:
    """A search in this process leaves random generators and the number of torch threads as they were."""
    save_file({"weight": torch.ones(2)}, tmp_path / "w.safetensors")
    init = SearchInit.read(None, str(tmp_path / "w.safetensors") if has_weights else None)
    torch.manual_seed(1)
    expected = torch.rand(2).tolist()
    torch.manual_seed(1)
    torch.set_num_threads(n_threads + 1)
    drawn = []
    for name in ("a", "b"):
        search = Search(problem=Spec.of(Random), tuner=Spec.of(RandomTuner), init=init)
        run_search(search, root=str(tmp_path / name), budget=1, finalists=1)
        drawn.append(torch.rand(1).item())

    assert drawn == expected
    assert torch.get_num_threads() == n_threads + 1


def test_a_finished_search_is_read_from_a_root_that_is_read_only(tmp_path: Path) -> None:
    """The same call returns the results, and more trials are refused."""
    root = tmp_path / "root"
    root.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", root], capture_output=True).returncode:
        pytest.skip("mounting needs root")

    def searched(n_trials: int) -> int:
        return len(run_search(ScoreProblem, tuner=RandomTuner, root=root, name="s", budget=n_trials).lineage)

    try:
        n_trials = searched(2)
        subprocess.run(["mount", "-o", "remount,ro", root], check=True)
        assert searched(2) == n_trials
        with pytest.raises(ConfigurationError, match=r"can't be used: .*Read-only file system"):
            searched(3)
    finally:
        subprocess.run(["umount", "--lazy", root], check=True)


@pytest.fixture
def n_threads() -> Iterator[int]:
    n = torch.get_num_threads()
    yield n
    torch.set_num_threads(n)


def test_parts_are_classes_paths_or_specs() -> None:
    """The same search is described by classes, by dotted paths, by specs and by a ``Search``."""
    root, path = memory(), "nas.tuners.random.RandomTuner"
    found = [
        run_search(Scaled, tuner=RandomTuner, root=root, budget=3),
        run_search(Spec.of(Scaled), tuner=path, root=root, budget=3),
        run_search(SEARCH, root=root, budget=3),
        run_search(Search(problem=Scaled, tuner=path), root=root, budget=3),  # type: ignore[arg-type]
    ]

    assert len({results.name for results in found}) == 1
    assert [len(results.lineage) for results in found] == [3] * 4


@pytest.mark.parametrize("is_whole", [True, False])
def test_instance_trains_itself(is_whole: bool) -> None:
    """An instance is used as it is, and its arguments are in the identity; a ``Search`` takes it, too."""
    problem, root = Scaled(factor=2), memory()
    whole: Any = {"problem": problem, "tuner": RandomTuner, "stopper": MedianStopper}
    given: Any = (Search(**whole), None) if is_whole else (problem, RandomTuner)
    results = run_search(given[0], tuner=given[1], root=root, budget=3)

    assert problem.n_trained == 3
    assert all(trial.metrics["score"] == 2 * trial.point["x"] for trial in results.lineage)
    with pytest.raises(ConfigurationError, match=r"problem\.arguments\.factor: 2 there, 3 here"):
        run_search(Scaled(factor=3), tuner=RandomTuner, root=root, name=results.name, budget=3)


def test_policies_that_a_plan_loses_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """A plan of the user's own does not lose a policy in silence; the default plan is for any problem."""
    plan = PolicyPlan((Stage(name="search", policies=frozenset({Policy.QUICK_EVAL})), Stage(name="final")))
    run_search(SEARCH, root=memory(), budget=1)
    run_search(replace(SEARCH, plan=plan), root=memory(), budget=1)

    skipped = [text for text in caplog.messages if "policies skipped" in text]
    assert skipped == ["policies skipped, not declared by the problem: QUICK_EVAL"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problem": 1}, r"problem=1: must be a subclass of nas\.Problem"),
        ({"tuner": None}, r"tuner=None: must be a subclass of nas\.Tuner"),
        ({"stopper": RandomTuner}, r"stopper=<class .*: must be a subclass of nas\.Stopper"),
        (
            {"stopper": MedianStopper(Scaled.metrics)},
            r"its arguments must be known\. Pass nas\.Spec\.of\(MedianStopper",
        ),
        ({"plan": "full"}, r"plan='full': must be a nas\.core\.policy\.PolicyPlan\. Write plan=PolicyPlan\."),
        ({"init": [{"x": 1}]}, r"init=\[\{'x': 1\}\]: must be a nas\.search\.search_init\.SearchInit\. Write init=Sea"),
    ],
)
def test_mistakes_in_a_search(changes: dict[str, Any], message: str) -> None:
    """A part of another kind is refused when the ``Search`` is made."""
    with pytest.raises(ConfigurationError, match=message):
        replace(SEARCH, **changes)


def test_tuner_instance_gives_the_seed() -> None:
    """A tuner's instance proposes what its class proposes with the same arguments and seed."""
    tuner = EvolutionTuner(Scaled.space, Scaled.metrics, seed=5, population_size=4)
    search = Search(problem=Spec.of(Scaled), tuner=Spec.of(EvolutionTuner, population_size=4), seed=5)
    given = run_search(Scaled, tuner=tuner, root=memory(), budget=6)
    named = run_search(search, root=memory(), budget=6)

    assert [trial.point for trial in given.lineage] == [trial.point for trial in named.lineage]


@pytest.mark.parametrize("seed", [-1, 2**70])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    """Negative and large seeds are recorded, and the search is read again."""
    root = memory()
    run_search(replace(SEARCH, seed=seed), root=root, name="s", budget=1)

    assert load("s", root).lineage[0].metrics["score"] >= 0


def test_threads_run_beside_one_another() -> None:
    """With ``runner="threads"`` two trials of a class that no worker could import train at a time."""
    meeting = threading.Barrier(2, timeout=60)

    class Meets(PlainProblem):
        def train(self, run: TrialRun) -> Mapping[str, float]:
            meeting.wait()
            return {"score": 1.0}

    results = run_search(Meets, tuner=RandomTuner, root=memory(), budget=2, slots=2, runner="threads")

    assert {trial.slot for trial in results.lineage} == {0, 1}


@pytest.mark.slow
def test_script_with_its_own_problem_runs_on_workers(tmp_path: Path) -> None:
    """Workers train an instance of a script's own class, with what it holds; without the guard a line says so."""
    guarded = script(tmp_path, f'if __name__ == "__main__":\n    {CALL.replace("PROBLEM", "Pid(offset=7)")}')
    table = load("s", str(tmp_path / "heirloom")).to_frame()
    open_call = script(tmp_path, CALL.replace("PROBLEM", "Pid").replace('"s"', '"t"'))

    assert guarded.returncode == 0, guarded.stderr
    assert (table["metric.score"] == table["point.x"] + 7).all()
    assert (table["metric.is_elsewhere"] == 1).all()
    assert 'must call run_search below `if __name__ == "__main__":`' in open_call.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("problem", "more", "message"),
    [
        (lambda: 1, {}, r"problem=<function .*: must be a subclass of nas\.Problem, an instance of one, or its dotted"),
        (Scaled, {"tuner": None}, "tuner=None: must be a class, an instance or a dotted path"),
        (Scaled, {"tuner": "evolution"}, r'tuner=evolution: .*such as "nas\.tuners\.evolution\.EvolutionTuner"'),
        (Scaled, {"tuner": Scaled}, r"tuner=<class .*Scaled'>: must be a subclass of nas\.Tuner"),
        (
            Nameless(3),
            {},
            r"problem=Nameless\(\.\.\.\): its arguments must be known\. Pass nas\.Spec\.of",
        ),
        (Locked(), {"slots": 2, "root": "."}, "slots=2: needs a problem that can be pickled, but Locked can't: .*lock"),
        (Scaled, {"slots": 0}, "slots=0: must be a whole number of at least 1"),
        (Scaled, {"slots": 2}, 'root=memory:.*: exists in this process only.*or pass runner="threads"'),
        (Scaled, {"slots": 2, "runner": "debug"}, "slots=2: must be 1 with runner=debug"),
        (Scaled, {"runner": "dask"}, "runner='dask': must be debug, threads or processes"),
        (Scaled, {"budget": 0}, "budget=0: must be a whole number of at least 1"),
        (Scaled, {"callbacks": [1]}, r"callbacks: 1: must be an instance of nas\.Callback"),
        (Scaled, {"callbacks": Callback()}, r"callbacks=<.*>: must be a list\. Write callbacks=\[\.\.\.\]"),
        (Scaled, {"name": "last"}, "name=last: must be another name, since last stands for the newest search"),
        (Scaled(float("nan")), {}, "problem.factor=nan: must be a finite number"),  # type: ignore[arg-type]
        (Scaled, {"name": 12}, "name=12: must be 1 to 200 letters"),
        (Scaled, {"root": 5}, "storage.root=5: must be a folder or a URL, as text"),
        (Scaled, {"retention": "best:1"}, r"retention='best:1': must be a nas\.Retention"),
        (Scaled, {"name": "a/b"}, "name='a/b': must be 1 to 200 letters.* Choose another name"),
        (Scaled, {"log_dir": 5.5}, "log_dir=5.5: must be a local folder, as text"),
        (Scaled, {"log_dir": ""}, "log_dir=: must be a local folder"),
        (Scaled, {"log_dir": "s3://me:s3cret@b/runs"}, r"log_dir=s3://me:\*\*\*@b/runs: .* Loggers write no URLs"),
        (Scaled, {"log_dir": Path("s3://b/runs")}, "log_dir=s3:/b/runs: must be a local folder"),
        (Scaled, {"root": "a\0b"}, r"storage.root='a\\x00b': must name a folder"),
        (Scaled, {"name": ""}, "name=''"),
        (Scaled, {"code": "change"}, "code='change': must be changed, to go on with other code"),
        (changed(Scaled(2), factor=5), {}, r"problem=Scaled\(\.\.\.\): factor must not .* Pass Scaled\(factor=5, "),
        (SEARCH, {}, "tuner=.*must not be given with a Search"),
        (Scaled, {"tuner": RandomTuner(PlainProblem.space, Scaled.metrics)}, None),
        (Scaled, {"tuner": RandomTuner(ParameterSpace({"y": Int(0, 1)}), Scaled.metrics)}, "have the problem's space"),
        (
            Scaled,
            {"tuner": RandomTuner(Scaled.space, Scaled.metrics, seed=cast("int", 3.0))},
            r"seed=3\.0: .* Write 3$",
        ),
        (Counting, {}, r"the search can't be recorded: about\[.*: must be `str`, not `int`"),
    ],
)
def test_mistakes(
    problem: Any, more: dict[str, Any], message: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each mistake gives one line with the remedy; an equal space of another object is none."""
    monkeypatch.chdir(tmp_path)
    arguments = {"tuner": RandomTuner, "root": memory(), "budget": 1, **more}
    if message is None:
        assert len(run_search(problem, **arguments).lineage) == 1
        return
    with pytest.raises(ConfigurationError, match=message) as caught:
        run_search(problem, **arguments)

    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("search.json"))  # nothing is written


@pytest.mark.parametrize("runner", ["debug", "threads"])
def test_a_search_leaves_no_settings_of_torch(runner: Runner) -> None:
    """After a failed search, too, the next begins as in a new process; the caller's mode without gradients stays."""
    with torch.no_grad():
        run_search(Untidy(fails=True), tuner=RandomTuner, root=memory(), budget=1, runner=runner)
        has_gradients = torch.is_grad_enabled()
    [trial] = run_search(Untidy, tuner=RandomTuner, root=memory(), budget=1, runner=runner).lineage

    assert trial.metrics == {"score": 1.0}
    assert not has_gradients


def test_a_class_with_names_of_its_own_is_used_twice() -> None:
    """Private names do not clash with Heirloom's; NaN and what was None are not taken for changes."""
    problem = Lazy(3)

    assert [len(run_search(problem, tuner=RandomTuner, root=memory(), budget=2).lineage) for _ in range(2)] == [2, 2]


def test_log_dir_is_outside_the_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loggers' files may not lie in the search's folder; the default may be the root if there is no logger."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    inside: list[dict[str, Any]] = [{"root": "a", "log_dir": folder} for folder in ("a", "a/s", "~/a")]
    for more in [*inside, {"callbacks": [Callback()]}]:
        arguments: dict[str, Any] = {"root": "runs", "name": "s", "budget": 1, **more}
        with pytest.raises(ConfigurationError, match=r"log_dir=.*: must be outside the storage.* Name another"):
            run_search(Scaled, tuner=RandomTuner, **arguments)

    assert len(run_search(Scaled, tuner=RandomTuner, root="runs", name="s", budget=1).lineage) == 1


def test_root_may_be_a_path(tmp_path: Path) -> None:
    """``run_search`` and ``load`` take a ``Path``."""
    run_search(Scaled, tuner=RandomTuner, root=tmp_path / "runs", name="s", budget=1)

    assert len(load("s", tmp_path / "runs").lineage) == 1


def test_changed_arguments_are_recorded_as_given() -> None:
    """A constructor that changes its arguments changes no record; data of the problem is not kept."""
    table = Table()
    alive = weakref.ref(table)
    problem = Popping([1, 2], {"more": [3]}, table, Path("a"))
    del table
    results = run_search(problem, tuner=RandomTuner, root=memory(), budget=1)
    spec = spec_of("problem", problem, Problem)

    assert results.snapshot.identity["problem"]["arguments"] == {"sizes": [1, 2], "options": {"more": [3]}}
    assert spec.arguments == {"sizes": [1, 2], "options": {"more": [3]}, "path": Path("a")}
    assert alive() is None


def test_session_records_its_settings() -> None:
    """The records of a session hold the budget for pages, and finalists and retention for ``heirloom gc``."""
    root = memory()
    keep = Retention("best:3", max_gb=1.0)
    results = run_search(Scaled, tuner=RandomTuner, root=root, name="s", budget=3, finalists=5, retention=keep)
    [session] = past_sessions(Records(open_root(root).subfolder("s"))).values()

    assert results.snapshot.session is not None
    assert results.snapshot.session.budget["trials"] == 3.0
    for settings in ({"command": "gc"}, {"finalists": 4}):  # of the commands gc and final
        SearchLease(Records(open_root(root).subfolder("s")), settings=settings).close()
    later = load("s", root)
    assert later.snapshot.session is not None
    assert (later.standing, later.snapshot.session.budget["trials"]) == ("finished", 3.0)
    assert session["settings"].items() >= {"finalists": 5, "keep": "best:3", "max_gb": 1.0, "runner": "debug"}.items()


def test_notebooks_class_needs_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A class of a main module without a file, as in a notebook, is refused for workers with the remedy."""
    monkeypatch.setattr(Scaled, "__module__", "__main__")
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)

    with pytest.raises(ConfigurationError, match=r"Scaled is defined in a notebook.*my_problem\.py, or pass runner="):
        run_search(Scaled(), tuner=InOrderTuner, root=str(tmp_path), budget=1, slots=2)


def test_progress_of_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal the progress is silent by default, and plain lines if wanted."""
    run_search(Scaled, tuner=RandomTuner, root=memory(), budget=1)
    silent = capsys.readouterr().err
    run_search(Scaled, tuner=RandomTuner, root=memory(), budget=1, progress=True)

    assert silent == ""
    assert "[1/1 done] trial 0 (search) COMPLETE score" in capsys.readouterr().err


class Failing(Problem):
    """Returns another metric than it declares, or raises, on points that a function chooses."""

    metrics = (Metric("accuracy"),)
    space = ParameterSpace({"x": Int(0, 999)})

    def __init__(self, how: str = "no_metric", works_at: int = -1) -> None:
        self.how = how
        self.works_at = works_at
        self.n_trained = 0

    def train(self, run: TrialRun) -> Mapping[str, float]:
        self.n_trained += 1
        if self.n_trained - 1 == self.works_at:
            return {"accuracy": 0.5}
        if self.how == "raise":
            raise RuntimeError(f"mat1 and mat2 shapes cannot be multiplied (64x{run.point['x']} and 64x10)")
        if self.how == "other":
            raise RuntimeError("abcdefghijkl"[self.n_trained])
        return {"nan": {"accuracy": float("nan")}}.get(self.how, {"acc": run.point["x"] / 999})


class Hanging(Failing):
    """Hangs in its first trial until it may go on; later ones raise."""

    may_go_on: ClassVar = threading.Event()

    def train(self, run: TrialRun) -> Mapping[str, float]:
        if run.number == 0:
            self.may_go_on.wait(60)
            return {"accuracy": 0.5}
        return super().train(run)


def test_a_process_that_ends_while_a_trial_hangs_has_not_crashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The session of a failed search says that it stops, and that it has ended once the trial has."""
    monkeypatch.setattr("nas.search.interrupt.INTERRUPT_TIMEOUT_S", 0.1)
    monkeypatch.setattr("nas.search.session.END_TIMEOUT_S", 0.1)
    root = memory()
    records = Records(open_root(root).subfolder("s"))
    with pytest.raises(SearchFailedError, match="8 trials failed in a row"):
        run_search(Hanging("raise"), tuner=RandomTuner, root=root, name="s", budget=20, slots=2, runner="threads")
    before = read_heartbeat(records, 1) or {}
    Hanging.may_go_on.set()
    until(lambda: (read_heartbeat(records, 1) or {})["ended"])

    assert (before["stopping"], before["ended"]) == (True, False)


@pytest.mark.parametrize(
    ("how", "works_at", "n_trials", "message"),
    [
        (
            "no_metric",
            -1,
            3,
            r"the first 3 trials failed with the same error. The last, trial 2: no_metric: train returned "
            r"\{'acc': 0\.\d+\}, without accuracy. Return \{'accuracy': value\} from train, or declare other metrics. "
            r"Fix the problem, then run the search with retry=failed \(.*\), or choose another name. The command ",
        ),
        ("raise", -1, 3, r"same error. .*: exception: .*RuntimeError: mat1 and mat2 .* and 64x10\). Fix the problem"),
        ("raise", 0, 9, r"8 trials failed in a row \(max_failures=8\). .* and 64x10\). Fix the problem"),
        ("other", -1, 8, "8 trials failed in a row"),
        ("nan", -1, 8, "8 trials failed in a row"),
    ],
)
def test_a_problem_that_can_never_work_ends_early(how: str, works_at: int, n_trials: int, message: str) -> None:
    """The same error of the problem's code in the first three trials ends the search; others need eight in a row."""
    root = f"memory://failing-{uuid4().hex}"
    with pytest.raises(SearchFailedError, match=message):
        run_search(Spec.of(Failing, how=how, works_at=works_at), tuner=RandomTuner, root=root, name="s", budget=16)

    assert sum(trial.is_finished for trial in load("s", root).lineage) == n_trials


@pytest.mark.parametrize(("saves", "n_lines"), [(True, 0), (False, 1)])
def test_a_trial_that_saves_no_weights_is_told_once(
    saves: bool, n_lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    """If a problem that inherits saves nothing, the first such trial is a line with the remedy."""
    run_search(
        Spec.of(ScoreProblem, saves=saves),
        tuner=EvolutionTuner,
        root=f"memory://unsaved-{uuid4().hex}",
        budget=4,
        finalists=1,
    )

    lines = [record.message for record in caplog.records if "saved no weights" in record.message]
    assert len(lines) == n_lines
    assert all(line.startswith("trial 0 saved no weights: children can't inherit") for line in lines)
    assert all(line.endswith("Call run.save(network) in train") for line in lines)


@pytest.mark.parametrize(
    ("runner", "at_deadline", "is_told"),
    [
        ("debug", "stop", True),
        ("threads", "stop", True),
        ("debug", "finish", False),
        pytest.param("processes", "stop", False, marks=pytest.mark.slow),
    ],
)
def test_hours_that_end_no_silent_trial_are_told(
    runner: Runner, at_deadline: AtDeadline, is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In this process the end of the hours stops only trials that report, which a line says with the remedy."""
    budget = Budget(trials=1, hours=1.0, at_deadline=at_deadline)
    run_search(SEARCH, root=tmp_path, runner=runner, budget=budget)

    told = f"runner={runner}: {ONLY_AT_REPORTS}. runner=processes kills it"
    assert [text for text in caplog.messages if ONLY_AT_REPORTS in text] == [told] * is_told


@pytest.mark.parametrize("returned", [None, {}, 0.5])
def test_a_test_returns_scores_by_name(returned: Any) -> None:
    """Another return value of ``test`` is an error with the remedy; the winner stays."""

    class Tested(PlainProblem):
        def test(self, run: TrialRun) -> Mapping[str, float]:
            return cast("Mapping[str, float]", returned)

    results = run_search(Tested, tuner=RandomTuner, root=memory(), budget=1)

    assert results.winner is not None
    assert results.tests[0]["error"] == (
        f"TypeError: test returned {returned}: must return scores by name. Write return {{'score': value}}"
    )


def test_a_search_refuses_a_problem_that_was_changed_after_it() -> None:
    """An instance that is changed after its search was described would train what the records don't say."""
    problem = Scaled(factor=2)
    search = Search(problem=cast("Spec", problem), tuner=Spec.of(RandomTuner))
    problem.factor = 5

    with pytest.raises(ConfigurationError, match=r"problem=Scaled\(...\): factor must not be changed"):
        run_search(search, root=memory(), budget=1)


BASES = """
import nas
from nas.tuners.random import RandomTuner


class Base(nas.Problem):
    metrics = (nas.Metric("score"),)
    space = nas.ParameterSpace({"x": nas.Int(0, 99)})
    def train(self, run):
        return {"score": 1}


class Mine(Base):
    rate = 0.1


class BaseTuner(RandomTuner):
    n_asks = 1


class MyTuner(BaseTuner):
    pass


nas.run_search(Mine, tuner=MyTuner, root="heirloom", name="s", budget=BUDGET)
"""


@pytest.mark.slow
def test_changed_base_classes_of_a_script_are_refused(tmp_path: Path) -> None:
    """The code of a part includes base classes in the same script, but not the call that runs the search."""
    two, three = (BASES.replace("BUDGET", n_trials) for n_trials in "23")
    for call in (two, three):
        assert (done := script(tmp_path, call)).returncode == 0, done.stderr
    last = three.replace("budget=3", "budget=4")
    for old, new, name in (('{"score": 1}', '{"score": 2}', "Base"), ("n_asks = 1", "n_asks = 2", "BaseTuner")):
        assert f"other code: {name} changed since session 2." in script(tmp_path, last.replace(old, new)).stderr


INTERRUPTED = """
import os, signal, sys, threading, time
import nas
from nas.core.errors import SearchBusyError
from nas.tuners.random import RandomTuner

where = sys.argv[1]
arrived, goes_on = threading.Event(), threading.Event()
trained = []


class Own(nas.Problem):
    metrics = (nas.Metric("score"),)
    space = nas.ParameterSpace({"x": nas.Int(0, 99)})

    def train(self, run):
        trained.append(run.number)
        self.hang("train")
        for epoch in range(10_000 if where == "report" and not goes_on.is_set() else 0):
            arrived.set()
            run.report(epoch, score=0.0)
            time.sleep(0.05)
        return {"score": run.point["x"]}

    def close(self):
        self.hang("close")

    def hang(self, here):
        if here == where:
            arrived.set()
            goes_on.wait()


def run():
    return nas.run_search(Own(), tuner=RandomTuner, root="memory://a", name="s", budget=3, finalists=1)


def interrupt():
    arrived.wait()
    for _ in range(2 if where == "train" else 1):
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)


threading.Thread(target=interrupt, daemon=True).start()
try:
    run()
except KeyboardInterrupt:
    n_running = sum(thread.name.startswith("heirloom-slot") for thread in threading.enumerate())
    print("interrupted", trained, n_running)
if where == "train":
    try:
        run()
    except SearchBusyError:
        print("busy")
goes_on.set()
while any(thread.name.startswith("heirloom") for thread in threading.enumerate()):
    time.sleep(0.01)
print(nas.load("s", "memory://a").standing, len(run().lineage), trained)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "lines"),
    [
        ("report", ["interrupted [0] 0", "not finished 3 [0, 0, 1, 2]"]),
        ("train", ["interrupted [0] 1", "busy", "not finished 3 [0, 1, 2]"]),
        ("close", ["interrupted [0, 1, 2] 1", "finished 3 [0, 1, 2]"]),
    ],
)
def test_no_trial_trains_after_ctrl_c_while_the_search_is_free(tmp_path: Path, where: str, lines: list[str]) -> None:
    """Ctrl-C waits for the trial to end, a second one does not; the search is busy until it has ended."""
    (tmp_path / "script.py").write_text(INTERRUPTED)
    command, environment = [sys.executable, "script.py", where], {**os.environ, "PYTHONPATH": str(ROOT)}
    restore = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    finally:
        signal.signal(signal.SIGINT, restore)

    assert ended.stdout.splitlines() == lines, ended.stderr


def test_a_full_disk_leaves_the_search_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the workers' folder can't be made, or the session's end can't be written, the search can be run again."""

    def is_full(*arguments: object, **more: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    def search(runner: Runner, budget: int) -> Results:
        return run_search(Scaled, tuner=RandomTuner, root=root, name="s", budget=budget, slots=2, runner=runner)

    write_heartbeat = SearchLease._heartbeat

    def fail_at_end(lease: SearchLease, *, ended: bool) -> None:
        if ended:
            raise StorageError("No space left on device")
        write_heartbeat(lease, ended=ended)

    root = str(tmp_path)
    with monkeypatch.context() as patches:
        patches.setattr(tempfile, "mkdtemp", is_full)
        with pytest.raises(OSError, match="No space"):
            search("processes", 2)
        patches.setattr(SearchLease, "_heartbeat", fail_at_end)
        first = search("threads", 2)
    again = search("threads", 3)

    assert first.winner is not None
    assert len(again.lineage) > len(first.lineage)


def test_streams_and_logging_are_the_callers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search leaves no stream and no handler of its own behind, and keeps a stream that a trial has set."""
    monkeypatch.setattr(sys, "stdout", sys.stdout)

    class Replacing(PlainProblem):
        def train(self, run: TrialRun) -> Mapping[str, float]:
            print("one line")
            sys.stdout = given
            return {"score": 1.0}

    def state() -> tuple[object, ...]:
        return sys.stdout, sys.stderr, *logging.getLogger().handlers

    before, given = state(), io.StringIO()
    run_search(Scaled, tuner=RandomTuner, root=memory(), budget=8, slots=2, runner="threads")
    after = state()
    run_search(Replacing, tuner=RandomTuner, root=memory(), budget=1)

    assert after == before
    assert state() == (given, *before[1:])
    assert given.getvalue() == ""
