"""The simulator: the same controller on a virtual clock, with stragglers and lost workers."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, cast
from uuid import uuid4

import pytest

from nas.core.budget import Budget
from nas.core.errors import ConfigurationError, SearchInterruptedError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.policy import Stage
from nas.core.spec import Spec
from nas.core.trial import Reason, State, Trial
from nas.executors.events import Action, ProxiesComputed, StopKind, StopRequested
from nas.executors.in_process_pool import InProcessPool
from nas.executors.simulated import SimulatedExecutor, Workers
from nas.search.controller import ControllerSettings, SearchController
from nas.search.lease import SearchLease
from nas.spaces.parameters.space import Choice, ParameterSpace
from nas.stoppers.base import Stopper
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.sessions import spent_hours
from nas.training.messages import ProxyRequest, RuntimeSpec
from nas.training.problem import Problem, Simulation
from nas.tuners.evolution import EvolutionTuner
from nas.tuners.random import RandomTuner

Simulate = Callable[[Trial], Simulation]


class PaperProblem(Problem):
    """Scores the sum of its parameters after 60 seconds, or as the test sets."""

    metrics = (Metric("score"),)
    space = ParameterSpace({f"x{i}": Choice(*range(4)) for i in range(6)})

    def __init__(self, simulate: Simulate = lambda trial: Simulation(60.0, {"score": total(trial)})) -> None:
        self._simulate = simulate

    def train(self, run: object) -> dict[str, float]:
        raise AssertionError("nothing is trained")

    def simulate(self, trial: Trial) -> Simulation:
        return self._simulate(trial)


class RealProblem(Problem):
    metrics = (Metric("score"),)
    space = PaperProblem.space

    def train(self, run: object) -> dict[str, float]:
        return {"score": 1.0}


def total(trial: Trial) -> float:
    return float(sum(trial.point.values()))


class Simulated:
    """A simulated search."""

    def __init__(self, problem: Problem, *, slots: int = 1, workers: Workers | None = None, **more: Any) -> None:
        stopper = more.pop("stopper", None)
        tuner = more.pop("tuner", RandomTuner)(problem.space, problem.metrics)
        self.records = more.pop("records", None) or Records(open_root(f"memory://{uuid4().hex}"))
        self.executor = SimulatedExecutor(
            problem, self.records, slots=slots, workers=workers, has_stopper=stopper is not None
        )
        trials, starts = self.records.load()
        self.controller = SearchController(
            self.records,
            self.executor,
            ControllerSettings(**more),
            trials=trials,
            starts=starts,
            tuner=tuner,
            space=problem.space,
            stopper=stopper,
            spent_hours=lambda: self.executor.now_s() / 3600,
        )

    def run(self) -> list[Trial]:
        self.controller.search(Stage(name="search"))
        return self.controller.trials


def table(trials: list[Trial]) -> list[tuple[object, ...]]:
    return [(t.number, t.state, t.metrics, t.slot, t.attempt, t.started, t.finished, t.cost) for t in trials]


@pytest.mark.parametrize("slots", [1, 3, 50])
def test_the_clock_is_that_of_the_workers(slots: int) -> None:
    """50 trials of a minute take 50, 17 and 1 minutes on 1, 3 and 50 slots, by the records too."""
    search = Simulated(PaperProblem(), slots=slots, budget=Budget(trials=50))

    trials = search.run()

    assert search.executor.now_s() == 60.0 * -(-50 // slots)
    assert all(t.duration_s == 60.0 and t.finished == (t.started or 0.0) + 60.0 for t in trials)
    assert {t.slot for t in trials} == set(range(slots))
    assert table(search.records.load()[0]) == table(trials)


def test_hours_end_a_search() -> None:
    """With half an hour, trials of a minute are proposed for 30 minutes, and the last one may finish."""
    search = Simulated(PaperProblem(), budget=Budget(hours=0.5, at_deadline="finish"))

    assert len(search.run()) == 30
    assert search.executor.now_s() == 1800.0


def test_the_same_seed_gives_the_same_search() -> None:
    """Start-up times, stragglers and losses depend on the seed alone."""

    def run(seed: int) -> list[tuple[object, ...]]:
        workers = Workers(seed=seed, start_up_s=30.0, straggling=0.5, loss_rate=0.1)
        return table(Simulated(PaperProblem(), slots=7, workers=workers, budget=Budget(trials=60)).run())

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_lost_trials_run_again() -> None:
    """With a fifth of the attempts lost, their trials run as attempt 2, and a few are FAILED(lost)."""
    search = Simulated(PaperProblem(), slots=10, workers=Workers(loss_rate=0.2), budget=Budget(trials=400))

    trials = search.run()

    n_second = sum(t.attempt == 2 for t in trials)
    n_lost = sum(t.reason == Reason.LOST for t in trials)
    assert 50 < n_second < 110
    assert 5 < n_lost < 35
    assert all(t.state == State.COMPLETE for t in trials if t.reason is None)


def test_stragglers_take_longer_and_shorter() -> None:
    """Durations vary around the problem's own, and their median equals it."""
    search = Simulated(PaperProblem(), slots=10, workers=Workers(straggling=0.5), budget=Budget(trials=400))

    seconds = sorted(t.duration_s or 0.0 for t in search.run())

    assert seconds[0] < 25.0
    assert 54.0 < seconds[200] < 66.0
    assert seconds[-1] > 140.0


