"""Changes of code, versions and files between two sessions of a search."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from nas.api.results import Results
from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.spec import Spec
from nas.core.trial import State
from nas.search.definition import Search
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.sessions import past_sessions
from nas.training.messages import RuntimeSpec
from nas.training.runtime import TrialRuntime

SOURCES = {
    "own_problem.py": """
from nas import Int, Metric, ParameterSpace, Policy, Problem
from own_helper import FACTOR

class Own(Problem):
    metrics = (Metric("score"),)
    space = ParameterSpace({"x": Int(1, 1000)})
    policies = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})
    def __init__(self, table=None):
        self.table = table
    def train(self, run):
        import torch
        run.save(torch.nn.Linear(1, 1))
        return {"score": FACTOR * (2 + run.number)}
""",
    "own_helper.py": "FACTOR = 10.0\n",
    "own_tuner.py": "from nas.tuners.random import RandomTuner\nclass Own(RandomTuner):\n    pass\n",
    "own_stopper.py": "from nas.stoppers.patience import PatienceStopper\nclass Own(PatienceStopper):\n    pass\n",
    "table.csv": "1,2\n",
}
SEARCH = Search(
    problem=Spec("own_problem.Own", {"table": "table.csv"}),
    tuner=Spec("own_tuner.Own"),
    stopper=Spec("own_stopper.Own", {"n_reports": 1000}),
)


class Folder:
    """A working folder with a problem, a tuner and a stopper, and a root in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.root = f"memory://code/{uuid4().hex}"
        for name, source in SOURCES.items():
            (path / name).write_text(source)

    def edit(self, name: str, change: Callable[[str], str] = lambda source: source + "# changed\n") -> None:
        """Changes a file, and forgets the modules as a new process would."""
        file = self.path / name
        began_s = file.stat().st_mtime
        file.write_text(change(file.read_text()))
        os.utime(file, (began_s + 2, began_s + 2))  # in the same second Python takes equal sizes for equal files
        forget()

    def run(self, n_trials: int, **more: Any) -> Results:
        return run_search(SEARCH, root=self.root, name="s", budget=Budget(trials=n_trials), finalists=1, **more)

    @property
    def records(self) -> Records:
        return Records(open_root(self.root).subfolder("s"))


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield Folder(tmp_path)
    forget()


@pytest.mark.parametrize("name", ["own_problem.py", "own_helper.py", "own_tuner.py", "own_stopper.py"])
def test_changed_code_is_refused_until_it_is_allowed(folder: Folder, name: str) -> None:
    """Changed code of each part, or of a module that it imports, is named and refused; no trial runs."""
    folder.run(2)
    n_before = len(folder.run(3).lineage)
    folder.edit(name)
    of_problem = name in ("own_problem.py", "own_helper.py")
    effect = "older trials then give weights, but none of them can win" if of_problem else ".* scores stay comparable"
    told = rf"other code: {name} changed since session 2\. .*code=changed: {effect}$"
    with pytest.raises(ConfigurationError, match=told):
        folder.run(6)
    n_refused = len(folder.records.load()[0])
    found = folder.run(6, code="changed")

    assert n_refused == n_before
    assert len(found.lineage) > n_before
    assert sum(trial.stage == "search" for trial in folder.run(7).lineage) == 7  # the newest code is the last session's


def test_only_trials_of_the_newest_code_win(folder: Folder) -> None:
    """After a change older trials give weights, but are no finalists, and none of them wins."""
    first = folder.run(4)
    folder.edit("own_helper.py", lambda source: source.replace("10.0", "0.5"))
    changed = folder.run(8, code="changed")
    old = {trial.number for trial in first.lineage}
    restored = folder.edit("own_helper.py", lambda source: source.replace("0.5", "10.0")) or folder.run(
        9, code="changed"
    )

    assert first.winner is not None and changed.winner is not None and restored.winner is not None
    assert first.winner.metrics["score"] > changed.winner.metrics["score"]
    assert changed.winner.number not in old
    assert {trial.number for trial in changed.lineage if trial.outdated} == old
    finals = [trial for trial in changed.lineage if trial.stage == "final" and not trial.outdated]
    assert finals
    assert not old & {trial.parents[0] for trial in finals}
    assert (changed.export or {})["trial"] == changed.winner.number
    assert all(trial.checkpoint is not None for trial in changed.lineage if trial.state == State.COMPLETE)
    assert {trial.number for trial in restored.lineage if trial.outdated} == {t.number for t in changed.lineage} - old


