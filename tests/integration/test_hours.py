"""Whole searches on a virtual clock with a budget of hours: durations, ends and idle slots."""

from __future__ import annotations

import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import pytest

from nas.core.budget import AtDeadline, Budget
from nas.core.errors import SearchInterruptedError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.spec import Spec
from nas.core.supernet import EPOCH, epoch_of
from nas.core.trial import Proposal, Reason, State, Trial
from nas.executors.events import Event, Finished, Notice, StopKind, StopRequested
from nas.executors.in_process_pool import InProcessPool
from nas.executors.simulated import SimulatedExecutor, Workers
from nas.search.controller import ControllerSettings
from nas.search.definition import Search
from nas.search.identity import claim_identity
from nas.search.lease import SearchLease
from nas.search.pipeline import SearchPipeline, Summary
from nas.spaces.parameters.space import Int, ParameterSpace
from nas.spaces.supernet import SupernetSpace
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.sessions import spent_hours
from nas.training.messages import Assignment, RuntimeSpec
from nas.training.problem import Problem, Simulation
from nas.training.trial_run import TrialRun
from nas.tuners.base import Answer, Tuner
from nas.tuners.differentiable import DartsTuner
from nas.tuners.random import RandomTuner
from nas.tuners.shared.stateful import StatefulTuner
from nas.views.snapshot import read_snapshot
from tests.support.supernet_problem import SupernetProblem

CHEAP = frozenset({Policy.EARLY_STOP, Policy.QUICK_EVAL})
PLANS = {
    "two_stage": PolicyPlan((Stage(name="search", policies=CHEAP), Stage(name="final"))),
    "search_only": PolicyPlan((Stage(name="search", policies=CHEAP),)),
    "three_stage": PolicyPlan(
        (
            Stage(name="search", policies=CHEAP),
            Stage(name="recheck", policies=frozenset({Policy.EARLY_STOP}), best=0.2),
            Stage(name="final"),
        )
    ),
}


class PaperProblem(Problem):
    """Simulated trials whose duration depends on the point; a full trial takes ``ratio`` times as long.

    Args:
        seconds: Of a usual search trial.
        spread: Standard deviation of the logarithm of what a point takes.
        ratio: Final to search.
        declared: What it says that the ratio is; None: nothing.
        n_reports: On the way, evenly.
    """

    metrics = (Metric("score"),)
    policies = CHEAP
    space = ParameterSpace({"x": Int(0, 10**6)})

    def __init__(
        self,
        *,
        seconds: float,
        spread: float = 0.0,
        ratio: float = 1.0,
        declared: float | None = None,
        n_reports: int = 4,
    ) -> None:
        self.seconds = seconds
        self.spread = spread
        self.ratio = ratio
        self.declared = declared
        self.n_reports = n_reports

    def train(self, run: TrialRun) -> Mapping[str, float]:
        raise AssertionError("nothing is trained")

    def test(self, run: TrialRun) -> Mapping[str, float]:
        return {"score": run.point["x"] / 10**6}

    def simulate(self, trial: Trial) -> Simulation:
        x = trial.point["x"]
        seconds = self.seconds * math.exp(random.Random(x).gauss(0.0, self.spread))
        shares = {} if self.declared is None else {"epochs_share": 1.0}
        if Policy.EARLY_STOP in trial.policies:
            shares = {} if self.declared is None else {"epochs_share": 1 / self.declared}
        else:
            seconds *= self.ratio
        n = self.n_reports
        curve = tuple((step / n, step, {"score": x / 10**6 - 1 / step}) for step in range(1, n + 1))
        return Simulation(seconds, {"score": x / 10**6}, curve, shares)


class OnceTuner(RandomTuner, StatefulTuner):
    """Keeps state, as NNI's classes do, so it can't be started twice."""

    has_started = False
    is_busy = False

    def start(self, lineage: Lineage, on_ready: Callable[[], None], on_error: Callable[[BaseException], None]) -> None:
        assert not self.has_started
        self.has_started = True

    def add_result(self, trial: Trial) -> None:
        pass

    def add_extra_result(self, trial: Trial, result: str) -> None:
        pass

    def drain(self) -> None:
        pass

    def close(self) -> None:
        pass


class DeafExecutor(SimulatedExecutor):
    """Runs trials that ignore stop requests and end only when killed."""

    def stop(self, trial: Trial, kind: StopKind) -> None:
        if kind != "deadline":
            super().stop(trial, kind)


class ThinkingExecutor(SimulatedExecutor):
    """A virtual clock that also runs while the tuner computes."""

    thought_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + ThinkingExecutor.thought_s

    def next_event(self, until_s: float | None) -> Event | None:
        return super().next_event(None if until_s is None else until_s - ThinkingExecutor.thought_s)


