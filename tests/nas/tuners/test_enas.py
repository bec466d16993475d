"""ENAS: paths of epochs, rewards, and a search of cells end to end."""

from __future__ import annotations

import json
import random
import re
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.point import Point
from nas.core.supernet import epoch_of, is_epoch
from nas.core.trial import Proposal, Trial
from nas.spaces.parameters.space import Choice, ParameterSpace
from nas.spaces.supernet import SupernetSpace
from nas.supernets.paths import ListedPaths, option_share
from nas.tuners.base import STOP, WAIT
from nas.tuners.enas import EnasTuner
from nas.tuners.supernet import subnets_of
from tests.support.landscape import METRIC, finished, search

OPERATIONS = ("none", "skip", "conv_1x1", "conv_3x3", "pool")
CELL_OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
SPACE = SupernetSpace(ParameterSpace({f"op_{edge}": Choice(*OPERATIONS) for edge in range(6)}))


def n_other(point: Point) -> float:
    """Returns the number of edges without a 3x3 convolution; of an epoch, the mean."""
    return 4.8 if epoch_of(point) is not None else float(sum(value != "conv_3x3" for value in point.values()))


def enas(**arguments: Any) -> EnasTuner:
    return EnasTuner(SPACE, (METRIC,), **arguments)


def paths(trial: Trial) -> list[list[int]]:
    found: list[list[int]] = trial.proposal.derivation["paths"]
    return found


def test_epochs_come_first_and_hold_their_paths() -> None:
    """Four epochs are trained before the first subnet; each has 64 paths, one answer for each decision."""
    trials = search(enas(), 12, n_other)

    assert [epoch_of(trial.point) for trial in trials] == [0, 1, 2, 3, *[None] * 8]
    for trial in trials[:4]:
        assert [len(path) for path in paths(trial)] == [6] * 64
        assert {answer for path in paths(trial) for answer in path} == set(range(5))
        assert len(json.dumps(trial.proposal.derivation)) < 1400
    assert all(trial.proposal.donors == (3,) and not trial.parents for trial in trials[4:])


def test_paths_of_two_epochs_differ_and_follow_the_seed() -> None:
    """They are drawn by seed and epoch."""
    first, again, other = (search(enas(seed=seed, paths_per_epoch=8), 3, n_other) for seed in (0, 0, 1))

    assert [*map(paths, first)] == [*map(paths, again)]
    assert len({json.dumps(paths(trial)) for trial in [*first, *other]}) == 6


@pytest.mark.slow
def test_rewards_change_the_paths_of_later_epochs() -> None:
    """The share of the rewarded operation in an epoch's paths rises from one fifth to more than half."""
    trials = search(enas(n_epochs=24, warm_up_epochs=4, subnets_per_epoch=10, n_rescored=0), 230, n_other)
    epochs = [trial for trial in trials if is_epoch(trial)]
    shares = [statistics.mean(answer == 3 for path in paths(trial) for answer in path) for trial in epochs]

    assert len(epochs) >= 20
    assert max(shares[:4]) < 0.3
    assert min(shares[-2:]) > 0.5


@pytest.mark.parametrize("option", ["skip_connect", "none"])
def test_a_collapse_ends_the_search(option: str) -> None:
    """If rewards draw the controller to skips or nones, it stops before the epoch that would train them."""
    space = SupernetSpace(ParameterSpace({f"block_{a}_{b}": Choice(*CELL_OPERATIONS) for a, b in EDGES}))
    tuner = EnasTuner(
        space, (METRIC,), n_epochs=24, subnets_per_epoch=10, n_rescored=0, learning_rate=0.02, max_share=0.5
    )
    trials = until_stop(tuner, lambda point: float(sum(value != option for value in point.values())))
    epochs = [trial for trial in trials if is_epoch(trial)]
    shares = [option_share(space, ListedPaths.of_answers(space, paths(trial)).points, option) for trial in epochs]
    reason = tuner.stop_reason(Lineage.of(trials))

    assert 4 < len(epochs) < 24
    assert max(shares) <= 0.5
    assert re.match(rf"the paths of supernet epoch {len(epochs)} collapsed: {option} is [5-9]\d% of", reason)


