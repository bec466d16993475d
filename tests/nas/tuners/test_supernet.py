"""One-shot search: supernet epochs and subnets alternate, and a subnet has the weights of its epoch."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from nas.api.results import Results
from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.checkpoint import Checkpoint
from nas.core.errors import ConfigurationError, CorruptError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.reference import Reference
from nas.core.spec import Spec
from nas.core.supernet import epoch_of, is_epoch
from nas.core.trial import Proposal, Reason, State, Trial
from nas.executors.simulated import SimulatedExecutor, Workers
from nas.inheritance.donors.resolver import DonorResolver
from nas.search.budget.planner import StagePlanner
from nas.search.controller import ControllerSettings, SearchController
from nas.search.definition import Search
from nas.search.search_init import SearchInit
from nas.spaces.parameters.space import Choice, Int, ParameterSpace
from nas.spaces.recorded import RecordedSpace
from nas.spaces.supernet import SupernetSpace
from nas.storage.maintenance.gc.retention import Retention
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.verified import digest_of
from nas.tuners.base import STOP, WAIT, Answer
from nas.tuners.differentiable import DartsTuner
from nas.tuners.evolution import EvolutionTuner
from nas.tuners.random import RandomTuner
from nas.tuners.supernet import RspsTuner, SposTuner, SupernetTuner
from tests.support.record_files import read_record, write_record
from tests.support.supernet_problem import SupernetProblem

METRICS = (Metric("accuracy"),)
SPACE = SupernetSpace(ParameterSpace({"x": Int(0, 99)}))
EVOLUTION = {"_target_": "nas.tuners.evolution.EvolutionTuner", "population_size": 3, "sample_size": 2}


class Session:
    """A search whose trials end as the test says."""

    def __init__(self, **arguments: Any) -> None:
        self.tuner = SupernetTuner(arguments.pop("space", SPACE), METRICS, **arguments)
        self.trials: list[Trial] = []

    @property
    def lineage(self) -> Lineage:
        return Lineage.of(self.trials)

    def ask(self) -> Proposal | Answer:
        return self.tuner.ask(self.lineage, len(self.trials), len(self.trials))

    def begin(self) -> Trial:
        """Returns the next trial, which starts to run."""
        proposal = self.ask()
        assert isinstance(proposal, Proposal)
        number = len(self.trials)
        policies = proposal.policies or frozenset()
        trial = Trial(number=number, index=number, proposal=proposal, policies=policies, state=State.RUNNING)
        self.trials.append(trial)
        return trial

    def end(self, number: int, accuracy: float | None = None, *, suggested: tuple[dict[str, Any], ...] = ()) -> None:
        """Ends a trial, FAILED without a score."""
        trial = self.trials.pop(number)
        donor = next(iter(trial.proposal.weight_donors), None)
        trial = trial.start(attempt=1, slot=0, resolved_donor=donor)
        if accuracy is None:
            self.trials.insert(number, trial.fail(Reason.EXCEPTION, "made to fail"))
        else:
            self.trials.insert(number, replace(trial.complete({"accuracy": accuracy}), suggested=suggested))

    def lose_weights(self, number: int) -> None:
        """Ends a trial that did not find its donor's weights."""
        self.trials[number] = self.trials[number].fail(Reason.PARENT, "weights are missing")

    def run(self, *accuracies: float) -> None:
        """Runs trials one after another."""
        for accuracy in accuracies:
            self.end(self.begin().number, accuracy)

    @property
    def kinds(self) -> str:
        """The trials as text: the number of each epoch, and a letter for each subnet, by its epoch."""
        found = ""
        for trial in self.trials:
            number = epoch_of(trial.point)
            [*donors] = trial.proposal.weight_donors
            found += str(number) if number is not None else "abcdefgh"[epoch_of(self.trials[donors[0]].point) or 0]
        return found


def test_epochs_and_subnets_alternate() -> None:
    """After the warm-up each epoch gets its subnets, and the last one all that follow."""
    session = Session(n_epochs=4, warm_up_epochs=2, subnets_per_epoch=3)
    session.run(*[0.5] * 16)

    assert session.kinds == "01bbb2ccc3dddddd"


