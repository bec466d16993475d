"""Differentiable search: the order of epochs and subnets, the stop against collapse, and the ranking."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch

from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError, SearchFailedError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.policy import Policy
from nas.core.ranking import competitors
from nas.core.spec import Spec
from nas.core.supernet import EPOCH, epoch_of
from nas.core.trial import Proposal, State, Trial
from nas.search.definition import Search
from nas.spaces.parameters.space import Choice, ParameterSpace
from nas.spaces.supernet import SupernetSpace
from nas.supernets.method import Method
from nas.supernets.operations import NAS_BENCH_201
from nas.training.problem import Problem
from nas.training.trial_run import TrialRun
from nas.tuners.base import STOP, WAIT, Answer
from nas.tuners.differentiable import DartsTuner, DrnasTuner, GdasTuner

METRIC = Metric("accuracy")
EDGES = ["op_0_1", "op_0_2", "op_1_2", "op_0_3", "op_1_3", "op_2_3"]
SPACE = SupernetSpace(ParameterSpace({edge: Choice(*NAS_BENCH_201) for edge in EDGES}))
ALL = frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN, Policy.QUICK_EVAL})


def cell(letters: str) -> Point:
    """Returns the cell of these operations: none, skip, 1, 3, pool."""
    names = dict(zip("ns13p", NAS_BENCH_201, strict=True))
    return {edge: names[letter] for edge, letter in zip(EDGES, letters, strict=True)}


class Scripted:
    """A search of which a test decides the results."""

    def __init__(self, class_: type[DartsTuner] = DartsTuner, **arguments: Any) -> None:
        self.tuner = class_(SPACE, (METRIC,), **arguments)
        self.tuner.use_policies(ALL)
        self.finished: list[Trial] = []
        self.pending: list[Trial] = []

    @property
    def lineage(self) -> Lineage:
        return Lineage.of([*self.finished, *self.pending], key=SPACE.key)

    def ask(self) -> Proposal | Answer:
        """Asks once; a proposal becomes a pending trial."""
        number = len(self.finished) + len(self.pending)
        answer = self.tuner.ask(self.lineage, number, 0)
        if isinstance(answer, Proposal):
            self.pending.append(Trial(number=number, index=number, proposal=answer, policies=answer.policies or ALL))
        return answer

    def finish(self, letters: str = "", *, score: float = 0.5, state: State = State.COMPLETE) -> None:
        """Finishes the trial that has waited longest, with the cell that it suggests."""
        trial = self.pending.pop(0)
        suggested = (cell(letters),) if letters else ()
        metrics = {"accuracy": score} if state == State.COMPLETE else {}
        self.finished.append(Trial(
            number=trial.number, index=trial.index, proposal=trial.proposal, policies=trial.policies, state=state,
            metrics=metrics, suggested=suggested, resolved_donor=next(iter(trial.proposal.weight_donors), None),
        ))  # fmt: skip

    def run(self, cells: Iterable[str], score: float = 0.5) -> list[int | str]:
        """Runs one trial after another until STOP; returns numbers of epochs, and cells of subnets."""
        found: list[int | str] = []
        left = iter(cells)
        while isinstance(answer := self.ask(), Proposal):
            number = epoch_of(answer.point)
            found.append(letters(answer.point) if number is None else number)
            self.finish("" if number is None else next(left), score=score)
        assert answer is STOP
        return found


def letters(point: Point) -> str:
    return "".join("ns13p"[NAS_BENCH_201.index(point[edge])] for edge in EDGES)


def proposed(answer: Proposal | Answer) -> Proposal:
    assert isinstance(answer, Proposal)
    return answer


def test_an_epoch_continues_the_one_before() -> None:
    """The first has no donor. Each carries the method, so that the problem trains alphas by it."""
    search = Scripted(GdasTuner, n_epochs=5, alpha_rate=0.02)
    first = proposed(search.ask())
    search.finish("333333")
    second = proposed(search.ask())

    assert (first.point, first.weight_donors) == ({EPOCH: 0}, ())
    assert first.policies == second.policies == frozenset({Policy.SHARE_PARAMS})
    assert (second.point, second.weight_donors, second.parents) == ({EPOCH: 1}, (0,), (0,))
    assert Method.of(second.derivation) == Method(method="gdas", n_epochs=5, alpha_rate=0.02)


def test_a_subnet_is_scored_while_the_next_epoch_trains() -> None:
    """It has the weights of the epoch that suggested it, and trains nothing. Then the tuner waits."""
    search = Scripted()
    search.ask()
    assert search.ask() is WAIT
    search.finish("333133")
    search.ask()
    subnet = proposed(search.ask())

    assert (subnet.point, subnet.weight_donors, subnet.policies) == (cell("333133"), (0,), ALL)
    assert subnet.reason == "suggested by supernet epoch 0"
    assert search.ask() is WAIT


def test_with_one_slot_few_points_wait_for_their_score() -> None:
    """Epochs and subnets alternate; after the last epoch the remaining points follow, newest first."""
    found = Scripted(n_epochs=4).run(["333333", "333331", "333311", "333111"])

    assert found == [0, 1, "333331", 2, "333311", 3, "333111", "333333"]


def test_a_point_is_scored_again_with_a_later_epoch() -> None:
    """A point that the last epoch suggests again has its weights, so that it wins by them and not by a score."""
    search = Scripted(n_epochs=3)
    search.ask()
    search.finish("333333")
    search.ask()
    search.ask()  # the subnet of epoch 0
    search.finish("111111")
    search.finish(score=0.9)
    search.ask()
    search.ask()  # the subnet of epoch 1
    search.finish("333333")
    search.finish(score=0.9)
    again = proposed(search.ask())
    search.finish(score=0.2)
    [*ranked] = search.tuner.ranked(search.lineage)

    assert (again.point, again.weight_donors) == (cell("333333"), (3,))
    assert search.ask() is STOP
    assert competitors(search.finished, (METRIC,), ["search"])[0] == ranked[0]
    assert [(letters(trial.point), trial.proposal.weight_donors) for trial in ranked] == [
        ("333333", (3,)), ("333333", (0,)), ("111111", (1,)),
    ]  # fmt: skip


def test_a_point_is_scored_once() -> None:
    """A point that a later epoch suggests again before its score has one subnet, with the newest weights."""
    search = Scripted(n_epochs=4)
    found = search.run(["333333", "111111", "333333", "333333"])
    ranked = [letters(trial.point) for trial in search.tuner.ranked(search.lineage)]

    assert sorted(map(str, found)) == ["0", "1", "111111", "2", "3", "333333"]
    assert ranked == ["333333", "111111"]


def test_the_newest_epoch_ranks_first_whatever_its_score() -> None:
    """Scores of different epochs do not compare, and epochs are no finalists."""
    search = Scripted(n_epochs=3)
    while isinstance(answer := search.ask(), Proposal):
        number = epoch_of(answer.point)
        search.finish(
            "" if number is None else "131313"[number:] + "333"[:number], score=1 / (1 + len(search.finished))
        )

    ranked = [letters(trial.point) for trial in search.tuner.ranked(search.lineage)]
    assert ranked == ["131333", "313133", "131313"]


@pytest.mark.parametrize(
    ("limits", "collapsed", "text"),
    [
        ({"max_skips": 2}, "sss333", "supernet epoch 2 (trial 3) collapsed to 3 skips and 0 nones"),
        ({"max_nones": 1}, "nn3s33", "supernet epoch 2 (trial 3) collapsed to 1 skips and 2 nones"),
        ({}, "sssss3", "supernet epoch 2 (trial 3) collapsed to 5 skips and 0 nones"),
        ({}, "nnnn33", "supernet epoch 2 (trial 3) collapsed to 0 skips and 4 nones"),
    ],
)
def test_a_collapse_ends_the_search(limits: Mapping[str, int], collapsed: str, text: str) -> None:
    """The reason names the epoch. Its point is no subnet, and no later epoch is trained."""
    search = Scripted(n_epochs=6, **limits)
    found = search.run(["333333", "333331", collapsed])

    assert found == [0, 1, "333331", 2, "333333"]
    assert search.tuner.stop_reason(search.lineage).startswith(text)
    assert [letters(trial.point) for trial in search.tuner.ranked(search.lineage)] == ["333331", "333333"]


def test_without_a_limit_nothing_collapses() -> None:
    """The limits can be switched off, and the first epoch never counts as collapsed."""
    endless = Scripted(n_epochs=3, max_skips=None, max_nones=None)
    first = Scripted(n_epochs=3)

    assert len([step for step in endless.run(["ssssss", "nnnnnn", "sssnnn"]) if isinstance(step, int)]) == 3
    assert len([step for step in first.run(["ssssss", "333333", "333331"]) if isinstance(step, int)]) == 3
    assert endless.tuner.stop_reason(endless.lineage) == first.tuner.stop_reason(first.lineage)
    assert first.tuner.stop_reason(first.lineage).startswith("tuner.n_epochs=3: all epochs are trained")


def test_a_point_of_a_collapsed_epoch_that_was_good_before() -> None:
    """A subnet scored before the collapse keeps the rank of the epoch that suggested it before."""
    search = Scripted(n_epochs=6, max_skips=2)
    search.run(["ss3333", "333333", "sss333"])

    assert [letters(trial.point) for trial in search.tuner.ranked(search.lineage)] == ["333333", "ss3333"]


def test_an_epoch_without_a_point_ends_the_search() -> None:
    """A problem that suggests no point fails after its first epoch, and the error names the call and the remedy."""
    search = Scripted(GdasTuner)
    search.ask()
    search.finish()

    with pytest.raises(SearchFailedError, match=r"run\.suggest_points .* for tuner=gdas; trial 0 .* problem=cells"):
        search.ask()


def test_a_failed_epoch_is_repeated() -> None:
    """It has the same number, and starts from the last one that finished."""
    search = Scripted(n_epochs=3)
    search.ask()
    search.finish("333333")
    search.ask()
    search.finish(state=State.FAILED)
    again = proposed(search.ask())

    assert (again.point, again.weight_donors) == ({EPOCH: 1}, (0,))


def test_weights_of_old_epochs_may_be_deleted() -> None:
    """The newest two epochs stay, and those whose points have no subnet yet."""
    search = Scripted(n_epochs=8)
    kept = []
    for number, letters_of_epoch in enumerate(["333333", "133333", "113333", "111333"]):
        search.ask()
        search.finish(letters_of_epoch)
        kept.append(sorted(search.tuner.may_inherit_from(search.lineage)))
        if number:
            search.ask()
            search.finish()

    assert kept == [[0], [0, 1], [0, 1, 3], [0, 3, 5]]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"max_skips": -1}, "tuner.max_skips=-1: must be a whole number of at least 0"),
        ({"max_nones": 1.5}, "tuner.max_nones=1.5"),
        ({"n_epochs": 0}, "tuner.n_epochs=0"),
        ({"order": 3}, "tuner.order=3"),
    ],
)
def test_invalid_arguments(arguments: dict[str, Any], error: str) -> None:
    """Each is refused by name."""
    with pytest.raises(ConfigurationError, match=error):
        DartsTuner(SPACE, (METRIC,), **arguments)


def test_only_darts_has_a_second_order() -> None:
    """Of the others the error says so."""
    with pytest.raises(ConfigurationError, match=r"tuner\.order=2: must be 1 with method drnas"):
        DrnasTuner(SPACE, (METRIC,), order=2)


def test_a_problem_without_a_supernet_is_refused() -> None:
    """The error names a problem that has one."""
    with pytest.raises(ConfigurationError, match="problem=cells"):
        DartsTuner(ParameterSpace({"a": Choice(1, 2)}), (METRIC,))


@pytest.mark.parametrize(("n_epochs", "least"), [(1, 1), (4, 2)])
def test_a_budget_of_epochs_alone_is_refused(n_epochs: int, least: int) -> None:
    """No subnet, and so no winner, follows from them; one more trial is enough."""
    search = Search(problem=Spec.of(Collapsing), tuner=Spec.of(DartsTuner, n_epochs=n_epochs))
    with pytest.raises(ConfigurationError, match=rf"budget\.trials={least}: must be more than {least}: .*more trials"):
        run_search(search, root="memory://few", budget=Budget(trials=least))

    DartsTuner(SPACE, (METRIC,), n_epochs=n_epochs).check_trials(least + 1)


class Collapsing(Problem):
    """Each epoch suggests a cell with as many skips as its number."""

    metrics = (METRIC,)
    policies = ALL
    space = SPACE

    def train(self, run: TrialRun) -> Mapping[str, float]:
        model = torch.nn.Linear(2, 2)
        run.inherit(model)
        run.save(model)
        if (number := epoch_of(run.point)) is not None:
            run.suggest_points([cell("s" * number + "3" * (6 - number))])
        return {"accuracy": 0.5}


def searched(trials: Iterable[Trial]) -> list[Trial]:
    return [trial for trial in trials if trial.stage == "search"]


def test_search() -> None:
    """A search ends at the collapse, and the finalist is the point of the epoch before."""
    tuner = Spec.of(DartsTuner, n_epochs=7, max_skips=3)
    search = Search(problem=Spec.of(Collapsing), tuner=tuner)
    found = run_search(search, root="memory://collapsing", budget=Budget(trials=30), finalists=1)

    epochs = [trial.number for trial in searched(found.lineage) if epoch_of(trial.point) is not None]
    subnets = [trial for trial in searched(found.lineage) if epoch_of(trial.point) is None]
    [final] = [trial for trial in found.lineage if trial.stage == "final"]
    assert len(epochs) == 5
    assert sorted(letters(trial.point) for trial in subnets) == ["333333", "s33333", "ss3333", "sss333"]
    assert letters(final.point) == "sss333"
    assert all(trial.donor in epochs and trial.inherited == 1.0 for trial in subnets)
