"""Network morphism by Bayesian optimization: initial points, then children with parent and operations."""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable

import pytest

from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.spec import Spec
from nas.core.trial import State
from nas.search.definition import Search
from nas.spaces.graphs.derivation import Derivation
from nas.spaces.graphs.space import GraphSpace
from nas.spaces.parameters.space import Choice, ParameterSpace
from nas.spaces.space import Variation
from nas.tuners.base import STOP, Tuner
from nas.tuners.network_morphism import NetworkMorphismTuner
from nas.tuners.random import RandomTuner
from nas.tuners.shared.landmarks import Distances, Landmarks
from tests.nas.inheritance.test_replay import Unchanging
from tests.support.graph_networks import LIMITS, STARTS
from tests.support.landscape import METRIC, SPACE, least_gap_of_pending, loss, pending, search

GRAPHS = GraphSpace(STARTS[:2], limits=LIMITS, n_moves=2)


def walk_from_start(n_moves: int) -> Point:
    """Returns a point so many moves away from a start."""
    variation, rng = Variation.of({"network": STARTS[0].to_json()}), random.Random(7)
    for _ in range(n_moves):
        variation = GRAPHS.vary(variation, rng)
    return variation.point


def small(space: GraphSpace | ParameterSpace, seed: int = 0, **options: int) -> NetworkMorphismTuner:
    return NetworkMorphismTuner(space, (METRIC,), seed=seed, **{"n_candidates": 24, **options})


@pytest.mark.slow
def test_it_finds_better_networks_than_random_search() -> None:
    """Over sixteen seeds, the best of 40 networks is on average nearer to a far target than random search's."""
    target = GRAPHS.features(walk_from_start(12))

    def mean_nearest(make: Callable[[int], Tuner]) -> float:
        def loss(point: Point) -> float:
            return GRAPHS.feature_distance(target, GRAPHS.features(point))

        return statistics.mean(min(t.metrics["loss"] for t in search(make(seed), 40, loss)) for seed in range(16))

    found = mean_nearest(lambda seed: small(GRAPHS, seed, n_candidates=16))
    assert found < 0.95 * mean_nearest(lambda seed: RandomTuner(GRAPHS, (METRIC,), seed=seed))


def test_children_name_their_parent_and_the_operations() -> None:
    """Each child equals its parent's network after its named operations, within the maximum of steps."""
    trials = search(small(GRAPHS, max_steps=2), 12, lambda point: len(GRAPHS.network(point).nodes))

    assert [trial.parents for trial in trials[:4]] == [()] * 4
    for trial in trials[4:]:
        found = Derivation.from_json(trial.proposal.derivation)
        assert found is not None
        network = GRAPHS.network(trials[trial.parents[0]].point)
        assert found.network == network
        assert 1 <= len(found.operations) <= 2
        for operation in found.operations:
            network = operation.apply(network)
        assert network == GRAPHS.network(trial.point)


def test_children_start_from_their_parents_function() -> None:
    """With morphisms only, every child has its ancestor's output, and its record says what it inherited."""
    search = Search(
        problem=Spec.of(Unchanging),
        tuner=Spec("nas.tuners.network_morphism.NetworkMorphismTuner", {"n_initial_points": 2, "n_candidates": 16}),
    )
    found = run_search(search, root="memory://network-morphism", budget=Budget(trials=8), finalists=1)

    trials = {trial.number: trial for trial in found.lineage if trial.stage == "search"}
    assert [trial.state for trial in trials.values()] == [State.COMPLETE] * 8, [t.error for t in trials.values()]
    children = [trial for trial in trials.values() if trial.parents]
    assert len(children) == 6
    for child in children:
        output = trials[child.parents[0]].metrics["output"]
        assert child.donor == child.parents[0]
        assert child.metrics["output"] == pytest.approx(output, abs=1e-5)


def test_pending_trials_are_not_proposed_again() -> None:
    """Each ask before any result gives another point."""
    trials = search(small(GRAPHS), 5, lambda point: len(GRAPHS.network(point).nodes))
    trials += pending(small(GRAPHS), trials, 5)

    assert len({str(trial.point) for trial in trials}) == 10


def test_running_trials_count_as_predicted() -> None:
    """While trials run, children are sought elsewhere."""
    gap = least_gap_of_pending(lambda space: NetworkMorphismTuner(space, (METRIC,), n_initial_points=2))

    assert gap > 0.05


@pytest.mark.slow
def test_a_diverged_trial_does_not_spoil_the_model() -> None:
    """If the first loss is a billion, or its square overflows, the search finds as good points."""
    best = {}
    for first in (None, 1e9, 1e300):
        tuner = small(SPACE)
        losses = itertools.chain([] if first is None else [first], itertools.repeat(None))
        trials = search(tuner, 30, lambda point, losses=losses: next(losses) or loss(point))
        best[first] = min(trial.metrics["loss"] for trial in trials)

    assert best[1e9] < 1.5 * best[None] + 0.5
    assert best[1e300] < 1.5 * best[None] + 0.5


def test_small_space_is_exhausted() -> None:
    """No point comes twice, and STOP follows the last one."""
    space = ParameterSpace({"a": Choice(1, 2, 3), "b": Choice("x", "y")})
    tuner = small(space, n_initial_points=2)
    trials = search(tuner, 6, lambda point: point["a"])

    assert len({str(trial.point) for trial in trials}) == 6
    assert tuner.ask(Lineage.of(trials), 6, 6) is STOP


def test_model_is_of_the_best_and_the_newest() -> None:
    """A full model keeps the best half and the newest half, in the order learned."""
    metric = Metric("loss", "minimize")
    trials = search(RandomTuner(SPACE, (METRIC,)), 20)
    lineage = Lineage.of(trials)
    chosen = lineage.best_and_newest(metric, 7)
    best = sorted(trials, key=lambda trial: trial.metrics["loss"])[:3]

    assert lineage.best_and_newest(metric, 20) == trials
    assert [t.number for t in chosen] == sorted({*(t.number for t in best), 16, 17, 18, 19})


def test_landmarks_see_near_points_as_near() -> None:
    """Coordinates of two points differ by at most their distance; landmarks are about 1 apart."""
    rng = random.Random(0)
    points = [GRAPHS.sample(rng) for _ in range(12)]
    distances = Distances(GRAPHS)
    vectors = Landmarks(points, distances).vectors(points)

    apart = [GRAPHS.distance(one, other) for n, one in enumerate(points) for other in points[:n]]
    seen = [float(((vectors[n] - vectors[m]) ** 2).sum() ** 0.5) for n in range(12) for m in range(n)]
    unit = sorted(d for d in apart if d > 0)[len([d for d in apart if d > 0]) // 2]
    assert all(near <= far / unit * 1.2 + 1e-9 for near, far in zip(seen, apart, strict=True))
    assert 0.5 < sorted(seen)[len(seen) // 2] < 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_initial_points": 1}, r"tuner.n_initial_points=1: must be"),
        ({"max_steps": 0}, r"tuner.max_steps=0: must be"),
        ({"beta": -1}, r"tuner.beta=-1: must be a number of at least 0"),
        ({"beta": 10**400}, r"tuner.beta=10+.*: must be a number of at least 0. Write a finite one"),
        (
            {"max_points": 7},
            r"tuner.max_points=7: must be at least twice tuner.n_initial_points \(4\).*Give 8 or more",
        ),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, int], message: str) -> None:
    """An invalid argument is refused with what is allowed."""
    with pytest.raises(ConfigurationError, match=message):
        NetworkMorphismTuner(GRAPHS, (METRIC,), **arguments)