def test_a_refused_point_is_not_scored_again() -> None:
    """A constraint on a proxy, whose value differs with the proposal, may refuse what was scored before."""
    session = Session(n_epochs=2, warm_up_epochs=1, subnets_per_epoch=2, n_rescored=1)
    session.run(0.5, 0.9, 0.8, 0.5)
    best = session.trials[1].point
    refusing = session.lineage.refusing(lambda point: point == best)
    proposal = session.tuner.ask(refusing, 4, 4)

    assert isinstance(proposal, Proposal)
    assert (proposal.point, proposal.reason) == (session.trials[2].point, "2 scored again")


def test_epoch_inherits_from_the_one_before() -> None:
    """An epoch has the epoch before as parent and donor, trains by SHARE_PARAMS alone, and gets a hook's derivation."""

    class Listing(SupernetTuner):
        def epoch_derivation(self, lineage: Lineage, number: int) -> Any:
            return {"paths": [[number]]}

    session = Session()
    session.tuner = Listing(SPACE, METRICS)
    session.run(0.1, 0.2)
    first, second = (trial.proposal for trial in session.trials)

    assert (first.point, first.parents, first.donors) == ({"supernet_epoch": 0}, (), ())
    assert (second.point, second.parents, second.donors) == ({"supernet_epoch": 1}, (0,), (0,))
    assert first.policies == second.policies == {Policy.SHARE_PARAMS}
    assert second.derivation == {"paths": [[1]]}


def test_subnet_trains_nothing() -> None:
    """A subnet has the newest epoch as donor, its parents of the inner tuner, and the policies of a mere score."""
    session = Session(n_epochs=1, warm_up_epochs=1, inner=EVOLUTION)
    session.run(*[0.1 * n for n in range(8)])
    subnets = session.trials[1:]

    assert all(trial.proposal.donors == (0,) for trial in subnets)
    assert all(trial.policies == {Policy.SHARE_PARAMS, Policy.SKIP_TRAIN, Policy.QUICK_EVAL} for trial in subnets)
    assert [bool(trial.parents) for trial in subnets] == [False] * 3 + [True] * 4
    assert all(0 < parent < trial.number for trial in subnets for parent in trial.parents)


@pytest.mark.parametrize(
    "inner",
    [
        {**EVOLUTION, "replacement": "worst"},
        {**EVOLUTION, "population_size": 12, "sample_size": 6},
        {"_target_": "nas.tuners.anneal.AnnealTuner"},
    ],
)
def test_an_inner_tuner_compares_subnets_of_all_epochs(inner: dict[str, Any]) -> None:
    """If an epoch and all its subnets are better by the same number, the inner tuner proposes the same."""
    options = {"n_epochs": 4, "warm_up_epochs": 1, "subnets_per_epoch": 6, "n_rescored": 0, "inner": inner}
    session, moved, other = Session(**options), Session(**options), Session(**options)
    rng = random.Random(1)
    session.run(*[rng.random() for _ in range(24)])
    for trial in session.trials:
        epoch = trial.number if is_epoch(trial) else trial.proposal.weight_donors[0]
        assert isinstance(epoch, int)
        accuracy = trial.metrics["accuracy"]
        moved.trials.append(replace(trial, metrics={"accuracy": accuracy + epoch}))
        other.trials.append(replace(trial, metrics={"accuracy": accuracy if is_epoch(trial) else -accuracy}))

    def children(one: Session) -> list[Proposal | Answer]:
        return [one.tuner.ask(one.lineage, number, 0) for number in range(24, 40)]

    assert sum(map(is_epoch, session.trials)) == 4
    assert children(moved) == children(session) != children(other)


def test_subnets_are_scored_while_the_next_epoch_trains() -> None:
    """While an epoch runs, subnets of the one before follow; in the warm-up the tuner waits."""
    session = Session(n_epochs=3, warm_up_epochs=1, subnets_per_epoch=2)
    session.begin()
    assert session.ask() is WAIT
    session.end(0, 0.1)
    session.run(0.2, 0.3)
    session.begin()
    session.run(0.4, 0.5, 0.6)
    assert session.kinds == "0aa1aaa"
    session.end(3, 0.2)
    session.run(0.4, 0.5, 0.6)

    assert session.kinds == "0aa1aaabb2"


def test_failed_epoch_is_proposed_again() -> None:
    """After a failure the same epoch goes on from the same weights."""
    session = Session(n_epochs=2, warm_up_epochs=2)
    session.run(0.1)
    session.end(session.begin().number, None)
    again = session.begin()

    assert (again.point, again.proposal.donors) == ({"supernet_epoch": 1}, (0,))


