"""``python -m flows.final`` after the code of the problem has changed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.cli.command import run_command
from flows.engine.runner import Engine
from flows.final import final
from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.spec import Spec
from nas.search.definition import Search
from nas.storage.open import open_root
from nas.storage.records import Records

SOURCE = """
from nas import Int, Metric, ParameterSpace, Policy, Problem

class Own(Problem):
    metrics = (Metric("score"),)
    space = ParameterSpace({"x": Int(1, 1000)})
    policies = frozenset({Policy.EARLY_STOP})
    def train(self, run):
        return {"score": 1.0 + run.number}
"""
SEARCH = Search(problem=Spec("own_final.Own"), tuner=Spec("nas.tuners.random.RandomTuner"))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root of a search ``s`` with one final, whose problem's code has changed since."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_final.py").write_text(SOURCE)
    run_search(SEARCH, root=str(tmp_path / "root"), name="s", budget=Budget(trials=3), finalists=1)
    (tmp_path / "own_final.py").write_text(SOURCE + "# changed\n")
    sys.modules.pop("own_final")
    yield tmp_path / "root"
    sys.modules.pop("own_final", None)


def train_finals(root: Path, *words: str) -> int:
    named = (f"storage.root={root}", "name=s", "problem._target_=own_final.Own")
    settings = ("runner=debug", "slots=1", "threads=1", "device=cpu")
    return run_command("final", lambda invocation: final(invocation, Engine()), [*named, *settings, *words])


def test_final_never_discards_the_winner(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Finals of changed code are refused if no search trial ran it; nothing is written."""
    records = Records(open_root(str(root)).subfolder("s"))
    before = [trial.outdated for trial in records.load()[0]]
    refused = train_finals(root, "finalists=2"), train_finals(root, "finalists=2", "code=changed")
    err = capsys.readouterr().err

    assert refused == (2, 2)
    assert "begun with other code: own_final.py changed" in err
    assert "code=changed: no trial of the search stage ran the changed code" in err
    assert [trial.outdated for trial in records.load()[0]] == before
    run_search(SEARCH, root=str(root), name="s", budget=Budget(trials=4), finalists=1, code="changed")
    assert train_finals(root, "finalists=2") == 0


def test_finished_finals_are_shown(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a finalist to train, changed code is told in one line, and the results are shown."""
    status = train_finals(root, "finalists=1")
    out, err = capsys.readouterr()

    assert status == 0
    assert "own_final.py changed since session 1; the results are those of the earlier code" in err
    assert "best" in out
