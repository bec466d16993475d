"""What a search says at its end, and the commands that it suggests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import TIMED, Command, run, run_printed, trials, until

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
    shown = run_printed(here, first)

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
SHORT = (
    *("+tuner=random", "problem._target_=own_short.Short", "runner=debug", "name=s", "finalists=2", "device=cpu"),
    "threads=1",
)


@pytest.mark.slow
def test_a_final_below_a_trial_in_hand_is_told_and_export_best_takes_that_trial(here: Path) -> None:
    """One line names both full scores; the suggested command exports the better trial, which `more_epochs` keeps."""
    (here / "own_short.py").write_text(PROBLEM)
    done = run(here, *SHORT, "budget.trials=3", "problem.quick=false")
    [better] = [f"{line} runner=debug threads=1" for line in done.out.splitlines() if line.endswith("export=best")]
    best = max(trials(here / "heirloom" / "s")[:3], key=lambda trial: trial.metrics["score"]).number
    taken = run_printed(here, better)
    kept = run_printed(here, better.replace("finalists=2 export=best", "more_epochs=2"))
    report = run(here, "name=s", module="flows.report")
    run(here, "name=s", "format=html", module="flows.report")
    again = run_printed(here, better.replace("export=best", "export=final"))

    value = trials(here / "heirloom" / "s")[best].metrics["score"]
    shown = f"trial {best} (search), full validation score {value:.4f}"
    assert f"\nbetter in hand: {shown}: export=best takes it; more_epochs=N trains the winner further," in done.out
    for chosen in (taken, kept):
        assert f"\nbest: trial {best} (search), validation score {value:.4f}, chosen by export=best\n" in chosen.out
    assert f"trial 5 trained trial {best} for 2 more" in kept.out
    assert f"\ntest: score {100.0 - value:.4f}\n" in taken.out
    assert f"best/{best:06d}-" in taken.out
    assert f"winner: trial {best} (search)" in report.out
    shown = f"export=best takes trial {best} (search) instead of trial 3 (final), full validation score "
    shown += f"{value - 100.0:.4f}, which is worse; export=final takes the final"
    for page in (taken.out, report.out, (here / "s.html").read_text()):
        assert shown in page
    assert "more_epochs=N" not in again.out
    assert "\nbest: trial 3 (final)" in again.out
    assert len(trials(here / "heirloom" / "s")) == 6


@pytest.mark.slow
def test_scores_on_a_part_of_the_data_are_not_compared(here: Path) -> None:
    """A trial under QUICK_EVAL has no full score, so that no final is below it, and export=best takes a final."""
    (here / "own_short.py").write_text(PROBLEM)
    done = run(here, *SHORT, "budget.trials=2", "export=best")

    assert "\nbest: trial 2 (final)" in done.out
    assert "better" not in done.out
    assert run(here, *SHORT, "export=winner").complaint == "export='winner': must be final or best"


@pytest.mark.slow
def test_init_points_takes_the_point_of_another_searchs_trial(here: Path) -> None:
    """The first trial has that point; a trial that does not exist and a point outside the space are refused."""
    (here / "own_short.py").write_text(PROBLEM)
    first = run(here, *SHORT, "budget.trials=2", "policy=plain")
    given = [word for word in SHORT if word != "name=s"] + ["budget.trials=1", "policy=plain"]
    second = run(here, *given, "name=t", "init.points=s:1", "seed=7")
    again = run(here, *given, "name=t", "init.points=s:1", "seed=7")

    assert (first.status, second.status, again.status) == (0, 0, 0)
    assert trials(here / "heirloom" / "t")[0].point == trials(here / "heirloom" / "s")[1].point
    assert "search t is finished" in again.out
    assert run(here, *given, "name=u", "init.points=s:9").complaint == (
        "init.points=s:9: no such trial under this root. Name one of another search there "
        "(the command `report` lists them), or a JSON file of points."
    )
    outside = run(here, *TIMED, "init.points=s:1", "name=v", "runner=debug").complaint
    assert outside.startswith("init.points[0] is not in the space: ")


COUNTING = """
import os
import time
import torch
from nas import Int, Metric, ParameterSpace, Policy, Problem

class Counting(Problem):
    '''Adds 1 to its only weight in each epoch; momentum is in the optimizer, which children inherit.'''
    metrics = (Metric("score"),)
    space = ParameterSpace({"x": Int(0, 9)})
    policies = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})
    def __init__(self, most=1000):
        self.most = most
    def train(self, run):
        model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
        resumed = run.resumed_from()
        if resumed:
            resumed.load(model, optimizer)
        elif Policy.SHARE_PARAMS in run.policies:
            run.inherit(model)
            run.inherit_optimizer(optimizer, model)
        for epoch in range(resumed.step if resumed else 0, run.epochs(full=4, early=2)):
            optimizer.zero_grad()
            (-model.weight.sum()).backward()
            optimizer.step()
            run.report(epoch, score=self.score(model))
            run.save_resume_point(epoch + 1, model, optimizer, every_s=0)
            while os.path.exists("hold"):
                time.sleep(0.05)
        from nas.inheritance.optimizer_state import optimizer_tensors
        run.save({**model.state_dict(), **optimizer_tensors(optimizer, model)})
        return {"score": self.score(model)}
    def score(self, model):
        weight = float(model.weight)
        return weight if weight < self.most else -weight
