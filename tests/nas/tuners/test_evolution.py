"""Evolution's other kinds: two parents, a population without age, tournaments that kill."""

from __future__ import annotations

import pytest

from nas.errors import ConfigurationError
from nas.tuners.evolution import EvolutionTuner
from nas.tuners.random import RandomTuner
from tests.nas.tuners.landscape import METRIC, SPACE, mean_best, search


@pytest.mark.parametrize("options", [{}, {"crossover": 0.5}, {"dies": "worst"}, {"dies": "loser", "sample_size": 2}])
def test_every_kind_beats_random_search(options: dict[str, object]) -> None:
    """Over ten seeds, the best of 80 trials is on average much nearer to the optimum than random search's."""
    best = mean_best(lambda seed: EvolutionTuner(SPACE, (METRIC,), seed=seed, **options), 80)  # type: ignore[arg-type]

    assert best < 0.7 * mean_best(lambda seed: RandomTuner(SPACE, (METRIC,), seed=seed), 80)


def test_children_of_two_are_made_of_both() -> None:
    """Each value of a crossed child is one parent's, both are its donors, and the better one is named first."""
    trials = search(EvolutionTuner(SPACE, (METRIC,), crossover=0.5), 150)
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
    """The share is the probability that was asked for, also where one trial wins most tournaments."""
    tuner = EvolutionTuner(SPACE, (METRIC,), population_size=4, crossover=crossover)
    children = [t for t in search(tuner, 300) if t.parents]

    assert least <= sum(len(set(t.parents)) == 2 for t in children) / len(children) <= most


def test_without_age_the_best_are_parents_for_ever() -> None:
    """Where the worst dies, each parent is among the best eight at that time, and an early good one stays."""
    trials = search(EvolutionTuner(SPACE, (METRIC,), dies="worst"), 80)

    for trial in trials:
        for parent in trial.parents:
            earlier = sorted(trials[: trial.number], key=lambda t: (t.metrics["loss"], t.number))
            assert parent in [t.number for t in earlier[:8]]
    assert any(trial.number - parent > 16 for trial in trials for parent in trial.parents)


def test_losers_of_tournaments_are_no_parents_again() -> None:
    """NNI's naive evolution: of two the worse dies; so there is one death a child, and eight live on."""
    trials = search(EvolutionTuner(SPACE, (METRIC,), dies="loser", sample_size=2), 60)
    dead: set[int] = set()
    for trial in trials[8:]:
        [parent], loser = trial.parents, trial.proposal.derivation["dead"]
        assert not {parent, loser} & dead
        assert trials[parent].metrics["loss"] <= trials[loser].metrics["loss"]
        dead.add(loser)

    assert len(dead) == 52


def test_failures_do_not_shrink_a_population_of_tournaments() -> None:
    """Where every third trial fails, founders take the places of the failed children."""
    losses = iter(range(1000))
    trials = search(
        EvolutionTuner(SPACE, (METRIC,), dies="loser", sample_size=2),
        90,
        lambda point: None if (n := next(losses)) % 3 == 0 else float(n % 7),
    )
    dead = {t.proposal.derivation["dead"] for t in trials if t.proposal.derivation}
    living = [t for t in trials if t.metrics and t.number not in dead]

    assert 7 <= len(living) <= 8
    assert any(not trial.parents for trial in trials[60:])


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"crossover": 1.5}, r"crossover \(1.5\) must be a probability"),
        ({"dies": "youngest"}, "dies \\('youngest'\\) must be one of oldest, worst, loser"),
        ({"dies": "loser", "sample_size": 1}, "must be at least 2 where the loser dies"),
    ],
)
def test_arguments_that_can_not_be(wrong: dict[str, object], line: str) -> None:
    """What can't be is refused by name."""
    with pytest.raises(ConfigurationError, match=line):
        EvolutionTuner(SPACE, (METRIC,), **wrong)  # type: ignore[arg-type]
