"""Names, values, errors and logs with characters that a terminal obeys or lacks, through every command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nas.core.redaction import clean
from tests.support.commands import Done, run
from tests.support.nni_experiments import ExperimentFolder

EXAMPLES = Path(__file__).parents[2] / "examples"

pytestmark = pytest.mark.slow

ODD = r"größe \x1b]0;title\x07\x1b[2J\x9b31m\u202egnitirw\u2066"
PROBLEM = f"""
from nas import Choice, Float, Metric, ParameterSpace, Policy, Problem
from torch import nn

ODD = "{ODD}"


class OddProblem(Problem):
    metrics = (Metric("accuracy"),)
    policies = frozenset({{Policy.EARLY_STOP}})

    def __init__(self):
        self.space = ParameterSpace({{"rate": Float(0.1, 1.0), "word" + ODD: Choice("one" + ODD, "two" + ODD)}})

    def train(self, run):
        print(ODD)
        run.report(1, **{{"accuracy": 0.5, "loss" + ODD: 0.25}})
        if run.number in (1, 2):
            raise ValueError(ODD)
        run.save(nn.Linear(1, 1))
        return {{"accuracy": run.point["rate"], "size" + ODD: 3.0}}

    def test(self, run):
        raise ValueError(ODD)
"""
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


@pytest.mark.parametrize("variables", [{}, ASCII], ids=["utf-8", "ascii"])
def test_every_command_is_clean(tmp_path: Path, variables: dict[str, str]) -> None:
    """Each ends with its status and shows nothing that a terminal obeys; an ASCII terminal gets escapes."""
    (here := tmp_path / "here").mkdir()
    (here / "odd_problem.py").write_text(PROBLEM, encoding="utf-8")
    own = "problem._target_=odd_problem.OddProblem"

    def tell(command: str, *overrides: str) -> Done:
        return run(here, *overrides, "storage.root='wörter'", "name=s", module=f"flows.{command}", **variables)

    shown = [
        tell("search", "+tuner=random", own, "budget.trials=4", "runner=debug"),
        tell("final", own, "runner=debug", "finalists=3"),
        tell("report"),
        tell("report", "columns=all"),
        tell("report", "trial=0"),
        tell("report", "trial=1"),
        tell("report", "trial=1", "format=json"),
        tell("report", "format=json"),
        tell("report", "format=csv"),
        tell("gc", own, "keep=best:1"),
        tell("verify"),
    ]

    assert [done.status for done in shown] == [0] * 11, [done.err for done in shown]
    for done in shown:
        assert clean(done.out + done.err) == done.out + done.err
        assert "Traceback" not in done.out + done.err or "trial 1 " in done.out or "ValueError" in done.out
        assert variables == {} or (done.out + done.err).isascii()
    assert "ValueError" in shown[0].err + shown[5].out


def test_foreign_programs_are_clean(tmp_path: Path) -> None:
    """On an ASCII terminal, so do commands for experiments of NNI and templates of Rafiki."""
    experiment = ExperimentFolder(
        tmp_path / "here",
        code=f"import nni\nnni.get_next_parameter()\nraise ValueError('{ODD}')\n",
        space={"word" + ODD.encode().decode("unicode_escape"): {"_type": "uniform", "_value": [0, 1]}},
    )
    config = experiment.write(maxTrialNum=2)
    for file in (EXAMPLES / "05_rafiki_template").glob("*.py"):
        shutil.copy(file, experiment.folder)
    for name in ("train.csv", "val.csv"):
        (experiment.folder / name).write_text("0,1\n1,0\n")
    template = experiment.folder / "linear.py"
    first = "        inputs, classes = self._load(dataset_path)"
    source = template.read_text(encoding="utf-8").replace(first, f"        raise ValueError('{ODD}')", 1)
    template.write_text(source, encoding="utf-8")

    config_line = ("--config", str(config), "--root", "root", "runner=debug")
    shown = [
        run(experiment.folder, *config_line, module="flows.nni", **ASCII),
        run(experiment.folder, "linear.py", "--MODEL_TRIAL_COUNT=1", module="nas.compat.rafiki", **ASCII),
    ]

    for done in shown:
        assert done.status == 1
        assert "ValueError" in done.out + done.err
        assert clean(done.out + done.err) == done.out + done.err
        assert (done.out + done.err).isascii()
