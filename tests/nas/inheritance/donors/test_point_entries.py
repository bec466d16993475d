"""The entries of a point that describe its architecture, and their order."""

from __future__ import annotations

import json
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from nas.inheritance.donors.point_entries import architecture_entries
from nas.problems.digits import DigitsProblem
from nas.spaces.parameters.nni_json import load_nni_space
from nas.spaces.parameters.space import Choice, Float, Int, ParameterSpace

SPACE = ParameterSpace(
    {
        "stem": Choice(16, 32),
        "lr": Float(0.0, 1.0),
        "batch_size": 64,
        "cell": {"op": Choice("conv", "pool"), "dropout": Float(0, 1), "depth": Int(1, 3)},
        "optimizer": Choice(
            {"type": "adam"}, {"type": "sgd", "momentum": Float(0, 1), "nesterov": Choice(True, False)}
        ),
        "anything": Choice([3, 3], [5], []),
    }
)


def test_entries_come_in_the_order_of_the_space() -> None:
    """Dicts and lists are flattened in the space's order; floats and constants are left out."""
    point = {
        "anything": [3, 3],
        "optimizer": {"nesterov": True, "momentum": 0.9, "type": "sgd"},
        "cell": {"depth": 2, "dropout": 0.5, "op": "pool"},
        "batch_size": 64,
        "lr": 0.1,
        "stem": 16,
    }
    SPACE.validate(point)

    assert architecture_entries(point, SPACE.to_json()) == [
        '/"stem"=16',
        '/"cell"/"op"="pool"',
        '/"cell"/"depth"=2',
        '/"optimizer"/"type"="sgd"',
        '/"optimizer"/"nesterov"=true',
        '/"anything"/0=3',
        '/"anything"/1=3',
    ]


def test_floats_of_nni_are_left_out_unless_rounded() -> None:
    """A rate from a normal distribution is no architecture; a width in steps of 16 is."""
    described = {"rate": ("lognormal", [-6, 1]), "momentum": ("normal", [0, 1]), "width": ("quniform", [16, 64, 16])}
    space = load_nni_space({name: {"_type": kind, "_value": value} for name, (kind, value) in described.items()})

    assert architecture_entries({"rate": 0.01, "momentum": 0.5, "width": 32.0}, space.to_json()) == ['/"width"=32.0']


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_order_of_keys_does_not_count(seed: int) -> None:
    """A point and a space read from JSON with sorted keys give the same entries."""
    point = SPACE.sample(random.Random(seed))
    again = json.loads(json.dumps({"point": point, "space": SPACE.to_json()}, sort_keys=True))

    assert architecture_entries(again["point"], again["space"]) == architecture_entries(point, SPACE.to_json())


def test_equal_and_different_values_are_told_apart() -> None:
    """1, 1.0, True, "1", an empty list and None are six values."""
    values = [1, 1.0, True, "1", [], None]

    assert len({architecture_entries({"x": value}, {})[0] for value in values}) == len(values)


def test_space_without_an_order_goes_by_the_alphabet() -> None:
    """A user's space with another description is flattened by name, with all entries."""
    point = {"b": 1, "a": {"d": [2.5], "c": "x"}}

    for described in (
        {"type": "mine", "order": None, "parameters": [1]},
        {"parameters": {"a": {"type": "Choice", "options": [1, 2]}, "b": "Float"}},
    ):
        assert architecture_entries(point, described) == ['/"a"/"c"="x"', '/"a"/"d"/0=2.5', '/"b"=1']


def test_architecture_entries_of_digits() -> None:
    """In the bundled problem, blocks and norm count; dropout and learning rate do not."""
    space = DigitsProblem.space
    point = {"n_blocks": 1, "width_1": 8, "kernel_1": 3, "norm": "batch", "dropout": 0.1, "learning_rate": 0.1}
    space.validate(point)

    names = [entry.partition("=")[0] for entry in architecture_entries(point, space.to_json())]
    assert names == ['/"n_blocks"', '/"width_1"', '/"kernel_1"', '/"norm"']