def test_lost_weights_are_replaced_by_the_epoch_before() -> None:
    """If subnets miss their epoch's weights, later ones use the epoch before, which is then trained further again."""
    session = Session(n_epochs=3, warm_up_epochs=2, subnets_per_epoch=2)
    session.run(0.1, 0.2)
    session.lose_weights(session.begin().number)
    again = session.begin()

    assert (again.point, again.proposal.donors) == ({"supernet_epoch": 1}, (0,))
    session.lose_weights(again.number)
    assert session.begin().proposal.donors == ()  # both are lost: from scratch
    assert set(session.tuner.may_inherit_from(session.lineage)) == {0, 1}


def test_best_points_are_scored_again() -> None:
    """Each epoch first scores the best points of the epoch before, as their children."""
    session = Session(n_epochs=2, warm_up_epochs=1, subnets_per_epoch=4)
    session.run(0.5, 0.1, 0.9, 0.3, 0.7, 0.5)
    session.run(0.2, 0.2)
    again = session.trials[6:]

    assert [trial.point for trial in again] == [session.trials[2].point, session.trials[4].point]
    assert [trial.parents for trial in again] == [(2,), (4,)]
    assert [trial.proposal.donors for trial in again] == [(5,), (5,)]


def test_suggested_points_come_first() -> None:
    """Points that an epoch suggests are its first subnets, each once, and its children: no controller drew them."""
    session = Session(n_epochs=1, warm_up_epochs=1)
    session.begin()
    session.end(0, 0.5, suggested=({"x": 7}, {"x": 3}))
    session.run(0.1, 0.1, 0.1)

    assert [trial.point["x"] for trial in session.trials[1:3]] == [7, 3]
    assert [trial.parents for trial in session.trials[1:3]] == [(0,), (0,)]
    assert session.trials[3].point["x"] not in (7, 3)


def test_ranking_never_compares_epochs() -> None:
    """Subnets of the newest epoch come first, however bad, and supernet epochs never."""
    session = Session(n_epochs=2, warm_up_epochs=1, subnets_per_epoch=2, n_rescored=0)
    session.run(0.99, 0.8, 0.9, 0.99, 0.1, 0.3)

    assert session.kinds == "0aa1bb"
    assert [trial.number for trial in session.tuner.ranked(session.lineage)] == [5, 4, 2, 1]


def test_only_two_epochs_are_inheritable() -> None:
    """The weights of all but the newest two epochs are free, and a subnet's never stay for the tuner."""
    session = Session(n_epochs=4, warm_up_epochs=3, subnets_per_epoch=1)
    session.run(*[0.1] * 5)

    assert session.kinds == "012c3"
    assert set(session.tuner.may_inherit_from(session.lineage)) == {2, 4}


def test_inner_tuner_without_points_ends_the_search_after_the_last_epoch() -> None:
    """A small space is used up: further epochs score its best points again, then the tuner stops."""
    session = Session(space=SupernetSpace(ParameterSpace({"a": Choice(1, 2)})), n_epochs=2, warm_up_epochs=1)
    session.run(*[0.1] * 6)

    assert session.kinds == "0aa1bb"
    assert session.ask() is STOP


def test_recorded_space_is_enough_for_garbage_collection() -> None:
    """The tuner is built from the record of its space."""
    tuner = SupernetTuner(RecordedSpace(SPACE.to_json()), METRICS)

    assert tuner.may_inherit_from(Lineage.of([])) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"space": SPACE.inner}, "must be the space of a supernet .* Choose problem=cells"),
        ({"space": RecordedSpace({})}, "must be the space of a supernet"),
        ({"n_epochs": 0}, "tuner.n_epochs=0: must be"),
        ({"warm_up_epochs": 9}, r"tuner.warm_up_epochs=9: must be at most tuner.n_epochs \(8\)"),
        ({"subnets_per_epoch": 0}, "tuner.subnets_per_epoch=0"),
        ({"n_rescored": -1}, "tuner.n_rescored=-1"),
        ({"inner": {"_target_": "nas.tuners.grid.GridTuner"}}, "must be .* no list of points"),
        ({"inner": {"_target_": "nas.tuners.pbt.PbtTuner"}}, "must be a nas.Tuner other than pbt"),
    ],
)
def test_mistakes(arguments: dict[str, Any], error: str) -> None:
    """Each wrong argument gets one line with the remedy."""
    with pytest.raises(ConfigurationError, match=error):
        Session(**arguments)


