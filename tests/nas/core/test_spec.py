"""Specs: classes by dotted path, built from yaml, with errors that name the remedy."""

from __future__ import annotations

import builtins
import pickle
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pytest

from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.core.spec import Spec
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
            "nas.tuners.evolved.EvolutionTuner",
            "no module nas.tuners.evolved. nas is Heirloom's own package: rename yours if it is called nas",
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


def test_missing_import_within_the_module_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that lacks a package raises its own error, since the path is right."""
    (tmp_path / "needs_more_for_test.py").write_text("import no_such_package_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ModuleNotFoundError, match="no_such_package_at_all"):
        Spec("needs_more_for_test.MyProblem").find()


def test_syntax_error_is_shown_by_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with a syntax error is refused with file and line."""
    (tmp_path / "misspelt_for_test.py").write_text("class MyProblem:\n    def\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigurationError, match=r"misspelt_for_test\.py, line 2: "):
        Spec("misspelt_for_test.MyProblem").find()


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
    takes = "population_size=8, sample_size=3, crossover=0.0, replacement='oldest', donor='parent'"
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


def test_options_are_not_shown() -> None:
    """The error about an argument's type repeats no value of a mapping, at any depth."""
    arguments = {"table": "t", "metrics": {"a": {}}, "options": {"key": "SECRET"}, "parameters": [{"key": "SECRET"}, 1]}
    shown = r"table='t', metrics=\{\.\.\.\}, options=\{\.\.\.\}, parameters=\[\{\.\.\.\}, 1\], known=3"
    with pytest.raises(ConfigurationError, match=shown) as caught:
        Spec("nas.problems.tabular.TabularProblem", {**arguments, "known": 3}).build()

    assert "SECRET" not in str(caught.value)
