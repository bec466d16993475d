"""NNI's search spaces: every type draws what NNI drew, and is a space like any other."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from nas.core.errors import ConfigurationError, PointError
from nas.core.metric import Metric
from nas.core.point import point_key
from nas.core.spec import Spec
from nas.spaces.parameters.nni_json import load_nni_space
from nas.spaces.parameters.space import ParameterSpace
from nas.testing import check_tuner

EVERY_TYPE: dict[str, Any] = {
    "op": {"_type": "choice", "_value": ["relu", "tanh", 3, None, [1, 2]]},
    "layer": {
        "_type": "choice",
        "_value": [
            {"_name": "Empty"},
            {
                "_name": "Conv",
                "kernel": {"_type": "choice", "_value": [1, 3, 5]},
                "inner": {
                    "_type": "choice",
                    "_value": [{"_name": "A", "x": {"_type": "uniform", "_value": [0, 1]}}, {"_name": "B"}],
                },
            },
            {"_name": "Pool", "size": {"_type": "randint", "_value": [2, 5]}},
        ],
    },
    "randint": {"_type": "randint", "_value": [3, 7]},
    "old_randint": {"_type": "randint", "_value": [4]},
    "uniform": {"_type": "uniform", "_value": [-1.5, 2.5]},
    "quniform": {"_type": "quniform", "_value": [1, 10, 4]},
    "loguniform": {"_type": "loguniform", "_value": [0.0001, 0.1]},
    "qloguniform": {"_type": "qloguniform", "_value": [1, 100, 5]},
    "normal": {"_type": "normal", "_value": [10, 2]},
    "qnormal": {"_type": "qnormal", "_value": [0, 1, 0.5]},
    "lognormal": {"_type": "lognormal", "_value": [0, 1]},
    "qlognormal": {"_type": "qlognormal", "_value": [1, 0.5, 0.25]},
    "layer_choice": {"_type": "layer_choice", "_value": ["conv", "pool"]},
    "input_choice": {"_type": "input_choice", "_value": {"candidates": ["a", "b", "c"], "n_chosen": 2}},
    "mutable": {
        "_type": "mutable_layer",
        "_value": {"l1": {"layer_choice": ["c3", "c5"], "optional_inputs": ["i", "j"], "optional_input_size": [0, 1]}},
    },
}
METRICS = (Metric("accuracy"),)
SLOW_CMAES = pytest.param("cmaes.CmaEsTuner", marks=pytest.mark.slow)
SLOW_CMAES = pytest.param("cmaes.CmaEsTuner", marks=pytest.mark.slow)


def drawn(kind: str, *value: float, n: int = 4000) -> list[float]:
    """Draws of one type."""
    space = load_nni_space({"x": {"_type": kind, "_value": list(value)}})
    rng = random.Random(1)
    return [space.sample(rng)["x"] for _ in range(n)]


def test_every_type_loads_from_a_file(tmp_path: Path) -> None:
    """The file that NNI reads gives the space; its points have NNI's form."""
    (tmp_path / "space.json").write_text(json.dumps(EVERY_TYPE))
    space = load_nni_space(tmp_path / "space.json")
    rng = random.Random(0)
    points = [space.sample(rng) for _ in range(400)]

    assert points[0].keys() == EVERY_TYPE.keys()
    assert {point["layer"]["_name"] for point in points} == {"Empty", "Conv", "Pool"}
    for point in points:
        conv = point["layer"] if point["layer"]["_name"] == "Conv" else {"kernel": 1, "inner": {"_name": "B"}}
        assert conv["kernel"] in (1, 3, 5)
        assert set(conv["inner"]) == ({"_name", "x"} if conv["inner"]["_name"] == "A" else {"_name"})
        assert point["layer_choice"] in ({"_value": "conv", "_idx": 0}, {"_value": "pool", "_idx": 1})
        assert point["input_choice"]["_value"] == ["abc"[i] for i in point["input_choice"]["_idx"]]
        assert len(point["input_choice"]["_value"]) == 2
        assert point["mutable"]["l1"]["chosen_inputs"] in ([], ["i"], ["j"])
        assert point["mutable"]["l1"]["chosen_layer"] in ("c3", "c5")


