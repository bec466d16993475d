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


PROBLEM = """
from torch import nn
from nas import Int, Metric, ParameterSpace, Policy, Problem

class Short(Problem):
    metrics = (Metric("score"),)
    space = ParameterSpace({"width": Int(1, 99)})
    policies = frozenset({Policy.EARLY_STOP, Policy.SHARE_PARAMS, Policy.QUICK_EVAL})
    def __init__(self, quick=True):
        if not quick:
            self.policies = self.policies - {Policy.QUICK_EVAL}
    def train(self, run):
        run.save(nn.Linear(1, run.point["width"]))
        return {"score": run.point["width"] + 100.0 * (Policy.EARLY_STOP in run.policies)}
    def test(self, run):
        return {"score": -1.0 * run.point["width"]}
"""
SHORT = ("+tuner=random", "problem._target_=own_short.Short", "runner=debug", "name=s", "finalists=2", "device=cpu")


@pytest.mark.slow
def test_a_final_below_a_trial_in_hand_is_told_and_export_best_takes_that_trial(here: Path) -> None:
    """One line names both full scores; the suggested command exports the better trial, by validation alone."""
    (here / "own_short.py").write_text(PROBLEM)
    done = run(here, *SHORT, "budget.trials=3", "problem.quick=false", forked=False)
    [better] = [line.strip() for line in done.out.splitlines() if line.endswith("export=best")]
    best = max(trials(here / "heirloom" / "s")[:3], key=lambda trial: trial.metrics["score"]).number
    taken = run(here, line=better)
    report = run(here, "name=s", module="flows.report", forked=False)
    again = run(here, line=better.replace("export=best", "export=final"))

    value = trials(here / "heirloom" / "s")[best].metrics["score"]
    shown = f"trial {best} (search), full validation score {value:.4f}"
    assert f"\nbetter in hand: {shown}: export=best takes it; policy=warm_final or more epochs may give" in done.out
    assert f"\nbest: trial {best} (search), validation score {value:.4f}\n" in taken.out
    assert f"\ntest: score {100.0 - value:.4f}\n" in taken.out
    assert f"best/{best:06d}-" in taken.out
    assert f"winner: trial {best} (search)" in report.out
    assert f"export=best: better than trial 3 (final), full validation score {value - 100.0:.4f}; " in report.out
    assert "\nbest: trial 3 (final)" in again.out
    assert len(trials(here / "heirloom" / "s")) == 5


@pytest.mark.slow
def test_scores_on_a_part_of_the_data_are_not_compared(here: Path) -> None:
    """A trial under QUICK_EVAL has no full score, so that no final is below it, and export=best takes a final."""
    (here / "own_short.py").write_text(PROBLEM)
    done = run(here, *SHORT, "budget.trials=2", "export=best", forked=False)

    assert "\nbest: trial 2 (final)" in done.out
    assert "better" not in done.out
    assert run(here, *SHORT, "export=winner").complaint == "export='winner': must be final or best"


@pytest.mark.slow
def test_init_points_takes_the_point_of_another_searchs_trial(here: Path) -> None:
    """The first trial has that point; a trial that does not exist and a point outside the space are refused."""
    (here / "own_short.py").write_text(PROBLEM)
    first = run(here, *SHORT, "budget.trials=2", "policy=plain", forked=False)
    given = [word for word in SHORT if word != "name=s"] + ["budget.trials=1", "policy=plain"]
    second = run(here, *given, "name=t", "init.points=s:1", "seed=7", forked=False)
    again = run(here, *given, "name=t", "init.points=s:1", "seed=7", forked=False)

    assert (first.status, second.status, again.status) == (0, 0, 0)
    assert trials(here / "heirloom" / "t")[0].point == trials(here / "heirloom" / "s")[1].point
    assert "search t is finished" in again.out
    assert run(here, *given, "name=u", "init.points=s:9", forked=False).complaint == (
        "init.points=s:9: no such trial under this root. Name one of another search there "
        "(the command `report` lists them), or a JSON file of points."
    )
    outside = run(here, *TIMED, "init.points=s:1", "name=v", "runner=debug").complaint
    assert outside.startswith("init.points[0] is not in the space: ")
