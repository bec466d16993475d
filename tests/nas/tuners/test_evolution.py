"""Evolution's variants: two parents, a population without age, tournaments with losers."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
from torch import nn

from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.lineage import LineageLog
from nas.core.metric import Metric
from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.spec import Spec
from nas.core.trial import Proposal, Trial
from nas.search.definition import Search
from nas.spaces.parameters.space import Choice, ParameterSpace
from nas.training.problem import Problem
from nas.training.trial_run import TrialRun
from nas.tuners.evolution import EvolutionTuner
from nas.tuners.random import RandomTuner
from tests.support.landscape import METRIC, SPACE, finished, mean_best, search


@pytest.mark.parametrize(
    "options", [{}, {"crossover": 0.5}, {"replacement": "worst"}, {"replacement": "loser", "sample_size": 2}]
)
def test_every_kind_beats_random_search(options: dict[str, object]) -> None:
    """Over ten seeds, the best of 80 trials is on average much nearer to the optimum than random search's."""
    best = mean_best(lambda seed: EvolutionTuner(SPACE, (METRIC,), seed=seed, **options), 80)  # type: ignore[arg-type]

    assert best < 0.7 * mean_best(lambda seed: RandomTuner(SPACE, (METRIC,), seed=seed), 80)


def test_the_population_grows_with_the_search() -> None:
    """By default five random points come first; parents are of the newest eighth of the scored trials, or of five."""
    trials = search(EvolutionTuner(SPACE, (METRIC,)), 400)
    parents = [trial.parents for trial in trials]

    assert [bool(numbers) for numbers in parents] == [False] * 5 + [True] * 395
    ages = [trial.number - trial.parents[0] for trial in trials[5:]]
    assert all(age <= max(5, trial.number // 8) for age, trial in zip(ages, trials[5:], strict=True))
    assert max(ages[:36]) == 5
    assert max(ages[300:]) > 25


def test_a_trial_that_left_the_growing_population_never_returns() -> None:
    """Failed trials among them, the oldest possible parent never gets older while results come in."""
    tuner, rng = EvolutionTuner(SPACE, (METRIC,)), random.Random(0)
    trials = [finished(n, Proposal(point={}), None if rng.random() < 0.2 else 1.0) for n in range(900)]
    log = LineageLog(trials)
    oldest = [min(tuner.may_inherit_from(log.view(n)), default=0) for n in range(1, 901)]

    assert oldest == sorted(oldest)
    assert oldest[-1] < 840


def test_children_of_two_are_made_of_both() -> None:
    """Each value of a crossed child is one parent's, both are donors, and the better one is first."""
    trials = search(EvolutionTuner(SPACE, (METRIC,), population_size=8, crossover=0.5), 150)
    crossed = [t for t in trials if len(t.parents) == 2 and not t.proposal.derivation["mutated"]]

    assert len(crossed) > 10
    for trial in crossed:
        parents = [trials[number] for number in trial.parents]
        assert parents[0].metrics["loss"] <= parents[1].metrics["loss"]
        assert trial.proposal.weight_donors == trial.parents == tuple(trial.proposal.derivation["crossed"])
        for name, value in trial.point.items():
            assert value in [parent.point[name] for parent in parents]
    assert any(
        {t.point[n] == trials[t.parents[0]].point[n] for n in t.point} == {True, False} for t in crossed
    )  # not all of them copies of one


@pytest.mark.parametrize(("crossover", "least", "most"), [(1.0, 1.0, 1.0), (0.5, 0.4, 0.6)])
def test_so_many_children_have_two_parents(crossover: float, least: float, most: float) -> None:
    """The share of crossed children is the probability, also if one trial wins most tournaments."""
    tuner = EvolutionTuner(SPACE, (METRIC,), population_size=4, crossover=crossover)
    children = [t for t in search(tuner, 300) if t.parents]

    assert least <= sum(len(set(t.parents)) == 2 for t in children) / len(children) <= most


def test_without_age_the_best_stay_parents() -> None:
    """With replacement=worst each parent is among the best eight of its time, and an early good one stays."""
    trials = search(EvolutionTuner(SPACE, (METRIC,), replacement="worst"), 80)

    for trial in trials:
        for parent in trial.parents:
            earlier = sorted(trials[: trial.number], key=lambda t: (t.metrics["loss"], t.number))
            assert parent in [t.number for t in earlier[:8]]
    assert any(trial.number - parent > 16 for trial in trials for parent in trial.parents)


def test_losers_of_tournaments_are_no_parents_again() -> None:
    """In NNI's naive evolution the worse of two is replaced by each child, so eight members stay."""
    trials = search(EvolutionTuner(SPACE, (METRIC,), replacement="loser", sample_size=2), 60)
    replaced: set[int] = set()
    for trial in trials[8:]:
        [parent], loser = trial.parents, trial.proposal.derivation["replaced"]
        assert not {parent, loser} & replaced
        assert trials[parent].metrics["loss"] <= trials[loser].metrics["loss"]
        replaced.add(loser)

    assert len(replaced) == 52


def test_failures_do_not_shrink_a_population_of_tournaments() -> None:
    """If every third trial fails, initial points replace the failed children."""
    losses = iter(range(1000))
    trials = search(
        EvolutionTuner(SPACE, (METRIC,), replacement="loser", sample_size=2),
        90,
        lambda point: None if (n := next(losses)) % 3 == 0 else float(n % 7),
    )
    replaced = {t.proposal.derivation["replaced"] for t in trials if t.proposal.derivation}
    members = [t for t in trials if t.metrics and t.number not in replaced]

    assert 7 <= len(members) <= 8
    assert any(not trial.parents for trial in trials[60:])


class ChainProblem(Problem):
    """Three linear layers in a row, without training; wider is better."""

    metrics = (Metric("width"),)
    policies = frozenset({Policy.SHARE_PARAMS})
    space = ParameterSpace({f"width_{place}": Choice(4, 8, 12, 16) for place in range(3)})

    def train(self, run: TrialRun) -> Mapping[str, float]:
        widths = [2, *run.point.values()]
        chain = nn.Sequential(*(nn.Linear(*pair) for pair in pairwise(widths)))
        for parameter in chain.parameters():
            nn.init.constant_(parameter, run.number)
        run.inherit(chain)
        run.save(chain)
        return {"width": sum(widths)}


def evolved_chains(root: Path, donor: str) -> list[Trial]:
    tuner = Spec.of(EvolutionTuner, population_size=4, donor=donor)
    plan = PolicyPlan((Stage(name="search", policies=frozenset({Policy.SHARE_PARAMS})),))
    search = Search(problem=Spec.of(ChainProblem), tuner=tuner, plan=plan)
    return [*run_search(search, root=str(root / donor), budget=Budget(trials=30)).lineage]


@pytest.mark.slow
def test_a_child_takes_more_from_a_cousin_than_from_its_parent(tmp_path: Path) -> None:
    """With ``donor=best_donor`` the closest trial comes before the parents, and they give the rest."""
    own, found = evolved_chains(tmp_path, "parent"), evolved_chains(tmp_path, "best_donor")
    children = [trial for trial in found if trial.parents]
    of_cousins = [trial for trial in children if trial.donor not in trial.parents]

    assert [trial.point for trial in own] == [trial.point for trial in found]
    assert all(trial.donor in trial.parents for trial in own if trial.parents)
    assert all(trial.proposal.weight_donors[-1:] == trial.parents for trial in children)
    assert len(of_cousins) > 3
    for trial in of_cousins:
        cousin, parent = found[trial.donor or 0], found[trial.parents[0]]
        assert n_alike(trial, cousin) >= n_alike(trial, parent)
    share = {
        name: statistics.mean(t.inherited or 0 for t in ts if t.parents)
        for name, ts in [("own", own), ("found", found)]
    }
    assert share["found"] > share["own"]


def n_alike(one: Trial, other: Trial) -> int:
    """Returns how many widths are the same, from the first on."""
    same = [one.point[name] == other.point[name] for name in one.point]
    return [*same, False].index(False)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"donor": "uncle"}, r"tuner.donor='uncle': must be parent"),
        ({"crossover": 1.5}, r"tuner.crossover=1.5: must be a number from 0 to 1"),
        ({"replacement": "youngest"}, "tuner.replacement='youngest': must be oldest, worst or loser"),
        ({"replacement": "loser", "sample_size": 1}, "must be 2 or more with tuner.replacement=loser"),
    ],
)
def test_invalid_arguments_are_refused(wrong: dict[str, object], line: str) -> None:
    """Invalid arguments are refused by name."""
    with pytest.raises(ConfigurationError, match=line):
        EvolutionTuner(SPACE, (METRIC,), **wrong)  # type: ignore[arg-type]