class Impatient(Stopper):
    """Stops trials below 5 after their second report."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        return len(trial.curve) == 2 and trial.curve[-1][1]["score"] < 5


def test_stoppers_see_reports_in_time() -> None:
    """A stopped trial ends at its second of four reports, with its metrics, and frees its slot then."""

    def simulate(trial: Trial) -> Simulation:
        score = total(trial)
        curve = tuple((step / 4, step, {"score": score + step / 10}) for step in (1, 2, 3, 4))
        return Simulation(60.0, {"score": score}, curve)

    search = Simulated(PaperProblem(simulate), stopper=Impatient(PaperProblem.metrics), budget=Budget(trials=30))
    trials = search.run()

    stopped = [t for t in trials if t.state == State.STOPPED]
    complete = [t for t in trials if t.state == State.COMPLETE]
    assert stopped
    assert all((t.reason, t.duration_s, len(t.curve)) == (Reason.STOPPER, 30.0, 2) for t in stopped)
    assert all((t.duration_s, len(t.curve)) == (60.0, 4) for t in complete)
    assert all(t.metrics == {"score": total(t) + 0.2} for t in stopped)
    assert search.executor.now_s() == 30.0 * len(stopped) + 60.0 * len(complete)


class SizedProblem(PaperProblem):
    metrics = (*PaperProblem.metrics, Metric("size", "minimize"))

    def static_metrics(self, point: Mapping[str, Any]) -> dict[str, float]:
        return {"size": float(point["x0"]), "depth": 2.0}


def test_metrics_known_before_training_are_recorded_as_on_workers() -> None:
    """COMPLETE and STOPPED trials have the objectives that only ``static_metrics`` gives, and its other numbers."""

    def simulate(trial: Trial) -> Simulation:
        score = total(trial)
        return Simulation(60.0, {"score": score}, tuple((n / 4, n, {"score": score}) for n in (1, 2, 3)))

    problem = SizedProblem(simulate)
    trials = Simulated(problem, stopper=Impatient(problem.metrics), budget=Budget(trials=30)).run()

    assert {trial.state for trial in trials} == {State.COMPLETE, State.STOPPED}
    assert all(t.metrics == {"size": t.point["x0"], "score": total(t)} for t in trials)
    assert all(t.static_metrics == {"size": t.point["x0"], "depth": 2.0} for t in trials)


def test_error_of_static_metrics_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A point whose ``static_metrics`` raises has none; its trial is simulated all the same."""

    class Unsized(PaperProblem):
        def static_metrics(self, point: Mapping[str, Any]) -> dict[str, float]:
            raise LookupError(f"no size of {point['x0']}")

    trials = Simulated(Unsized(lambda trial: Simulation(60.0, {"score": 0.5})), budget=Budget(trials=2)).run()

    assert [(t.state, t.static_metrics) for t in trials] == [(State.COMPLETE, {})] * 2
    assert caplog.text.count("Unsized.static_metrics raised LookupError: no size of") == 2