def test_its_points_are_points_like_others() -> None:
    """Points survive JSON, are made again of their decisions, and every mutant differs and lies in the space."""
    space = load_nni_space(EVERY_TYPE)
    rng = random.Random(2)
    for _ in range(300):
        point = space.sample(rng)
        space.validate(json.loads(json.dumps(point)))
        answers = {decision.name: decision.answer for decision in space.decisions(point)}
        assert space.decide(lambda name, domain, answers=answers: answers[name]) == point
        mutant = space.mutate(point, rng)
        space.validate(mutant)
        assert point_key(mutant) != point_key(point)
        guessed = space.decide(lambda name, domain: domain.sample(rng))
        space.validate(guessed)


@pytest.mark.parametrize("tuner", ["random.RandomTuner", "evolution.EvolutionTuner", SLOW_CMAES])
def test_tuners_keep_their_contract_in_it(tuner: str) -> None:
    """Tuners know nothing of where a space is from."""
    check_tuner(Spec(f"nas.tuners.{tuner}"), load_nni_space(EVERY_TYPE), METRICS, n_trials=12)


def test_repeated_options_count_once() -> None:
    """An option that is there twice is one option; 1, true and 1.0 are three."""
    nested = {"_name": "A", "k": {"_type": "choice", "_value": [3, 3]}}
    layer = {"layer_choice": ["a", "a"], "optional_inputs": ["i", "i"], "optional_input_size": 1}
    space = load_nni_space(
        {
            "x": {"_type": "choice", "_value": [1, 1, 2, True, 1.0, [1], [1]]},
            "nested": {"_type": "choice", "_value": [nested, nested, {"_name": "B"}]},
            "mutable": {"_type": "mutable_layer", "_value": {"l": layer}},
        }
    )
    points = list(space.points())

    assert [json.dumps(point["x"]) for point in points[::2]] == ["1", "2", "true", "1.0", "[1]"]
    assert [point["nested"] for point in points[:2]] == [{"_name": "A", "k": 3}, {"_name": "B"}]
    assert points[0]["mutable"]["l"] == {"chosen_layer": "a", "chosen_inputs": ["i"]}


def test_bounds_of_whole_numbers() -> None:
    """The upper bound is excluded; one number alone is the upper bound."""
    assert set(drawn("randint", 3, 7)) == {3, 4, 5, 6}
    assert set(drawn("randint", 4)) == {0, 1, 2, 3}


def test_steps_are_rounded_then_clipped() -> None:
    """clip(round(U / q) * q, low, high): the ends have the share of what is rounded to them, and are floats."""
    found = Counter(drawn("quniform", 1, 10, 4))

    assert found.keys() == {1.0, 4.0, 8.0}  # 10 is rounded to 8, as numpy does
    assert all(type(value) is float for value in found)
    assert [found[x] / 4000 for x in (1.0, 4.0, 8.0)] == pytest.approx([1 / 9, 4 / 9, 4 / 9], abs=0.03)
    assert set(drawn("quniform", 1, 11, 4)) == {1.0, 4.0, 8.0, 11.0}


def test_logarithms_are_uniform_or_normal() -> None:
    """The shares of decades are equal; the median of a lognormal one is exp(mu)."""
    decades = Counter(math.floor(math.log10(x)) for x in drawn("loguniform", 0.001, 1))
    assert [decades[d] / 4000 for d in (-3, -2, -1)] == pytest.approx([1 / 3] * 3, abs=0.03)
    stepped = Counter(drawn("qloguniform", 1, 100, 5))
    assert stepped[1.0] / 4000 == pytest.approx(math.log(2.5) / math.log(100), abs=0.03)
    assert stepped.keys() <= {1.0, *(5.0 * i for i in range(1, 21))}
    logs = [math.log(x) for x in drawn("lognormal", 0.5, 2)]
    assert statistics.mean(logs) == pytest.approx(0.5, abs=0.15)
    assert statistics.stdev(logs) == pytest.approx(2, abs=0.15)


