"""Spaces of named parameters."""

from __future__ import annotations

import json
import math
import pickle
import random
import subprocess
import sys
import time
from collections import Counter
from itertools import islice
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nas.core.errors import ConfigurationError, PointError, SpaceExhaustedError
from nas.core.point import is_json, point_key
from nas.spaces.domain import Categorical, Domain, Numeric
from nas.spaces.parameters.space import Choice, Float, Int, Parameter, ParameterSpace

SCALARS: list[Any] = [0, 1, 1.0, True, None, "a", [3, 3], {"k": [1]}]


def small_numbers(draw: st.DrawFn, when: Any, *, finite: bool) -> tuple[Parameter, list[Any]]:
    """A range, and values that a condition may ask for."""
    low, width, log = draw(st.integers(1, 9)), draw(st.integers(0, 4)), draw(st.booleans())
    if draw(st.booleans()):
        return Int(low, low + width, log=log, when=when), [low, low + width]
    width = 0 if finite else width
    return Float(low / 10, (low + width) / 10, log=log, when=when), [low / 10, (low + width) / 10]


@st.composite
def trees(draw: st.DrawFn, *, finite: bool = False, depth: int = 2) -> dict[str, Any]:
    """A dict of one to four parameters, of each kind, that may hang on earlier ones."""
    tree: dict[str, Any] = {}
    askable: dict[str, list[Any]] = {}
    for name in "dbca"[: draw(st.integers(1, 4))]:
        when = {
            earlier: draw(st.lists(st.sampled_from(askable[earlier]), min_size=1, max_size=2))
            for earlier in draw(
                st.lists(st.sampled_from(sorted(askable)), max_size=2, unique=True) if askable else st.just([])
            )
        }
        kind = draw(st.sampled_from(["number", "choice", "constant", "group", "nested"][: 5 if depth else 3]))
        if kind == "number":
            tree[name], askable[name] = small_numbers(draw, when, finite=finite)
        elif kind == "choice":
            options = draw(st.lists(st.sampled_from(SCALARS), min_size=1, max_size=4, unique_by=point_key))
            assume(not (len(options) == 1 and isinstance(options[0], list)))
            tree[name] = Choice(*options, when=when)
            askable[name] = [option for option in options if not isinstance(option, dict)] or ["no such value"]
            if askable[name] == ["no such value"]:
                del askable[name]
        elif kind == "constant":
            tree[name] = draw(st.sampled_from(SCALARS))
        elif kind == "group":
            tree[name] = draw(trees(finite=finite, depth=depth - 1))
        else:
            options = draw(st.lists(trees(finite=finite, depth=depth - 1), min_size=1, max_size=2))
            tree[name] = Choice(None, *({"type": i, **option} for i, option in enumerate(options)), when=when)
            askable[name] = [None]
    return tree


spaces = trees().map(ParameterSpace)
small_spaces = trees(finite=True).map(ParameterSpace).filter(lambda space: (space.n_points or math.inf) <= 2_000)
rngs = st.integers(0, 2**32).map(random.Random)


def chain() -> ParameterSpace:
    """A space in which the second layer hangs on the depth, and its kernel on the second layer."""
    return ParameterSpace(
        {
            "n_layers": Int(1, 2),
            "op": Choice("conv", "pool", when={"n_layers": [2]}),
            "kernel": Int(1, 1_000, when={"op": ["conv"]}),
            "lr": Float(0.0, 1.0),
        }
    )


def mutants(space: ParameterSpace, point: dict[str, Any], n: int = 300) -> list[dict[str, Any]]:
    """The results of many mutations of one point."""
    return [space.mutate(point, random.Random(seed)) for seed in range(n)]


# What holds for every space


@given(spaces, rngs)
def test_samples_are_valid_and_plain(space: ParameterSpace, rng: random.Random) -> None:
    """A sampled point is valid, consists of plain Python types, and JSON gives it back unchanged and valid."""
    point = space.sample(rng)
    back = json.loads(json.dumps(point))

    space.validate(point)
    assert is_json(point)
    assert back == point
    assert point_key(back) == point_key(point)
    space.validate(back)


@given(spaces, st.integers(0, 2**32))
def test_equal_seeds_give_equal_points(space: ParameterSpace, seed: int) -> None:
    """The random generator alone decides what is sampled."""
    assert point_key(space.sample(random.Random(seed))) == point_key(space.sample(random.Random(seed)))


@given(spaces, rngs)
def test_mutants_are_valid_and_differ(space: ParameterSpace, rng: random.Random) -> None:
    """A mutant lies in the space and is never the point itself, unless there is no other point."""
    point = space.sample(rng)
    try:
        for _ in range(5):
            mutant = space.mutate(point, rng)
            space.validate(mutant)
            assert point_key(mutant) != point_key(point)
            point = mutant
    except SpaceExhaustedError:
        assert space.n_points == 1


