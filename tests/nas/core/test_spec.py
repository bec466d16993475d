"""Specs: classes by dotted path, built from yaml, with errors that name the remedy."""

from __future__ import annotations

import builtins
import pickle
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pytest

from nas.api.search import run_search
from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.core.spec import Spec
from nas.problems.tabular import TabularProblem
from nas.tuners.evolution import EvolutionTuner
from tests.support.scripted_executor import METRIC, SPACE

EVOLUTION = "nas.tuners.evolution.EvolutionTuner"


class Abstract(ABC):
    @abstractmethod
    def needed(self) -> None: ...

    @abstractmethod
    def also(self) -> None: ...


class Refusing:
    def __init__(self, size: int) -> None:
        raise ConfigurationError(f"size={size}: must be smaller")


def test_spec_builds_its_class() -> None:
    """build returns an instance from injected, own and further arguments."""
    tuner = Spec(EVOLUTION, {"population_size": 5}).build(SPACE, (METRIC,), seed=3)

    assert isinstance(tuner, EvolutionTuner)
    assert (tuner.population_size, tuner.seed) == (5, 3)


def test_spec_of_a_class_finds_it_again() -> None:
    """Spec.of names a class that find returns."""
    spec = Spec.of(Metric, name="loss", direction="minimize")

    assert spec.find() is Metric
    assert spec.build() == Metric("loss", "minimize")


def test_spec_of_no_class_is_refused() -> None:
    """Spec.of refuses a dotted path, with the remedy."""
    with pytest.raises(
        ConfigurationError, match=r"nas\.Spec\.of\('a\.b\.C'\): must be a class\. A dotted path goes into"
    ):
        Spec.of("a.b.C")  # type: ignore[arg-type]


def test_spec_survives_pickling() -> None:
    """A pickled spec is equal."""
    spec = Spec(EVOLUTION, {"population_size": 5})

    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("nas.problems.fashion_mnist.FashionMnistProblem", "fashion_mnist"),
        (EVOLUTION, "evolution"),
        ("nas.stoppers.median.MedianStopper", "median"),
        ("mine.Problem", "problem"),
        ("mine.TinyNet", "tiny_net"),
    ],
)
def test_name_is_the_class_without_its_kind(target: str, name: str) -> None:
    """The short name is in snake case, without Problem, Tuner or Stopper."""
    assert Spec(target).name == name


def test_description_leaves_out_what_it_is_told() -> None:
    """to_json returns target and arguments, without those that only locate data."""
    spec = Spec("mine.MyProblem", {"data_root": "/data", "depth": 3})

    assert spec.to_json(without=frozenset({"data_root"})) == {"target": "mine.MyProblem", "arguments": {"depth": 3}}


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("EvolutionTuner", "must be a dotted path"),
        ("nas.tuners.evolution.Evolution", "module nas.tuners.evolution has no Evolution"),
        (
            "nas.mine.MineProblem",
            "no module nas.mine. nas is Heirloom's own package: rename yours if it is called nas",
        ),
        ("flows.mine.Mine", "no module flows.mine. flows is Heirloom's own package: rename yours"),
        ("nas.Mine", "module nas has no Mine. nas is Heirloom's own package: rename yours"),
        ("no_such_package.sub.MyProblem", "no module no_such_package. Run the command in the folder that contains it"),
        ("nas.core.budget.DEFAULT_TRIALS", "must be a class, not 16"),
    ],
)
def test_wrong_target_is_named(target: str, message: str) -> None:
    """A path without a class is refused in one line with the part that exists."""
    with pytest.raises(ConfigurationError, match=message):
        Spec(target).find()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "import sys\nimport no_such_package.part\n",
            r"line 2: ModuleNotFoundError: No module named 'no_such_package'. Install no_such_package where Heirloom ",
        ),
        ("class MyProblem:\n    def\n", r"line 2: SyntaxError: invalid syntax. Fix this line"),
        ("from json import dumbs\n", r"line 1: ImportError: cannot import name 'dumbs' .*. Fix this import"),
        ("def f():\n    return 1 / 0\n\n\nx = f()\n", "line 2: ZeroDivisionError: division by zero. Fix this line"),
        ("import sys\nsys.exit(3)\n", "line 2: SystemExit: 3. Fix this line, which runs at import"),
        ("import json\njson.loads('{')\n", "line 2: JSONDecodeError: Expecting property name .*. Fix this line"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    """An error at the import of a user's module is refused with its file, line, error and remedy."""
    name = f"broken_{abs(hash(code))}"
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigurationError, match=rf"_target_={name}.MyProblem: \S+{name}\.py, {message}") as caught:
        run_search(f"{name}.MyProblem", tuner=EVOLUTION, root=str(tmp_path / "root"), budget=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "similar"),
    [
        ("nas.problems.DigitProblem", "nas.problems.digits.DigitsProblem"),
        ("nas.problems.DigitsProblem", "nas.problems.digits.DigitsProblem"),
        ("nas.problems.digit.DigitsProblem", "nas.problems.digits.DigitsProblem"),
        ("nas.problems.digits.digitsproblem", "nas.problems.digits.DigitsProblem"),
        ("nas.tuners.evolution.EvolutionTunner", "nas.tuners.evolution.EvolutionTuner"),
        ("my_own_probem.MyProblem", "my_own_problem.MyProblem"),
        ("my_own_problem.MyProblm", "my_own_problem.MyProblem"),
    ],
)
def test_a_misspelled_class_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, similar: str
) -> None:
    """The most similar class of the module, its package or the working folder is named."""
    (tmp_path / "my_own_problem.py").write_text("class MyProblem:\n    pass\n")
    (tmp_path / "my_own_problems.py").symlink_to(tmp_path / "missing.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigurationError, match=rf"_target_={target}: .*; did you mean {similar}\?$"):
        Spec(target).find()


class Declared:
    """Takes numbers, as its annotations and defaults say."""

    def __init__(self, width: int = 8, *, rate: float | None = None, on: bool = False, depth=2, name="a") -> None:  # type: ignore[no-untyped-def]
        self.total = width + depth


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("width", "abc", "width='abc': must be a whole number, as tests.nas.core.test_spec.Declared declares it"),
        ("width", 1.5, "width=1.5: must be a whole number"),
        ("width", True, "width=True: must be a whole number"),
        ("rate", [1], r"rate=\[1\]: must be a number"),
        ("on", "yes", "on='yes': must be true or false"),
        ("depth", "deep", r"depth='deep': must be a whole number, as its default is \(TypeError: unsupported operand"),
    ],
)
def test_an_argument_of_another_type_is_named(argument: str, value: object, message: str) -> None:
    """A value that does not fit the annotation of a number, or the default by which the constructor fails, is named."""
    with pytest.raises(ConfigurationError, match=message):
        Spec.of(Declared, **{argument: value}).build()