def test_the_progress_shows_no_best_trial_of_older_code(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """From the first line on, a better score of older code is not shown as the best, because it can't win."""
    n_old = len(folder.run(4).lineage)
    folder.edit("own_helper.py", lambda source: source.replace("10.0", "0.5"))
    found = folder.run(8, code="changed", progress=True)
    shown = [int(number) for number in re.findall(r"best .*\(trial (\d+)\)", capsys.readouterr().err)]

    assert found.winner is not None
    assert shown[-1] == found.winner.number
    assert min(shown) >= n_old


def test_a_changed_tuner_outdates_no_score(folder: Folder) -> None:
    """Scores stay comparable if only the tuner or the stopper changed."""
    folder.run(3)
    folder.edit("own_tuner.py")
    found = folder.run(4, code="changed")

    assert not [trial for trial in found.lineage if trial.outdated]


def test_a_finished_search_shows_its_results(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """Without a trial to run, changed code is told in one line, and the results are shown."""
    first = folder.run(3)
    folder.edit("own_problem.py")
    with caplog.at_level(logging.WARNING):
        again = folder.run(3)

    assert again.winner == first.winner
    assert [r.message for r in caplog.records] == [
        "own_problem.py changed since session 1; the results are those of the earlier code"
    ]


def test_other_changes_are_told(folder: Folder, caplog: pytest.LogCaptureFixture) -> None:
    """A changed file that an argument names, and another version of torch, cost one line each."""
    folder.run(2)
    folder.edit("table.csv")
    sessions = folder.records.files
    path = "sessions/0001.json"
    record = folder.records.read(path) or {}
    sessions.delete(path)
    folder.records.publish(path, record | {"versions": {**record["versions"], "torch": "1.13.1"}})
    with caplog.at_level(logging.WARNING):
        found = folder.run(3)

    assert len(found.lineage) > 3
    told = [record.message for record in caplog.records]
    assert told[0] == "the content of problem.table changed since session 1: scores may not be comparable"
    assert told[1].startswith("versions changed since session 1: torch 1.13.1 to ")
    assert len(told) == 2


@pytest.mark.parametrize("text", ["x" * 300, "a\0b", "~a\0b"], ids=["long", "null", "home"])
def test_a_text_that_is_no_path(folder: Folder, text: str) -> None:
    """Arguments that can't be the name of a file are texts."""
    search = replace(SEARCH, problem=Spec("own_problem.Own", {"table": text}))
    found = run_search(search, root=folder.root, name="s", budget=Budget(trials=1), finalists=1)

    assert found.winner is not None


def test_a_session_records_its_code(folder: Folder) -> None:
    """A session's record holds versions, the commit and digests by file, and no path."""
    folder.run(1)
    record = past_sessions(folder.records)[1]

    assert sorted(record["code"]["problem"]) == ["own_helper.py", "own_problem.py"]
    assert sorted(record["code"]) == ["problem", "stopper", "tuner"]
    assert record["versions"].keys() >= {"python", "torch", "cuda"}
    assert record["commit"] is None  # the folder is in no repository
    assert str(folder.path) not in json.dumps(record)


@pytest.mark.parametrize(
    ("metrics", "told"),
    [
        ('Metric("score", "minimize")', r"score \(maximize\) there, score \(minimize\) here"),
        ('Metric("value")', r"metrics: score \(maximize\) there, value \(maximize\) here"),
        ('Metric("score"), Metric("v")', r"there, score \(maximize\), v \(maximize\) here"),
    ],
)
def test_other_metrics_are_another_search(folder: Folder, metrics: str, told: str) -> None:
    """A turned direction, another name, and a further metric are refused, even with ``code=changed``."""
    folder.run(2)
    folder.edit("own_problem.py", lambda source: source.replace('Metric("score")', metrics))

    with pytest.raises(ConfigurationError, match=told):
        folder.run(3, code="changed")


def test_a_worker_that_starts_later_loads_the_same_code(folder: Folder) -> None:
    """A worker that starts after the code changed is refused, as its scores could not be compared."""
    prepared = SEARCH.build()
    spec = RuntimeSpec(problem=SEARCH.problem, url=folder.root, options={}, code=prepared.code["problem"])
    TrialRuntime(spec)
    folder.edit("own_tuner.py")
    TrialRuntime(spec)
    folder.edit("own_helper.py")

    with pytest.raises(ConfigurationError, match=r"own_helper\.py changed while the search ran"):
        TrialRuntime(spec)
    TrialRuntime(spec, problem=prepared.problem)