@given(spaces, rngs)
def test_one_top_parameter_changes(space: ParameterSpace, rng: random.Random) -> None:
    """Of the names that are in both, a mutation changes one alone; all others keep their values."""
    assume(space.n_points != 1)
    point = space.sample(rng)
    mutant = space.mutate(point, rng)

    assert sum(point_key(point[name]) != point_key(mutant[name]) for name in point.keys() & mutant.keys()) == 1


@given(spaces, st.integers(0, 2**32))
def test_mutation_ignores_the_order_of_keys(space: ParameterSpace, seed: int) -> None:
    """A point whose keys a store has sorted is mutated as the point itself."""
    assume(space.n_points != 1)
    point = space.sample(random.Random(seed))
    stored = json.loads(point_key(point))

    assert space.mutate(stored, random.Random(seed)) == space.mutate(point, random.Random(seed))


@given(spaces, rngs)
def test_mutation_leaves_the_point_alone(space: ParameterSpace, rng: random.Random) -> None:
    """The point that is mutated stays as it is."""
    assume(space.n_points != 1)
    point = space.sample(rng)
    before = point_key(point)
    space.mutate(point, rng)

    assert point_key(point) == before


@given(small_spaces)
def test_points_are_as_many_as_counted(space: ParameterSpace) -> None:
    """`points` gives `n_points` points, each valid and there once."""
    keys = []
    for point in space.points():
        space.validate(point)
        keys.append(point_key(point))

    assert len(keys) == len(set(keys)) == space.n_points


@given(small_spaces, rngs)
def test_points_hold_every_sample(space: ParameterSpace, rng: random.Random) -> None:
    """No point can be sampled that `points` does not give."""
    keys = {point_key(point) for point in space.points()}

    assert all(point_key(space.sample(rng)) in keys for _ in range(10))


@settings(max_examples=25)
@given(trees(finite=True).map(ParameterSpace).filter(lambda space: (space.n_points or math.inf) <= 12), rngs)
def test_mutation_reaches_every_point(space: ParameterSpace, rng: random.Random) -> None:
    """A walk of mutations through a small space comes to each of its points."""
    assume(space.n_points != 1)
    point = space.sample(rng)
    seen = {point_key(point)}
    for _ in range(5_000):
        if len(seen) == space.n_points:
            break
        point = space.mutate(point, rng)
        seen.add(point_key(point))

    assert len(seen) == space.n_points


@given(spaces)
def test_descriptions_are_json(space: ParameterSpace) -> None:
    """A space describes itself in plain JSON, the same each time."""
    assert is_json(space.to_json())
    assert space.to_json() == space.to_json()


@given(spaces, st.integers(0, 2**32))
def test_spaces_pickle(space: ParameterSpace, seed: int) -> None:
    """A space in another process gives the same points."""
    other = pickle.loads(pickle.dumps(space))

    assert other.to_json() == space.to_json()
    assert point_key(other.sample(random.Random(seed))) == point_key(space.sample(random.Random(seed)))


@given(spaces, rngs, st.data())
def test_points_without_a_name_are_refused(space: ParameterSpace, rng: random.Random, data: st.DataObject) -> None:
    """Each name of a point is needed."""
    point = space.sample(rng)
    name = data.draw(st.sampled_from(sorted(point)))
    del point[name]

    with pytest.raises(PointError):
        space.validate(point)


# Sampling


@given(st.floats(1e-300, 1e300), st.floats(1e-300, 1e300), rngs, st.booleans())
def test_floats_stay_in_bounds(one: float, other: float, rng: random.Random, log: bool) -> None:
    """No rounding of logarithms leads out of the range, however wide or narrow it is."""
    low, high = sorted((one, other))
    space = ParameterSpace({"x": Float(low, high, log=log)})

    assert low <= space.sample(rng)["x"] <= high


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("low", [5e-324, 1e-4, 0.1, 1.0, 1e300])
def test_neighboring_floats_can_be_mutated(low: float, log: bool) -> None:
    """A range of two floats is mutated from one to the other, though they may share their logarithm."""
    high = math.nextafter(low, math.inf)
    space = ParameterSpace({"x": Float(low, high, log=log)})

    assert {mutant["x"] for mutant in mutants(space, {"x": low}, 20)} == {high}
    assert {mutant["x"] for mutant in mutants(space, {"x": high}, 20)} == {low}


def test_log_floats_are_uniform_in_the_logarithm() -> None:
    """Each decade of a log range gets its share of the samples."""
    space, rng = ParameterSpace({"lr": Float(1e-4, 1e-1, log=True)}), random.Random(0)
    decades = Counter(math.floor(math.log10(space.sample(rng)["lr"])) for _ in range(6_000))

    assert set(decades) == {-4, -3, -2}
    assert all(abs(count - 2_000) < 150 for count in decades.values())