@pytest.mark.parametrize(("warm_up", "n_trials", "weights"), [(4, 4, None), (2, 1, "other:0")])
def test_budget_must_allow_a_subnet(tmp_path: Path, warm_up: int, n_trials: int, weights: str | None) -> None:
    """A budget of epochs alone is refused before anything is written."""
    tuner = Spec.of(SupernetTuner, warm_up_epochs=warm_up)
    with pytest.raises(ConfigurationError, match=rf"trials={n_trials}: must be more than tuner.warm_up_epochs .*fewer"):
        run_search(
            Search(
                problem=Spec.of(SupernetProblem),
                tuner=tuner,
                constraints={"size": 2.0},
                init=SearchInit(weights=weights),
            ),
            root=str(tmp_path / "root"),
            budget=Budget(trials=n_trials),
        )

    assert list(tmp_path.iterdir()) == []
    SupernetTuner(SPACE, METRICS, warm_up_epochs=warm_up).check_trials(warm_up + 1)


def test_problem_must_score_inherited_weights() -> None:
    """A problem without SKIP_TRAIN is refused, and one without QUICK_EVAL gets subnets without it."""
    tuner = SupernetTuner(SPACE, METRICS)
    with pytest.raises(ConfigurationError, match=r"must have SKIP_TRAIN .* Choose problem=cells"):
        tuner.use_policies(frozenset({Policy.SHARE_PARAMS}))
    tuner.use_policies(frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN}))

    assert tuner.policies == {Policy.SHARE_PARAMS, Policy.SKIP_TRAIN}


def test_initial_points_are_refused() -> None:
    """No point can be scored before the first epochs."""
    with pytest.raises(ConfigurationError, match=r"init\.points"):
        SupernetTuner(SPACE, METRICS).propose_given({"x": 1}, Lineage.of([]), 0)


def searched(n_trials: int = 12, *, root: str = "", retention: Retention | None = None, **problem: Any) -> Results:
    arguments = {"inner": EVOLUTION, "n_epochs": 3, "warm_up_epochs": 2, "subnets_per_epoch": 4, "n_rescored": 1}
    search = Search(problem=Spec.of(SupernetProblem, **problem), tuner=Spec.of(SupernetTuner, **arguments))
    root = root or f"memory://supernet-{uuid4().hex}"
    return run_search(search, root=root, name="mine", budget=Budget(trials=n_trials), retention=retention)


def test_subnets_are_scored_with_their_epochs_weights() -> None:
    """Each subnet inherits all weights of its epoch, to the bit, and a final trains the best of the newest epoch."""
    found = searched()
    trials = sorted(found.lineage, key=lambda trial: trial.number)
    subnets = [trial for trial in trials if trial.stage == "search" and not is_epoch(trial)]

    assert all(trial.state == State.COMPLETE for trial in trials)
    assert [epoch_of(trial.point) for trial in trials if is_epoch(trial)] == [0, 1, 2]
    for trial in subnets:
        assert trial.donor is not None
        assert trial.metrics["weights"] == trials[int(trial.donor)].metrics["weights"]
        assert trial.inherited == 1.0
        assert trial.checkpoint is not None
        assert trial.checkpoint.own_bytes < 10_000  # a manifest, no weights
    finals = [trial for trial in trials if trial.stage != "search"]
    assert {trials[trial.parents[0]].donor for trial in finals} == {6}
    assert found.winner in finals


def test_garbage_collection_frees_old_epochs() -> None:
    """Under a tight disk budget only the newest two epochs, the finalists and finals keep weights."""
    found = searched(retention=Retention(max_gb=1e-9))
    trials = sorted(found.lineage, key=lambda trial: trial.number)
    kept = {trial.number for trial in trials if trial.checkpoint is not None}

    assert {trial.number for trial in trials if is_epoch(trial)} == {0, 1, 6}
    assert 0 not in kept
    assert {1, 6} <= kept
    assert all(
        trials[number].donor == 6 for number in kept if trials[number].stage == "search" and number not in (1, 6)
    )


