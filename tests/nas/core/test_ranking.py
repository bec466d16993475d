"""The candidates for finalists and winner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from nas.core.checkpoint import Checkpoint
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.pareto import numbers_on_front
from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.ranking import Ranking, competitors
from nas.core.reference import Reference
from nas.core.trial import Proposal, Reason, State, Trial

STAGES = ("search", "final")


def trial(number: int, score: float | None, *, stage: str = "search", state: State = State.COMPLETE) -> Trial:
    metrics = {} if score is None else {"a": score}
    return Trial(
        number=number, index=number, proposal=Proposal(point={"x": number}), stage=stage, state=state, metrics=metrics
    )


def ranked(*trials: Trial, metric: Metric = Metric("a"), stages: tuple[str, ...] = STAGES) -> list[int]:  # noqa: B008 - frozen
    return [trial.number for trial in competitors(trials, [metric], stages)]


def test_competitors_are_of_the_last_stage_with_a_score() -> None:
    """Finals compete by full scores, else search trials do; stopped trials never compete."""
    search = [trial(0, 0.9), trial(1, 0.95, state=State.STOPPED), trial(2, 0.8)]
    failed = trial(3, None, stage="final", state=State.FAILED)
    stopped = trial(4, 0.5, stage="final", state=State.STOPPED)
    finals = [trial(5, 0.1, stage="final"), trial(6, 0.2, stage="final")]

    assert ranked(*search) == ranked(*search, stages=STAGES[:1]) == [0, 2]
    assert ranked(*search, failed) == [0, 2]
    assert ranked(*search, failed, stopped) == [0, 2]
    assert ranked(*search, failed, stopped, *finals) == [6, 5]
    assert ranked(*search, *finals, metric=Metric("a", "minimize")) == [5, 6]
    assert ranked() == []


def test_a_final_that_met_the_deadline_wins_if_it_is_better() -> None:
    """A final cut short by the hours wins only with weights, without a COMPLETE final, and by a better score."""
    weights = Checkpoint(manifest=Reference("manifests/000001-aa.json", 9, f"blake3:{0:064x}"), packs=())
    overdue = [
        replace(trial(n, score, stage=stage, state=State.STOPPED), reason=Reason.DEADLINE, checkpoint=weights)
        for n, score, stage in ((1, 0.9, "final"), (2, 0.9, "search"), (6, 0.95, "final"))
    ]
    bare = replace(overdue[0], number=3, checkpoint=None)

    assert ranked(*overdue, bare, trial(4, 0.1)) == [6, 1, 4]
    assert ranked(*overdue, bare, trial(4, 0.92)) == [6, 4]
    assert ranked(*overdue, bare, trial(4, 0.95)) == [4]
    assert ranked(*overdue, bare, trial(4, 0.92), metric=Metric("a", "minimize")) == [1, 4]
    assert ranked(*overdue, bare, trial(4, 0.1), trial(5, 0.05, stage="final")) == [5]
    assert ranked(*overdue, bare) == [6, 1]
    assert ranked(overdue[1], bare) == [2]


def test_other_metrics_decide_between_equals() -> None:
    """Of finalists with the same first score, the winner is not worse by the others; a missing value comes last."""
    finals = [sized(5, 0.9, 30, stage="final"), sized(6, 0.9, 20, stage="final"), sized(7, 0.8, 1, stage="final")]
    unknown = trial(4, 0.9, stage="final")

    assert [t.number for t in competitors([unknown, *finals], OBJECTIVES, STAGES)] == [6, 5, 4, 7]
    assert Ranking(PLAN, OBJECTIVES, 2).winner(finals) == finals[1]


def test_a_final_cut_short_is_not_compared_with_shared_scores() -> None:
    """A subnet's score is not one of its own network, so a final cut short does not come before it by that score."""
    weights = Checkpoint(manifest=Reference("manifests/000001-aa.json", 9, f"blake3:{0:064x}"), packs=())
    cut_short = replace(trial(9, 0.9, stage="final", state=State.STOPPED), reason=Reason.DEADLINE, checkpoint=weights)

    assert ranked(epoch(0, 0.5), subnet(1, 0.4, 0), cut_short) == [1]


# ---- supernets


def epoch(number: int, score: float) -> Trial:
    return replace(trial(number, score), proposal=Proposal(point={"supernet_epoch": number}))