def test_floats_are_uniform() -> None:
    """Each quarter of a range gets its share of the samples."""
    space, rng = ParameterSpace({"x": Float(-2.0, 2.0)}), random.Random(0)
    quarters = Counter(math.floor(space.sample(rng)["x"]) for _ in range(6_000))

    assert all(abs(quarters[quarter] - 1_500) < 130 for quarter in (-2, -1, 0, 1))


def test_ints_are_uniform() -> None:
    """Both bounds of an int are as likely as what lies between."""
    space, rng = ParameterSpace({"n": Int(-1, 3)}), random.Random(0)
    counts = Counter(space.sample(rng)["n"] for _ in range(5_000))

    assert set(counts) == {-1, 0, 1, 2, 3}
    assert all(abs(count - 1_000) < 110 for count in counts.values())


def test_log_ints_fall_as_one_over_n() -> None:
    """Each value of a log int is reached, and 10 comes about ten times as often as 100."""
    space, rng = ParameterSpace({"n": Int(1, 100, log=True)}), random.Random(0)
    counts = Counter(space.sample(rng)["n"] for _ in range(60_000))

    assert set(counts) == set(range(1, 101))
    tens = sum(counts[n] for n in range(8, 13))
    late = sum(counts[n] for n in range(80, 101))
    assert tens / late == pytest.approx(math.log(12.5 / 7.5) / math.log(100.5 / 79.5), rel=0.1)


def test_choices_are_uniform() -> None:
    """Each option is as likely as another, whatever it holds."""
    space, rng = ParameterSpace({"x": Choice("a", "b", {"deep": Int(1, 1_000)})}), random.Random(0)
    counts = Counter(str(type(space.sample(rng)["x"])) for _ in range(3_000))

    assert abs(counts[str(dict)] - 1_000) < 100


def test_chosen_dicts_hold_values() -> None:
    """A nested option appears in the point as its dict, with values in the place of parameters."""
    space = ParameterSpace({"optimizer": Choice({"type": "sgd", "momentum": Float(0.5, 0.5)})})

    assert space.sample(random.Random(0)) == {"optimizer": {"type": "sgd", "momentum": 0.5}}


def test_points_share_nothing_with_the_space() -> None:
    """Whoever changes a list in a point changes neither the space nor the next point."""
    space = ParameterSpace({"shape": [1, 2], "kernel": Choice([3, 3], [5, 5])})
    for point in [space.sample(random.Random(0)), *space.points(), *mutants(space, space.sample(random.Random(0)), 3)]:
        point["shape"].append(9)
        point["kernel"].append(9)

    assert [point["shape"] for point in space.points()] == [[1, 2], [1, 2]]
    assert [point["kernel"] for point in space.points()] == [[3, 3], [5, 5]]


def test_later_changes_of_the_definition_do_nothing() -> None:
    """A space keeps its own copy of what it was made from."""
    kernel, asked = [3, 3], [1]
    space = ParameterSpace({"n": Int(1, 1), "kernel": kernel, "x": Int(1, 1, when={"n": asked})})
    kernel.append(3)
    asked[0] = 2

    assert space.sample(random.Random(0)) == {"n": 1, "kernel": [3, 3], "x": 1}


# Mutation


def test_steps_are_local() -> None:
    """Most steps of a number are shorter than twice 0.2 of its range."""
    space = ParameterSpace({"x": Float(0.0, 10.0)})
    steps = [abs(mutant["x"] - 5.0) for mutant in mutants(space, {"x": 5.0}, 1_000)]

    assert math.sqrt(sum(step**2 for step in steps) / len(steps)) == pytest.approx(2.0, rel=0.1)


def test_log_steps_are_local_in_the_logarithm() -> None:
    """A step of a log number multiplies it; its length does not hang on where it starts."""
    space = ParameterSpace({"lr": Float(1e-10, 1.0, log=True)})
    for start in (1e-6, 1e-4):
        steps = [math.log10(mutant["lr"] / start) for mutant in mutants(space, {"lr": start}, 1_000)]

        assert math.sqrt(sum(step**2 for step in steps) / len(steps)) == pytest.approx(2.0, rel=0.1)


def test_clipped_steps_end_on_the_bound() -> None:
    """A step that leads out of the range ends on its bound, to the bit."""
    space = ParameterSpace({"lr": Float(1e-4, 0.1, log=True)})
    reached = {mutant["lr"] for mutant in mutants(space, {"lr": 0.05})}

    assert 0.1 in reached
    assert max(reached) == 0.1


@pytest.mark.parametrize("low", [-1, 0, 1, 2**53 - 1])
def test_narrow_ints_mutate(low: int) -> None:
    """An int of two values always goes to the other, though the steps are short."""
    space = ParameterSpace({"n": Int(low, low + 1)})

    assert {mutant["n"] for mutant in mutants(space, {"n": low}, 50)} == {low + 1}
    assert {mutant["n"] for mutant in mutants(space, {"n": low + 1}, 50)} == {low}