@pytest.mark.slow
def test_search_survives_lost_shared_weights(tmp_path: Path) -> None:
    """If an epoch's file is deleted, one subnet fails, and the others have the weights of the epoch before."""
    searched(3, root=str(tmp_path))
    for pack in (tmp_path / "mine" / "packs").glob("000001-*"):
        pack.unlink()
    trials = [trial for trial in searched(8, root=str(tmp_path)).lineage if trial.stage == "search"]
    _, _, _, failed, again, *later = sorted(trials, key=lambda trial: trial.number)

    assert (failed.state, failed.reason, failed.proposal.donors) == (State.FAILED, Reason.PARENT, (1,))
    assert (again.point, again.donor) == ({"supernet_epoch": 1}, 0)
    assert len(later) == 3
    for trial in later:
        assert trial.donor == again.number
        assert trial.metrics["weights"] == again.metrics["weights"]


def test_epoch_without_its_donor_is_trained_again() -> None:
    """An epoch whose donor was found lost fails, although an older one has weights, and its donor's number follows."""
    session = Session(n_epochs=3, warm_up_epochs=2, subnets_per_epoch=1)
    session.run(0.1, 0.2)
    checkpoint = Checkpoint(manifest=Reference("manifests/000000-paper.json", 0, digest_of(b"")), packs=())
    session.trials = [replace(trial, checkpoint=checkpoint) for trial in session.trials]
    subnet, epoch = session.begin(), session.begin()
    assert (epoch.point, epoch.proposal.donors) == ({"supernet_epoch": 2}, (1,))
    session.lose_weights(subnet.number)
    session.trials[2] = replace(session.trials[2], inheritance={"lost": [1]})
    found = DonorResolver(session.trials, "ancestor", lambda donor: None).resolve(epoch)
    session.lose_weights(epoch.number)
    again = session.begin()

    assert (found.missing, found.donors) == (1, ())
    assert (again.point, again.proposal.donors) == ({"supernet_epoch": 1}, (0,))


def test_recorded_suggestion_is_checked(tmp_path: Path) -> None:
    """Points that an epoch suggests are scored first; a record that suggests another is refused with its path."""
    found = searched(4, root=str(tmp_path), suggests=1)
    trials = sorted(found.lineage, key=lambda trial: trial.number)
    assert [trial.point for trial in trials[2:4]] == [trials[1].suggested[0], trials[3].point]
    record = tmp_path / "mine" / "trials" / "000001.result.json"
    write_record(record, {**read_record(record), "suggested": [{"layer_0": "huge"}]})

    with pytest.raises(CorruptError, match=r"000001.result.json can.t be read: it suggests"):
        searched(5, root=str(tmp_path), suggests=1)


class LargeProblem(SupernetProblem):
    """Has more subnets than a search can score."""

    space = SupernetSpace(ParameterSpace({"x": Int(0, 999_999)}))


class SuggestingExecutor(SimulatedExecutor):
    """Each epoch suggests the point of its number."""

    def _complete(self, attempt: Any) -> Trial:
        trial, number = super()._complete(attempt), epoch_of(attempt.trial.point)
        return trial if number is None else replace(trial, suggested=({"x": number},))


def simulated(
    n_trials: int,
    *,
    deterministic: bool = False,
    budget: Budget | None = None,
    slots: int = 2,
    seed: int = 0,
    tuner: SupernetTuner | None = None,
) -> list[Trial]:
    """Returns the trials of a search on simulated workers, where a subnet takes about 1 s and an epoch 100.

    Args:
        n_trials: The budget of trials.
        deterministic: Whether the search is deterministic. Then an epoch takes 30 s, and counts as 36 subnets.
        budget: Replaces the budget of trials.
        slots: The number of workers.
        seed: The seed of durations.
        tuner: Replaces the tuner.
    """
    problem = LargeProblem(epoch_s=30.0 if deterministic else 100.0)
    records = Records(open_root(f"memory://supernet-{uuid4().hex}", retry_s=0))
    executor = SuggestingExecutor(problem, records, slots=slots, workers=Workers(straggling=0.1, seed=seed))
    tuner = tuner or SupernetTuner(
        problem.space, problem.metrics, n_epochs=6, warm_up_epochs=2, subnets_per_epoch=8, subnets_beside_epoch=36
    )
    stage = Stage(name="search", policies=frozenset({Policy.SHARE_PARAMS}))
    planner = None if budget is None else StagePlanner(budget, PolicyPlan((stage,)), slots)
    settings = ControllerSettings(budget=budget or Budget(trials=n_trials), deterministic=deterministic)
    controller = SearchController(
        records, executor, settings, tuner=tuner, space=problem.space, planner=planner,
        spent_hours=lambda: executor.now_s() / 3600,
    )  # fmt: skip
    controller.search(stage)
    return controller.trials


