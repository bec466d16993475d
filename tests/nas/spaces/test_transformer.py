"""The space of transformers and its growth operations."""

from __future__ import annotations

import json
import pickle
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from nas.core.errors import ConfigurationError, PointError, SpaceExhaustedError
from nas.core.point import Point
from nas.spaces.growth import OPERATIONS, Growth, InsertBlock, Sizes, Stack, WidenHeads, WidenMlp
from nas.spaces.parameters.space import Float
from nas.spaces.space import Variation
from nas.spaces.transformer import TransformerSpace

SPACE = TransformerSpace((1, 3), (1, 2, 4), (8, 16), (1, 2, 4), {"rate": Float(1e-3, 1e-1, log=True)})
SMALL = TransformerSpace((1, 2), (1, 2), (8,), (1,))


def test_points_round_trip_through_their_decisions() -> None:
    """Samples are in the space, and decisions and ``decide`` are inverse, after JSON and pickling too."""
    space = pickle.loads(pickle.dumps(SPACE))
    for seed in range(200):
        point = json.loads(json.dumps(SPACE.sample(random.Random(seed)), sort_keys=True))
        answers = {decision.name: decision.answer for decision in space.decisions(point)}

        space.validate(point)
        assert point["width"] % point["n_heads"] == 0
        assert space.decide(lambda name, _, found=answers: found[name]) == point
        assert space.sample(random.Random(seed)) == point


def test_a_small_space_is_listed() -> None:
    """Each point is listed once."""
    points = list(SMALL.points())

    assert SMALL.n_points == len(points) == len({SMALL.key(point) for point in points}) == 4
    assert points[0] == {"n_layers": 1, "n_heads": 1, "width": 8, "mlp_ratio": 1} == SMALL.smallest(random.Random(0))


def test_mutation_reaches_every_size_and_leaves_the_point_unchanged() -> None:
    """A chain of mutations stays in the space, changes one size or parameter a step, and reaches all sizes."""
    point, rng, seen = SPACE.sample(random.Random(0)), random.Random(1), set()
    for _ in range(2000):
        before = json.dumps(point)
        child = SPACE.mutate(point, rng)
        SPACE.validate(child)

        assert json.dumps(point) == before and child != point
        point = child
        seen.add((point["n_layers"], point["n_heads"], point["width"], point["mlp_ratio"]))

    assert len(seen) == 3 * 3 * 2 * 3


def test_every_point_is_reached_from_every_point() -> None:
    """Mutations lead everywhere and back, whatever the sizes are and whichever operations may grow them."""
    ladders = ((1, 3), (1, 1), (2,)), ((2, 3, 4), (1, 2), (1, 4)), ((1, 4), (2, 4), (5,)), ((3,), (1, 3), (1, 2, 3))
    for heads, layers, ratios in ladders:
        for growth in ([*OPERATIONS], ["stack"], ["widen_heads"], ["widen_mlp", "insert_block"]):
            space = TransformerSpace(layers, heads, (8,), ratios, growth=growth)
            points = {space.key(point): point for point in space.points()}
            steps = {key: _mutants(space, point) for key, point in points.items()}
            back = {key: {other for other in points if key in steps[other]} for key in points}

            for ways in (steps, back):
                assert _reached(next(iter(points)), ways) == points.keys(), repr(space)


def _mutants(space: TransformerSpace, point: Point) -> set[str]:
    """Returns the keys of mutants, of which a point has 8 at most."""
    return {space.key(space.mutate(point, random.Random(seed))) for seed in range(40)}


def _reached(start: str, ways: Mapping[str, set[str]]) -> set[str]:
    """Returns what steps lead to from a start."""
    found, left = {start}, [start]
    while left:
        new = ways[left.pop()] - found
        found |= new
        left += new
    return found


def test_a_step_up_that_no_operation_makes_is_taken() -> None:
    """From one to three heads no operation leads; the child has no growth to replay."""
    space = TransformerSpace((1, 1), (1, 3), (16,), (1,))
    start = Variation.of(space.smallest(random.Random(0)))
    varied = space.vary(start, random.Random(0))

    assert varied.point == {"n_layers": 1, "n_heads": 3, "width": 48, "mlp_ratio": 1}
    assert space.derivation(varied) == {"mutated": ["n_heads", "width"]}


def test_growth_is_recorded_if_operations_made_the_child() -> None:
    """A derivation with growth gives the child's sizes; a child of growth and other steps may have none."""
    n_grown, n_mixed, rng = 0, 0, random.Random(2)
    for seed in range(300):
        variation = Variation.of(SPACE.sample(random.Random(seed)))
        for _ in range(rng.randint(1, 3)):
            variation = SPACE.vary(variation, rng)
        growth = Growth.from_json(json.loads(json.dumps(SPACE.derivation(variation))))
        before, now = Sizes.of(variation.origin), Sizes.of(variation.point)

        if growth is not None:
            assert growth.sizes == before and growth.grown == now
            n_grown += 1
        elif variation.operations:
            n_mixed += 1

    assert n_grown > 50 and n_mixed > 10