def test_sites_are_equally_likely() -> None:
    """Nested parameters are changed as often as those on top; constants never are."""
    space = ParameterSpace(
        {
            "a": Int(1, 9),
            "fixed": 3,
            "single": Choice("only"),
            "group": {"b": Int(1, 9), "deeper": {"c": Int(1, 9)}},
            "choice": Choice({"type": "x", "d": Int(1, 9)}),
        }
    )
    point = space.sample(random.Random(0))
    changed: Counter[str] = Counter()
    for mutant in mutants(space, point, 2_000):
        changed["a"] += mutant["a"] != point["a"]
        changed["b"] += mutant["group"]["b"] != point["group"]["b"]
        changed["c"] += mutant["group"]["deeper"] != point["group"]["deeper"]
        changed["d"] += mutant["choice"] != point["choice"]

    assert sum(changed.values()) == 2_000
    assert all(abs(count - 500) < 80 for count in changed.values())


def test_other_options_are_equally_likely() -> None:
    """A choice goes to each other option as often, whatever the order."""
    space = ParameterSpace({"op": Choice("a", "b", "c", "d")})
    counts = Counter(mutant["op"] for mutant in mutants(space, {"op": "b"}, 1_500))

    assert set(counts) == {"a", "c", "d"}
    assert all(abs(count - 500) < 70 for count in counts.values())


def test_inner_parameters_change_without_their_option() -> None:
    """A nested option is changed from inside as well as replaced."""
    space = ParameterSpace({"opt": Choice({"type": "sgd", "lr": Float(0.0, 1.0)}, {"type": "adam"})})
    kinds = Counter(mutant["opt"]["type"] for mutant in mutants(space, {"opt": {"type": "sgd", "lr": 0.5}}))

    assert kinds["sgd"] > 100
    assert kinds["adam"] > 100


def test_newly_chosen_options_are_sampled() -> None:
    """An option that a mutation chooses has its inner parameters sampled."""
    space = ParameterSpace({"opt": Choice({"type": "sgd", "n": Int(1, 1_000)}, {"type": "adam"})})
    values = {mutant["opt"]["n"] for mutant in mutants(space, {"opt": {"type": "adam"}})}

    assert len(values) > 200


def test_newly_activated_parameters_are_sampled() -> None:
    """Parameters that a mutation activates are sampled: no value is a default."""
    found = [m for m in mutants(chain(), {"n_layers": 1, "lr": 0.5}, 1_000) if m["n_layers"] == 2]

    assert {mutant["op"] for mutant in found} == {"conv", "pool"}
    assert len({mutant["kernel"] for mutant in found if "kernel" in mutant}) > 100
    assert {mutant["lr"] for mutant in found} == {0.5}


def test_deactivation_goes_down_the_chain() -> None:
    """Whatever hangs on a deactivated parameter leaves the point with it."""
    found = [m for m in mutants(chain(), {"n_layers": 2, "op": "conv", "kernel": 3, "lr": 0.5}) if m["n_layers"] == 1]

    assert found
    assert all(mutant == {"n_layers": 1, "lr": 0.5} for mutant in found)


def test_parameters_that_stay_active_keep_their_values() -> None:
    """A change of the named parameter within the values asked for keeps the conditional one."""
    space = ParameterSpace({"n": Int(1, 3), "x": Int(1, 1_000, when={"n": [2, 3]})})
    found = [mutant for mutant in mutants(space, {"n": 2, "x": 77}) if mutant["n"] == 3]

    assert found
    assert all(mutant["x"] == 77 for mutant in found)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"a": 1},
        {"a": Int(2, 2), "b": Float(0.5, 0.5), "c": Choice("x"), "d": {"e": [1, 2]}, "f": Choice({"g": Int(1, 1)})},
        {"a": Int(1, 1), "b": Int(1, 9, when={"a": [1], "c": [0]})} | {"a": 2, "c": 1, "b": 5},
    ],
)
def test_single_points_have_no_mutant(parameters: dict[str, Any]) -> None:
    """A space of one point says that it holds no other."""
    space = ParameterSpace(parameters)

    assert space.n_points == 1
    with pytest.raises(SpaceExhaustedError):
        space.mutate(space.sample(random.Random(0)), random.Random(0))


def test_mutation_refuses_strangers() -> None:
    """A point of another space can't be mutated."""
    with pytest.raises(PointError):
        chain().mutate({"n_layers": 7, "lr": 0.5}, random.Random(0))


def test_equal_options_of_different_types_are_different() -> None:
    """1, 1.0 and True are three options, and a mutation goes from one to the others."""
    space = ParameterSpace({"x": Choice(1, 1.0, True)})

    assert {repr(mutant["x"]) for mutant in mutants(space, {"x": 1}, 50)} == {"1.0", "True"}


# Validation