def seconds(trials: list[Trial]) -> float:
    return sum((trial.finished or 0.0) - (trial.started or 0.0) for trial in trials)


@pytest.mark.parametrize(("slots", "n_trials", "deterministic"), [(2, 400, False), (2, 190, True), (3, 340, True)])
def test_slots_are_busy(slots: int, n_trials: int, deterministic: bool) -> None:
    """After the warm-up, one slot trains epochs while the others score subnets: less than 5 % of the time is idle."""
    trials = simulated(n_trials, slots=slots, deterministic=deterministic)
    after = [trial for trial in trials if epoch_of(trial.point) not in (0, 1)]
    passed_s = max(t.finished or 0.0 for t in after) - min(t.started or 0.0 for t in after)
    idle = 1 - seconds(after) / (slots * passed_s)
    print(f"idle: {idle:.1%}")

    assert sum(map(is_epoch, trials)) == 6
    assert idle < 0.05


@pytest.mark.parametrize("slots", [2, 3])
def test_deterministic_search_on_many_slots(slots: int) -> None:
    """With deterministic=true the same subnets are scored while an epoch trains, whatever the durations are."""
    tables = []
    for seed in (0, 1):
        trials = simulated(120 * (slots - 1), deterministic=True, slots=slots, seed=seed)
        tables.append([(trial.point, trial.parents, trial.proposal.donors, trial.learned) for trial in trials])
        epochs = [trial for trial in trials if is_epoch(trial)]
        assert len(epochs) == 5
        for epoch in epochs[2:-1]:
            beside = [trial for trial in trials[epoch.number + 1 :] if trial.proposal.donors == epoch.proposal.donors]
            assert len(beside) == 36 * (slots - 1)
            assert sum((trial.finished or 0.0) < (epoch.finished or 0.0) for trial in beside) > 20 * (slots - 1)

    assert tables[0] == tables[1]


def test_hours_are_spent_by_kind() -> None:
    """No epoch starts that can't finish within the hours, although subnets take a hundredth of its time."""
    trials = simulated(0, budget=Budget(hours=0.2, at_deadline="finish"))
    epochs = [trial for trial in trials if is_epoch(trial)]

    assert all(trial.state == State.COMPLETE for trial in trials)
    assert len(epochs) >= 5
    assert max(trial.finished or 0.0 for trial in trials) <= 720
    assert max(trial.finished or 0.0 for trial in epochs) > 500


@pytest.mark.parametrize(
    ("tuner", "hours", "slots"),
    [
        (SupernetTuner(LargeProblem.space, METRICS), 0.05, 1),
        (DartsTuner(LargeProblem.space, METRICS), 0.05, 1),
        (DartsTuner(LargeProblem.space, METRICS), 0.1, 2),
    ],
)
def test_without_time_for_an_epoch_subnets_are_scored(tuner: SupernetTuner, hours: float, slots: int) -> None:
    """Those of the last epoch that fits have a score, also before the end of the warm-up."""
    trials = simulated(0, budget=Budget(hours=hours, at_deadline="finish"), slots=slots, tuner=tuner)
    last = max(trial.number for trial in trials if is_epoch(trial))
    subnets = [trial for trial in trials if trial.proposal.donors == (last,)]

    assert {"x": epoch_of(trials[last].point)} in [trial.point for trial in subnets]
    assert all(trial.state == State.COMPLETE for trial in trials)
    assert max(trial.finished or 0.0 for trial in trials) <= 3600 * hours + 1


def test_options_of_the_inner_tuner() -> None:
    """Options without a target are those of the default inner tuner; a target replaces it."""
    spos = SposTuner(SPACE, METRICS, inner={"population_size": 4})
    other = SposTuner(SPACE, METRICS, inner={"_target_": "nas.tuners.random.RandomTuner"})

    assert (type(spos.inner), type(other.inner)) == (EvolutionTuner, RandomTuner)
    assert vars(spos.inner)["population_size"] == 4
    with pytest.raises(ConfigurationError, match="population_size"):
        RspsTuner(SPACE, METRICS, inner={"population_size": 4})
