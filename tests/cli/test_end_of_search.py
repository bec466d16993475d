"""What a search says at its end, and the commands that it suggests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import TIMED, run, trials

DEBUG = (*TIMED, "runner=debug", "name=s", "finalists=1")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.mark.slow
def test_failed_trials_name_their_report_first(here: Path) -> None:
    """If trials failed, a line gives the last error, and the first command shows that trial's log."""
    done = run(here, *DEBUG, "budget.trials=2", "problem.fail=raise")
    first = done.out.partition("next:\n")[2].splitlines()[0].strip()
    shown = run(here, line=first)

    assert done.status == 1
    assert "failed: 2 trials; the last, trial 1: TimedProblem.train raised RuntimeError: as told\n" in done.out
    assert first.endswith(" trial=1")
    assert "flows.final" not in done.out
    assert "as told" in shown.out


@pytest.mark.slow
@pytest.mark.parametrize("named", ["policy=plain", "policy.stages=[{name:train}]", "policy=mine"])
def test_one_stage_needs_no_policies(here: Path, named: str) -> None:
    """A plan of one stage without policies trains every trial in full, from scratch; its best one wins."""
    (here / "conf" / "policy").mkdir(parents=True)
    (here / "conf" / "policy" / "mine.yaml").write_text("stages:\n  - name: only\n")
    done = run(here, *DEBUG, "budget.trials=2", named, "--config-dir", "conf")

    assert done.status == 0, done.err
    assert "policies skipped" not in done.err
    assert [trial.policies for trial in trials(here / "heirloom" / "s")] == [frozenset(), frozenset()]
    assert f"export: {here}/heirloom/s/best/00000" in done.out