VALID = {"n": 2, "x": 0.5, "op": "conv", "opt": {"type": "sgd", "lr": 0.1}, "sub": {"k": 3}, "c": 64, "deep": 1}


def mixed() -> ParameterSpace:
    """A space with each kind of parameter."""
    return ParameterSpace(
        {
            "n": Int(1, 3),
            "x": Float(0.0, 1.0),
            "op": Choice("conv", "pool", [3, 3]),
            "opt": Choice({"type": "sgd", "lr": Float(0.0, 1.0)}, {"type": "adam"}),
            "sub": {"k": Int(1, 5)},
            "c": 64,
            "deep": Int(1, 9, when={"n": [2]}),
        }
    )


@pytest.mark.parametrize(
    ("change", "named", "allowed"),
    [
        ({"n": 4}, "n=4", "an int from 1 to 3"),
        ({"n": True}, "n=True (bool)", "an int from 1 to 3"),
        ({"n": 2.0}, "n=2.0 (float)", "an int from 1 to 3"),
        ({"n": "2"}, "n='2' (str)", "an int from 1 to 3"),
        ({"n": None}, "n=None", "an int from 1 to 3"),
        ({"x": 1.5}, "x=1.5", "a float from 0.0 to 1.0"),
        ({"x": math.nan}, "x=nan", "a float from 0.0 to 1.0"),
        ({"x": math.inf}, "x=inf", "a float from 0.0 to 1.0"),
        ({"x": False}, "x=False", "a float from 0.0 to 1.0"),
        ({"x": 10**400}, "x=1000", "a float from 0.0 to 1.0"),
        ({"op": "gelu"}, "op='gelu'", "one of 'conv', 'pool', [3, 3]"),
        ({"op": (3, 3)}, "op=(3, 3) (tuple)", "one of 'conv', 'pool', [3, 3]"),
        ({"op": [3, 3.0]}, "op=[3, 3.0]", "one of 'conv', 'pool', [3, 3]"),
        ({"op": {1: object()}}, "op={1:", "one of 'conv', 'pool', [3, 3]"),
        ({"opt": {"type": "lion"}}, "opt={'type': 'lion'}", "one of {'type': 'sgd'"),
        ({"opt": {"type": "sgd", "lr": 2.0}}, "opt.lr=2.0", "a float from 0.0 to 1.0"),
        ({"opt": {"type": "adam", "lr": 0.5}}, "opt={'type': 'adam'", "one of {'type': 'sgd'"),
        ({"opt": {"type": "sgd"}}, "opt.lr (missing)", "a float from 0.0 to 1.0"),
        ({"sub": {"k": 6}}, "sub.k=6", "an int from 1 to 5"),
        ({"sub": 3}, "sub=3", "{'k': an int from 1 to 5}"),
        ({"sub": {"k": 3, "l": 1}}, "sub.l=1:", "one of the parameters (k)"),
        ({"c": 64.0}, "c=64.0", "64"),
        ({"z": 1}, "z=1:", "one of the parameters (n, x, op, opt, sub, c, deep)"),
        ({1: 1}, "1=1:", "one of the parameters"),
        ({"n": 1}, "deep=1:", "absent unless n is in [2]"),
    ],
)
def test_refusals_name_what_is_wrong(change: dict[Any, Any], named: str, allowed: str) -> None:
    """A refusal names the parameter with its value, and what is allowed."""
    mixed().validate(VALID)
    with pytest.raises(PointError) as caught:
        mixed().validate({**VALID, **change})

    assert str(caught.value).startswith(named)
    assert f"must be {allowed}" in str(caught.value)
    assert str(caught.value).endswith(".")


def test_missing_active_parameters_are_refused() -> None:
    """A conditional parameter that is active has to be there."""
    point = {name: value for name, value in VALID.items() if name != "deep"}
    with pytest.raises(PointError, match=r"deep \(missing\) must be an int from 1 to 9. Add it"):
        mixed().validate(point)
    mixed().validate({**point, "n": 1})


@pytest.mark.parametrize("point", [None, [], "x", 3])
def test_what_is_no_dict_is_no_point(point: Any) -> None:
    """A point is a dict."""
    with pytest.raises(PointError, match="the point"):
        mixed().validate(point)


def test_inner_tuples_are_refused() -> None:
    """A tuple does not pass for a list inside of a constant either."""
    with pytest.raises(PointError):
        ParameterSpace({"shape": [[1, 2]]}).validate({"shape": [(1, 2)]})


def test_whole_numbers_pass_for_floats() -> None:
    """JSON writers that drop the .0 leave a point valid, and its conditions as they were."""
    space = ParameterSpace({"dropout": Float(0.0, 0.5), "seed": Int(1, 9, when={"dropout": [0.0]})})

    space.validate({"dropout": 0, "seed": 3})
    assert space.mutate({"dropout": 0, "seed": 3}, random.Random(0)) != {"dropout": 0.0, "seed": 3}


