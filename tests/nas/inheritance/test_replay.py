"""Morphisms in a whole search: tuner, records, storage and ``run.inherit``."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
import torch

from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.policy import Policy
from nas.core.spec import Spec
from nas.core.trial import Proposal, State
from nas.search.definition import Search
from nas.spaces.graphs.crossover import Crossing
from nas.spaces.graphs.module import GraphModule
from nas.spaces.graphs.space import GraphSpace
from nas.spaces.graphs.starts import plain_cnn
from nas.spaces.space import Variation
from nas.training.problem import Problem
from nas.training.trial_run import TrialRun
from nas.tuners.base import WAIT, Answer, Tuner
from nas.tuners.evolution import EvolutionTuner
from nas.tuners.nsga2 import Nsga2Tuner
from tests.support.graph_networks import LIMITS, MORPHISMS, SHAPE, STARTS


class Unchanging(Problem):
    """Trains nothing, and scores the network's output for one example."""

    metrics = (Metric("output"), Metric("share"))
    policies = frozenset({Policy.SHARE_PARAMS})
    space = GraphSpace(STARTS[:1], limits=LIMITS, moves=MORPHISMS, n_moves=0)

    def train(self, run: TrialRun) -> Mapping[str, float]:
        network = GraphModule(self.space.network(run.point))
        report = run.inherit(network)
        run.save(network)
        example = torch.ones(1, *SHAPE).cumsum(2).cumsum(3) / 10
        return {"output": network.eval()(example)[0, 0].item(), "share": report.share}


class Marked(Problem):
    """Trains nothing; fills each trial's weights with its number, and counts its parents' numbers."""

    metrics = (Metric("found"), Metric("own"), Metric("other"))
    policies = frozenset({Policy.SHARE_PARAMS})
    space = GraphSpace(STARTS[:1], limits=LIMITS, n_moves=6)

    def train(self, run: TrialRun) -> Mapping[str, float]:
        network = GraphModule(self.space.network(run.point))
        run.inherit(network)
        crossing = Crossing.from_json(run.derivation)
        found = {"found": float(run.seed % 97), "own": 0.0, "other": 0.0}
        for node, (parent, _) in ({} if crossing is None else crossing.origins).items():
            marks = [1.0 + number for number in run.derivation["crossed"]]
            if str(node) not in network.layers:  # an operation after the crossing took it out
                continue
            for tensor in network.layers[str(node)].parameters():
                found["own"] += (tensor == marks[parent]).sum().item()
                found["other"] += (tensor == marks[1 - parent]).sum().item()
        with torch.no_grad():
            for tensor in network.parameters():
                tensor.fill_(1.0 + run.number)
        run.save(network)
        return found


class MarkedAlike(Marked):
    """Builds networks with the same tensors, but other additions."""

    space = GraphSpace(
        [plain_cnn(SHAPE, 3, widths=[4] * 5, pool_after=[])], limits=LIMITS, moves=["add_skip", "disconnect"]
    )


class Morphing(Tuner):
    """Proposes a morphism of the trial before."""

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        rng = self.rng(number)
        assert isinstance(self.space, GraphSpace)
        if number == 0:
            return Proposal(point=self.space.sample(rng))
        if len(list(lineage.finished)) < number:
            return WAIT
        child = self.space.vary(Variation.of(lineage[number - 1].point), rng)
        assert len(child.operations) == 1
        derivation = self.space.derivation(child)
        return Proposal(point=child.point, parents=(number - 1,), derivation=derivation)

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        return [trial.number for trial in lineage.finished][-1:]


def test_children_start_from_their_parents_function() -> None:
    """Along recorded morphisms each child has the first trial's output, and its other parts count as inserted."""
    search = Search(problem=Spec.of(Unchanging), tuner=Spec.of(Morphing))
    found = run_search(search, root="memory://morphisms", budget=Budget(trials=8), finalists=1)

    trials = [trial for trial in found.lineage if trial.stage == "search"]
    assert [trial.state for trial in trials] == [State.COMPLETE] * 8, [trial.error for trial in trials]
    assert len({str(trial.point) for trial in trials}) == 8
    assert all(abs(trial.metrics["output"] - trials[0].metrics["output"]) < 1e-5 for trial in trials)
    assert trials[0].metrics["share"] == 0.0
    assert all(
        (0.0 < trial.metrics["share"] < 1.0) if "n_inserted" in trial.inheritance else trial.metrics["share"] == 1.0
        for trial in trials[1:]
    )
    assert all("notes" not in trial.inheritance for trial in trials)
    assert sum("n_morphed" in trial.inheritance for trial in trials) > 3


@pytest.mark.parametrize("donor", ["parent", "best_donor"])
def test_children_of_an_evolution_start_from_their_parents_function(donor: str) -> None:
    """Each morphism child of an evolution has its parent's output, whatever donor comes before the parent."""
    tuner = Spec.of(EvolutionTuner, population_size=3, sample_size=2, donor=donor)
    search = Search(problem=Spec.of(Unchanging), tuner=tuner)
    found = run_search(search, root=f"memory://evolved-{donor}", budget=Budget(trials=12), finalists=1)

    trials = [trial for trial in found.lineage if trial.stage == "search"]
    children = [trial for trial in trials if trial.parents]
    assert [trial.state for trial in trials] == [State.COMPLETE] * 12, [trial.error for trial in trials]
    assert len(children) >= 8
    for child in children:
        parent = trials[child.parents[0]]
        assert child.point != parent.point
        assert len(child.proposal.derivation["morphism"]["operations"]) == 1
        assert abs(child.metrics["output"] - parent.metrics["output"]) < 1e-5
        assert "notes" not in child.inheritance


@pytest.mark.parametrize(
    ("name", "tuner"),
    [
        ("parent", Spec.of(EvolutionTuner, population_size=4, sample_size=2, crossover=1.0)),
        ("best", Spec.of(EvolutionTuner, population_size=4, sample_size=2, crossover=1.0, donor="best_donor")),
        ("front", Spec.of(Nsga2Tuner, population_size=4, crossover_rate=1.0)),
    ],
)
@pytest.mark.parametrize("problem", [Marked, MarkedAlike])
def test_each_part_of_a_child_of_two_has_its_own_parents_weights(
    problem: type[Problem], name: str, tuner: Spec
) -> None:
    """Each part inherits from its own parent only, however the tuner numbers nodes; both give something."""
    search = Search(problem=Spec.of(problem), tuner=tuner)
    root = f"memory://two-{problem.__name__}-{name}"
    found = run_search(search, root=root, budget=Budget(trials=14), finalists=1)

    children = [trial for trial in found.lineage if trial.stage == "search" and trial.parents]
    crossed = [trial for trial in children if "crossing" in trial.proposal.derivation]
    assert all(trial.state is State.COMPLETE for trial in children), [trial.error for trial in children]
    assert len(crossed) >= 6
    assert all("notes" not in trial.inheritance for trial in crossed)
    assert all(trial.metrics["own"] > trial.metrics["other"] == 0.0 for trial in crossed)
