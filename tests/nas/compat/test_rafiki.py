"""Model templates of Rafiki: knobs, order of calls, parameters, logs, shared parameters and mistakes."""

from __future__ import annotations

import csv
import importlib
import io
import math
import random
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image

from flows.views.summary import print_summary
from nas.api.results import Results
from nas.api.search import run_search
from nas.compat.rafiki.__main__ import main
from nas.compat.rafiki.dataset import DatasetUtils, InvalidDatasetFormatException, SingaAutoDatasetUtils
from nas.compat.rafiki.dev import test_model_class as try_model_class
from nas.compat.rafiki.dev import tune_model
from nas.compat.rafiki.knobs import ArchKnob, CategoricalKnob, FixedKnob, FloatKnob, IntegerKnob, KnobValue, PolicyKnob
from nas.compat.rafiki.params import InvalidParamsFormatError, from_tensors, to_tensors
from nas.compat.rafiki.problem import RafikiProblem
from nas.compat.rafiki.space import knob_policies, knob_space, knob_values
from nas.compat.rafiki.template import load_template
from nas.compat.rafiki.trained import load_trial_model
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError, TrialNotFoundError
from nas.core.lineage import Lineage
from nas.core.policy import Policy
from nas.core.spec import Spec
from nas.core.trial import Reason, State, Trial
from nas.search.definition import Search
from nas.search.identity import differences
from nas.search.lease import read_heartbeat
from nas.search.pipeline import Summary
from nas.spaces.parameters.space import Choice, Float, Int, ParameterSpace
from nas.stoppers.base import Stopper
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.tuners.auto import chosen_tuner
from tests.support.problems import ScoreProblem
from tests.support.rafiki_data import TEMPLATES, table_files

PROBLEM = "nas.compat.rafiki.problem.RafikiProblem"
TEMPLATE = """
from {package}.model import BaseModel, FixedKnob, FloatKnob, IntegerKnob, CategoricalKnob, ArchKnob, PolicyKnob, utils

def told(what):
    with open({log!r}, "a") as log:
        print(what, file=log)

class Told(BaseModel):
    @staticmethod
    def get_knob_config():
        return {{"x": FloatKnob(0, 1)}}
    def __init__(self, **knobs):
        told("init")
        self.knobs = knobs
    def train(self, dataset_path, shared_params=None, **train_args):
        told("train " + dataset_path.rsplit("/", 1)[-1])
    def evaluate(self, dataset_path):
        told("evaluate " + dataset_path.rsplit("/", 1)[-1])
        return self.knobs["x"]
    def predict(self, queries):
        told("predict")
        return list(queries)
    def dump_parameters(self):
        told("dump")
        return {{"x": self.knobs["x"]}}
    def load_parameters(self, params):
        told("load")
        assert params["x"] == self.knobs["x"]
    def destroy(self):
        told("destroy")
    @staticmethod
    def teardown():
        told("teardown")
"""


class Hasty(Stopper):
    """Stops every trial that reports."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        return True


class TemplateFolder:
    """A folder with a template and two data files.

    Args:
        folder: The folder.
        changes: Replacements of texts in the template.
        package: ``rafiki`` or ``singa_auto``.
    """

    def __init__(self, folder: Path, changes: Mapping[str, str] | None = None, package: str = "rafiki") -> None:
        self.folder = folder
        self.log = folder / "told"
        self.log.touch()
        code = TEMPLATE.format(package=package, log=str(self.log))
        for old, new in (changes or {}).items():
            assert code.count(old) == 1, old
            code = code.replace(old, new)
        self.file = folder / "Model.py"
        self.file.write_text(code)
        for name in ("train", "val"):
            (folder / name).touch()

    def arguments(self, **more: Any) -> dict[str, Any]:
        data = {"train_data": str(self.folder / "train"), "val_data": str(self.folder / "val")}
        return {"file": str(self.file), **data, **more}

    def problem(self, **more: Any) -> RafikiProblem:
        return RafikiProblem(**self.arguments(**more))

    def run(
        self, n_trials: int = 1, tuner: str = "random.RandomTuner", stopper: Spec | None = None, **more: Any
    ) -> Results:
        problem = Spec(PROBLEM, self.arguments(**more))
        search = Search(problem=problem, tuner=Spec(f"nas.tuners.{tuner}"), stopper=stopper)
        return run_search(search, root=str(self.folder / "root"), budget=Budget(trials=n_trials), finalists=1)

    @property
    def told(self) -> list[str]:
        return self.log.read_text().splitlines()

    def trial_log(self, found: Results, number: int = 0) -> str:
        return Records(open_root(found.url)).log(number)


class TestKnobs:
    def test_every_type(self) -> None:
        """Each knob has its range, policies follow the stage, and a model gets values of the knob's type."""
        value = KnobValue("conv")
        knobs = {
            "fixed": FixedKnob("a"),
            "category": CategoricalKnob([True, False]),
            "whole": IntegerKnob(1, 8, is_exp=True),
            "number": FloatKnob(0, 1),
            "rate": FloatKnob(0, 1e-1, is_exp=True),
            "quick": PolicyKnob("QUICK_TRAIN"),
            "share": PolicyKnob("SHARE_PARAMS"),
            "arch": ArchKnob([[value], [value, "pool", "pool"], [0, 1]]),
        }
        space = knob_space(knobs)
        point = space.sample(random.Random(0))
        made = knob_values(knobs, {**point, "number": 1}, frozenset({Policy.EARLY_STOP}), {})

        assert space.to_json()["parameters"]["rate"] == Float(1e-12, 1e-1, log=True).to_json()
        assert space.to_json()["parameters"]["whole"] == Int(1, 8, log=True).to_json()
        assert space.to_json()["parameters"]["arch"]["parameters"]["1"] == Choice("conv", "pool").to_json()
        assert knob_policies(knobs) == {Policy.EARLY_STOP, Policy.SHARE_PARAMS}
        assert list(made) == list(knobs)
        assert (made["fixed"], made["quick"], made["share"]) == ("a", True, False)
        assert (type(made["number"]), type(made["category"]), type(made["whole"])) == (float, bool, int)
        assert made["arch"][0] == "conv" and made["arch"][2] in (0, 1) and len(made["arch"]) == 3

    def test_a_third_bound_is_reported(self, caplog: pytest.LogCaptureFixture) -> None:
        """FloatKnob(0.0001, 0.001, 0.01), as in SINGA-Auto's templates, is logarithmic, with a warning."""
        knob_space({"rate": FloatKnob(0.0001, 0.001, 0.01)})  # type: ignore[arg-type]

        assert "knob rate: is_exp (0.01) is read as True" in caplog.text

    @pytest.mark.parametrize(
        ("make", "error"),
        [
            (lambda: CategoricalKnob([]), "must have at least one value"),
            (lambda: CategoricalKnob([1, 2.0]), "of one type, not int and float"),
            (lambda: IntegerKnob(1, 2.5), "must be an int"),  # type: ignore[arg-type]
            (lambda: FloatKnob(2, 1), "must be at least value_min"),
            (lambda: FloatKnob(math.nan, 1), "must be a finite float or int"),
            (lambda: FloatKnob(1, 10**400), "must be a finite float or int"),
            (lambda: PolicyKnob("FAST"), "must be one of SHARE_PARAMS"),
            (lambda: ArchKnob([[1], []]), r"items\[1\] must have at least one"),
            (lambda: FixedKnob(None), "must be an int, float, bool or str"),  # type: ignore[arg-type]
        ],
        ids=["empty", "types", "half", "swapped", "nan", "huge", "policy", "place", "none"],
    )
    def test_impossible(self, make: Callable[[], object], error: str) -> None:
        """An invalid knob is refused with the reason."""
        with pytest.raises((TypeError, ValueError), match=error):
            make()

    def test_an_impossible_scale(self) -> None:
        """A logarithmic scale with negative numbers is refused by the knob's name."""
        with pytest.raises(ConfigurationError, match=r"knob rate: .*low=-1.0: must be greater than 0"):
            knob_space({"rate": FloatKnob(-1, 1, is_exp=True)})