# Counts and lists


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, 1),
        ({"a": Int(1, 3), "b": Choice(1, 2)}, 6),
        ({"a": Int(1, 3), "b": Choice(1, 2, when={"a": [2, 3]})}, 5),
        ({"a": Int(1, 3), "b": Int(1, 2, when={"a": [1]}), "c": Int(1, 5, when={"b": [2]})}, 8),
        ({"a": Int(1, 2), "b": Int(1, 2), "c": Int(1, 10, when={"a": [1], "b": [1]})}, 13),
        ({"a": Choice({"t": 0, "x": Int(1, 4)}, {"t": 1}, 7), "b": {"y": Int(1, 2)}}, 12),
        ({"a": Int(1, 1000), "b": Int(1, 1000)}, 1_000_000),
        ({"a": Int(1, 1001), "b": Int(1, 1000)}, None),
        ({f"p{i}": Int(1, 10**9) for i in range(100)}, None),
        ({"a": Float(0.0, 1.0)}, None),
        ({"a": Float(0.5, 0.5)}, 1),
        ({"a": Int(1, 2), "b": Float(0.0, 1.0, when={"a": [2]})}, None),
        ({"a": Int(1, 3), "b": Int(1, 2, when={"a": [1]}), "c": Float(0, 1, when={"a": [2], "b": [1]})}, 4),
    ],
)
def test_counts(parameters: dict[str, Any], expected: int | None) -> None:
    """Conditions and nesting are counted exactly; None is more than a million, or uncountable."""
    assert ParameterSpace(parameters).n_points == expected


def test_many_conditions_are_counted_without_a_list() -> None:
    """The count of a long chain of conditions does not take as many steps as there are points."""
    layers: dict[str, Any] = {"l0": Choice("stop", "go")}
    for i in range(1, 300):
        layers[f"l{i}"] = Choice("stop", "go", when={f"l{i - 1}": ["go"]})

    assert ParameterSpace(layers).n_points == 301


def test_conditions_are_forgotten_when_none_asks_again() -> None:
    """Independent conditions don't multiply the work of the count, without which there are no points."""
    pairs: dict[str, Any] = {}
    for i in range(60):
        pairs |= {f"a{i}": Choice(1, 2), f"b{i}": Choice(1, 2, when={f"a{i}": [2]})}
    space = ParameterSpace(pairs)

    assert space.n_points is None
    assert next(space.points()) == {f"a{i}": 1 for i in range(60)}


def test_floats_can_not_be_listed() -> None:
    """A list of a space with a float is refused at the call, not at the first point."""
    with pytest.raises(ConfigurationError, match="Choice"):
        chain().points()


def test_points_come_one_at_a_time() -> None:
    """The first points of a space too large to count come at once."""
    space = ParameterSpace({"a": Int(1, 10**9), "b": Int(1, 10**9)})

    assert list(islice(space.points(), 2)) == [{"a": 1, "b": 1}, {"a": 1, "b": 2}]