def subnet(number: int, score: float, donor: int, **metrics: float) -> Trial:
    found = replace(trial(number, score), resolved_donor=donor)
    return replace(found, metrics={"a": score, **metrics})


def test_subnets_of_different_epochs_are_never_compared() -> None:
    """The newest epoch's subnets come first, however bad, and supernet epochs neither win nor become finalists."""
    trials = [
        epoch(0, 0.99),
        subnet(1, 0.8, 0),
        subnet(2, 0.9, 0),
        epoch(3, 0.98),
        subnet(4, 0.1, 3),
        subnet(5, 0.3, 3),
    ]

    assert ranked(*trials) == finalists(9, trials, OBJECTIVES[:1]) == [5, 4, 2, 1]
    assert Ranking(PLAN, OBJECTIVES, 1).weights_to_keep(trials) == {5}
    assert Ranking(PLAN, OBJECTIVES, 2).n_finalists_of(trials[:2], PLAN.stages[1]) == 1


def test_subnets_scored_again_are_of_their_epoch() -> None:
    """A recheck without training does not make scores of two epochs comparable; a training does."""
    trials = [epoch(0, 0.5), subnet(1, 0.4, 0), epoch(2, 0.6), subnet(3, 0.3, 2)]
    again = frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN})
    for policies, order in ((again, [5, 4]), (frozenset({Policy.SHARE_PARAMS}), [4, 5])):
        later = [
            replace(trial(4, 0.9, stage="final"), resolved_donor=1, policies=policies),
            replace(trial(5, 0.1, stage="final"), resolved_donor=3, policies=policies),
        ]

        assert ranked(*trials, *later) == order


def test_order_of_the_tuner_holds_across_epochs() -> None:
    """A tuner may rank a subnet by the epoch that suggested it, not by the one that scored it."""
    trials = [epoch(0, 0.5), subnet(1, 0.8, 0), epoch(2, 0.6), subnet(3, 0.1, 2)]
    ranking = Ranking(PLAN, OBJECTIVES[:1], 9, lambda lineage: [lineage[number] for number in (2, 1, 3)])

    assert [trial.number for trial in ranking.next_finalists(trials, PLAN.stages[1])] == [1, 3]


def test_fronts_of_subnets_are_of_one_epoch() -> None:
    """With several objectives the fronts of the newest epoch come before those of the one before."""
    old, new = ((0.9, 1.0), (0.8, 2.0)), ((0.1, 9.0), (0.2, 10.0), (0.05, 11.0))
    trials = [
        epoch(0, 0.5),
        *(subnet(1 + n, a, 0, size=size) for n, (a, size) in enumerate(old)),
        epoch(3, 0.6),
        *(subnet(4 + n, a, 3, size=size) for n, (a, size) in enumerate(new)),
    ]

    assert finalists(9, trials) == [5, 4, 6, 1, 2]
    assert numbers_on_front(trials, OBJECTIVES) == {4, 5}


# ---- several objectives

OBJECTIVES = (Metric("a"), Metric("size", "minimize"))
PLAN = PolicyPlan((Stage(name="search"), Stage(name="final")))


def sized(number: int, score: float, size: float, **changes: Any) -> Trial:
    return replace(trial(number, score), metrics={"a": score, "size": size}, **changes)


SEARCHED = [
    sized(0, 0.90, 100),  # the best by the first metric, and the end of the front
    sized(1, 0.89, 95),
    sized(2, 0.60, 40),
    sized(3, 0.50, 10),  # the other end
    sized(4, 0.55, 60),  # beaten by 2
    sized(5, 0.99, 5, state=State.STOPPED),
]


def finalists(n: int, trials: list[Trial], metrics: tuple[Metric, ...] = OBJECTIVES) -> list[int]:
    return [trial.number for trial in Ranking(PLAN, metrics, n).next_finalists(trials, PLAN.stages[1])]


def test_finalists_come_from_the_front() -> None:
    """The best of the first metric comes first, then the least crowded; more finalists are only appended."""
    assert finalists(6, SEARCHED) == [0, 3, 2, 1, 4, 5]
    assert [finalists(n, SEARCHED) for n in (1, 2, 3)] == [[0], [0, 3], [0, 3, 2]]
    assert finalists(3, SEARCHED, OBJECTIVES[:1]) == [5, 0, 1]


