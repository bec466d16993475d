"""The best donor as a function of the lineage."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from nas.core.lineage import Lineage, LineageLog
from nas.core.metric import Metric
from nas.core.trial import State, Trial
from nas.inheritance.donors.lineage_donors import LineageDonors
from nas.spaces.parameters.space import Choice, Float, ParameterSpace
from nas.storage.signature import Signature
from tests.support.donor_networks import Network, best_of, chain, offer

SPACE = ParameterSpace({"depth": Choice(1, 2, 3), "lr": Float(0, 1), "width": Choice(4, 8)})
SCORE = Metric("score")

networks = st.lists(st.sampled_from([4, 8]), min_size=1, max_size=4).map(lambda widths: chain(*widths))
fates = st.sampled_from([State.COMPLETE, State.COMPLETE, State.STOPPED, State.FAILED])
offers = st.lists(st.tuples(networks, st.sampled_from([None, 0.0, 0.5, 0.9]), fates, st.booleans()), max_size=12)


def donors() -> LineageDonors:
    return LineageDonors(SPACE, SCORE)


def trials_of(offered: list[tuple[Network, float | None, State, bool]]) -> list[Trial]:
    return [
        offer(number, network if saved else None, score=score, state=state)
        for number, (network, score, state, saved) in enumerate(offered)
    ]


@settings(deadline=None)
@given(offers, networks, st.randoms(use_true_random=False))
def test_answer_is_that_of_comparing_everything(offered: list[tuple], wanted: Network, rng: object) -> None:
    """Most common layers, then the best score, then the highest number win, in any order of learning."""
    trials = trials_of(offered)
    rng.shuffle(trials)

    found = donors().best_donor(Lineage.of(trials), Signature.of(wanted))
    expected = best_of(wanted, dict(enumerate(network for network, *_ in offered)), trials, "number")
    assert (None if found is None else found.donor) == expected
    assert found is None or (found.trial in trials and found.trial.number == found.donor)


@settings(deadline=None)
@given(offers, st.lists(st.tuples(st.integers(0, 12), networks), max_size=6))
def test_answers_do_not_depend_on_earlier_ones(offered: list[tuple], asked: list[tuple[int, Network]]) -> None:
    """An index used at other lengths of the lineage gives the same answers as a new one."""
    log, lasting = LineageLog(trials_of(offered)), donors()
    for n, wanted in asked:
        lineage = log.view(min(n, len(log)))

        answer = lasting.best_donor(lineage, Signature.of(wanted))
        assert answer == donors().best_donor(lineage, Signature.of(wanted))


def test_large_lineage_may_grow_by_one_or_by_many() -> None:
    """A few trials added to hundreds are inserted in the same order as by sorting all."""
    kinds = [chain(*(4 + 4 * (n // 3**place % 3) for place in range(4))) for n in range(81)]
    networks = {n: kinds[n * 17 % 81] for n in range(700)}
    trials = [offer(n, network, score=n / 1000) for n, network in networks.items()]
    log, lasting = LineageLog(trials), donors()

    for n in (600, 601, 602, 604, 605, 700):
        for wanted in (networks[n - 1], kinds[n % 81]):
            found = lasting.best_donor(log.view(n), Signature.of(wanted))
            assert found is not None
            assert found.donor == best_of(wanted, networks, trials[:n], "number")


def test_trial_without_weights_is_no_donor() -> None:
    """After garbage collection replaces a trial of the lineage, the next best is the answer."""
    trials, lasting, wanted = [offer(0, chain(4)), offer(1, chain(4, 4))], donors(), Signature.of(chain(4, 4))
    before = lasting.best_donor(Lineage.of(trials), wanted)
    after = lasting.best_donor(Lineage.of([trials[0], replace(trials[1], checkpoint=None)]), wanted)

    assert before is not None
    assert after is not None
    assert (before.donor, after.donor) == (1, 0)


def test_point_counts_in_the_order_of_the_space() -> None:
    """The longest common prefix of the architecture wins; the learning rate does not count."""
    trials = [
        offer(0, chain(4), point={"depth": 2, "lr": 0.1, "width": 4}, score=0.9),
        offer(1, chain(4), point={"width": 8, "lr": 0.2, "depth": 2}, score=0.1),
        offer(2, chain(4), point={"depth": 1, "lr": 0.3, "width": 8}, score=1.0),
    ]

    found = donors().best_donor(Lineage.of(trials), {"depth": 2, "lr": 0.3, "width": 8})
    assert found is not None
    assert (found.donor, found.shared, found.trial) == (1, 2, trials[1])
    assert donors().best_donor(Lineage.of(trials), {"depth": 3, "lr": 0.3, "width": 8}) is None


def test_entries_of_a_point_can_be_chosen() -> None:
    """A user's function gives the entries of a point and their order."""
    trials = [offer(0, chain(4), point={"a": 1, "b": 2}), offer(1, chain(4), point={"a": 2, "b": 1})]
    backwards = LineageDonors(SPACE, SCORE, entries_of=lambda point: [f"b{point['b']}", f"a{point['a']}"])

    found = backwards.best_donor(Lineage.of(trials), {"a": 1, "b": 1})
    assert found is not None
    assert found.donor == 1


def test_lower_is_better_where_the_metric_says_so() -> None:
    """Among equals the best score by the metric's direction wins, and trials without scores come last."""
    lineage = Lineage.of([offer(n, chain(4), score=score) for n, score in enumerate([0.3, 0.1, 0.2, None])])
    found = LineageDonors(SPACE, Metric("score", "minimize")).best_donor(lineage, Signature.of(chain(4)))

    assert found is not None
    assert found.donor == 1


def test_finish_times_do_not_count() -> None:
    """Among equals the highest number wins, whenever it finished."""
    lineage = Lineage.of([offer(0, chain(4), finished=9.0), offer(1, chain(4), finished=1.0)])
    found = donors().best_donor(lineage, Signature.of(chain(4)))

    assert found is not None
    assert found.donor == 1