class TestParams:
    DTYPES = ("bool", "int8", "uint16", "int64", "uint64", "float16", "float32", "float64", "complex64", ">f4", "<U3")
    DTYPES = (*DTYPES, "S2", "longdouble", "datetime64[s]", [("a", "<i4"), ("b", "<f8", (2,))])

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_arrays(self, dtype: Any) -> None:
        """Arrays and numpy scalars keep type and shape, also empty arrays and single numbers."""
        full = np.zeros((2, 3), dtype)
        full[0, 1] = np.ones((), dtype)
        params = {"full": full, "turned": full.T, "empty": full[:0], "single": np.array(full[0, 1]), "one": full[0, 1]}
        found = from_tensors(to_tensors(params))

        assert list(found) == list(params)
        for name, value in params.items():
            assert found[name].dtype == value.dtype and found[name].shape == value.shape
            assert np.array_equal(found[name], value)
        assert type(found["one"]) is type(params["one"])
        found["full"][:] = found["full"][0, 0]  # a writable copy

    def test_plain_values(self) -> None:
        """Strings, numbers and bytes are restored exactly."""
        params = {"s": "ä\ud800" * 999, "i": 2**70, "f": -0.0, "n": math.inf, "b": True, "x": b"\0\xff", "none": None}
        found = from_tensors(to_tensors(params))

        assert found == params
        assert [type(value) for value in found.values()] == [type(value) for value in params.values()]
        assert math.copysign(1, found["f"]) == -1

    def test_bytes(self) -> None:
        """Bytes are accepted in place of a dict, as some of SINGA-Auto's templates return them."""
        assert from_tensors(to_tensors(b"\0abc")) == b"\0abc"

    @pytest.mark.parametrize(
        ("params", "error"),
        [
            ([1], "must return a dict"),
            ({"a//b": 1}, "must be a string without //"),
            ({"a": [1]}, r"parameter a=list: must be a str"),
            ({"a": np.array([object()])}, "parameter a: an array of objects"),
            ({"a": torch.zeros(1)}, r"Call .cpu\(\).numpy\(\)"),
        ],
        ids=["list", "name", "value", "objects", "tensor"],
    )
    def test_values_that_cannot_be_stored(self, params: object, error: str) -> None:
        """Other values are refused by name."""
        with pytest.raises(InvalidParamsFormatError, match=error):
            to_tensors(params)