def test_growing_ends_at_the_largest_sizes() -> None:
    """Growth steps go from the smallest to the largest point of the space, and then raise."""
    variation, rng = Variation.of(SMALL.smallest(random.Random(0))), random.Random(3)
    for _ in range(2):
        variation = SMALL.grow(variation, rng)

    assert variation.point == {"n_layers": 2, "n_heads": 2, "width": 16, "mlp_ratio": 1}
    with pytest.raises(SpaceExhaustedError, match="within the bounds"):
        SMALL.grow(variation, rng)


def test_stack_is_drawn_only_if_asked_for() -> None:
    """``stack``, which changes the function, is marked so and is no default."""
    rng = random.Random(4)
    start = Variation.of({"n_layers": 1, "n_heads": 1, "width": 8, "mlp_ratio": 1})
    stacked = TransformerSpace((1, 2), (1,), (8,), (1,), growth=["stack"]).grow(start, rng)
    kinds = {operation.kind for _ in range(50) for operation in SMALL.grow(start, rng).operations}

    assert stacked.operations == (Stack(),) and not Stack.keeps_function
    assert kinds == {"widen_heads", "insert_block"}


def test_wrong_points_are_refused() -> None:
    """A size that is missing, of another type, out of bounds or no multiple of the heads is named."""
    point = SMALL.smallest(random.Random(0))
    for change, message in (
        ({"width": 9, "n_heads": 2}, "width=9: must be a multiple of n_heads"),
        ({"width": 24}, "head_size"),
        ({"width": 24, "head_size": 16}, "head_size: must not be in the point"),
        ({"n_layers": True}, "n_layers=True: must be a whole number"),
        ({"other": 1}, "other"),
    ):
        with pytest.raises(PointError, match=message):
            SMALL.validate({**point, **change})
    with pytest.raises(PointError, match="width: must be in the point"):
        SMALL.validate({"n_layers": 1, "n_heads": 1, "mlp_ratio": 1})


def test_wrong_growth_is_refused() -> None:
    """Data that is no growth raises PointError, with the reason."""
    good = Growth(Sizes(1, 1, 8, 1), (WidenHeads(1), InsertBlock(0), WidenMlp(2, 3), Stack()))
    data = good.to_json()["growth"]

    assert Growth.from_json({"growth": data}) == good and Growth.from_json({"mutated": []}) is None
    for wrong, message in (
        ({**data, "sizes": {**data["sizes"], "width": 0}}, "width=0"),
        ({**data, "operations": [{"kind": "melt"}]}, "must be a dict whose kind is one of"),
        ({**data, "operations": [{"kind": "widen_heads"}]}, "wrong fields"),
        ({**data, "operations": [{"kind": "widen_heads", "seed": -1}]}, "seed=-1"),
        ({**data, "operations": None}, "must be a list"),
        ([], "must be a dict of sizes and operations"),
    ):
        with pytest.raises(PointError, match=message):
            Growth.from_json({"growth": wrong})
    for operation in (InsertBlock(1), WidenMlp(1)):
        with pytest.raises(PointError, match=operation.kind):
            operation.apply(Sizes(1, 1, 8, 1))


WRONG_LISTS = ([], [0], [-1, 2], [True, 2], ["2", "4"], "abc", 5, None, [1.5, 2])


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("n_layers", [*WRONG_LISTS, [1], [3, 1], [1, 2, 3]]),
        *((name, [*WRONG_LISTS, [2, 2]]) for name in ("n_heads", "head_sizes", "mlp_ratios")),
        ("growth", [[], ["melt"], "stack", 5, None, [True], [["stack"]], ["stack", "stack"]]),
        ("parameters", [5, [], "x"]),
    ],
)
def test_wrong_options_are_refused(name: str, wrong: Sequence[Any]) -> None:
    """A list that is empty, or of other values, is refused by a line with option, value, rule and remedy."""
    for value in wrong:
        with pytest.raises(ConfigurationError, match=rf"^{name}={re.escape(repr(value))}: must be .*\. (Write|Give) "):
            TransformerSpace(**{name: value})


def test_names_of_sizes_are_no_parameters() -> None:
    """A parameter can't have the name of a size."""
    with pytest.raises(ConfigurationError, match="parameters: width must not be among them, it is a size"):
        TransformerSpace(parameters={"width": 3})
