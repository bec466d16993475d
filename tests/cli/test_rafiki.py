"""The command with a Rafiki model template in worker processes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from flows.views.terminal import summary_lines
from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.spec import Spec
from nas.core.trial import Reason, State
from nas.search.definition import Search
from nas.storage.open import open_root
from nas.views.page.document import lineage_page
from nas.views.snapshot import read_snapshot
from tests.support.commands import only_search, run, trials

TEMPLATE = """
from singa_auto.model import TabularClfModel, FloatKnob, PolicyKnob, utils

class Pid(TabularClfModel):
    @staticmethod
    def get_knob_config():
        return {"x": FloatKnob(0, 1), "quick": PolicyKnob("EARLY_STOP")}
    def __init__(self, **knobs):
        self.x = knobs["x"]
    def train(self, dataset_path, **kwargs):
        import singa_auto.model, rafiki.model
        utils.logger.log("trains", loss=self.x)
        if self.x > 0.5:
            raise RuntimeError("too large")
    def evaluate(self, dataset_path):
        return self.x
    def predict(self, queries):
        return queries
    def dump_parameters(self):
        return {"x": self.x}
    def load_parameters(self, params):
        self.x = params["x"]
    @staticmethod
    def teardown():
        import os
        open("torn", "a").write(f"{os.getpid()} ")
        raise OSError("nothing to free")
"""


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["processes", "threads"])
def test_a_template_is_searched(here: Path, api_url: str, runner: str) -> None:
    """Each worker loads the template and tears it down once; a later command finds the search finished."""
    (here / "Model.py").write_text(TEMPLATE)
    (here / "data.csv").touch()
    command = ("+tuner=random", "problem=rafiki", "problem.file=Model.py", "problem.train_data=data.csv")
    command = (*command, "problem.val_data=data.csv", "device=cpu", f"runner={runner}", "slots=2", "budget.trials=6")
    done = run(here, *command, PREFECT_API_URL=api_url)
    made = trials(only_search(here))
    pids = (here / "torn").read_text().split()
    again = run(here, *command, PREFECT_API_URL=api_url)
    (here / "data.csv").write_text("mended")
    other = run(here, *command, f"name={only_search(here).name}", PREFECT_API_URL=api_url)

    assert done.status == 0, done.err
    assert done.err.count("Pid.teardown raised OSError: nothing to free") == len(pids)
    assert only_search(here).name.endswith("-Pid")
    searched = [trial for trial in made if trial.stage == "search"]
    assert {t.state for t in searched} == {State.COMPLETE, State.FAILED}
    assert all((t.state == State.FAILED) == (t.point["x"] > 0.5) for t in made)
    assert {(t.error or "").splitlines()[-1] for t in made if t.state == State.FAILED} == {
        "Pid.train raised RuntimeError: too large"
    }
    assert len(pids) == len(set(pids)) == (2 if runner == "processes" else 1)
    assert again.status == 0
    assert "is finished" in again.out
    assert trials(only_search(here)) == made
    assert other.status == 2
    assert "was begun with other data: problem.train_data: 0 bytes" in other.err


@pytest.mark.slow
@pytest.mark.parametrize(("runner", "step_s"), [("processes", 1000), ("debug", 0.1)])
def test_a_final_that_does_not_fit_keeps_the_hours(here: Path, api_url: str, runner: str, step_s: float) -> None:
    """A final of 1,000 s in hours of 14 s is stopped at its report, or killed; the best search trial is exported.

    A slow machine gets more: the hours count the start of the first worker.
    """
    text = TEMPLATE.replace('utils.logger.log("trains", loss=self.x)', "self.fit()").replace("> 0.5", "> 1")
    text = text.replace('self.x = knobs["x"]', 'self.x, self.seconds = knobs["x"], 0.3 if knobs["quick"] else 1000')
    loop = f"for _ in range(int(self.seconds / min({step_s}, self.seconds))):"
    body = f"time.sleep(min({step_s}, self.seconds)); utils.logger.log(loss=self.x)"
    (here / "Model.py").write_text(f"import time\n{text}    def fit(self):\n        {loop}\n            {body}\n")
    (here / "data.csv").touch()
    command = ("+tuner=random", "problem=rafiki", "problem.file=Model.py", "problem.train_data=data.csv")
    command = (*command, "problem.val_data=data.csv", "device=cpu", f"runner={runner}", "slots=1")
    start = run(here, *command, "budget.trials=1", "policy=search_only", "name=start", PREFECT_API_URL=api_url)
    hours = max(14.4, 3 * start.seconds) / 3600
    done = run(here, *command, f"budget.hours={hours}", "name=s", PREFECT_API_URL=api_url)
    [final] = [trial for trial in trials(here / "heirloom" / "s") if trial.stage == "final"]

    assert done.status == 0, done.err
    assert final.reason == Reason.DEADLINE
    assert (final.duration_s or math.inf) < 3600 * hours
    line = next(line for line in done.out.splitlines() if line.startswith("hours: "))
    if runner == "debug":  # a killed worker starts again for the export, which takes long on a busy machine
        assert float(line.split()[1]) <= 1.1 * hours
    assert "(search), validation score" in done.out
    assert "not trained in full: no trial of stage final is COMPLETE" in done.out
    assert "export: " in done.out
    assert ("one that never reports runs on" in done.err) == (runner == "debug")


def test_reports_name_the_template_and_the_chosen_tuner(tmp_path: Path) -> None:
    """Console and page show file, class and the tuner of ``+tuner=auto``; the record holds no path."""
    code, _, _ = TEMPLATE.replace("raise RuntimeError", "print").partition("    @staticmethod\n    def teardown")
    (tmp_path / "Model.py").write_text(code)
    (tmp_path / "data.csv").touch()
    data = {name: str(tmp_path / "data.csv") for name in ("train_data", "val_data")}
    problem = Spec("nas.compat.rafiki.problem.RafikiProblem", {"file": str(tmp_path / "Model.py"), **data})
    search = Search(problem=problem, tuner=Spec("nas.tuners.auto.AutoTuner"))
    found = run_search(search, root=str(tmp_path), budget=Budget(trials=1), finalists=1)
    snapshot = read_snapshot(open_root(found.url), 0.0)
    page = lineage_page(snapshot)

    assert (
        "problem: rafiki, template Pid in Model.py; tuner: auto (chose optuna sampler=gp " in summary_lines(snapshot)[1]
    )
    assert "<dt>template</dt><dd>Pid in Model.py</dd>" in page
    assert '<dt>chosen tuner</dt><dd><span title="nas.tuners.optuna.OptunaTuner">optuna (sampler=gp, ' in page
    assert str(tmp_path) not in (Path(found.url) / "search.json").read_text()
