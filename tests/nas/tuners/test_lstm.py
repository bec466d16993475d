"""The LSTM controller: its gradients, its policy, and REINFORCE with it."""

from __future__ import annotations

import math
import random
import statistics
import time

import numpy as np
import pytest

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.spec import Spec
from nas.core.trial import Proposal
from nas.spaces.domain import Domain
from nas.spaces.parameters.space import Choice, ParameterSpace
from nas.testing import check_tuner
from nas.tuners.random import RandomTuner
from nas.tuners.shared.lstm.episode import Episode, LstmSettings, nodes_of
from nas.tuners.shared.lstm.parameters import Parameters
from nas.tuners.shared.lstm.tuner import LstmTuner
from tests.support.landscape import METRIC, SPACE, finished, mean_best, search

OPERATIONS = ("none", "skip", "conv_1x1", "conv_3x3", "pool")
TARGET = ("conv_3x3", "skip", "conv_3x3", "none", "conv_1x1", "conv_3x3")
EDGES = ParameterSpace({f"op_{edge}": Choice(*OPERATIONS) for edge in range(6)})
CELL = ParameterSpace(
    {
        "input_0": Choice(0, 1),
        "op_0": Choice(*OPERATIONS),
        "input_1": Choice(0, 1, 2),
        "op_1": Choice(*OPERATIONS),
        "inputs_2": Choice([0, 1], [0, 2], [1, 2], [0, 3], [1, 3], [2, 3]),
        "op_2": Choice(*OPERATIONS),
        "reduction": {"input_0": Choice(0, 1), "op_0": Choice(*OPERATIONS)},
    }
)


def n_wrong(point: Point) -> float:
    return float(sum(value != right for value, right in zip(point.values(), TARGET, strict=True)))


def objective(tuner: LstmTuner, parameters: Parameters, point: Point) -> float:
    episode = tuner.episode(parameters, point)
    return 1.3 * episode.log_probability + 0.7 * episode.entropy


def test_gradients_equal_finite_differences() -> None:
    """For operations, earlier nodes and pairs of them, and for every parameter that the point uses."""
    tuner, parameters = LstmTuner(CELL, (METRIC,)), Parameters(3)
    point = CELL.sample(rng := random.Random(1))
    gradients = tuner.episode(parameters, point).gradients(1.3, 0.7)

    assert gradients.keys() == parameters.values.keys()
    for name, value in parameters.values.items():
        for _ in range(3):
            place = tuple(rng.randrange(length) for length in value.shape)
            before, found = value[place], []
            for step in (1e-5, -1e-5):
                value[place] = before + step
                found.append(objective(tuner, parameters, point))
            value[place] = before
            assert gradients[name][place] == pytest.approx((found[0] - found[1]) / 2e-5, rel=1e-3, abs=1e-8), name


def test_the_probability_of_a_recorded_point_is_that_of_drawing_it() -> None:
    """The log-probability that is differentiated is that of the decisions in the record."""
    tuner, parameters, drawn = LstmTuner(CELL, (METRIC,)), Parameters(0), []
    episode, rng = Episode(parameters, LstmSettings()), random.Random(2)

    def decide(name: str, domain: Domain) -> float:
        probabilities = episode.probabilities(name, domain.labels)  # type: ignore[union-attr]
        [option] = rng.choices(range(len(probabilities)), probabilities.tolist())
        drawn.append(math.log(probabilities[option]))
        episode.take(option)
        return option

    point = CELL.decide(decide)

    assert len(drawn) == 8
    assert tuner.episode(parameters, point).log_probability == math.fsum(drawn)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_step_moves_the_probability_of_the_point(sign: float) -> None:
    """A positive advantage raises it, a negative one lowers it; other parameters keep their values."""
    tuner, parameters = LstmTuner(CELL, (METRIC,)), Parameters(0)
    point, unused = CELL.sample(random.Random(0)), parameters.get("option unused", 64)
    before = tuner.episode(parameters, point).log_probability
    parameters.ascend(tuner.episode(parameters, point).gradients(sign, 0.0), 0.01)

    assert sign * (tuner.episode(parameters, point).log_probability - before) > 0.1
    assert parameters.get("option unused", 64) is unused


def test_entropy_gradient_flattens_the_policy() -> None:
    """Without rewards the entropy of a skewed policy rises."""
    tuner, parameters = LstmTuner(EDGES, (METRIC,)), Parameters(0)
    point = EDGES.sample(random.Random(0))
    for _ in range(40):
        parameters.ascend(tuner.episode(parameters, point).gradients(1.0, 0.0), 0.01)
    skewed = tuner.episode(parameters, point).entropy
    for _ in range(40):
        parameters.ascend(tuner.episode(parameters, point).gradients(0.0, 1.0), 0.01)

    assert skewed < 0.8 * 6 * math.log(5) < tuner.episode(parameters, point).entropy