class BlindProblem(PaperProblem):
    """Declares an objective that only a worker could measure, if it knew the network."""

    metrics = (*PaperProblem.metrics, Metric("latency_s", "minimize"))

    def static_metrics(self, point: Mapping[str, Any]) -> dict[str, float]:
        if point["x0"] == 3:
            raise LookupError("no layer 3")
        return {}


def test_an_objective_that_nothing_gives_fails_the_trial_as_on_workers() -> None:
    """The error names it, with what failed before the simulation; other metrics remain unused."""
    trials = Simulated(BlindProblem(), budget=Budget(trials=30), max_failures=99).run()

    assert {(t.state, t.reason, *t.metrics) for t in trials} == {(State.FAILED, Reason.NO_METRIC)}
    remedy = "Return them from simulate, or declare other metrics"
    for trial in trials:
        before = "; before that: BlindProblem.static_metrics raised LookupError: no layer 3" * (trial.point["x0"] == 3)
        assert trial.error == f"simulate returned {{'score': {total(trial)}}}, without latency_s{before}. {remedy}"
    assert {trial.point["x0"] == 3 for trial in trials} == {True, False}


def test_problem_that_raises_or_scores_nan_fails_its_trial() -> None:
    """A simulation that raises, or returns NaN, is FAILED with the reason, and the search continues."""

    def simulate(trial: Trial) -> Simulation:
        if trial.number == 1:
            raise LookupError("no such row")
        return Simulation(1.0, {"score": float("nan") if trial.number == 2 else 0.0})

    trials = Simulated(PaperProblem(simulate), budget=Budget(trials=4)).run()

    assert [t.reason for t in trials] == [None, Reason.EXCEPTION, Reason.NOT_FINITE, None]
    assert "no such row" in (trials[1].error or "")


@pytest.mark.parametrize(
    ("returned", "reason", "error"),
    [
        (None, Reason.EXCEPTION, "simulate returned None: must return Simulation(seconds, metrics)"),
        (Simulation(-5.0, {"score": 1.0}), Reason.EXCEPTION, "simulate: seconds=-5.0: must be a number of at least 0"),
        (Simulation(float("nan"), {"score": 1.0}), Reason.EXCEPTION, "simulate: seconds=nan: must be a number"),
        (Simulation(1.0, {"score": cast("float", "high")}), Reason.EXCEPTION, "metric score must be a number"),
        (Simulation(1.0, {"score": 1.0}, ((-0.5, 1, {}),)), Reason.EXCEPTION, "simulate: share=-0.5"),
        (Simulation(1.0, {"score": 1.0}, ((1.0, 1, {"score": cast("float", "high")}),)), Reason.EXCEPTION, "metric"),
        (Simulation(1.0, {"loss": 1.0}), Reason.NO_METRIC, "simulate returned {'loss': 1.0}, without score"),
        (Simulation(1.0, cast("dict[str, float]", None)), Reason.NO_METRIC, "without score"),
    ],
)
def test_a_wrong_return_of_simulate_fails_its_trial(returned: Any, reason: Reason, error: str) -> None:
    """The trial is FAILED with the error and costs nothing before it, and the search continues."""

    def simulate(trial: Trial) -> Simulation:
        return Simulation(60.0, {"score": 1.0}) if trial.number == 0 else cast("Simulation", returned)

    good, bad = Simulated(PaperProblem(simulate), budget=Budget(trials=2)).run()

    assert good.state == State.COMPLETE
    assert (bad.state, bad.reason) == (State.FAILED, reason)
    assert error in (bad.error or "")
    assert (bad.duration_s or 0.0) >= 0.0


