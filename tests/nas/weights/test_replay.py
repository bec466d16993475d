"""Morphisms through a whole search: tuner, records, store and ``run.inherit``."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from nas.budget import Budget
from nas.lineage import Lineage
from nas.metric import Metric
from nas.policy import Policy
from nas.problems.base import Problem
from nas.program import run_search
from nas.run import TrialRun
from nas.search import Search
from nas.spaces.base import Variation
from nas.spaces.graph import GraphSpace
from nas.spaces.graphs.module import GraphModule
from nas.spec import Spec
from nas.trial import Proposal, State
from nas.tuners.base import WAIT, Answer, Tuner
from tests.nas.spaces.networks import LIMITS, MORPHISMS, SHAPE, STARTS


class Unchanging(Problem):
    """Trains nothing, and scores by what the network gives for one example."""

    metrics = (Metric("output"), Metric("share"))
    policies = frozenset({Policy.SHARE_PARAMS})
    space = GraphSpace(STARTS[:1], limits=LIMITS, moves=MORPHISMS, n_moves=0)

    def train(self, run: TrialRun) -> Mapping[str, float]:
        network = GraphModule(self.space.network(run.point))
        report = run.inherit(network)
        run.save(network)
        example = torch.ones(1, *SHAPE).cumsum(2).cumsum(3) / 10
        return {"output": network.eval()(example)[0, 0].item(), "share": report.share}


class Morphing(Tuner):
    """Each trial is a morphism of the one before."""

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
    """Along a lineage of recorded morphisms, each child gives what the first trial gave, and the rest is made."""
    search = Search(problem=Spec.of(Unchanging), tuner=Spec.of(Morphing))
    found = run_search(search, root="memory://morphisms", budget=Budget(trials=8), finalists=1)

    trials = [trial for trial in found.lineage if trial.stage == "search"]
    assert [trial.state for trial in trials] == [State.COMPLETE] * 8, [trial.error for trial in trials]
    assert len({str(trial.point) for trial in trials}) == 8
    assert all(abs(trial.metrics["output"] - trials[0].metrics["output"]) < 1e-5 for trial in trials)
    assert trials[0].metrics["share"] == 0.0
    assert all(
        (0.0 < trial.metrics["share"] < 1.0) if "n_made" in trial.inheritance else trial.metrics["share"] == 1.0
        for trial in trials[1:]
    )
    assert all("notes" not in trial.inheritance for trial in trials)
    assert sum("n_morphed" in trial.inheritance for trial in trials) > 3
