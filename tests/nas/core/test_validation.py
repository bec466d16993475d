"""Checks of options: each refuses by option, value and rule."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest

from nas.core.errors import ConfigurationError
from nas.core.metric import whole_step
from nas.core.validation import check_choice, check_int, check_number, check_seed, did_you_mean, short_repr


@pytest.mark.parametrize(
    ("value", "bounds", "rule"),
    [
        ("1", {}, "must be a number"),
        (True, {}, "must be a number"),
        (math.nan, {}, "must be a number"),
        (-math.inf, {}, "must be a number. Write a finite one"),
        (math.inf, {"low": 0}, "must be a number of at least 0. Write a finite one"),
        (-1, {"low": 0}, "must be a number of at least 0"),
        (0, {"low": 0, "excluded": 0}, "must be a number greater than 0"),
        (1.5, {"low": 0, "high": 1}, "must be a number from 0 to 1"),
        (1, {"low": 0, "high": 1, "excluded": 1}, "must be a number from 0 to below 1"),
        (0.0, {"low": 0, "high": 1, "excluded": 0}, "must be a number greater than 0 and at most 1"),
    ],
)
def test_numbers_outside_their_bounds_are_refused(value: Any, bounds: dict[str, float], rule: str) -> None:
    """The line has option, value and rule."""
    with pytest.raises(ConfigurationError) as caught:
        check_number("rate", value, **bounds)  # type: ignore[arg-type]

    assert str(caught.value) == f"rate={value!r}: {rule}"


def test_numbers_within_their_bounds_are_returned() -> None:
    """Integers stay integers up to the largest float; the bounds are allowed."""
    assert check_number("rate", int(sys.float_info.max)) == sys.float_info.max
    assert [check_number("rate", value, 0, 1) for value in (0, 0.5, 1)] == [0, 0.5, 1]
    assert isinstance(check_number("rate", 1, 0, 1), int)


@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000, -(10**5000)], ids=hex)
def test_integers_beyond_floats_are_refused(value: int) -> None:
    """An integer that no float can hold is no number, and the line is short however long the integer is."""
    with pytest.raises(ConfigurationError, match=r"^rate=.{1,200}: must be a number. Write a finite one$"):
        check_number("rate", value)


def test_long_integers_have_short_texts() -> None:
    """Every check of integers answers with a line if Python refuses to write their digits."""
    size = "<an integer of 16610 bits>"

    with pytest.raises(ConfigurationError, match=f"^n={size}: must be a whole number of at least 0$"):
        check_int("n", -(10**5000), 0)
    with pytest.raises(ConfigurationError, match=f"^seed={size}: must be a whole number from 0 to below"):
        check_seed("seed", 10**5000)
    assert short_repr({"n": [10**5000]}) == f"{{'n': [{size}]}}"


def test_arrays_are_shown_in_one_line() -> None:
    """Each check answers with one line, also for values that Python prints on several."""
    assert short_repr(np.eye(2)) == "array([[1., 0.], [0., 1.]])"
    for check in (check_int, check_number, whole_step):
        with pytest.raises(ConfigurationError, match=r"^step=array\(\[\[1., 0.\], \[0., 1.\]\]\): must be [^\n]+$"):
            check("step", np.eye(2))


@pytest.mark.parametrize(("name", "unit"), [("wait_s", "seconds"), ("storage.max_gb", "gigabytes")])
def test_unit_follows_from_the_name(name: str, unit: str) -> None:
    """The name of an option ends in its unit, which the rule repeats."""
    with pytest.raises(ConfigurationError, match=f"{name}=0: must be a number of {unit} greater than 0"):
        check_number(name, 0, 0, excluded=0)


@pytest.mark.parametrize("value", ["c", None, ["a"], 1])
@pytest.mark.parametrize(("choices", "listed"), [(("a", "b", "x"), "a, b or x"), (("a", "b"), "a or b"), (("a",), "a")])
def test_choice_names_its_alternatives(value: object, choices: tuple[str, ...], listed: str) -> None:
    """Anything but one of the words is refused, and they are listed."""
    with pytest.raises(ConfigurationError) as caught:
        check_choice("mode", value, choices)

    assert str(caught.value) == f"mode={value!r}: must be {listed}"


@pytest.mark.parametrize(("wrong", "question"), [("evoluton", "; did you mean evolution?"), ("nothing", "")])
def test_the_most_similar_name_is_suggested(wrong: str, question: str) -> None:
    """A question names one similar name; without a similar one there is none."""
    assert did_you_mean(wrong, ["revolver", "evolution", "gp"]) == question