def test_normal_numbers() -> None:
    """Mean and spread are those asked for; steps are multiples, and may be negative."""
    values = drawn("normal", 10, 2)
    assert statistics.mean(values) == pytest.approx(10, abs=0.15)
    assert statistics.stdev(values) == pytest.approx(2, abs=0.15)
    steps = Counter(drawn("qnormal", 0, 1, 0.5))
    assert all(value / 0.5 == int(value / 0.5) for value in steps)
    assert steps[0.0] / 4000 == pytest.approx(0.197, abs=0.03)
    assert min(steps) < 0


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ({"_type": "choise", "_value": [1]}, r"x: _type='choise': must be one of choice, randint, uniform"),
        ({"_type": "choice", "_value": []}, "must be a list of at least one option"),
        ({"_type": "uniform", "_value": [1]}, r"x: _value=\[1\]: must be \[low, high\]"),
        ({"_type": "quniform", "_value": [1, 2]}, r"must be \[low, high, q\]"),
        ({"_type": "quniform", "_value": [1, 2, 0]}, "q=0.*: must be greater than 0"),
        ({"_type": "loguniform", "_value": [0, 2]}, "low=0.*: must be greater than 0"),
        ({"_type": "normal", "_value": [0, -1]}, "standard deviation=-1.*: must be greater than 0"),
        ({"_type": "normal", "_value": [0, 10**400]}, "second=10.*: must be a finite number"),
        ({"_type": "lognormal", "_value": [0, 1000]}, "the range must be within that of floats"),
        ({"_type": "randint", "_value": [5, 5]}, "the lower less than the upper"),
        ({"_type": "choice", "_value": [{"k": {"_type": "randint", "_value": [2]}}, 1]}, "must have a _name"),
        ({"_type": "input_choice", "_value": {"candidates": [1], "n_chosen": 2}}, r"n_chosen=2: must be"),
        ({"_value": [1]}, "must be an object with _type and _value"),
        (3, "must be an object with _type and _value"),
    ],
)
def test_what_is_none_of_nnis(entry: Any, line: str) -> None:
    """A wrong entry is named, with what is allowed."""
    with pytest.raises(ConfigurationError, match=line):
        load_nni_space({"x": entry})


def test_a_file_of_an_editor_that_marks_utf_8(tmp_path: Path) -> None:
    """The mark is no part of the content, which is UTF-8 in any locale."""
    path = tmp_path / "space.json"
    path.write_text('{"größe": {"_type": "choice", "_value": ["weiß"]}}', encoding="utf-8-sig")

    assert load_nni_space(path).sample(random.Random(0)) == {"größe": "weiß"}


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    """A missing file, one that is not JSON, and one that holds a list are refused by path."""
    (tmp_path / "text").write_text("{")
    (tmp_path / "list").write_text("[]")
    for name, line in (("none", "No such file"), ("text", "must be JSON"), ("list", "must be an object")):
        with pytest.raises(ConfigurationError, match=line):
            load_nni_space(tmp_path / name)


def test_values_outside_are_refused() -> None:
    """A number between two steps, or beyond the bounds, is no point."""
    space = load_nni_space({"x": {"_type": "quniform", "_value": [1, 10, 4]}})
    for value in (2.0, 10.0, 0.0, "1", True, math.nan, 10**400):
        with pytest.raises(PointError, match="x="):
            space.validate({"x": value})
    assert isinstance(space, ParameterSpace)
    assert space.n_points == 3
    assert list(space.points()) == [{"x": 1.0}, {"x": 4.0}, {"x": 8.0}]