@pytest.mark.parametrize("value", [3, 3.0])
def test_arguments_that_fit_are_given(value: object) -> None:
    """Numbers, None and texts reach the constructor unchanged."""
    assert Spec.of(Declared, width=value, rate=None, name=7).build().total == 5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"population": 5}, "has no argument population; did you mean population_size?"),
        ({"sample_size": 3, "zzz": 1}, "has no argument zzz"),
        ({"seed": 1}, "gets its seed from the search, not as an argument"),
        ({"space": 1}, "gets its space from the search, not as an argument"),
    ],
    ids=str,
)
def test_wrong_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    """An argument that is unknown, or set by the search, is refused with the known ones."""
    takes = "population_size=None, sample_size=None, crossover=0.0, replacement='oldest', donor='parent'"
    line = f"{EVOLUTION} {message}; it takes {takes}"

    with pytest.raises(ConfigurationError, match=f"^{re.escape(line)}$"):
        Spec(EVOLUTION, arguments).build(SPACE, (METRIC,), seed=3)


def test_missing_argument_is_named() -> None:
    """A missing required argument is named."""
    line = "Metric needs name; it takes name, direction='maximize', reference=None$"

    with pytest.raises(ConfigurationError, match=line):
        Spec.of(Metric).build()


def test_abstract_class_names_what_is_missing() -> None:
    """A class with missing methods is refused with their names."""
    with pytest.raises(ConfigurationError, match=r"Abstract must define also, needed"):
        Spec.of(Abstract).build()


def test_own_error_of_the_constructor_is_raised() -> None:
    """The constructor's own error is raised unchanged."""
    with pytest.raises(ConfigurationError, match=r"^size=9: must be smaller$"):
        Spec.of(Refusing, size=9).build()


@pytest.mark.parametrize(("error", "raised"), [("KeyError", KeyError), ("TypeError", ConfigurationError)])
def test_only_errors_of_values_are_mistakes(
    error: str, raised: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in Heirloom's own constructor is raised as it is, unless an argument's type may be its cause."""

    def fail(*_: object, **__: object) -> None:
        raise getattr(builtins, error)("x")

    monkeypatch.setattr(EvolutionTuner, "__init__", fail)
    with pytest.raises(raised):
        Spec(EVOLUTION).build(SPACE, (METRIC,), seed=3)


def test_options_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error about an argument's type repeats no value of a mapping, at any depth."""

    def fail(*_: object, **__: object) -> None:
        raise TypeError("x")

    monkeypatch.setattr(TabularProblem, "__init__", fail)
    arguments = {"table": "t", "metrics": {"a": {}}, "options": {"key": "SECRET"}, "parameters": [{"key": "SECRET"}, 1]}
    shown = (
        r"problem.table='t', problem.metrics=\{\.\.\.\}, problem.options=\{\.\.\.\}, "
        r"problem.parameters=\[\{\.\.\.\}, 1\], problem.known=3"
    )
    with pytest.raises(ConfigurationError, match=shown) as caught:
        Spec("nas.problems.tabular.TabularProblem", {**arguments, "known": 3}).build()

    assert "SECRET" not in str(caught.value)