@pytest.mark.parametrize(
    ("simulation", "start_up_s"),
    [
        (Simulation(1e12, {"score": 1.0}), 0.0),
        (Simulation(60.0, {"score": 1.0}, ((1e11, 1, {"score": 1.0}),)), 0.0),
        (Simulation(60.0, {"score": 1.0}), 1e15),
    ],
    ids=["duration", "report", "start-up"],
)
def test_a_trial_that_would_end_after_a_million_hours_fails(simulation: Simulation, start_up_s: float) -> None:
    """Its error names the seconds, and the records of search and session can be read."""
    workers = Workers(start_up_s=start_up_s)
    search = Simulated(PaperProblem(lambda trial: simulation), workers=workers, budget=Budget(trials=1))
    lease = SearchLease(search.records, now_s=search.executor.now_s)
    [trial] = search.run()
    lease.close()

    assert (trial.state, trial.reason) == (State.FAILED, Reason.EXCEPTION)
    assert re.search(r"simulate: seconds=\S+: must be a number from 0 to (3\.6e\+09|0)", trial.error or "")
    assert table(search.records.load()[0]) == table([trial])
    assert spent_hours(search.records) <= 1e6


def test_simulate_may_change_its_trial() -> None:
    """The point that ``simulate`` changes is a copy; search and records keep the proposed one."""

    def simulate(trial: Trial) -> Simulation:
        score = total(trial)
        trial.point.clear()
        return Simulation(60.0, {"score": score})

    search = Simulated(PaperProblem(simulate), budget=Budget(trials=3))
    trials = search.run()

    assert [trial.metrics["score"] for trial in trials] == [total(trial) for trial in trials]
    assert [trial.point for trial in trials] == [trial.point for trial in search.records.load()[0]]
    assert all(len(trial.point) == 6 for trial in trials)


def test_a_trial_that_is_stopped_during_the_start_up_of_its_worker_costs_nothing() -> None:
    """At the deadline a trial whose worker is not up yet has taken no time, and did not start later than it ended."""
    workers = Workers(seed=1, start_up_s=1e6, have_gpus=True)
    [trial] = Simulated(PaperProblem(), workers=workers, budget=Budget(hours=0.01)).run()

    assert trial.reason == Reason.DEADLINE
    assert trial.started == trial.finished
    assert trial.cost == {"seconds": 0.0, "gpu_seconds": 0.0}


def test_report_that_is_not_finite_fails_its_trial() -> None:
    """A NaN report ends the trial at once, as in training; earlier reports are kept."""
    curve = ((0.25, 1, {"score": 0.5}), (0.5, 2, {"score": float("nan")}), (1.0, 3, {"score": 1.0}))

    [trial] = Simulated(
        PaperProblem(lambda trial: Simulation(60.0, {"score": 1.0}, curve)), budget=Budget(trials=1)
    ).run()

    assert (trial.state, trial.reason, trial.duration_s) == (State.FAILED, Reason.NOT_FINITE, 30.0)
    assert trial.curve == ((1, {"score": 0.5}),)
    assert trial.error == "step 2 reported score=nan"


def test_a_stop_is_heard_while_proxies_are_computed() -> None:
    """The simulator waits for proxies, but a requested stop ends the wait, and the answer follows it."""
    hangs = threading.Event()

    class HangingPool(InProcessPool):
        def call(self, action: Action, subject: Trial | ProxyRequest) -> Mapping[str, Any]:
            hangs.wait(60)
            return {"values": [{"size": 1.0}], "error": None}

    problem, records = PaperProblem(), Records(open_root(f"memory://{uuid4().hex}"))
    pool = HangingPool(RuntimeSpec(problem=Spec.of(PaperProblem), url=records.files.url, options={}))
    executor = SimulatedExecutor(problem, records, pool=pool)
    executor.compute_proxies(ProxyRequest(number=0, seed=0, names=("size",), points=({},)))
    executor.post(StopRequested("enough"))
    first = executor.next_event(None)
    threading.Timer(0.3, executor.post, [StopRequested("really")]).start()
    second = executor.next_event(None)
    hangs.set()
    third = executor.next_event(None)

    assert (first, second) == (StopRequested("enough"), StopRequested("really"))
    assert isinstance(third, ProxiesComputed)
    assert list(third.values or ()) == [{"size": 1.0}]