"""
COUNTED = ("problem._target_=own_counting.Counting", "runner=debug", "name=s", "device=cpu", "threads=1")


def steps(n_epochs: int) -> float:
    """Returns the weight after so many epochs: the steps of SGD with momentum 0.5 grow to 2."""
    return sum(2 - 0.5**epoch for epoch in range(n_epochs))


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["two_stage", "plain"])
def test_more_epochs_go_on_with_weights_and_optimizer(here: Path, plan: str) -> None:
    """The winner goes on as a child of the last stage, as if it had not stopped; the tuner never sees that trial."""
    (here / "own_counting.py").write_text(COUNTING)
    search = ("+tuner=random", *COUNTED, f"policy={plan}", "finalists=1")
    run(here, *search, "budget.trials=2")
    done = run(here, *COUNTED, "more_epochs=3", module="flows.final")
    found = trials(here / "heirloom" / "s")
    went_on, parent = found[-1], found[-1].parents[0]
    again = run(here, *COUNTED, "more_epochs=3", f"trial={parent}", module="flows.final")

    assert done.status == 0, done.err
    assert found[parent].metrics == {"score": steps(4)}
    assert (went_on.more_epochs, went_on.metrics, went_on.inherited) == (3, {"score": steps(7)}, 1.0)
    assert went_on.stage == found[parent].stage == ("search" if plan == "plain" else "final")
    assert f"\nbest: trial {went_on.number} ({went_on.stage}), validation score {steps(7):.4f}\n" in done.out
    assert f"trial {went_on.number} trained trial {parent} for 3 more, from 100% of its weights: score" in done.out
    assert again.status == 0, again.err
    extended = run(here, *search, "budget.trials=3")
    later = trials(here / "heirloom" / "s")
    assert extended.status == 0, extended.err
    assert [trial.index for trial in later if trial.stage == "search" and trial.is_counted] == [0, 1, 2]
    assert all(went_on.number not in trial.learned for trial in later)
    assert run(here, "name=s", module="flows.verify").status == 0


@pytest.mark.slow
def test_more_epochs_resume_after_kill_9(here: Path) -> None:
    """The same command continues the trial that was killed, from its resume point, and proposes no other."""
    (here / "own_counting.py").write_text(COUNTING)
    run(here, "+tuner=random", *COUNTED, "budget.trials=1", "finalists=1")
    more = (*COUNTED, "more_epochs=8", "finalists=1")
    (here / "hold").touch()
    with Command(here, *more, module="flows.final", forked=True) as command:
        until(lambda: list((here / "heirloom" / "s" / "resume" / "000002").glob("*.json")), what="a resume point")
        command.kill()
    (here / "hold").unlink()
    done = run(here, *more, "takeover=true", module="flows.final")
    repeated = run(here, *more, module="flows.final")
    found = trials(here / "heirloom" / "s")

    assert done.status == repeated.status == 0, done.err + repeated.err
    assert [trial.more_epochs for trial in found] == [None, None, 8, 8]  # asked again, the new winner goes on
    assert (found[2].attempt, found[2].metrics) == (2, {"score": steps(12)})
    assert found[3].metrics["score"] == pytest.approx(steps(20))


@pytest.mark.slow
def test_more_epochs_never_replace_a_better_winner(here: Path) -> None:
    """A worse score is told, and the export stays; mistakes are one line each."""
    (here / "own_counting.py").write_text(COUNTING)
    run(here, "+tuner=random", *COUNTED, "problem.most=8", "budget.trials=1", "finalists=1")
    before = sorted(path.name for path in (here / "heirloom" / "s").glob("best*"))
    more = (*COUNTED, "problem.most=8", "more_epochs=3")
    done = run(here, *more, module="flows.final")
    again = run(here, *more, module="flows.final")

    assert "score -" in done.out
    assert "; the winner stays trial 1\n" in done.out
    assert again.out == done.out
    assert len(trials(here / "heirloom" / "s")) == 3
    assert sorted(path.name for path in (here / "heirloom" / "s").glob("best*")) == before
    for words, complaint in {
        ("more_epochs=0",): "more_epochs=0: must be a whole number from 1 to 9223372036854775807",
        (f"more_epochs={2**63}",): f"more_epochs={2**63}: must be a whole number from 1 to 9223372036854775807",
        ("trial=1",): "trial=1: must be given with more_epochs. Add more_epochs=N",
        ("more_epochs=2", "trial=9"): "trial=9: must be the number of a trial, 0 to 2",
    }.items():
        found = run(here, *COUNTED, "problem.most=8", *words, module="flows.final").complaint
        assert found.startswith(complaint), found