def test_a_large_space_does_not_collapse_by_chance() -> None:
    """Rewards that say nothing end no search of twenty layers, of which a third are skips at random."""
    space = SupernetSpace(ParameterSpace({f"layer_{n}": Choice("skip_connect", "mb3", "mb6") for n in range(20)}))
    tuner = EnasTuner(space, (METRIC,), n_epochs=8, subnets_per_epoch=6, n_rescored=0)
    trials = search(tuner, 60, lambda point: random.Random(json.dumps(point, sort_keys=True)).random())

    assert sum(map(is_epoch, trials)) == 8


def until_stop(tuner: EnasTuner, loss: Callable[[Point], float]) -> list[Trial]:
    """Returns the trials of a search with one slot; an epoch's loss is that of random points."""
    trials: list[Trial] = []
    while (answer := tuner.ask(Lineage.of(trials), len(trials), 0)) is not STOP:
        assert isinstance(answer, Proposal)
        assert len(trials) < 300
        score = 4.8 if epoch_of(answer.point) is not None else loss(answer.point)
        trials.append(finished(len(trials), answer, score))
    return trials


def test_rewards_are_measured_from_their_epoch() -> None:
    """If an epoch and all its subnets are better by the same number, the next proposals are the same."""
    trials = search(enas(paths_per_epoch=1), 60, n_other)
    level: Mapping[int | str | None, float] = {trial.number: -8.0 * trial.number for trial in trials if is_epoch(trial)}

    def shifted(trial: Trial) -> Trial:
        source = trial.number if is_epoch(trial) else trial.proposal.weight_donors[0]
        return replace(trial, metrics={"loss": trial.metrics["loss"] + level[source]})

    moved = [shifted(trial) for trial in trials]

    assert len({trial.proposal.weight_donors for trial in trials if not is_epoch(trial)}) > 2
    assert next_points(trials) == next_points(moved)
    flat = [replace(trial, metrics={"loss": n_other(trial.point)}) for trial in moved[:-20]]
    assert next_points(flat) != next_points(trials)


def next_points(trials: list[Trial]) -> list[Point]:
    """Returns the points that a new controller draws next."""
    rng, subnets = random.Random(0), subnets_of(Lineage.of(trials))
    tuner = enas()
    return [tuner.controller.draw(subnets, rng) for _ in range(8)]


def test_an_epoch_is_waited_for() -> None:
    """Without a finished epoch there is nothing to score."""
    first = finished(0, proposal := answered(enas(), []), None)
    pending = Trial(number=0, index=0, proposal=proposal)

    assert enas().ask(Lineage.of([pending]), 1, 0) is WAIT
    assert epoch_of(answered(enas(), [first]).point) == 0


def answered(tuner: EnasTuner, trials: list[Trial]) -> Proposal:
    answer = tuner.ask(Lineage.of(trials), len(trials), 0)
    assert isinstance(answer, Proposal)
    return answer


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: enas(paths_per_epoch=0), "tuner.paths_per_epoch=0: must be"),
        (lambda: enas(n_rescored=8), r"tuner.n_rescored=8: must be less than tuner.subnets_per_epoch \(8\)"),
        (lambda: enas(learning_rate=-1.0), "tuner.learning_rate=-1.0: must be"),
        (lambda: EnasTuner(SPACE.inner, (METRIC,)), "Choose problem=cells"),
    ],
)
def test_invalid_arguments(make: Callable[[], EnasTuner], error: str) -> None:
    """Each is refused by name, and so is the space of another problem."""
    with pytest.raises(ConfigurationError, match=error):
        make()