def test_an_interrupted_search_continues() -> None:
    """Interrupted trials run again unchanged, without a second ask."""
    records = Records(open_root(f"memory://{uuid4().hex}"))
    search = Simulated(PaperProblem(), slots=4, budget=Budget(trials=12), records=records)
    search.executor.post(StopRequested("enough"))

    with pytest.raises(SearchInterruptedError):
        search.run()
    before, _ = records.load()
    after = Simulated(PaperProblem(), slots=4, budget=Budget(trials=12), records=records).run()

    assert any(not t.is_finished for t in before)
    assert [t.point for t in after[: len(before)]] == [t.point for t in before]
    assert all(t.state == State.COMPLETE for t in after)


@pytest.mark.parametrize("ends_by", ["deadline", "interrupt"])
def test_each_running_trial_is_stopped_once(monkeypatch: pytest.MonkeyPatch, ends_by: str) -> None:
    """At the deadline or after Ctrl-C no trial is stopped again at the end of each other one."""
    stopped: list[int] = []
    stop = SimulatedExecutor.stop

    def note(executor: SimulatedExecutor, subject: Trial, kind: StopKind) -> None:
        stopped.append(subject.number)
        stop(executor, subject, kind)

    monkeypatch.setattr(SimulatedExecutor, "stop", note)
    budget = Budget(hours=0.01) if ends_by == "deadline" else Budget(trials=100)
    search = Simulated(PaperProblem(), slots=100, budget=budget)
    if ends_by == "interrupt":
        search.executor.post(StopRequested("enough"))
    with suppress(SearchInterruptedError):
        search.run()

    assert sorted(stopped) == [*range(100)]


def test_the_clock_goes_on_in_the_next_session() -> None:
    """Trials of an extended search come after those of the session before."""
    records = Records(open_root(f"memory://{uuid4().hex}"))
    for n_trials in (3, 6):
        search = Simulated(PaperProblem(), budget=Budget(trials=n_trials), records=records)
        lease = SearchLease(records, now_s=search.executor.now_s)
        trials = search.run()
        lease.close()

    assert [trial.finished for trial in trials] == [60.0, 120.0, 180.0, 240.0, 300.0, 360.0]
    assert spent_hours(records) == 0.1


@pytest.mark.slow
def test_evolution_climbs_on_a_thousand_workers() -> None:
    """Asynchronous evolution with 1,000 slots finds better points than random search, in virtual minutes."""
    rng = random.Random(0)
    seconds = [rng.uniform(30.0, 90.0) for _ in range(4000)]

    def best(tuner: type) -> float:
        problem = PaperProblem(lambda trial: Simulation(seconds[trial.number], {"score": total(trial)}))
        trials = Simulated(problem, slots=1000, tuner=tuner, budget=Budget(trials=3000)).run()
        return sum(sorted(t.metrics["score"] for t in trials)[-100:]) / 100

    assert best(EvolutionTuner) > best(RandomTuner)


def test_problem_without_a_simulation_is_refused() -> None:
    """A problem that can only train is refused."""
    with pytest.raises(ConfigurationError, match="RealProblem has no `simulate`"):
        SimulatedExecutor(RealProblem(), Records(open_root("memory://none")))


@pytest.mark.parametrize("wrong", [{"loss_rate": 1.5}, {"straggling": -1}, {"start_up_s": "long"}])
def test_invalid_workers_are_refused(wrong: dict[str, Any]) -> None:
    """A rate above 1, a negative spread and a text are refused by name."""
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Workers(**wrong)