# Definitions


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Float(2.0, 1.0), r"low=2.0: must be at most high \(1.0\)"),
        (lambda: Int(2, 1), r"low=2: must be at most high \(1\)"),
        (lambda: Float(0.0, 1.0, log=True), r"low=0.0: must be greater than 0"),
        (lambda: Int(0, 1, log=True), r"low=0: must be greater than 0"),
        (lambda: Int(1, 2, log="false"), r"log='false': must be True or False"),  # type: ignore[arg-type]
        (lambda: Float(math.nan, 1.0), "finite"),
        (lambda: Float(0.0, math.inf), "finite"),
        (lambda: Float(0, 10**400), "finite"),
        (lambda: Float(-1e308, 1e308), "narrow"),
        (lambda: Float("1e-4", 1.0), "must be a finite number"),  # type: ignore[arg-type]
        (lambda: Float(True, 1.0), "must be a finite number"),
        (lambda: Int(1.0, 2), "must be an int"),  # type: ignore[arg-type]
        (lambda: Int(False, 2), "must be an int"),
        (lambda: Int(1, 2**53 + 1), "must be an int"),
        (lambda: Choice(), "at least one option"),
        (lambda: Choice("a", "b", "a"), "'a' and 'a' can be the same"),
        (lambda: Choice([1], [1]), "can be the same"),
        (lambda: Choice([16, 32]), r"Write Choice\(\*\[16, 32\]\)"),
        (lambda: Choice((1, 2), (3, 4)), "a tuple as a list"),
        (lambda: Choice(math.nan, 1), "must be JSON"),
        (lambda: Choice({1: 2}, 3), "must be JSON"),
        (lambda: Choice({1: Int(1, 2)}, 3), "must be a string"),
        (lambda: Choice(None, Float(0, 1)), "Wrap it in a dict"),
        (lambda: Choice({"n": Int(1, 3)}, {"n": Int(3, 5)}), "can be the same"),
        (lambda: Choice({"n": Int(1, 3)}, {"n": 2}), "can be the same"),
        (lambda: Choice({"n": 1}, {"n": Float(0, 3)}), "can be the same"),
        (lambda: Choice({"n": Int(1, 2)}, {"n": Int(1, 2), "m": Int(1, 2, when={"n": [1]})}), "can be the same"),
        (lambda: Int(1, 2, when={"a": []}), "at least one JSON value"),
        (lambda: Int(1, 2, when={"a": "xy"}), "must be a list"),
        (lambda: Int(1, 2, when={"a": 1}), "must be a list"),  # type: ignore[dict-item]
        (lambda: Int(1, 2, when={"a": [(1, 2)]}), "JSON value"),
        (lambda: Int(1, 2, when={"a": [{"k": 1}]}), "can't be a dict"),
        (lambda: Int(1, 2, when={1: [1]}), "must be a dict"),  # type: ignore[dict-item]
        (lambda: Int(1, 2, when=["a"]), "must be a dict"),  # type: ignore[arg-type]
        (lambda: ParameterSpace({1: Int(1, 2)}), "must be a string"),  # type: ignore[dict-item]
        (lambda: ParameterSpace([1]), "must be a dict"),  # type: ignore[arg-type]
        (lambda: ParameterSpace({"a": {1, 2}}), "a: .* must be JSON"),
        (lambda: ParameterSpace({"a": [Int(1, 2)]}), "a: .* must be JSON"),
        (lambda: ParameterSpace({"a": Int(1, 2, when={"b": [1]})}), "a: when: 'b' must be"),
        (lambda: ParameterSpace({"a": Int(1, 2, when={"b": [1]}), "b": 1}), "a: when: 'b' must be"),
        (lambda: ParameterSpace({"a": Int(1, 2, when={"a": [1]})}), "a: when: 'a' must be"),
        (lambda: ParameterSpace({"b": 1, "g": {"a": Int(1, 2, when={"b": [1]})}}), "of the same dict"),
        (lambda: ParameterSpace({"b": Int(1, 3), "a": Int(1, 2, when={"b": [4]})}), "an int from 1 to 3"),
        (lambda: ParameterSpace({"b": Choice("x"), "a": Int(1, 2, when={"b": ["y"]})}), "one of 'x'"),
        (lambda: ParameterSpace({"b": {"c": Int(1, 2)}, "a": Int(1, 2, when={"b": [1]})}), "must be {'c'"),
    ],
)
def test_bad_definitions_are_refused(build: Any, message: str) -> None:
    """What can't be a space is a configuration error that says why, when it is built."""
    with pytest.raises(ConfigurationError, match=message):
        build()


@pytest.mark.parametrize(
    "options",
    [
        (1, 1.0, True, "1", None),
        ({"type": "a", "n": Int(1, 3)}, {"type": "b", "n": Int(1, 3)}),
        ({"n": Int(1, 3)}, {"m": Int(1, 3)}, {}),
        ({"n": Int(1, 3)}, {"n": 4}, None),
        ({"n": Int(1, 3)}, {"n": Int(1, 3), "more": Float(0, 1)}),
    ],
)
def test_options_that_can_be_told_apart_are_accepted(options: tuple[Any, ...]) -> None:
    """Options may overlap in their parameters as long as no value belongs to two of them."""
    assert len(Choice(*options).options) == len(options)


def test_choices_of_thousands_are_built_at_once() -> None:
    """All architectures of NAS-Bench-201 are one choice; comparing all pairs takes a minute, listing them 400 kB."""
    started = time.process_time()
    choice = Choice(*(f"cell {number}" for number in range(15_625)))

    assert time.process_time() - started < 5
    assert str(choice).endswith("'cell 19' and 15,605 more")


@pytest.mark.parametrize(
    "other",
    [
        {"a": Int(1, 2), "b": Float(0.0, 0.9), "c": Choice(1, 2, when={"a": [1]})},
        {"a": Int(1, 2, log=True), "b": Float(0.0, 1.0), "c": Choice(1, 2, when={"a": [1]})},
        {"a": Int(1, 2), "b": Float(0.0, 1.0), "c": Choice(2, 1, when={"a": [1]})},
        {"a": Int(1, 2), "b": Float(0.0, 1.0), "c": Choice(1, 2, when={"a": [2]})},
        {"a": Int(1, 2), "b": Float(0.0, 1.0), "c": Choice(1, 2)},
        {"b": Float(0.0, 1.0), "a": Int(1, 2), "c": Choice(1, 2, when={"a": [1]})},
        {"a": Int(1, 2), "b": Float(0.0, 1.0), "c": Choice(1, 2.0, when={"a": [1]})},
        {"a": Int(1, 2), "b": Float(0.0, 1.0), "c": Choice(1, 2, when={"a": [1]}), "d": None},
    ],
)
def test_descriptions_tell_spaces_apart(other: dict[str, Any]) -> None:
    """Whatever changes the space, the order of its parameters too, changes the canonical JSON of its description."""
    space = ParameterSpace({"a": Int(1, 2), "b": Float(0.0, 1.0), "c": Choice(1, 2, when={"a": [1]})})

    assert point_key(space.to_json()) != point_key(ParameterSpace(other).to_json())