def test_a_failed_final_is_replaced_by_the_next_finalist() -> None:
    """This holds for several objectives as for one."""
    failed = replace(trial(6, None, stage="final", state=State.FAILED), proposal=Proposal(point={"x": 3}, parents=(3,)))

    assert finalists(2, [*SEARCHED, failed]) == [0, 2]


def test_number_of_finalists_is_constant() -> None:
    """It is the same before, during and after the finals, and at most the number of points."""
    ranking, final = Ranking(PLAN, OBJECTIVES, 2), PLAN.stages[1]
    done = replace(trial(6, 0.9, stage="final"), proposal=Proposal(point={"x": 0}, parents=(0,)))
    failed = replace(trial(7, None, stage="final", state=State.FAILED), proposal=Proposal(point={"x": 3}, parents=(3,)))

    for n_begun in range(3):
        assert ranking.n_finalists_of([*SEARCHED, done, failed][: len(SEARCHED) + n_begun], final) == 2
    assert Ranking(PLAN, OBJECTIVES, 9).n_finalists_of([*SEARCHED, done, failed], final) == len(SEARCHED)


@pytest.mark.parametrize(
    ("share", "n_scored", "n_finalists"), [(0.07, 100, 7), (0.14, 50, 7), (0.28, 25, 7), (0.2, 16, 4), (1e-9, 3, 1)]
)
def test_share_of_finalists_is_rounded_up_as_written(share: float, n_scored: int, n_finalists: int) -> None:
    """The error of a float product makes no further finalist."""
    plan = PolicyPlan((Stage(name="search"), Stage(name="final", best=share)))
    trials = [trial(number, 0.5) for number in range(n_scored)]

    assert Ranking(plan, (Metric("a"),), 2).n_finalists_of(trials, plan.stages[1]) == n_finalists


def test_the_winner_is_the_best_finalist_by_the_first_metric() -> None:
    """Other metrics do not decide."""
    finals = [
        sized(6, 0.95, 100, stage="final"),
        sized(7, 0.94, 10, stage="final"),
    ]
    ranking = Ranking(PLAN, OBJECTIVES, 2)

    assert [t.number for t in ranking.competitors([*SEARCHED, *finals])] == [6, 7]


def test_a_tuner_may_rank_the_finalists() -> None:
    """Finalists come in the tuner's order, from the search stage alone."""
    trials = [trial(0, 0.9), trial(1, 0.5), trial(2, 0.7), trial(3, 0.99, stage="final")]
    seen: list[int] = []

    def by(lineage: Lineage) -> Sequence[Trial]:
        seen.extend(t.number for t in lineage)
        return sorted(lineage, key=lambda t: t.metrics["a"])

    found = Ranking(PLAN, (Metric("a"),), 2, by).next_finalists(trials[:3], PLAN.stages[1])

    assert [t.number for t in found] == [1, 2]
    assert sorted(seen) == [0, 1, 2]


class TestExportBest:
    """``export="best"``: trials in hand that have full scores compete with the finals."""

    WEIGHTS = Checkpoint(manifest=Reference("manifests/000000-aa.json", 9, f"blake3:{0:064x}"), packs=())

    def winner(self, **changes: Any) -> int:
        """Returns the winner beside a final of 0.5, of a search trial that scores 0.9 with these changes."""
        searched = replace(trial(0, 0.9), checkpoint=self.WEIGHTS, policies=frozenset({Policy.EARLY_STOP}))
        final = replace(trial(1, 0.5, stage="final"), checkpoint=self.WEIGHTS)
        [best, *_] = competitors([replace(searched, **changes), final], [Metric("a")], STAGES, "best")
        return best.number

    def test_a_better_trial_of_the_search_wins(self) -> None:
        """A full score of an earlier stage wins if it is better, and not if it is equal or worse."""
        assert self.winner() == 0
        assert [self.winner(metrics={"a": value}) for value in (0.5, 0.4)] == [1, 1]

    @pytest.mark.parametrize(
        "changes",
        [
            {"policies": frozenset({Policy.QUICK_EVAL})},
            {"policies": frozenset({Policy.DOWNSCALE})},
            {"policies": frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN}), "donor": 7},
            {"checkpoint": None},
            {"outdated": True},
            {"state": State.STOPPED},
        ],
        ids=lambda changes: next(iter(changes)),
    )
    def test_other_scores_do_not_compare(self, changes: dict[str, Any]) -> None:
        """Parts of the data, smaller networks, shared or deleted weights, older code and stopped trials never win."""
        assert self.winner(**changes) == 1