class ThinkingTuner(RandomTuner):
    """Takes longer for each proposal than a trial runs."""

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        ThinkingExecutor.thought_s += 80.0 + 2 * number
        return super().ask(lineage, number, job)


class EpochProblem(SupernetProblem):
    """A simulated supernet: an epoch takes 100 s, a subnet one."""

    space = SupernetSpace(ParameterSpace({"x": Int(0, 999)}))

    def static_metrics(self, point: Point) -> Mapping[str, float]:
        return {}


class EpochExecutor(SimulatedExecutor):
    """Each epoch suggests the point of its number."""

    def _complete(self, attempt: Any) -> Trial:
        trial, number = super()._complete(attempt), epoch_of(attempt.trial.point)
        return trial if number is None else replace(trial, suggested=({"x": number},))


@dataclass
class Paper:
    """A simulated search; each ``run`` is a session.

    Attributes:
        noted: What a person was told.
    """

    problem: Spec
    budget: Budget
    plan: PolicyPlan
    slots: int = 1
    finalists: int = 2
    workers: Workers | None = None
    tuner: type[Tuner] = RandomTuner
    executor: type[SimulatedExecutor] = SimulatedExecutor
    noted: list[Notice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.records = Records(open_root(f"memory://hours/{uuid4().hex}", retry_s=0))

    def pipeline(self, budget: Budget | None = None) -> SearchPipeline:
        search = Search(problem=self.problem, tuner=Spec.of(self.tuner), plan=self.plan, slots=self.slots)
        return SearchPipeline(search.build(), self.records, budget or self.budget, finalists=self.finalists)

    def run(self, budget: Budget | None = None, *, stop_after: int | None = None) -> Summary:
        """Runs a session; after so many results it is asked to stop."""
        pipeline = self.pipeline(budget)
        claim_identity(self.records, pipeline.prepared)
        runtime = RuntimeSpec(problem=self.problem, url=self.records.files.url, options={})
        pool = InProcessPool(runtime, self.records.files, pipeline.prepared.problem)
        executor = self.executor(
            pipeline.prepared.problem, self.records, slots=self.slots, workers=self.workers, pool=pool
        )
        lease = SearchLease(self.records, now_s=executor.now_s)
        try:
            n_finished = itertools.count(1)

            def observe(event: Event) -> None:
                if isinstance(event, Notice):
                    self.noted.append(event)
                if isinstance(event, Finished) and next(n_finished) == stop_after:
                    executor.post(StopRequested("enough"))

            pipeline.run(executor, lease, ControllerSettings(budget=pipeline.budget), observe=observe)
        finally:
            lease.close()
        return pipeline.summary()

    @property
    def hours(self) -> float:
        """Returns the hours of all sessions together."""
        return spent_hours(self.records)


def drawn(seed: int) -> Paper:
    """Returns a random search whose trials mostly fit into its hours."""
    rng = random.Random(seed)
    hours = math.exp(rng.uniform(math.log(0.05), math.log(50)))
    ratio = math.exp(rng.uniform(0.0, math.log(15)))
    seconds = 3600 * hours / math.exp(rng.uniform(math.log(6), math.log(40)))
    problem = Spec.of(
        PaperProblem,
        seconds=seconds,
        spread=rng.choice([0.0, 0.2, 0.6]),
        ratio=ratio,
        declared=rng.choice([None, ratio, max(1.0, ratio * rng.uniform(0.5, 2.0))]),
        n_reports=rng.randint(0, 10),
    )
    workers = Workers(
        seed=seed,
        start_up_s=rng.choice([0.0, 0.1 * seconds]),
        straggling=rng.choice([0.0, 0.1, 0.3]),
        loss_rate=rng.choice([0.0, 0.0, 0.1]),
        call_s=rng.uniform(0.0, 0.007) * 3600 * min(hours, 1.0),
    )
    return Paper(
        problem,
        Budget(hours=hours, at_deadline="stop"),
        PLANS[rng.choice(["two_stage", "two_stage", "three_stage", "search_only"])],
        slots=rng.randint(1, 6),
        finalists=rng.randint(1, 4),
        workers=workers,
    )


def rounds(summary: Summary) -> Iterator[list[Trial]]:
    """Returns the search stage's trials, in a new list after each return from the finals."""
    for stage, trials in itertools.groupby((t for t in summary.lineage if t.is_finished), lambda t: t.stage):
        if stage == "search":
            yield list(trials)


def check_no_slot_idles(summary: Summary, n_slots: int) -> None:
    """Checks that in the search stage no slot is free for as long as the shortest known trial."""
    complete = [t for t in summary.lineage if t.stage == "search" and t.state == State.COMPLETE]
    for trials in rounds(summary):
        began_s, ended_s = min(t.started or 0.0 for t in trials), max(t.finished or 0.0 for t in trials)
        for slot in range(n_slots):
            on_slot = sorted((t.started, t.finished) for t in trials if t.slot == slot)
            frees = [began_s, *(finished for _, finished in on_slot)]
            takes = [*(started for started, _ in on_slot), ended_s]
            for free_s, taken_s in zip(frees, takes, strict=True):
                known = [t.duration_s or 0.0 for t in complete if (t.finished or 0.0) <= free_s]
                assert taken_s - free_s <= min(known, default=math.inf) + 1e-6, (slot, free_s, taken_s)


def check(seed: int) -> bool:
    """Runs a random search, and checks its hours, its finals, tests and export.

    Whether it was looked for idle slots: not where workers are lost or take time to start.
    """
    paper = drawn(seed)
    summary = paper.run()

    assert paper.hours <= 1.02 * paper.budget.hours, seed  # type: ignore[operator]
    assert paper.pipeline().ended_by() is not None, seed
    if summary.lineage.n_in_state(State.COMPLETE):
        assert summary.winner is not None, seed
        assert summary.best is not None, seed
        assert summary.best["trial"] == summary.winner.number, seed
        assert summary.winner.number in summary.tests, seed
    arguments = paper.problem.arguments
    if 3 * arguments["ratio"] * arguments["seconds"] < 0.2 * 3600 * paper.budget.hours:  # type: ignore[operator]
        assert all(t == "search" or n_of(summary)[t] for t in (s.name for s in paper.plan.stages)), seed
    left_s = 3600 * (0.96 * paper.budget.hours - paper.hours)  # type: ignore[operator]
    searched = [t for t in summary.lineage if t.stage == "search" and t.state == State.COMPLETE]
    assert left_s <= min((t.duration_s or 0.0 for t in searched), default=0.0), seed
    is_steady = paper.workers == replace(paper.workers or Workers(), loss_rate=0.0, start_up_s=0.0)
    if is_steady:
        check_no_slot_idles(summary, paper.slots)
    return is_steady


def test_hours_of_ten_random_searches_are_kept() -> None:
    """With at_deadline=stop all end within 102 % of their hours; in seven no slot idles during the search stage."""
    assert sum(check(seed) for seed in (0, 1, 2, 7, 11, 15, 24, 31, 45, 49)) == 7


@pytest.mark.slow
def test_hours_of_a_hundred_random_searches_are_kept() -> None:
    """The same for a hundred searches of all plans, slots, durations, ratios and loss rates."""
    assert sum(map(check, range(100))) == 32


def two_stage(
    hours: float, *, seconds: float = 60.0, ratio: float = 10.0, declared: float | None = 10.0, **more: Any
) -> Paper:
    """Returns a search with trials of a minute, two finals of ten, and one slot."""
    chosen: AtDeadline = more.pop("at_deadline", "finish")
    problem = Spec.of(PaperProblem, seconds=seconds, ratio=ratio, declared=declared)
    budget = more.pop("budget", Budget(hours=hours, at_deadline=chosen))
    return Paper(problem, budget, more.pop("plan", PLANS["two_stage"]), **more)


def n_of(summary: Summary) -> dict[str, int]:
    """Returns the number of COMPLETE trials of each stage."""
    return dict(Counter(t.stage for t in summary.lineage if t.state == State.COMPLETE))


def test_declared_ratio_reserves_time_for_finals() -> None:
    """The search stage ends early enough for two finals by the declared ratio; the rest goes back to it."""
    paper = two_stage(1.0)
    first, last = rounds(summary := paper.run())

    assert n_of(summary) == {"search": 40, "final": 2}
    assert (len(first), len(last)) == (37, 3)  # 3600 s - 72 for the export - (600 + 660): 37 minutes
    assert paper.hours == 1.0
    assert paper.pipeline().ended_by() == "hours"


def test_unknown_finals_get_two_fifths_of_the_hours() -> None:
    """Two fifths are reserved for finals of unknown length; the search gets the unused rest."""
    known = two_stage(1.0, ratio=5.0, declared=None)
    summary = known.run()
    first, *later = rounds(summary)

    assert len(first) == 34  # 60 % of the hours, less what is kept for the export
    assert len(later) >= 1
    assert n_of(summary)["final"] >= 2
    assert 0.95 <= known.hours <= 1.0


def test_running_trials_finish_or_are_stopped() -> None:
    """With at_deadline=finish late trials finish after the hours; with stop they end in time, with a reason."""
    workers = Workers(seed=4, straggling=0.5)
    finish, stop = (
        two_stage(1.0, ratio=1.0, plan=PLANS["search_only"], slots=3, workers=workers, at_deadline=at)
        for at in ("finish", "stop")
    )
    finished, stopped = finish.run(), stop.run()

    assert {t.state for t in finished.lineage} == {State.COMPLETE}
    assert stop.hours <= 1.0
    overdue = [t for t in stopped.lineage if t.reason == Reason.DEADLINE]
    assert overdue
    assert all(t.metrics == t.curve[-1][1] for t in overdue if t.state == State.STOPPED)


def test_a_stage_may_have_a_share_of_the_hours() -> None:
    """A share limits the search stage to half of the hours, more hours included, and reserves time for finals."""
    cheap, final = PLANS["two_stage"].stages
    ending = two_stage(1.0, ratio=2.0, declared=2.0, plan=PolicyPlan((cheap, replace(final, share=0.5))))

    for slots in (1, 4):
        plan = PolicyPlan((replace(cheap, share=0.5), final))
        searching = two_stage(1.0, ratio=2.0, declared=2.0, plan=plan, slots=slots)
        assert n_of(searching.run()) == {"search": 30 * slots, "final": 2}
        assert n_of(searching.run(Budget(hours=2.0)))["search"] == 60 * slots
    first, *_ = rounds(ending.run())
    assert len(first) == 28  # 3600 - 72 - 1800 s


def test_sessions_add_up() -> None:
    """All sessions of an interrupted search together take its hours."""
    paper = two_stage(1.0)
    paper.run(Budget(trials=10))  # ends with its finals
    before = paper.hours
    summary = paper.run()

    assert before == (10 + 20) / 60
    assert n_of(summary)["search"] > 20
    assert 0.95 <= paper.hours <= 1.0


@pytest.mark.parametrize("n_trials", [5, None])
def test_a_stateful_tuner_is_started_once_in_a_session(n_trials: int | None) -> None:
    """If trials or hours end the search stage, unused time is left to the next session."""
    budget = Budget(trials=n_trials, hours=1.0, final_share=0.6)
    paper = two_stage(1.0, ratio=2.0, declared=None, budget=budget, tuner=OnceTuner)
    first = n_of(paper.run())

    assert first == {"search": n_trials or 22, "final": 2}
    assert paper.hours < 0.6
    assert n_of(paper.run(Budget(hours=1.0)))["search"] > first["search"]


def test_an_interrupted_session_counts() -> None:
    """An interrupted session's time counts; its trials run again, and the finals have their time."""
    paper = two_stage(1.0, slots=3)

    with pytest.raises(SearchInterruptedError):
        paper.run(stop_after=20)
    before = paper.hours
    summary = paper.run()

    assert 6 / 60 < before < 8 / 60
    assert n_of(summary)["final"] == 2
    assert 0.95 <= paper.hours <= 1.0


def test_more_hours_train_the_missing_finals() -> None:
    """If no final fits, the search's best trial wins, with a notice; a larger budget trains the finals."""
    paper = two_stage(0.15)
    small = paper.run()

    assert n_of(small) == {"search": 9}
    assert small.winner is not None
    assert small.winner.stage == "search"
    assert [n.text for n in paper.noted] == [
        "the budget holds no trial of stage final, which takes 0.17 h or more: raise budget.hours (or gpu_hours), "
        "or shorten its trials",
        "2 finalists were not trained: the time budget is used up. Run the command `final` or raise budget.hours "
        "(or gpu_hours)",
    ]
    assert paper.pipeline().ended_by() == "hours"
    assert paper.pipeline(Budget(hours=1.0)).ended_by() is None
    large = paper.run(Budget(hours=1.0))
    assert n_of(large)["final"] == 2
    assert large.winner is not None
    assert large.winner.stage == "final"


def test_a_final_that_met_the_deadline_is_trained_again_with_more_hours() -> None:
    """A final stopped at the deadline counts for nothing; it took twice as long as declared."""
    paper = two_stage(0.5, ratio=20.0, declared=8.0, finalists=1, at_deadline="stop")
    small = paper.run()

    [stopped] = [t for t in small.lineage if t.stage == "final"]
    assert (stopped.state, stopped.reason) == (State.STOPPED, Reason.DEADLINE)
    assert paper.hours <= 0.51
    large = paper.run(Budget(hours=2.0))
    assert n_of(large)["final"] >= 1
    assert large.winner is not None
    assert large.winner.state == State.COMPLETE


@pytest.mark.parametrize("declared", [20.0, None])
def test_a_final_that_the_ratio_cannot_fit_is_not_begun(declared: float | None) -> None:
    """If the best trial's final is too long, the next that fits is trained; only one of unknown length is stopped."""
    n_skipped = n_stopped = 0
    for seconds in range(20, 80, 6):
        problem = Spec.of(PaperProblem, seconds=float(seconds), spread=1.0, ratio=20.0, declared=declared)
        paper = Paper(problem, Budget(hours=0.25), PLANS["two_stage"], finalists=4)
        summary = paper.run()
        finals = [t for t in summary.lineage if t.stage == "final"]
        for final in finals:
            score = summary.lineage[final.parents[0]].metrics["score"]
            earlier = [t for t in summary.lineage if (t.finished or math.inf) <= (final.started or 0.0)]
            n_skipped += any(t.stage == "search" and t.metrics.get("score", -1.0) > score for t in earlier)

        stopped = [t.index for t in finals if t.reached_deadline]
        n_stopped += len(stopped)
        assert stopped in ([], [0])
        assert paper.hours <= paper.budget.hours  # type: ignore[operator]
        assert paper.pipeline().ended_by() == "hours"
    assert (n_stopped == 0 and n_skipped > 0) if declared else n_stopped > 0


class ShortenedProblem(PaperProblem):
    """Its finals train for a share of their epochs if the hours do not hold all."""

    shortens_finals = True

    def simulate(self, trial: Trial) -> Simulation:
        full = super().simulate(trial)
        if (share := trial.proposal.fidelity) is None:
            return full
        return replace(full, seconds=share * full.seconds, shares={"epochs_share": share})


class TimedProblem(ShortenedProblem):
    """A final with a limit of time trains until then, at most in full."""

    left_s: float | None = None

    def simulate(self, trial: Trial) -> Simulation:
        if self.left_s is None:
            return super().simulate(trial)
        full = PaperProblem.simulate(self, trial)
        share = min(1.0, self.left_s / full.seconds)
        return replace(full, seconds=share * full.seconds, shares={"epochs_share": share})


class TimedExecutor(SimulatedExecutor):
    """Tells the problem the limit of each trial."""

    def submit(self, assignment: Assignment) -> None:
        assert isinstance(self._problem, TimedProblem)
        until = assignment.train_until
        self._problem.left_s = None if until is None else until - time.time()
        super().submit(assignment)


def shortened(hours: float, **options: Any) -> Paper:
    """Returns a search whose trials take a minute, and whose finals take ten minutes in full."""
    problem = Spec.of(ShortenedProblem, seconds=60.0, ratio=10.0, declared=10.0)
    return Paper(problem, Budget(hours=hours), PLANS["two_stage"], **options)


def timed(hours: float, *, gpu_hours: float | None = None, ratio: float = 10.0, **options: Any) -> Paper:
    """Returns the same search with finals that train until their time is over."""
    problem = Spec.of(TimedProblem, seconds=60.0, ratio=ratio, declared=10.0)
    budget = Budget(hours=hours, gpu_hours=gpu_hours)
    return Paper(problem, budget, PLANS["two_stage"], executor=TimedExecutor, **options)


def test_a_final_is_shortened_to_the_time_left() -> None:
    """With nine minutes, one of two finals trains for as long as is left; its record has the share."""
    paper = shortened(0.15)
    summary = paper.run()

    final, *others = [t for t in summary.lineage if t.stage == "final"]
    assert (final.state, others) == (State.COMPLETE, [])
    assert 0.4 < (final.proposal.fidelity or 0.0) < 0.8
    assert summary.winner is not None
    assert summary.winner.number == final.number
    assert 0.13 <= paper.hours <= 0.15
    assert [n.text.partition(":")[0] for n in paper.noted] == ["1 finalists were not trained"]


def test_more_hours_are_planned_for_full_finals() -> None:
    """After a shortened final, ten times the hours hold two full ones; its duration is none of a full training."""
    paper = shortened(0.15)
    paper.run()
    finals = [t for t in paper.run(Budget(hours=1.5)).lineage if t.stage == "final"]

    assert [t.is_shortened for t in finals] == [True, False, False]
    assert paper.hours <= 1.5


def test_more_hours_train_a_shortened_final_in_full() -> None:
    """With the same hours the search is finished; with more, its finalist is trained again, in full and once."""
    paper = shortened(0.15, finalists=1)
    few, enough = Budget(hours=0.15, trials=1), Budget(hours=1.5, trials=1)
    paper.run(few)
    ended = [paper.pipeline(budget).ended_by() for budget in (few, enough)]
    finals = [t for t in paper.run(enough).lineage if t.stage == "final"]

    assert ended == ["trials", None]
    assert [t.proposal.fidelity is None for t in finals] == [False, True]
    assert finals[0].parents == finals[1].parents
    assert paper.pipeline(enough).ended_by() == "trials"
    assert len(paper.run(enough).lineage) == 3


def test_each_slot_has_a_shortened_final_if_threads_do_not_help() -> None:
    """In nine minutes, four slots train four finals at once, each for the same share."""
    finals = [t for t in shortened(0.15, slots=4, finalists=4).run().lineage if t.stage == "final"]

    assert [t.state for t in finals] == [State.COMPLETE] * 4
    assert len({t.proposal.fidelity for t in finals}) == 1


@pytest.mark.parametrize("ratio", [10.0, 14.0])
def test_a_final_that_takes_longer_than_estimated_ends_in_time(ratio: float) -> None:
    """There is time for the estimate and a little more: a longer final trains until then, and is COMPLETE."""
    summary = timed(0.5, ratio=ratio, finalists=1).run()
    [final] = [t for t in summary.lineage if t.stage == "final" and t.proposal.fidelity == 1]

    assert final.state == State.COMPLETE
    assert final.is_shortened == (ratio > 10)
    assert final.cost["epochs_share"] == pytest.approx(10 / ratio, rel=0.2)
    assert summary.winner == final


@pytest.mark.parametrize("finalists", [1, 3])
def test_an_unfinished_final_of_an_earlier_session_comes_after_the_finalists(finalists: int) -> None:
    """More hours find a better point, which is trained in full; the earlier final would have taken most of its time."""
    paper = timed(0.15, finalists=finalists)
    with pytest.raises(SearchInterruptedError):
        paper.run(stop_after=1)
    [earlier] = [t for t in paper.pipeline().summary().lineage if t.stage == "final"]
    summary = paper.run(Budget(hours=0.3))
    final = next(t for t in summary.lineage if t.stage == "final" and t.state == State.COMPLETE)

    assert earlier.state == State.WAITING
    assert final.parents != earlier.parents
    assert not final.is_shortened
    assert summary.winner == final


@pytest.mark.parametrize(
    ("gpu_hours", "slots", "used"), [(10.0, 1, (0.13, 0.15)), (0.1, 1, (0.08, 0.1)), (0.2, 2, (0.16, 0.2))]
)
def test_a_final_is_shortened_to_the_gpu_hours_left(gpu_hours: float, slots: int, used: tuple[float, float]) -> None:
    """If hours are set, too, a final for each slot trains until the first of both is used up."""
    paper = timed(0.15, gpu_hours=gpu_hours, slots=slots, finalists=slots, workers=Workers(have_gpus=True))
    summary = paper.run()
    finals = [t for t in summary.lineage if t.stage == "final"]

    assert [t.state for t in finals] == [State.COMPLETE] * slots
    assert all(0.1 < t.cost["epochs_share"] < 0.8 for t in finals)
    assert used[0] <= sum(t.cost["gpu_seconds"] for t in summary.lineage if t.is_finished) / 3600 <= used[1]
    assert paper.hours <= 0.15


def test_resumed_finals_share_the_gpu_hours() -> None:
    """Two finals that an earlier session began end together, before the GPU-hours are used up."""
    paper = timed(0.5, gpu_hours=0.2, slots=2, finalists=2, workers=Workers(have_gpus=True))
    with pytest.raises(SearchInterruptedError):
        paper.run(stop_after=2)
    summary = paper.run()

    assert [t.state for t in summary.lineage if t.stage == "final"] == [State.COMPLETE] * 2
    assert sum(t.cost["gpu_seconds"] for t in summary.lineage if t.is_finished) / 3600 <= 0.2


def test_a_waiting_shortened_final_trains_in_full_without_hours() -> None:
    """A later session without hours does not train the share that an earlier one had planned."""
    paper = timed(0.15, finalists=1)
    with pytest.raises(SearchInterruptedError):
        paper.run(stop_after=1)
    [final] = [t for t in paper.run(Budget(trials=1)).lineage if t.stage == "final"]

    assert (final.proposal.fidelity or 1.0) < 1
    assert final.cost["epochs_share"] == 1
    assert not final.is_shortened
    assert paper.pipeline(Budget(trials=1)).ended_by() == "trials"


def test_shortened_finals_wait_for_the_last_trials_of_the_search() -> None:
    """In six minutes no trial of three slots is stopped, and the final has half of the time."""
    problem = Spec.of(TimedProblem, seconds=60.0, spread=0.3, ratio=50.0, declared=50.0)
    paper = Paper(problem, Budget(hours=0.1), PLANS["two_stage"], slots=3, finalists=1, executor=TimedExecutor)
    *searched, final = paper.run().lineage

    assert [(t.stage, t.state) for t in searched] == [("search", State.COMPLETE)] * 3
    assert len({t.duration_s for t in searched}) == 3
    assert (final.stage, final.state) == ("final", State.COMPLETE)
    assert (final.duration_s or 0.0) > 0.5 * 360
    assert paper.hours <= 0.1


@pytest.mark.parametrize("problem", [PaperProblem, ShortenedProblem])
def test_hours_that_finals_have_used_are_not_given_again(problem: type[PaperProblem]) -> None:
    """After finals that took most of the hours, five percent more hours are kept."""
    paper = Paper(Spec.of(problem, seconds=60.0, ratio=10.0, declared=10.0), Budget(hours=1), PLANS["two_stage"])
    paper.run(Budget(trials=4))
    hours = 1.05 * paper.hours
    paper.run(Budget(hours=hours))

    assert paper.hours <= hours


def test_finals_with_enough_time_are_full() -> None:
    """With an hour both finals train in full."""
    finals = [t for t in shortened(1.0).run().lineage if t.stage == "final"]

    assert [t.proposal.fidelity for t in finals[:2]] == [None, 1.0]


def test_fewer_finals_come_before_shorter_ones() -> None:
    """Half an hour holds two of four finals, which are full."""
    finals = [t for t in shortened(0.5, finalists=4).run().lineage if t.stage == "final"]

    assert [t.is_shortened for t in finals[:2]] == [False, False]
    assert all((t.proposal.fidelity or 1.0) < 1.0 for t in finals[2:])


def test_an_interrupted_short_final_runs_as_recorded() -> None:
    """The share is in the proposal, so a later session trains the same."""
    paper = shortened(0.15)
    with pytest.raises(SearchInterruptedError):
        paper.run(stop_after=2)
    summary = paper.run()
    again = paper.run()

    finals = [t for t in summary.lineage if t.stage == "final"]
    assert [t.proposal for t in again.lineage if t.stage == "final"] == [t.proposal for t in finals]
    assert paper.hours <= 0.15
    assert summary.winner is not None
    assert summary.winner.stage == "final"


@pytest.mark.slow
def test_short_searches_end_with_a_final() -> None:
    """Of forty random searches with finals of known length all keep their hours and train a final."""
    for seed in range(40):
        rng = random.Random(seed)
        ratio = rng.uniform(5.0, 50.0)
        problem = Spec.of(
            ShortenedProblem, seconds=20.0, spread=rng.choice([0.0, 0.2, 0.4]), ratio=ratio, declared=ratio
        )
        hours = rng.uniform(0.1, 0.5)
        paper = Paper(problem, Budget(hours=hours), PLANS["two_stage"], slots=rng.randint(1, 4))
        summary = paper.run()

        assert paper.hours <= 1.02 * hours, seed
        assert summary.winner is not None, seed
        assert (summary.winner.stage, summary.winner.state) == ("final", State.COMPLETE), seed


class TwoPoints(PaperProblem):
    """The better of its two points takes eleven times as long."""

    space = ParameterSpace({"x": Int(17, 18)})


class SmallTrials(ShortenedProblem):
    """The better of its two points takes longer; trials of the search have a fifth of the size."""

    metrics = (Metric("score", "minimize"),)
    space = ParameterSpace({"x": Int(17, 18)})

    def simulate(self, trial: Trial) -> Simulation:
        full = super().simulate(trial)
        is_search = Policy.EARLY_STOP in trial.policies
        seconds = full.seconds * (5 if trial.point["x"] == 17 else 1)
        return replace(full, seconds=seconds, shares={**full.shares, "scale_share": 0.2 if is_search else 1.0})


def test_the_next_finalist_is_trained_if_the_best_does_not_fit() -> None:
    """In seven minutes not even the least epochs of the better point's final fit, so the other has a final."""
    problem = Spec.of(SmallTrials, seconds=20.0, ratio=20.0, declared=4.0)
    paper = Paper(problem, Budget(hours=7 / 60, trials=2), PLANS["two_stage"])
    finals = [t for t in paper.run().lineage if t.stage == "final"]

    assert [(t.point["x"], t.state) for t in finals] == [(18, State.COMPLETE)]
    assert paper.hours <= 7 / 60


@pytest.mark.timeout(30)
@pytest.mark.parametrize("bound", ["hours", "gpu_hours"])
def test_a_waiting_final_without_time_holds_up_no_other(bound: str) -> None:
    """An interrupted final that no longer fits stays WAITING, and the next finalist is trained on the only slot."""
    problem = Spec.of(TwoPoints, seconds=100.0, spread=1.0, ratio=2.0, declared=2.0)
    budgets = [Budget(trials=2, at_deadline="stop", **{bound: seconds / 3600}) for seconds in (9000.0, 300.0)]
    paper = Paper(problem, budgets[0], PLANS["two_stage"], workers=Workers(have_gpus=True))
    with pytest.raises(SearchInterruptedError):
        paper.run(stop_after=2)
    summary = paper.run(budgets[1])

    finals = {t.point["x"]: t.state for t in summary.lineage if t.stage == "final"}
    assert finals == {18: State.WAITING, 17: State.COMPLETE}


def test_a_budget_too_small_for_a_trial_ends_in_time() -> None:
    """The first trials are stopped at the deadline, and there is no winner, as no trial has weights."""
    paper = two_stage(0.01, slots=2, at_deadline="stop")
    summary = paper.run()

    assert [t.reason for t in summary.lineage] == [Reason.DEADLINE] * 2
    assert paper.hours <= 0.0102
    assert summary.winner is None
    assert paper.pipeline().ended_by() == "hours"


def test_the_tuner_is_not_asked_when_no_trial_fits_after_its_answer() -> None:
    """The tuner's own time counts, so it proposes nothing that would not fit; more hours continue the sequence."""
    ThinkingExecutor.thought_s = 0.0
    plan = PLANS["search_only"]
    paper = two_stage(0.5, ratio=1.0, plan=plan, slots=2, tuner=ThinkingTuner, executor=ThinkingExecutor)
    short = paper.run()
    n_short = len(short.lineage)

    assert 0.45 <= paper.hours <= 0.5
    assert short.lineage.n_in_state(State.WAITING) == 0
    longer = paper.run(Budget(hours=1.0))
    usual = two_stage(0.5, ratio=1.0, plan=plan, slots=2).run()
    assert len(longer.lineage) > n_short
    assert [t.point for t in longer.lineage] == [t.point for t in usual.lineage][: len(longer.lineage)]


def test_a_search_without_time_for_an_epoch_is_finished() -> None:
    """darts has no subnet left to score, though there is time for one; more hours continue it."""
    plan = PolicyPlan((Stage(name="search", policies=frozenset({Policy.SHARE_PARAMS})),))
    paper = Paper(Spec.of(EpochProblem), Budget(hours=0.05), plan, tuner=DartsTuner, executor=EpochExecutor)
    trials = list(paper.run().lineage)

    assert [trial.point for trial in trials] == [{EPOCH: 0}, {"x": 0}]
    assert paper.pipeline().ended_by() == "hours"
    assert paper.pipeline(Budget(hours=1.0)).ended_by() is None


def test_gpu_hours_are_kept() -> None:
    """Three GPUs use an hour of GPU time in a third of it, finals included."""
    workers = Workers(have_gpus=True)
    paper = two_stage(1.0, budget=Budget(gpu_hours=1.0), slots=3, workers=workers)
    summary = paper.run()

    gpu_s = sum(t.cost["gpu_seconds"] for t in summary.lineage)
    assert summary.lineage.n_in_state(State.WAITING) == 0
    assert n_of(summary)["final"] == 2
    assert 0.9 * 3600 <= gpu_s <= 3600
    assert paper.pipeline().ended_by() == "gpu_hours"


def test_gpu_hours_stop_trials() -> None:
    """Trials are stopped when together they have used the remaining GPU-hours."""
    budget = Budget(gpu_hours=1.0, at_deadline="stop")
    workers = Workers(seed=3, have_gpus=True, straggling=0.4)
    paper = two_stage(1.0, budget=budget, slots=4, workers=workers, plan=PLANS["search_only"])
    summary = paper.run()

    gpu_s = sum(t.cost["gpu_seconds"] for t in summary.lineage)
    assert 0.97 * 3600 <= gpu_s <= 1.001 * 3600


def test_gpu_hours_do_not_pass_in_a_queue() -> None:
    """Trials that wait an hour for their workers use no GPU-hours meanwhile, and are not stopped before they begin."""
    budget = Budget(gpu_hours=1.0, at_deadline="stop")
    workers = Workers(seed=3, have_gpus=True, start_up_s=3600.0)
    paper = two_stage(1.0, seconds=600.0, budget=budget, slots=4, workers=workers, plan=PLANS["search_only"])
    summary = paper.run()

    gpu_s = sum(t.cost["gpu_seconds"] for t in summary.lineage)
    assert {t.state for t in summary.lineage} == {State.COMPLETE}
    assert 0.9 * 3600 <= gpu_s <= 1.001 * 3600


@pytest.mark.parametrize(
    ("budget", "ended_s"),
    [(Budget(hours=2.5, at_deadline="stop"), 9000 - 120), (Budget(gpu_hours=10.0, at_deadline="stop"), 9000 + 90)],
    ids=["hours", "gpu_hours"],
)
def test_trials_that_ignore_a_stop_are_killed(budget: Budget, ended_s: float) -> None:
    """The kill comes after 1 % of the hours, or of each slot's share of two and a half GPU-hours."""
    workers = Workers(have_gpus=True)
    plan = PLANS["search_only"]
    paper = two_stage(
        1.0, seconds=4 * 3600.0, budget=budget, slots=4, workers=workers, plan=plan, executor=DeafExecutor
    )
    summary = paper.run()

    assert [t.finished for t in summary.lineage] == pytest.approx([ended_s] * 4, abs=1.0)


def test_trials_that_wait_for_more_hours_hold_up_no_final() -> None:
    """Lost search trials without time to run again stay WAITING, and the search still finishes."""
    workers = Workers(seed=1, loss_rate=0.3)
    plan = PLANS["two_stage"]
    waited = 0
    for seconds in (97.0, 101.0, 103.0, 107.0, 109.0):
        paper = two_stage(1.0, seconds=seconds, plan=plan, slots=2, finalists=1, workers=workers, at_deadline="stop")
        summary = paper.run()
        waited += summary.lineage.n_in_state(State.WAITING)

        assert paper.hours <= 1.0
        assert any(t.stage == "final" for t in summary.lineage)
        assert read_snapshot(paper.records.files, time.time()).standing == "finished"
    assert waited
