"""Tests of `nas.supernets.method`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nas.core.errors import ConfigurationError
from nas.supernets.method import METHODS, Method, n_nones, n_skips


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_read_back_from_its_derivation(name: str) -> None:
    """The derivation is plain JSON, and gives an equal method."""
    given = {"temperature": [5, 1]} if name == "gdas" else {}
    method = Method(method=name, n_epochs=3, alpha_rate=0.02, allows_none=False, **given)

    assert Method.of(json.loads(json.dumps(method.to_json()))) == method


@pytest.mark.parametrize("derivation", [None, [], {"paths": [[0, 1]]}, "darts"])
def test_other_derivations_have_no_method(derivation: Any) -> None:
    """Derivations of other tuners are none of a differentiable search."""
    assert Method.of(derivation) is None


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"method": "snas"}, "tuner.method='snas': must be darts, "),
        ({"method": "darts", "order": 3}, "tuner.order=3: must be a whole number from 1 to 2"),
        ({"method": "gdas", "order": 2}, "tuner.order=2: must be 1 with method gdas"),
        ({"method": "darts", "n_epochs": 0}, "tuner.n_epochs=0"),
        ({"method": "darts", "alpha_rate": -1}, "tuner.alpha_rate=-1: must be a number of at least 0"),
        ({"method": "darts", "alpha_rate": "fast"}, "tuner.alpha_rate='fast': must be a number"),
        ({"method": "darts", "alpha_share": 1.0}, "tuner.alpha_share=1.0: must be above 0 and below 1"),
        ({"method": "darts", "allows_none": "no"}, "tuner.allows_none='no': must be true or false"),
        ({"method": "gdas", "temperature": [1.0]}, "tuner.temperature=.*must be two positive numbers"),
        ({"method": "gdas", "temperature": [1.0, 0.0]}, "tuner.temperature=.*must be two positive numbers"),
        ({"method": "gdas", "temperature": 3}, "tuner.temperature=3: must be two positive numbers"),
        (
            {"method": "darts", "temperature": [5.0, 1.0]},
            r"tuner.temperature=\[5.0, 1.0\]: must be left out with method",
        ),
        ({"method": "darts", "rate": 1}, r"derivation\.rate: must be one of"),
    ],
)
def test_invalid_options(options: dict[str, Any], error: str) -> None:
    """Each is refused by the name of the tuner's option."""
    with pytest.raises(ConfigurationError, match=error):
        Method.of(options)


def test_counts() -> None:
    """Skips and nones are counted by the names of NAS-Bench-201."""
    point = {"a": "none", "b": "skip_connect", "c": "none", "d": "nor_conv_3x3", "e": [0, 1]}

    assert (n_skips(point), n_nones(point)) == (1, 2)


def test_edges_that_a_node_does_not_choose_do_not_count() -> None:
    """A node of two chosen inputs has no layers on its other edges."""
    edges = {f"normal_{i}_3": "skip_connect" for i in range(3)}

    assert n_skips({**edges, "normal_inputs_3": [0, 2]}) == 2
    assert n_skips(edges) == 3


def test_names_that_look_like_edges_count() -> None:
    """A layer counts if the name before its numbers belongs to no choice of inputs, or its numbers to no edge."""
    assert n_skips({"block_1_2": "skip_connect", "block_inputs_2": "mean"}) == 1
    assert n_nones({"block_5_2": "none", "block_inputs_2": [0, 1]}) == 1