class TestTrials:
    @pytest.mark.parametrize("has_test_data", [True, False])
    def test_the_order_of_calls(self, tmp_path: Path, has_test_data: bool) -> None:
        """The calls of a trial and of a finalist have Rafiki's order; teardown comes last."""
        queries = tmp_path / "queries.json"
        queries.write_text("[1, 2]", encoding="utf-8-sig")  # as some editors do
        (tmp_path / "test").touch()
        template = TemplateFolder(tmp_path)
        more = {"test_data": tmp_path / "test"} if has_test_data else {}
        found = template.run(queries=str(queries), **more)

        trial = ["init", "train train", "evaluate val", "dump", "destroy"]
        evaluation = ["evaluate test"] if has_test_data else []
        assert template.told == [*trial, "init", "load", *evaluation, "predict", "destroy", "teardown"]
        metrics = {"score": found.winner.metrics["score"]} if has_test_data else {}
        assert found.tests[0] == {"trial": 0, "metrics": metrics}

    @pytest.mark.parametrize(
        ("method", "changes", "called"),
        [
            ("__init__", {'told("init")': "1 / 0"}, []),
            ("train", {'told("train "': '(1 / 0, "train "'}, ["init"]),
            ("evaluate", {'return self.knobs["x"]': "1 / 0"}, ["init", "train train", "evaluate val"]),
            ("dump_parameters", {'told("dump")': "1 / 0"}, ["init", "train train", "evaluate val"]),
            ("destroy", {'told("destroy")': 'told("destroy"); 1 / 0'}, ["init", "train train", "evaluate val", "dump"]),
        ],
        ids=["init", "train", "evaluate", "dump_parameters", "destroy"],
    )
    def test_a_method_that_raises(
        self, tmp_path: Path, method: str, changes: dict[str, str], called: list[str]
    ) -> None:
        """The trial is FAILED with the traceback and the method's name, and its model is destroyed."""
        template = TemplateFolder(tmp_path, changes)
        [trial] = template.run().lineage

        assert (trial.state, trial.reason) == (State.FAILED, Reason.EXCEPTION)
        assert trial.error.splitlines()[-1] == f"Told.{method} raised ZeroDivisionError: division by zero"
        assert "Model.py" in trial.error
        assert template.told == [*called, *(["destroy"] if method != "__init__" else []), "teardown"]

    @pytest.mark.parametrize(
        ("method", "changes"),
        [
            ("load_parameters", {'told("load")': "1 / 0"}),
            ("predict", {'told("predict")': "1 / 0"}),
        ],
        ids=["load_parameters", "predict"],
    )
    def test_a_method_of_a_finalist_that_raises(self, tmp_path: Path, method: str, changes: dict[str, str]) -> None:
        """The trial stays COMPLETE, its test is an error with the method's name, and the model is destroyed."""
        queries = tmp_path / "queries.json"
        queries.write_text("[1, 2]")
        template = TemplateFolder(tmp_path, changes)
        found = template.run(queries=str(queries))
        logs = Records(open_root(found.url)).other_logs(found.winner)

        error = f"Told.{method} raised ZeroDivisionError: division by zero"
        assert found.tests[0] == {"trial": 0, "error": error}
        assert error in logs["test"]
        assert template.told[-2:] == ["destroy", "teardown"]
        assert (template.told.count("init"), template.told.count("destroy")) == (2, 2)

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({'told("predict")': "1 / 0"}, "Told.predict raised ZeroDivisionError: division by zero"),
            ({'told("predict")': "exit(3)"}, "Told.predict raised SystemExit: 3"),
            (
                {'told("predict")': "return [1]"},
                "Told.predict raised TypeError: it must return a list of 2 predictions",
            ),
            ({'told("predict")': "return [{1}, 2]"}, "Told.predict raised TypeError: Object of type set is not JSON"),
            (
                {'told("load")': "self.loaded = 1", 'told("destroy")': "assert not hasattr(self, 'loaded')"},
                "Told.destroy raised AssertionError",
            ),
        ],
        ids=["raises", "exits", "too_few", "no_json", "destroy"],
    )
    def test_a_test_score_outlives_what_fails_later(
        self, tmp_path: Path, changes: dict[str, str], error: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The score on the test data is kept with the error of predict or destroy, and both are shown."""
        queries = tmp_path / "queries.json"
        queries.write_text("[1, 2]")
        template = TemplateFolder(tmp_path, changes)
        found = template.run(queries=str(queries), test_data=str(tmp_path / "val"))
        again = Records(open_root(found.url)).tests()
        summary = Summary(found.name, found.url, found.lineage, found.winner, dict(found.tests), None)
        print_summary(summary, RafikiProblem.metrics, "root")
        lines = capsys.readouterr().out.splitlines()

        assert again[0] == found.tests[0]
        assert found.tests[0]["metrics"] == {"score": found.winner.metrics["score"]}
        assert found.tests[0]["error"].startswith(error)
        assert [line.partition(" ")[2] for line in lines if line.startswith("test:")] == [
            f"score {found.winner.metrics['score']:.4f}", f"failed: {found.tests[0]['error']}",
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("raising", "error"),
        [("1 / 0", "ZeroDivisionError: division by zero"), ("raise SystemExit(3)", "SystemExit: 3")],
        ids=["error", "exit"],
    )
    def test_a_teardown_that_raises(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, raising: str, error: str
    ) -> None:
        """It is logged by name, and the search still completes."""
        found = TemplateFolder(tmp_path, {'told("teardown")': raising}).run()
        beat = read_heartbeat(Records(open_root(found.url)), 1)

        assert found.winner.state == State.COMPLETE
        assert f"Told.teardown raised {error}" in caplog.text
        assert beat is not None and beat["ended"]

    @pytest.mark.parametrize(
        ("score", "error"),
        [
            ("'0.5'", "must return a number"),
            ("float('nan')", "Told.evaluate returned nan: must be a finite number"),
        ],
    )
    def test_an_invalid_score(self, tmp_path: Path, score: str, error: str) -> None:
        """evaluate must return a finite number."""
        [trial] = TemplateFolder(tmp_path, {'return self.knobs["x"]': f"return {score}"}).run().lineage

        assert trial.state == State.FAILED
        assert error in trial.error

    def test_scores_of_numpy_and_zero_and_below_count(self, tmp_path: Path) -> None:
        """A numpy score is a number, and a score below -1 can win, unlike in Rafiki's helper."""
        score = "__import__('numpy').float32(-2.5)"
        found = TemplateFolder(tmp_path, {'return self.knobs["x"]': f"return {score}"}).run()

        assert found.winner.metrics == {"score": -2.5}

    def test_what_is_logged(self, tmp_path: Path) -> None:
        """Messages, metrics and plots are in the trial's log, and metrics in its curve; a NaN is allowed."""
        lines = """utils.logger.log("hello")
        utils.logger.define_plot("Scores", ["a", "b"], x_axis="epoch")
        utils.logger.log("most", a=__import__("numpy").float32(0.9), epoch=1)
        utils.logger.log_loss(float("nan"), 2)
        utils.logger.log(huge=10**4000)"""
        template = TemplateFolder(tmp_path, {'told("train " + dataset_path.rsplit("/", 1)[-1])': lines})
        found = template.run()

        assert found.winner.curve == ((1, {"a": float(np.float32(0.9)), "epoch": 1}), (2, {"epoch": 2}))
        log = template.trial_log(found)
        assert log.splitlines() == [
            "hello",
            "plot 'Scores': a, b against epoch",
            "most: a=0.9, epoch=1",
            "loss=nan, epoch=2",
            f"huge={10**4000}",
        ]

    def test_a_metric_that_is_not_a_number(self, tmp_path: Path) -> None:
        """A metric that is not a number is a TypeError with its name."""
        template = TemplateFolder(
            tmp_path, {'told("train " + dataset_path.rsplit("/", 1)[-1])': 'utils.logger.log(a="1")'}
        )
        [trial] = template.run().lineage

        assert "Told.train raised TypeError: metric a='1' (str): must be an int or a float" in trial.error

    def test_policies_are_set_by_stage(self, tmp_path: Path) -> None:
        """Search trials have the declared policies on, and the final trial has none."""
        config = '{"x": FloatKnob(0, 1), "quick": PolicyKnob("EARLY_STOP"), "skip": PolicyKnob("SKIP_TRAIN")}'
        template = TemplateFolder(
            tmp_path, {'{"x": FloatKnob(0, 1)}': config, 'told("init")': "told(f\"quick={knobs['quick']}\")"}
        )
        found = template.run()

        assert [t.policies for t in found.lineage] == [frozenset({Policy.EARLY_STOP}), frozenset()]
        assert [line for line in template.told if "quick" in line] == ["quick=True", "quick=False"]

    def test_a_trial_that_is_stopped(self, tmp_path: Path) -> None:
        """A stopper stops a trial by its logged score; the model is destroyed without evaluate and dump."""
        lines = "utils.logger.log(score=1); utils.logger.log(score=2)"
        template = TemplateFolder(tmp_path, {'told("train " + dataset_path.rsplit("/", 1)[-1])': lines})
        [trial] = template.run(stopper=Spec.of(Hasty)).lineage

        assert (trial.state, trial.reason, trial.metrics) == (State.STOPPED, Reason.STOPPER, {"score": 1})
        assert template.told == ["init", "destroy", "teardown"]

    def test_pinned_knobs(self, tmp_path: Path) -> None:
        """problem.knobs replaces knobs and policies; the plan does not switch such a policy."""
        config = '{"x": FloatKnob(0, 1), "n": IntegerKnob(1, 9), "quick": PolicyKnob("EARLY_STOP")}'
        template = TemplateFolder(
            tmp_path, {'{"x": FloatKnob(0, 1)}': config, 'told("init")': "told(sorted(knobs.items()))"}
        )
        found = template.run(knobs={"x": 1, "quick": True})

        assert "('quick', True), ('x', 1.0)]" in template.told[0]
        assert found.winner.policies == frozenset()
        assert {t.stage for t in found.lineage} == {"search"}

    def test_train_arguments(self, tmp_path: Path) -> None:
        """problem.train_args are further arguments of train, which need not accept shared_params."""
        changes = {
            "train(self, dataset_path, shared_params=None, **train_args)": "train(self, dataset_path, *, features)",
            'told("train " + dataset_path.rsplit("/", 1)[-1])': "told(features)",
        }
        template = TemplateFolder(tmp_path, changes)
        template.run(train_args={"features": ["a", "b"]})

        assert "['a', 'b']" in template.told

    @pytest.mark.parametrize("package", ["rafiki", "singa_auto"])
    def test_both_names(self, tmp_path: Path, package: str) -> None:
        """A template imports rafiki or singa_auto with the same base class; sys.path is restored."""
        before = list(sys.path)
        problem = TemplateFolder(tmp_path, package=package).problem()

        assert sys.path == before
        assert problem.template.class_.__mro__[1].__module__ == "nas.compat.rafiki.model"

    def test_no_other_code_finds_them(self) -> None:
        """Heirloom's own process can't import rafiki."""
        code = "import nas.compat.rafiki.problem; from importlib.util import find_spec as f"
        code += "; print(f('rafiki'), f('singa_auto'))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

        assert done.stdout == "None None\n"


class TestImports:
    """Modules that only a template's code can import."""

    HELPED: ClassVar[dict[str, str]] = {
        "def told": "import helper\ndef told",
        '{"x": FloatKnob(0, 1)}': "helper.KNOBS",
        'told("train " + dataset_path.rsplit("/", 1)[-1])': "import late; told(late.NAME)",
    }

    def template_with_helpers(self, folder: Path, name: str) -> TemplateFolder:
        """Returns a template that imports two modules beside it for its knob and its log line."""
        folder.mkdir()
        template = TemplateFolder(folder, self.HELPED)
        (folder / "helper.py").write_text(
            f'from rafiki.model import FloatKnob\nKNOBS = {{"x": FloatKnob(0, 1), "{name}": FloatKnob(0, 1)}}\n'
        )
        (folder / "late.py").write_text(f'NAME = "{name}"\n')
        return template

    def test_two_helpers_of_one_name(self, tmp_path: Path) -> None:
        """Two equal templates in two folders import the modules of their own folder."""
        one, two = self.template_with_helpers(tmp_path / "a", "one"), self.template_with_helpers(tmp_path / "b", "two")
        two.file.write_text(one.file.read_text())  # which writes to the log of one
        first, second = one.problem(), two.problem()
        for template in (one, two):
            template.run()

        assert (list(first.knobs), list(second.knobs)) == (["x", "one"], ["x", "two"])
        assert [line for line in one.told if line in ("one", "two")] == ["one", "two"]
        assert not {"helper", "late"} & sys.modules.keys()

    def test_two_at_once(self, tmp_path: Path) -> None:
        """A template that is loaded while another runs gets its own modules, and so does the other one after it."""
        one, two = self.template_with_helpers(tmp_path / "a", "one"), self.template_with_helpers(tmp_path / "b", "two")
        with load_template(one.file).importing():
            before = importlib.import_module("helper")
            inner = load_template(two.file)
            after = importlib.import_module("helper")

        assert list(inner.knobs) == ["x", "two"]
        assert before is after and list(after.KNOBS) == ["x", "one"]

    def test_another_module_of_that_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A module of the same name that other code imported stays; the template gets its own."""
        template, other = self.template_with_helpers(tmp_path / "a", "one"), TemplateFolder(tmp_path)
        problem = template.problem()
        theirs = ModuleType("helper")
        monkeypatch.setitem(sys.modules, "helper", theirs)
        with problem.template.importing():
            mine = importlib.import_module("helper")
        other.problem()

        assert list(mine.KNOBS) == ["x", "one"]
        assert sys.modules["helper"] is theirs

    def test_a_module_is_imported_once(self, tmp_path: Path) -> None:
        """A module beside the template keeps its state from trial to trial."""
        changes = {"def told": "import held\ndef told", 'told("init")': "held.made.append(1); told(len(held.made))"}
        template = TemplateFolder(tmp_path, changes)
        (tmp_path / "held.py").write_text("made = []\n")
        template.run(2)

        assert [line for line in template.told if line.isdigit()] == ["1", "2"]

    def test_not_outside(self, tmp_path: Path) -> None:
        """After a template has run, import rafiki fails and sys.path is restored."""
        before = list(sys.path)
        TemplateFolder(tmp_path).run()

        for name in ("rafiki", "rafiki.model", "singa_auto", "singa_auto.model"):
            with pytest.raises(ModuleNotFoundError):
                importlib.import_module(name)
        assert sys.path == before

    def test_an_installed_rafiki(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Templates do not get an installed Rafiki; other code gets it before and after."""
        site = tmp_path / "site" / "rafiki"
        site.mkdir(parents=True)
        (site / "__init__.py").write_text("")
        (site / "model.py").write_text("BaseModel = object\n")
        monkeypatch.syspath_prepend(str(site.parent))
        theirs = [importlib.import_module(name) for name in ("rafiki", "rafiki.model")]
        try:
            problem = TemplateFolder(tmp_path).problem()
            found = [importlib.import_module(name) for name in ("rafiki", "rafiki.model")]
        finally:
            del sys.modules["rafiki"], sys.modules["rafiki.model"]

        assert problem.template.class_.__mro__[1].__module__ == "nas.compat.rafiki.model"
        assert all(one is two for one, two in zip(theirs, found, strict=True))


class TestSharing:
    @pytest.mark.slow
    def test_a_child_starts_with_its_parents_parameters(self, tmp_path: Path) -> None:
        """With SHARE_PARAMS a child's first loss is below its parent's last; without it, it is above."""
        data = table_files(tmp_path)
        knobs = {"rate": 0.05, "skip_train": False}
        arguments = {"file": str(TEMPLATES / "net.py"), **data, "knobs": knobs}
        search = Search(
            problem=Spec(PROBLEM, arguments),
            tuner=Spec("nas.tuners.evolution.EvolutionTuner", {"population_size": 2, "sample_size": 2}),
        )
        found = run_search(search, root=str(tmp_path / "root"), budget=Budget(trials=4), finalists=1)
        trials = list(found.lineage)
        child = next(trial for trial in trials if trial.parents and trial.stage == "search")
        parent, final = trials[child.donor], trials[-1]
        losses = {t.number: [metrics["loss"] for _, metrics in t.curve] for t in trials}

        assert child.donor in child.parents
        assert child.inherited is None
        assert losses[child.number][0] < losses[parent.number][-1]
        assert final.stage == "final" and final.donor is None
        assert losses[final.number][0] > 1.5 * losses[child.number][0]

    @pytest.mark.parametrize("knobs", [{}, {"share": True}], ids=["free", "pinned"])
    def test_the_parameters_are_the_parents_to_the_bit(self, tmp_path: Path, knobs: dict[str, bool]) -> None:
        """A child receives the parameters of its donor with equal values and types, also if SHARE_PARAMS is pinned."""
        config = '{"x": FloatKnob(0, 1), "share": PolicyKnob("SHARE_PARAMS")}'
        changes = {
            '{"x": FloatKnob(0, 1)}': config,
            'told("train " + dataset_path.rsplit("/", 1)[-1])': "told((shared_params or {}).get('w'))",
            'return {"x": self.knobs["x"]}': 'return {"w": __import__("numpy").float32(self.knobs["x"])}',
        }
        template = TemplateFolder(tmp_path, changes)
        search = Search(
            problem=Spec(PROBLEM, template.arguments(knobs=knobs)),
            tuner=Spec("nas.tuners.evolution.EvolutionTuner", {"population_size": 1, "sample_size": 1}),
        )
        found = run_search(search, root=str(tmp_path / "root"), budget=Budget(trials=3), finalists=1)
        trials = list(found.lineage)
        got = [line for line in template.told if line == "None" or line.startswith(("0.", "1.", "1e"))]

        assert got == ["None", *(str(np.float32(trials[t.donor].point["x"])) for t in trials[1:])]


MISTAKES: dict[str, tuple[dict[str, str], dict[str, Any], str]] = {
    "no_file": ({}, {"file": None}, "problem.file is missing: add problem.file=Model.py"),
    "lost_file": ({}, {"file": "Lost.py"}, r"problem.file=Lost.py: can't be read: No such file"),
    "zip": ({}, {"file": "model.zip"}, "must be a Python file. Unpack an archive"),
    "class": ({}, {"class_name": "Tolt"}, r"class_name=Tolt: .*Model.py has no such class; it defines Told"),
    "no_model": ({"class Told(BaseModel)": "class Told"}, {}, "must define a class that extends BaseModel"),
    "foreign": ({"class Told(BaseModel)": "class Told"}, {"class_name": "Told"}, "must extend rafiki.model.BaseModel"),
    "two": ({"def told": "class Other(BaseModel): pass\ndef told"}, {}, "class_name must be one of Other, Told in "),
    "syntax": ({"def told": "def told("}, {}, r"Model.py, line 4: "),
    "import": ({"def told": "import tensorflow_of_old\ndef told"}, {}, "imports tensorflow_of_old, which .* Install"),
    "import_ours": ({"def told": "import rafiki.admin\ndef told"}, {}, "imports rafiki.admin, which .* docs/reference"),
    "dropped": ({"BaseModel, Fixed": "ListKnob, BaseModel, Fixed"}, {}, "has no ListKnob: Rafiki 0.2 has no"),
    "raises": ({"def told": "1 / 0\ndef told"}, {}, "Model.py, line 4: ZeroDivisionError: division by zero"),
    "method": ({"def predict": "def forecast"}, {}, r"Told in .*Model.py must define predict"),
    "static": ({"@staticmethod\n    def get_knob_config()": "def get_knob_config(self)"}, {}, "a @staticmethod"),
    "config": ({"FloatKnob(0, 1)": "FloatKnob(1, 0)"}, {}, r"get_knob_config in .*, line \d+: ValueError: FloatKnob"),
    "no_dict": ({'{"x": FloatKnob(0, 1)}': "[FloatKnob(0, 1)]"}, {}, "must return a dict of knobs by name"),
    "no_knob": ({"FloatKnob(0, 1)": "0.5"}, {}, r"'x'=0.5: must be a knob"),
    "knob": ({"FloatKnob(0, 1)": "FloatKnob(-1, 1, is_exp=True)"}, {}, "knob x: .* must be greater than 0"),
    "init": ({"__init__(self, **knobs)": "__init__(self, y)"}, {}, r"Told.__init__ in .* must accept \(x=...\): "),
    "signature": ({"evaluate(self, dataset_path)": "evaluate(self)"}, {}, r"evaluate in .* must accept \(data"),
    "train_args": ({", **train_args)": ")"}, {"train_args": {"z": 1}}, r"Told.train in .* must accept \(.*z=...\)"),
    "shared": (
        {"shared_params=None, **train_args": "share=None", "FloatKnob(0, 1)": 'PolicyKnob("SHARE_PARAMS")'},
        {},
        "Told.train in .* must accept shared_params: a knob declares SHARE_PARAMS",
    ),
    "no_data": ({}, {"train_data": None}, "problem.train_data is missing: add problem.train_data=FILE"),
    "lost_data": ({}, {"val_data": "lost.zip"}, r"problem.val_data=lost.zip: must be an existing file"),
    "pin": ({}, {"knobs": {"y": 1}}, "problem.knobs.y: Told has no such knob; its knobs: x"),
    **{
        f"pin_{case}": (
            {'{"x": FloatKnob(0, 1)}': f'{{"x": {knob}}}'},
            {"knobs": {"x": value}},
            rf"^problem\.knobs\.x\S*=.*: must be {allowed}",
        )
        for case, knob, value, allowed in (
            ("whole", "IntegerKnob(1, 9)", "abc", "a whole number"),
            ("half", "IntegerKnob(1, 9)", 1.5, "a whole number"),
            ("truth", "IntegerKnob(1, 9)", True, "a whole number"),
            ("number", "FloatKnob(0, 1)", "0.5", "a finite number"),
            ("nan", "FloatKnob(0, 1)", math.nan, "a finite number"),
            ("category", 'CategoricalKnob(["a", "b"])', 1, "a string"),
            ("fixed", "FixedKnob(True)", 1, "true or false"),
            ("policy", 'PolicyKnob("EARLY_STOP")', "no", "true or false"),
            ("arch", "ArchKnob([[0, 1], [0, 1]])", "01", "a list of 2 values"),
            ("place", "ArchKnob([[0, 1], [0, 1]])", [0, "b"], "a whole number"),
        )
    },
    "queries": ({}, {"queries": __file__}, "problem.queries=.*: can't be read as JSON"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(tmp_path: Path, case: str) -> None:
    """An invalid file, method or knob is refused by name when the problem is built."""
    changes, arguments, error = MISTAKES[case]
    template = TemplateFolder(tmp_path, changes)

    with pytest.raises(ConfigurationError, match=error):
        template.problem(**arguments)
    assert template.told == []


def test_an_edited_template_is_refused(tmp_path: Path) -> None:
    """A template, or a module beside it, must not change, not even in a finished search; it may move."""
    template = TemplateFolder(tmp_path, {"class Told": "import own_layers\nclass Told"})
    (tmp_path / "own_layers.py").touch()
    found = template.run()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "own_layers.py").rename(tmp_path / "elsewhere" / "own_layers.py")
    template.file = template.file.rename(tmp_path / "elsewhere" / "Other.py")
    moved = template.run()
    (tmp_path / "elsewhere" / "own_layers.py").write_text("# edited")
    with pytest.raises(ConfigurationError, match=r"other code: own_layers\.py changed since session 1\."):
        template.run()
    template.file.write_text(template.file.read_text() + "# edited\n")

    assert moved.winner == found.winner
    with pytest.raises(ConfigurationError, match=r"other code: .*problem\.file=.*Other\.py.* changed since session 1"):
        template.run()


def test_the_default_name_includes_the_data(tmp_path: Path) -> None:
    """The same template with other files, or with another folder or URL, is a search of its own."""
    template = TemplateFolder(tmp_path)
    (tmp_path / "other").write_text("1,2")
    (tmp_path / "moved").touch()
    for folder in ("images", "photos"):
        (tmp_path / folder).mkdir()
    given = {name: str(tmp_path / name) for name in ("other", "images", "photos", "moved")}
    given |= {name: f"https://u:{name}@host/data.zip" for name in ("secret", "password")}
    tuner = Spec("nas.tuners.random.RandomTuner")
    names = {
        name: Search(problem=Spec(PROBLEM, template.arguments(val_data=data)), tuner=tuner).build().default_name
        for name, data in {"first": str(tmp_path / "val"), **given}.items()
    }

    assert names["moved"] == names["first"]
    assert names["secret"] == names["password"]
    assert len(set(names.values())) == 5


@pytest.mark.parametrize(
    ("space", "tuner"),
    [
        ({"a": 1}, "GridTuner"),
        ({"a": Int(1, 4), "b": Choice("x", "y"), "c": 3}, "OptunaTuner"),
        ({"arch": {"0": Choice(1, 2), "1": 5}, "c": 3}, "ReinforceTuner"),
        ({"arch": {"0": Choice(1, 2)}, "rate": Float(0, 1)}, "RandomTuner"),
        ({"a": Int(1, 4), "b": Choice("x", "y", when={"a": [2]})}, "RandomTuner"),
    ],
    ids=["fixed", "plain", "architecture", "mixed", "conditional"],
)
def test_auto(space: dict[str, Any], tuner: str) -> None:
    """The tuner is chosen by the types of the space."""
    assert chosen_tuner(ParameterSpace(space)).target.endswith(f".{tuner}")


def test_the_chosen_tuner_is_in_the_identity(tmp_path: Path) -> None:
    """The tuner chosen by auto and its arguments are part of the identity."""
    problem = Spec(PROBLEM, TemplateFolder(tmp_path).arguments())
    auto, named = (
        Search(problem=problem, tuner=Spec(f"nas.tuners.{tuner}")).build().identity
        for tuner in ("auto.AutoTuner", "random.RandomTuner")
    )

    assert auto["chosen_tuner"] == {
        "target": "nas.tuners.optuna.OptunaTuner",
        "arguments": {"sampler": "gp", "max_points": 500, "donor": "best"},
    }
    assert "chosen_tuner" not in named
    assert differences({**auto, "chosen_tuner": {"target": "other"}}, auto)[0].startswith("chosen_tuner.target: other")


def test_fixed_knobs_are_one_trial(tmp_path: Path) -> None:
    """A template with only fixed knobs and policies is searched with one trial; Rafiki's advisor crashed."""
    config = '{"x": FixedKnob(0.5), "quick": PolicyKnob("EARLY_STOP")}'
    found = TemplateFolder(tmp_path, {'{"x": FloatKnob(0, 1)}': config}).run(9, tuner="auto.AutoTuner")

    assert [trial.stage for trial in found.lineage] == ["search", "final"]


def test_an_architecture_is_searched(tmp_path: Path) -> None:
    """A template with only an ArchKnob gets lists and is searched by reinforcement learning."""
    changes = {
        '{"x": FloatKnob(0, 1)}': '{"a": ArchKnob([[0, 1], [0, 1]])}',
        'return self.knobs["x"]': 'return sum(self.knobs["a"])',
    }
    changes['return {"x": self.knobs["x"]}'] = "return {}"
    found = TemplateFolder(tmp_path, changes).run(4, tuner="auto.AutoTuner")

    assert {trial.proposal.reason for trial in found.lineage} == {"reinforce"}
    assert found.winner.metrics == {"score": 2.0}


def in_memory() -> list[str]:
    """Returns the files in memory that test searches have left."""
    memory = fsspec.filesystem("memory")
    return [name for name in (*memory.store, *memory.pseudo_dirs) if name.startswith("/rafiki-")]


class TestTryingOut:
    def test_test_model_class(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It searches within the command line's budget, loads the best model and predicts."""
        data = table_files(tmp_path)
        monkeypatch.setattr(sys, "argv", ["net.py", "--MODEL_TRIAL_COUNT=2", "--rate", "0.05"])
        predictions, model = try_model_class(
            model_file_path=str(TEMPLATES / "net.py"),
            model_class="Net",
            task="TABULAR_CLASSIFICATION",
            dependencies={"torch": "1.0", "no-such-package": "2"},
            train_dataset_path=data["train_data"],
            val_dataset_path=data["val_data"],
            test_dataset_path=data["test_data"],
            budget={"MODEL_TRIAL_COUNT": 9},
            queries=[[0.0] * 64],
        )
        told = capsys.readouterr().out

        assert model is not None and type(model).__name__ == "Net"
        assert predictions is not None and len(predictions[0]) == 10
        assert told.count("trial ") == 4  # two, a final one, and the best
        assert "'rate': 0.05" in told
        assert "no-such-package is not installed" in told
        scores = re.findall(r"^score.*: (.*)$", told, re.MULTILINE)  # of hundreds of examples, in float32
        assert len(scores) == 4
        assert all(len(score) <= len("0.12345678") for score in scores)

    def test_tune_model(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It returns the best knobs, the test score (None without test data) and the parameters.

        The caller's random generators go on.
        """
        monkeypatch.setattr(sys, "argv", ["Model.py"])
        template = TemplateFolder(tmp_path)
        state = torch.get_rng_state()
        class_ = load_template(template.file).class_
        knobs, score, params = tune_model(
            class_, str(tmp_path / "train"), str(tmp_path / "val"), budget={"MODEL_TRIAL_COUNT": 2}
        )

        assert score is None
        assert params == knobs
        assert template.told[-1] == "teardown"
        assert in_memory() == []
        assert torch.equal(torch.get_rng_state(), state)

    @pytest.mark.parametrize(
        ("option", "error"),
        [
            ("--MODEL_TRIAL_COUNT=x", r"budget: MODEL_TRIAL_COUNT='x': must be a whole number"),
            ("--MODEL_TRIAL_COUNT=2.5", r"budget: MODEL_TRIAL_COUNT=2.5: must be a whole number"),
            ("--TIME_HOURS=soon", r"budget: TIME_HOURS='soon': must be a number"),
            ("--GPU_COUNT=all", r"budget: GPU_COUNT='all': must be a whole number"),
        ],
    )
    def test_an_invalid_budget(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, error: str) -> None:
        """An option that is not a number is refused by name."""
        monkeypatch.setattr(sys, "argv", ["Model.py", option])
        template = TemplateFolder(tmp_path)

        with pytest.raises(ConfigurationError, match=error):
            try_model_class(str(template.file), "Told", None, None, str(tmp_path / "train"), str(tmp_path / "val"))
        assert template.told == []

    @pytest.mark.parametrize(
        ("option", "error"),
        [
            ("--xx=0.5", r"--xx: Told has no such knob, and .*Model.py has no such option; allowed: x, TIME_HOURS, "),
            ("--x", r"problem\.knobs\.x=None \(NoneType\): must be a finite number"),
        ],
    )
    def test_an_unknown_option(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, error: str) -> None:
        """An option that is in neither the knobs nor the file, or has no value, is refused before anything runs."""
        template = TemplateFolder(tmp_path)
        monkeypatch.setattr(sys, "argv", [str(template.file), option, "--MODEL_TRIAL_COUNT=1"])

        with pytest.raises(ConfigurationError, match=error):
            try_model_class(str(template.file), "Told", None, None, str(tmp_path / "train"), str(tmp_path / "val"))
        assert template.told == []

    def test_options_of_the_file_itself(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Options that the file's code reads are allowed, also shortened."""
        template = TemplateFolder(tmp_path, {"def told": 'OPTIONS = ["--train_path", "-q"]\ndef told'})
        monkeypatch.setattr(sys, "argv", [str(template.file), "--train=a.zip", "-q", "--MODEL_TRIAL_COUNT=1"])
        try_model_class(str(template.file), "Told", None, None, str(tmp_path / "train"), str(tmp_path / "val"))

        assert template.told.count("init") == 2  # the trial's, and the loaded one

    def test_a_trial_that_fails_ends_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The error is one line, after the traceback of the template's own lines."""
        monkeypatch.setattr(sys, "argv", ["Model.py"])
        template = TemplateFolder(tmp_path, {'told("dump")': "1 / 0"})

        with pytest.raises(RuntimeError, match=r"^trial 0 failed: Told\.dump_parameters raised ZeroDivisionError: .*$"):
            try_model_class(str(template.file), "Told", None, None, str(tmp_path / "train"), str(tmp_path / "val"))
        told = capsys.readouterr().out
        assert [line for line in told.splitlines() if "File " in line] == [
            f'  File "{template.file}", line 24, in dump_parameters'
        ]
        assert in_memory() == []

    def test_a_final_test_that_fails_ends_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A failing test of the best model ends it like a failing trial."""
        monkeypatch.setattr(sys, "argv", ["Model.py", "--MODEL_TRIAL_COUNT=1"])
        template = TemplateFolder(tmp_path, {'told("load")': "1 / 0"})
        data = [str(tmp_path / name) for name in ("train", "val", "val")]

        with pytest.raises(RuntimeError, match=r"^the test of trial \d+ failed: Told\.load_parameters raised Zero.*$"):
            try_model_class(str(template.file), "Told", None, None, *data)

    def test_the_command_reports_a_method_that_raises(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It prints the traceback and one line with class and method; exit status 1."""
        template = TemplateFolder(tmp_path, {'told("predict")': "1 / 0"})
        data = tuple(str(tmp_path / name) for name in ("train", "val"))
        with template.file.open("a") as file:
            file.write(
                'if __name__ == "__main__":\n'
                "    from rafiki.model.dev import test_model_class\n"
                f"    test_model_class(__file__, 'Told', None, None, *{data}, queries=[1])\n"
            )
        monkeypatch.setattr(sys, "argv", ["rafiki", str(template.file), "--MODEL_TRIAL_COUNT=1"])
        status = main()
        *_, error, line = capsys.readouterr().err.splitlines()

        assert status == 1
        assert error == "ZeroDivisionError: division by zero"
        assert line == "heirloom: Told.predict raised ZeroDivisionError: division by zero"

    def test_imports_of_a_returned_model(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A returned model can import Rafiki's modules and those beside its file when it predicts."""
        monkeypatch.setattr(sys, "argv", ["Model.py", "--MODEL_TRIAL_COUNT=1"])
        late = 'told("predict"); import rafiki.constants, beside'
        template = TemplateFolder(tmp_path, {'told("predict")': late})
        (tmp_path / "beside.py").write_text("")
        found = template.run()
        arguments = (str(template.file), "Told", None, None, str(tmp_path / "train"), str(tmp_path / "val"))
        predictions, tried = try_model_class(*arguments, queries=[1])
        loaded = load_trial_model(found.url, str(template.file))

        assert tried is not None
        assert predictions == tried.predict([1]) == loaded.predict([1]) == [1]
        assert not {"rafiki", "beside"} & sys.modules.keys()

    def test_load_trial_model(self, tmp_path: Path) -> None:
        """load_trial_model loads the winner of a search or a given trial."""
        template = TemplateFolder(tmp_path)
        found = template.run(2)
        best = load_trial_model(found.url, str(template.file))
        first = load_trial_model(found.url, str(template.file), trial=0)

        assert best.knobs["x"] == found.winner.point["x"]  # type: ignore[attr-defined]
        assert first.knobs["x"] == next(iter(found.lineage)).point["x"]  # type: ignore[attr-defined]
        with pytest.raises(TrialNotFoundError, match="no trial 7 with parameters"):
            load_trial_model(found.url, str(template.file), trial=7)

    def test_load_trial_model_with_pinned_knobs(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A loaded model and the knobs that tune_model returns have every value of problem.knobs, policies too."""
        config = (
            '{"x": FloatKnob(0, 1), "arch": ArchKnob([[0, 1], [2, 3]]), "kind": CategoricalKnob(["a", "b"]), '
            '"size": FixedKnob(7), "small": PolicyKnob("DOWNSCALE"), "quick": PolicyKnob("EARLY_STOP")}'
        )
        template = TemplateFolder(tmp_path, {'{"x": FloatKnob(0, 1)}': config})
        pins = {"x": 1, "arch": [5, 3], "kind": "c", "size": 9, "small": True, "quick": False}
        found = template.run(knobs=pins)
        loaded = load_trial_model(found.url, str(template.file))
        monkeypatch.setattr(sys, "argv", ["Model.py", "--MODEL_TRIAL_COUNT=1", "--small=true", "--quick=false"])
        class_ = load_template(str(template.file)).class_
        knobs, _, _ = tune_model(class_, str(tmp_path / "train"), str(tmp_path / "val"))

        assert loaded.knobs == pins  # type: ignore[attr-defined]
        assert knobs is not None
        assert (knobs["small"], knobs["quick"]) == (True, False)

    @pytest.mark.parametrize(
        "changes",
        [{"class Told": "class Other"}, {'{"x": FloatKnob(0, 1)}': '{"depth": FloatKnob(1, 2)}'}],
        ids=["class", "knobs"],
    )
    def test_load_trial_model_of_another_template(self, tmp_path: Path, changes: dict[str, str]) -> None:
        """Another template is refused with both classes and their knobs, as is a search without a template."""
        found = TemplateFolder(tmp_path).run()
        (tmp_path / "elsewhere").mkdir()
        other = TemplateFolder(tmp_path / "elsewhere", changes)
        plain = Search(problem=Spec.of(ScoreProblem), tuner=Spec("nas.tuners.random.RandomTuner"))
        no_template = run_search(plain, root=str(tmp_path / "root"), budget=Budget(trials=1), finalists=1)

        error = r"elsewhere/Model\.py: must be the template of the search, Told in Model\.py; (Told|Other) has .* x\."
        with pytest.raises(ConfigurationError, match=error):
            load_trial_model(found.url, str(other.file))
        with pytest.raises(ConfigurationError, match="must be the folder of a search with problem=rafiki"):
            load_trial_model(no_template.url, str(other.file))


def zip_of(path: Path, **files: bytes) -> str:
    with zipfile.ZipFile(path, "w") as folder:
        for name, content in files.items():
            folder.writestr(
                name.replace("__", "/").replace("_csv", ".csv").replace("_tsv", ".tsv").replace("_png", ".png"), content
            )
    return str(path)


def png(width: int, height: int, color: tuple[int, int, int]) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height), color).save(buffer, "PNG")
    return buffer.getvalue()


def table(rows: list[list[object]], dialect: str = "excel") -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer, dialect=dialect).writerows(rows)
    return buffer.getvalue().encode()


class TestDataSets:
    LISTED = table([["path", "class"], ["a/red.png", 1], ["blue.png", 0], ["a/red.png", 1]])

    def images(self, folder: Path) -> str:
        return zip_of(
            folder / "images.zip",
            images_csv=self.LISTED,
            a__red_png=png(6, 4, (255, 0, 0)),
            blue_png=png(8, 8, (0, 0, 255)),
        )

    def test_images(self, tmp_path: Path) -> None:
        """A zip file with images.csv gives squares of one size within the limits, and classes."""
        loaders = DatasetUtils()
        found = loaders.load_dataset_of_image_files(self.images(tmp_path))
        small = loaders.load_dataset_of_image_files(self.images(tmp_path), max_image_size=3, mode="L")
        images, classes = zip(*list(found), strict=True)
        scaled, mean, _ = loaders.normalize_images(images)
        turned = loaders.transform_images(images, image_size=2, mode="L")
        both = SingaAutoDatasetUtils().transform_images(images, image_size=2, mode="L")

        assert (found.size, len(found), found.classes, found.image_size) == (3, 3, 2, 4)
        assert classes == (1, 0, 1)
        assert images[1].shape == (4, 4, 3) and images[1].dtype == np.uint8 and images[1][0, 0].tolist() == [0, 0, 255]
        assert small[0][0].shape == (3, 3)
        assert mean == pytest.approx([2 / 3, 0, 1 / 3])
        assert scaled.shape == (3, 4, 4, 3) and scaled[..., 0].mean() == pytest.approx(0)
        assert turned.shape == (3, 2, 2)
        assert np.array_equal(both[0], turned)
        assert both[1][0].size == (2, 2)

    def test_images_one_by_one(self, tmp_path: Path) -> None:
        """With lazy_load images are read on access; without images.csv the folder is the class."""
        found = DatasetUtils().load_dataset_of_image_files(self.images(tmp_path), lazy_load=True)
        by_folder = zip_of(tmp_path / "f.zip", b__1_png=png(4, 4, (9, 9, 9)), a__2_png=png(4, 6, (9, 9, 9)))
        other = DatasetUtils().load_dataset_of_image_files(by_folder, lazy_load=True)

        assert (found[1][0].size, found[1][1]) == ((8, 8), [0])
        assert [label for _, label in other] == [1, 0]
        assert other.classes == 2

    @pytest.mark.parametrize("lazy", [False, True])
    def test_images_shuffled(self, tmp_path: Path, lazy: bool) -> None:
        """With if_shuffle the order is drawn by Python's generator, and images keep their classes."""
        listed = table([["path", "class"], *([f"{shade}.png", shade] for shade in range(8))])
        pngs = {f"{shade}_png": png(2, 2, (shade, shade, shade)) for shade in range(8)}
        path = zip_of(tmp_path / "s.zip", images_csv=listed, **pngs)
        random.seed(3)
        found = DatasetUtils().load_dataset_of_image_files(path, if_shuffle=True, lazy_load=lazy)
        shades = [int(np.asarray(image)[0, 0, 0]) for image, _ in found]
        expected = list(range(8))
        random.seed(3)
        random.shuffle(expected)

        assert shades == expected != list(range(8))
        assert [label for _, label in found] == [[shade] if lazy else shade for shade in expected]
        assert found.classes == 8

    def test_a_corpus(self, tmp_path: Path) -> None:
        """A zip file with corpus.tsv gives sentences of tokens and tags."""
        rows = [["token", "tag"], ["My", 0], ["name", 2], ["\\n", 0], ["Hi", 1], ["\\n", 0]]
        found = DatasetUtils().load_dataset_of_corpus(zip_of(tmp_path / "c.zip", corpus_tsv=table(rows, "excel-tab")))

        assert list(found) == [[["My", 0], ["name", 2]], [["Hi", 1]]]
        assert (found.size, found.tag_num_classes, found.max_token_len, found.max_sent_len) == (2, [3], 4, 2)

    def test_no_image_one_by_one(self, tmp_path: Path) -> None:
        """With lazy_load an empty zip file is refused."""
        with pytest.raises(InvalidDatasetFormatException, match="contains no image"):
            DatasetUtils().load_dataset_of_image_files(zip_of(tmp_path / "empty.zip"), lazy_load=True)

    def test_tables_and_audio(self, tmp_path: Path) -> None:
        """A csv file becomes a pandas table; a zip file of audio is extracted, and audios.csv becomes a table."""
        (tmp_path / "t.csv").write_bytes(table([["a", "b"], [1, 2.5]]))
        rows = table([["wav_filename", "wav_filesize", "transcript"], ["1.wav", 4, "NA"]])
        audio = DatasetUtils().load_dataset_of_audio_files(
            zip_of(tmp_path / "a.zip", audios_csv=rows), str(tmp_path / "out")
        )

        assert DatasetUtils().load_dataset_of_tabular(str(tmp_path / "t.csv")).data.to_dict("list") == {
            "a": [1],
            "b": [2.5],
        }
        assert audio.df["transcript"].tolist() == ["NA"]
        assert (tmp_path / "out" / "audios.csv").is_file()

    @pytest.mark.parametrize(
        ("content", "error"),
        [
            (None, "is not a zip file"),
            ({}, "contains no images.csv"),
            ({"images_csv": b"file,class\n"}, "has no column path"),
            ({"images_csv": b"path,class\n"}, "lists no image"),
            ({"images_csv": b"path,class\nx.png,0\n"}, "lists x.png, which is not in the zip file"),
            ({"images_csv": b"path,class\nx.png,a\n", "x_png": b""}, "'a' must be a whole number"),
        ],
        ids=["zip", "list", "column", "empty", "lost", "class"],
    )
    def test_an_invalid_data_set(self, tmp_path: Path, content: dict[str, bytes] | None, error: str) -> None:
        """The error names the fault of the file."""
        path = tmp_path / "data.zip"
        path.write_bytes(b"no zip")
        if content is not None:
            zip_of(path, **content)

        with pytest.raises(InvalidDatasetFormatException, match=error):
            DatasetUtils().load_dataset_of_image_files(str(path))
