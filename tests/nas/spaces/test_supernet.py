"""The space of a supernet."""

from __future__ import annotations

import random

import pytest

from nas.core.errors import ConfigurationError, PointError
from nas.core.supernet import epoch_of
from nas.spaces.parameters.space import Choice, Int, ParameterSpace
from nas.spaces.supernet import SupernetSpace

INNER = ParameterSpace({"op": Choice("conv", "skip"), "n": Int(1, 3)})
SPACE = SupernetSpace(INNER)


def test_subnets_are_the_points_of_the_inner_space() -> None:
    """Sampling, mutation, crossover, decisions and distances are the inner space's, and keys too."""
    first, second = SPACE.sample(random.Random(1)), SPACE.sample(random.Random(2))

    assert first == INNER.sample(random.Random(1))
    assert SPACE.mutate(first, random.Random(3)) == INNER.mutate(first, random.Random(3))
    assert SPACE.cross(first, second, random.Random(4)) == INNER.cross(first, second, random.Random(4))
    assert SPACE.decisions(first) == INNER.decisions(first)
    assert SPACE.distance(first, second) == INNER.distance(first, second)
    assert SPACE.key(first) == INNER.key(first)
    assert (SPACE.n_points, list(SPACE.points())) == (6, list(INNER.points()))


def test_supernet_epochs_are_valid_points() -> None:
    """A 64-bit number from 0 is a supernet epoch with its own key, and nothing else is."""
    SPACE.validate({"supernet_epoch": 0})

    assert SPACE.key({"supernet_epoch": 1}) != SPACE.key({"supernet_epoch": 2})
    assert epoch_of({"supernet_epoch": 7}) == 7
    for point in (
        {"supernet_epoch": -1},
        {"supernet_epoch": True},
        {"supernet_epoch": 1.0},
        {"supernet_epoch": 10**400},
        {"supernet_epoch": 1, "n": 1},
    ):
        assert epoch_of(point) is None
        with pytest.raises(PointError):
            SPACE.validate(point)


def test_supernet_epochs_have_no_decisions() -> None:
    """Decisions and features of a supernet epoch are refused like those of any foreign point."""
    for ask in (SPACE.decisions, SPACE.features):
        with pytest.raises(PointError, match="supernet_epoch"):
            ask({"supernet_epoch": 0})


def test_description_names_the_inner_space() -> None:
    """The identity of a search tells a supernet's space from its inner space."""
    assert SPACE.to_json() == {"supernet": INNER.to_json()}


def test_inner_space_must_not_have_supernet_epochs() -> None:
    """A space whose only parameter is called supernet_epoch is refused."""
    with pytest.raises(ConfigurationError, match="supernet_epoch: must not be the only parameter"):
        SupernetSpace(ParameterSpace({"supernet_epoch": Int(0, 3)}))