def test_initial_parameters_depend_on_their_names_alone() -> None:
    """Not on the order of use, so that the order in which a tree is walked does not matter."""
    one, other = Parameters(0), Parameters(0)
    first = [one.get("a", 4), one.get("b", 4)]
    second = [other.get("b", 4), other.get("a", 4)]

    assert np.array_equal(first, second[::-1])
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], Parameters(1).get("a", 4))


@pytest.mark.parametrize(
    ("labels", "nodes"),
    [
        (("0", "1", "2"), ((0,), (1,), (2,))),
        (("[0, 1]", "[0, 2]", "[1, 2]"), ((0, 1), (0, 2), (1, 2))),
        (("8", "16"), ()),
        (("'0'", "'1'"), ()),
        (("True", "False"), ()),
        (("0.0", "1.0"), ()),
        (("[]", "[0]"), ()),
        (("-1", "0"), ()),
    ],
)
def test_options_that_are_nodes(labels: tuple[str, ...], nodes: tuple[tuple[int, ...], ...]) -> None:
    """Numbers from 0, or lists of them, are earlier nodes."""
    assert nodes_of(labels) == nodes


def test_it_learns_a_rewarded_cell() -> None:
    """At random 4.8 of 6 decisions are wrong; after 150 noisy scores fewer than 1.5 are in what it draws."""
    noise = random.Random(0)
    tuner = LstmTuner(EDGES, (METRIC,))
    trials = search(tuner, 150, lambda point: n_wrong(point) + noise.gauss(0, 0.5))
    drawn = [tuner.draw(Lineage.of(trials), noise) for _ in range(30)]

    assert statistics.mean(n_wrong(t.point) for t in trials[:20]) > 4
    assert statistics.mean(map(n_wrong, drawn)) < 1.5


@pytest.mark.slow
def test_it_finds_better_points_than_random_search() -> None:
    """It beats random search, also for numbers cut into bins."""
    best = mean_best(lambda seed: LstmTuner(SPACE, (METRIC,), seed=seed), 120, 4)

    assert best < 0.8 * mean_best(lambda seed: RandomTuner(SPACE, (METRIC,), seed=seed), 120, 4)


def test_the_next_point_does_not_depend_on_the_cache() -> None:
    """A new instance that replays all rewards draws the same point, to the bit of every parameter."""
    tuner = LstmTuner(CELL, (METRIC,), seed=5)
    trials = search(tuner, 40, lambda point: float(point["op_0"] != "skip"))
    new = LstmTuner(CELL, (METRIC,), seed=5)
    lineage = Lineage.of(trials)

    assert new.ask(lineage, 40, 0) == tuner.ask(lineage, 40, 0)
    kept, replayed = (t._controller(lineage).parameters.values for t in (tuner, new))
    assert kept.keys() == replayed.keys()
    assert all(np.array_equal(kept[name], replayed[name]) for name in kept)


def test_points_of_other_tuners_teach_nothing() -> None:
    """A trial with parents was not drawn by the controller."""
    trials = [finished(n, Proposal(point=EDGES.sample(random.Random(n))), float(n)) for n in range(9)]
    others = [finished(9, Proposal(point=trials[0].point, parents=(0,)), 100.0)]
    tuner = LstmTuner(EDGES, (METRIC,))
    rng = random.Random(0)

    assert tuner.draw(Lineage.of(trials), random.Random(0)) == tuner.draw(Lineage.of(trials + others), rng)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_contract() -> None:
    """It is a function of the lineage in a space of choices and numbers."""
    check_tuner(Spec.of(LstmTuner), CELL, (Metric("accuracy"),), n_trials=16)


@pytest.mark.slow
def test_replaying_a_thousand_rewards_takes_seconds() -> None:
    """After a restart the controller is computed anew, at less than 10 CPU ms a reward."""
    trials = [finished(n, Proposal(point=EDGES.sample(random.Random(n))), float(n % 7)) for n in range(1000)]
    tuner, start = LstmTuner(EDGES, (METRIC,)), time.process_time()
    tuner.ask(Lineage.of(trials), 1000, 0)

    assert time.process_time() - start < 10


@pytest.mark.parametrize("wrong", [{"learning_rate": -1}, {"decay": 1}, {"entropy": float("nan")}])
def test_invalid_arguments_are_refused(wrong: dict[str, object]) -> None:
    """Invalid arguments are refused by name."""
    with pytest.raises(ConfigurationError, match=f"tuner.{next(iter(wrong))}="):
        LstmTuner(SPACE, (METRIC,), **wrong)  # type: ignore[arg-type]
