"""Scores near the limit of floats, as diverged trials return them, blind no tuner."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Proposal, State, Trial
from nas.spaces.parameters.space import Choice, Float, ParameterSpace
from nas.spaces.space import Space
from nas.tuners.anneal import AnnealTuner
from nas.tuners.base import Tuner
from nas.tuners.cmaes import CmaEsTuner
from nas.tuners.evolution import EvolutionTuner
from nas.tuners.metis import MetisTuner
from nas.tuners.network_morphism import NetworkMorphismTuner
from nas.tuners.nsga2 import Nsga2Tuner
from nas.tuners.optuna import OptunaTuner
from nas.tuners.pbt import PbtTuner
from nas.tuners.reinforce import ReinforceTuner
from nas.tuners.smac import SmacTuner

LOSS = Metric("loss", "minimize")
SPACE = ParameterSpace({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0), "kind": Choice("a", "b", "c")})
OTHER = Metric("size", "minimize")
TUNERS: dict[str, Callable[[Space], Tuner]] = {
    "gp": lambda space: OptunaTuner(space, (LOSS,), sampler="gp"),
    "tpe": lambda space: OptunaTuner(space, (LOSS,), sampler="tpe"),
    "metis": lambda space: MetisTuner(space, (LOSS,)),
    "smac": lambda space: SmacTuner(space, (LOSS,)),
    "cmaes": lambda space: CmaEsTuner(space, (LOSS,)),
    "reinforce": lambda space: ReinforceTuner(space, (LOSS,)),
    "anneal": lambda space: AnnealTuner(space, (LOSS,)),
    "evolution": lambda space: EvolutionTuner(space, (LOSS,), population_size=8, sample_size=3),
    "pbt": lambda space: PbtTuner(space, (LOSS,), population_size=6),
    "nsga2": lambda space: Nsga2Tuner(space, (LOSS, OTHER), population_size=6),
    "network_morphism": lambda space: NetworkMorphismTuner(space, (LOSS,), n_initial_points=4),
}


def asked(tuner: Tuner, diverged: float, n: int = 16) -> list[Trial]:
    """Returns the trials that a tuner proposes if each fourth one returns the score of a diverged training."""
    trials: list[Trial] = []
    for number in range(n):
        proposal = tuner.ask(Lineage.of(trials), number, number)
        assert isinstance(proposal, Proposal)
        point = proposal.point
        loss = (point["x"] - 0.3) ** 2 + point["y"] + "abc".index(point["kind"])
        scores = {"loss": diverged if number % 4 == 0 else loss, "size": -diverged if number % 5 == 0 else point["y"]}
        trials.append(Trial(number=number, index=number, proposal=proposal, state=State.COMPLETE, metrics=scores))
    return trials


SLOW = {"gp", "smac", "metis", "network_morphism"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in TUNERS])
def test_size_of_a_diverged_score_does_not_matter(name: str) -> None:
    """With losses of 1e308, which overflow in sums and squares, a tuner proposes what it does with a billion."""
    usual, great = (asked(TUNERS[name](SPACE), diverged) for diverged in (1e9, 1.7e308))

    assert [trial.point for trial in great] == [trial.point for trial in usual]


@pytest.mark.slow
def test_gaussian_process_still_learns() -> None:
    """With diverged losses of 1e308 in a region, gp finds better points than random search does."""
    tuner, trials = TUNERS["gp"](SPACE), list[Trial]()
    rng = random.Random(0)
    for number in range(32):
        proposal = tuner.ask(Lineage.of(trials), number, number)
        assert isinstance(proposal, Proposal)
        loss = 1e308 if proposal.point["x"] > 0.6 else true_loss(proposal.point)
        trials.append(
            Trial(number=number, index=number, proposal=proposal, state=State.COMPLETE, metrics={"loss": loss})
        )
    found = sum(true_loss(trial.point) for trial in trials[-12:]) / 12
    drawn = sum(true_loss(SPACE.sample(rng)) for _ in range(500)) / 500

    assert found < drawn / 3


def true_loss(point: dict[str, float]) -> float:
    return (point["x"] - 0.3) ** 2 + point["y"] + "abc".index(str(point["kind"]))
