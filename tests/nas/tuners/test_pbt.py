"""Population-based training: the worst copy weights and point of the best, and the others continue."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
import torch
from torch import nn

from nas import Search, run_search
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.core.policy import Policy
from nas.core.spec import Spec
from nas.spaces.parameters.space import Choice, Float, ParameterSpace
from nas.training.problem import Problem
from nas.training.trial_run import TrialRun
from nas.tuners.pbt import PbtTuner
from tests.support.landscape import METRIC, SPACE, search


class TwoSlopes(Problem):
    """The example of the paper's figure 2: each point trains one of two weights, and only both together score well.

    A member that never copies ends at 1.2 - 0.9 ** 2 = 0.39, however long it trains. The score is 1.2 at best.
    """

    metrics = (Metric("score"),)
    policies = frozenset({Policy.SHARE_PARAMS})
    space = ParameterSpace({"trains": Choice("first", "second")})

    def train(self, run: TrialRun) -> Mapping[str, float]:
        model = nn.ParameterDict({name: nn.Parameter(torch.tensor([0.9])) for name in ("first", "second")})
        run.inherit(model)
        with torch.no_grad():
            model[run.point["trains"]].mul_(0.8)
        run.save(model)
        return {"score": 1.2 - float(sum(weight.item() ** 2 for weight in model.values()))}


@pytest.mark.parametrize("synchronous", [False, True])
def test_exploiting_passes_on_weights_and_exploring_changes_points(synchronous: bool) -> None:
    """With copies both weights are trained; without them each member trains only one."""

    def best(fraction: float) -> float:
        arguments = {"population_size": 2, "fraction": fraction, "resample": 0.5, "synchronous": synchronous}
        tuner = Spec("nas.tuners.pbt.PbtTuner", arguments)
        given = Search(problem=Spec.of(TwoSlopes), tuner=tuner)
        root = f"memory://pbt-{synchronous}-{fraction}"
        found = run_search(given, root=root, budget=Budget(trials=60), finalists=1)
        return max(t.metrics["score"] for t in found.lineage if t.stage == "search")

    assert best(0.5) > 1.1
    assert best(0.0) < 0.4


def test_members_go_on_from_their_own_last_trial_or_from_one_of_the_best() -> None:
    """Every later trial has one parent: the member's own trial with its point, or one of the best two."""
    trials = search(PbtTuner(SPACE, (METRIC,), population_size=8), 80)
    last: dict[int, int] = {}
    n_copies = 0
    for trial in trials:
        made = trial.proposal.derivation
        if made["interval"] == 0:
            assert trial.parents == ()
        elif "copied" in made:
            n_copies += 1
            ranked = sorted(last.values(), key=lambda number: trials[number].metrics["loss"])
            assert trial.parents == (made["copied"],)
            assert trials[made["copied"]].metrics["loss"] <= trials[ranked[1]].metrics["loss"]
            assert trials[made["given_up"]].metrics["loss"] >= trials[ranked[-2]].metrics["loss"]
        else:
            assert trial.parents == (last[made["member"]],)
            assert trial.point == trials[trial.parents[0]].point
        last[made["member"]] = trial.number

    assert n_copies >= 15


def test_only_named_parameters_are_perturbed() -> None:
    """Exploring changes named numbers by the factor, and no others."""
    trials = search(PbtTuner(SPACE, (METRIC,), perturbed=["rate"], resample=0), 80)
    copies = [(t.point, trials[t.parents[0]].point) for t in trials if "copied" in t.proposal.derivation]

    assert copies
    for point, source in copies:
        assert {name for name in point if point[name] != source[name]} <= {"rate"}
        inside = 1e-5 * 1.2 < source["rate"] < 1 / 1.2
        assert (
            not inside
            or point["rate"] / source["rate"] == pytest.approx(1.2)
            or source["rate"] / point["rate"] == pytest.approx(1.2)
        )


@pytest.mark.parametrize(
    ("perturbed", "message"),
    [
        (["rate", "raet"], r"^tuner.perturbed: .* has no decision 'raet'. Choose from rate, x, n, op, or null for all"),
        ([], r"^tuner.perturbed=\[\]: must name decisions of the space, such as x, rate, n, op, or be null"),
    ],
)
def test_unknown_names_are_refused(perturbed: list[str], message: str) -> None:
    """Names that the space does not have, and no name at all, are refused with the existing ones."""
    with pytest.raises(ConfigurationError, match=message):
        PbtTuner(SPACE, (METRIC,), perturbed=perturbed)


def test_a_name_may_be_the_beginning_of_a_path() -> None:
    """A conditional decision is found by its name and by the choice around it."""
    rare = Choice(*range(30), {"deep": Choice(1, 2)})
    space = ParameterSpace({"op": rare, "x": Float(0.0, 1.0)})

    for name in ("op", next(name for name in decided(space) if name.endswith("deep"))):
        assert PbtTuner(space, (METRIC,), perturbed=[name]).perturbed == (name,)


def decided(space: ParameterSpace) -> set[str]:
    rng = random.Random(0)
    return {decision.name for _ in range(500) for decision in space.decisions(space.sample(rng))}


@pytest.mark.parametrize(
    "wrong",
    [{"population_size": 1}, {"population_size": 10**9}, {"fraction": 0.6}, {"factor": 1}, {"perturbed": "rate"}],
)
def test_invalid_arguments_are_refused(wrong: dict[str, object]) -> None:
    """Invalid arguments are refused by name."""
    with pytest.raises(ConfigurationError, match=rf"^tuner\.{next(iter(wrong))}="):
        PbtTuner(SPACE, (METRIC,), **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("population_size", [3, 7])
def test_no_member_copies_itself(population_size: int) -> None:
    """With half of the members, an odd number, the middle one is neither among the best nor among the worst."""
    trials = search(PbtTuner(SPACE, (METRIC,), population_size=population_size, fraction=0.5), 200)
    copies = [t.proposal.derivation for t in trials if "copied" in t.proposal.derivation]

    assert copies
    assert all(copy["copied"] != copy["given_up"] for copy in copies)