def test_point_keys_tell_types_apart() -> None:
    """1, 1.0 and True are three keys; the order of names is none."""
    assert len({point_key({"x": 1}), point_key({"x": 1.0}), point_key({"x": True})}) == 3
    assert point_key({"a": 1, "b": 2}) == point_key({"b": 2, "a": 1})


@pytest.mark.parametrize("value", [math.nan, math.inf, {1, 2}, object()])
def test_point_keys_are_of_json_only(value: Any) -> None:
    """What is not JSON has no key."""
    with pytest.raises(PointError, match="plain"):
        point_key({"x": value})


def test_spaces_import_nothing_heavy() -> None:
    """A worker that imports the spaces pays for neither torch nor numpy nor pandas."""
    code = "import nas.spaces, nas.spaces.parameters.space, sys; print({'torch', 'numpy', 'pandas'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "set()"


class TestDecisions:
    @given(tree=trees(), seed=st.integers(0, 2**32))
    def test_answers_make_the_point_again(self, tree: dict[str, Any], seed: int) -> None:
        """The decisions of a point, asked by name, make that very point; domains hold them."""
        space, rng = ParameterSpace(tree), random.Random(seed)
        point = space.decide(lambda name, domain: domain.sample(rng))

        space.validate(point)
        decisions = space.decisions(point)
        answers = {decision.name: decision.answer for decision in decisions}
        asked: list[tuple[str, Domain]] = []

        def answer(name: str, domain: Domain) -> float:
            asked.append((name, domain))
            return answers[name]

        assert point_key(space.decide(answer)) == point_key(point)
        assert asked == [(decision.name, decision.domain) for decision in decisions]
        assert len(answers) == len(decisions)

    @given(tree=trees(), seed=st.integers(0, 2**32))
    def test_sampled_points_have_decisions(self, tree: dict[str, Any], seed: int) -> None:
        """Whatever sample gives can be decided as well."""
        space = ParameterSpace(tree)
        point = space.sample(random.Random(seed))
        answers = {decision.name: decision.answer for decision in space.decisions(point)}

        assert point_key(space.decide(lambda name, _: answers[name])) == point_key(point)

    def test_names_are_paths(self) -> None:
        """A decision is named by where it stands; options of one name stay apart; what can't differ is not asked."""
        space = ParameterSpace(
            {
                "lr": Float(1e-4, 1.0, log=True),
                "opt": Choice({"type": "sgd", "m": Float(0, 1)}, {"type": "adam", "m": Int(1, 3)}),
                "only": Choice("a"),
                "same": Int(4, 4),
            }
        )
        asked: dict[str, Domain] = {}

        def last(name: str, domain: Domain) -> float:
            asked[name] = domain
            return domain.grid(3)[-1]

        assert space.decide(last) == {"lr": 1.0, "opt": {"type": "adam", "m": 3}, "only": "a", "same": 4}
        assert list(asked) == ["lr", "opt", "opt.1.m"]
        assert asked["opt.1.m"] == Numeric(1, 3, False, True)

    @pytest.mark.parametrize(
        ("domain", "resolution", "expected"),
        [
            (Numeric(0.0, 1.0, False, False), 3, [0.0, 0.5, 1.0]),
            (Numeric(1e-4, 1.0, True, False), 3, [1e-4, pytest.approx(1e-2), 1.0]),
            (Numeric(1, 4, False, True), 9, [1, 2, 3, 4]),
            (Numeric(1, 1000, True, True), 4, [1, 10, 100, 1000]),
            (Numeric(0.0, 1.0, False, False), 1, [0.5]),
            (Categorical(3, ("a", "b", "c")), 1, [0, 1, 2]),
        ],
    )
    def test_grids(self, domain: Domain, resolution: int, expected: list[float]) -> None:
        """Ranges have equally spaced values with both ends, on their scale; options all of them."""
        assert domain.grid(resolution) == expected

    @given(low=st.integers(1, 50), width=st.integers(1, 50), log=st.booleans(), unit=st.floats(0, 1))
    def test_scale_goes_both_ways(self, low: int, width: int, log: bool, unit: float) -> None:
        """A number's place on the scale leads back to it, and every place is in the range."""
        for domain in (Numeric(low, low + width, log, True), Numeric(float(low), float(low + width), log, False)):
            value = domain.from_unit(unit)
            assert low <= value <= low + width
            assert domain.from_unit(domain.to_unit(value)) == pytest.approx(value)
