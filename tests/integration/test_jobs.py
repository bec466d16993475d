"""Jobs that run several trials: assignments, results of each trial, and whole searches."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nas import Ability, Budget, Int, Metric, ParameterSpace, Problem, Proposal, Search, Tuner, run_search
from nas.core.errors import ConfigurationError, SearchInterruptedError, StorageError, TrialStopped
from nas.core.lineage import Lineage
from nas.core.policy import Policy, Stage
from nas.core.spec import Spec
from nas.core.trial import Reason, State, Trial
from nas.executors.events import Event, JobLeftWorker, StopRequested, TrialRequested
from nas.executors.in_process_pool import InProcessPool, _JobThread
from nas.executors.local_executor import LocalExecutor
from nas.search.controller import ControllerSettings, SearchController
from nas.search.job_plan import JobPlan
from nas.stoppers.base import Stopper
from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.trial_log import TrialLog, log_path
from nas.training.job import Job
from nas.training.messages import Assignment, RuntimeSpec
from nas.training.trial_run import TrialRun
from nas.tuners.base import STOP, WAIT, Answer

Code = Callable[[Job], None]
SPACE = ParameterSpace({"x": Int(0, 10_000)})


class ManyProblem(Problem):
    """Runs the test's code in ``train_many``."""

    metrics = (Metric("score"),)
    policies = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})
    space = SPACE
    code: Code

    def train_many(self, job: Job) -> None:
        type(self).code(job)


class PlainProblem(Problem):
    """Scores each point with its ``x``; trial 1 raises."""

    metrics = (Metric("score"),)
    policies = frozenset({Policy.SHARE_PARAMS})
    space = SPACE

    def train(self, run: TrialRun) -> dict[str, float]:
        if run.number == 1:
            raise RuntimeError("as the test wants")
        return {"score": run.point["x"]}


class MixedProblem(PlainProblem):
    """Calls a method of ``train_many`` in ``train``."""

    def train(self, run: TrialRun) -> dict[str, float]:
        run.finish(score=1.0)
        return {"score": 2.0}


class EmptyProblem(Problem):
    """Trains nothing."""

    metrics = (Metric("score"),)
    space = SPACE


class CountingTuner(Tuner):
    """Proposes 0, 1, 2, ..., or the answers of ``script``. Records the job of each ask."""

    script: Callable[[Lineage, int, int], Proposal | Answer | None] = staticmethod(lambda lineage, number, job: None)
    asked: list[tuple[int, int]]

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        type(self).asked.append((number, job))
        return type(self).script(lineage, number, job) or Proposal(point={"x": number})


class HighStopper(Stopper):
    """Stops a trial that reports more than 10."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        return trial.curve[-1][1]["score"] > 10


@dataclass
class Driver:
    """Runs the controller of one search over ``train_many``, session by session."""

    root: Path
    code: Code
    trials_per_job: int | None = None
    slots: int = 1
    deterministic: bool = False
    events: list[Event] = field(default_factory=list)
    interrupt_after: int | None = None
    problem: type[Problem] = ManyProblem
    stopper: Stopper | None = None

    @property
    def records(self) -> Records:
        return Records(open_root(str(self.root)))

    def run(self, n_trials: int = 6, *, interrupt_after: int | None = None) -> list[Trial]:
        """Runs one session. Returns the recorded trials after it."""
        ManyProblem.code = staticmethod(self.code)
        CountingTuner.asked = []
        problem = self.problem()
        files = open_root(str(self.root))
        plan = JobPlan(trials_per_job=self.trials_per_job, loops=Ability.TRAIN_MANY in problem.abilities)
        spec = RuntimeSpec(
            problem=Spec.of(self.problem),
            url=files.url,
            options={},
            jobs_request_trials=plan.requests_trials,
            has_stopper=self.stopper is not None,
        )
        executor = LocalExecutor(InProcessPool(spec, files, problem), self.slots)

        def observe(event: Event) -> None:
            self.events.append(event)
            if interrupt_after is not None and len(self.records.ended_jobs()) + self.n_finished() >= interrupt_after:
                executor.post(StopRequested("the test says so"))

        trials, starts = self.records.load()
        settings = ControllerSettings(budget=Budget(trials=n_trials), jobs=plan, deterministic=self.deterministic)
        controller = SearchController(
            self.records,
            executor,
            settings,
            trials=trials,
            starts=starts,
            tuner=CountingTuner(SPACE, problem.metrics),
            space=SPACE,
            stopper=self.stopper,
            observe=observe,
        )
        try:
            controller.search(Stage(name="search", policies=frozenset({Policy.SHARE_PARAMS})))
        except SearchInterruptedError:
            assert interrupt_after is not None
        finally:
            executor.close()
        return self.records.load()[0]

    def n_finished(self) -> int:
        return sum(trial.is_finished for trial in self.records.load()[0])


@pytest.fixture(autouse=True)
def _plain_script() -> Iterator[None]:
    CountingTuner.asked = []
    yield
    CountingTuner.script = staticmethod(lambda lineage, number, job: None)


def score_all(job: Job) -> None:
    for run in job.trials():
        run.finish(score=run.point["x"])


def error_of(driver: Driver) -> BaseException | None:
    """Returns the error that ends a search; fails if the search hangs."""
    ended: Future[object] = Future()

    def search() -> None:
        try:
            ended.set_result(driver.run())
        except Exception as error:
            ended.set_exception(error)

    threading.Thread(target=search, daemon=True).start()
    return ended.exception(60)


class TestTrials:
    def test_one_job_runs_all(self, tmp_path: Path) -> None:
        """A job that always asks runs the whole budget, each trial with its own record, and then ends."""
        ended: list[int] = []

        def code(job: Job) -> None:
            score_all(job)
            ended.append(job.n_finished)

        trials = Driver(tmp_path, code).run()

        assert [t.job for t in trials] == [0] * 6
        assert [t.state for t in trials] == [State.COMPLETE] * 6
        assert [t.metrics for t in trials] == [{"score": float(n)} for n in range(6)]
        assert CountingTuner.asked == [(n, 0) for n in range(6)]
        assert ended == [6]

    @pytest.mark.parametrize("leaves", [False, True])
    def test_an_error_of_storage_that_the_code_hides(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: bool
    ) -> None:
        """It ends the search, whether the code asks for the next trial or leaves the job."""

        def code(job: Job) -> None:
            for run in job.trials():
                with suppress(StorageError):
                    run.finish(score=1.0)
                if leaves:
                    return

        def fail(records: Records, trial: Trial) -> Trial:
            raise StorageError("the disk is full")

        monkeypatch.setattr(Records, "commit", fail)

        assert repr(error_of(Driver(tmp_path, code))) == "StorageError('the disk is full')"

    @pytest.mark.parametrize("name", ["000000.log", "000000.job.log"])
    def test_a_log_that_can_not_be_stored(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        """It ends the search, be it the log of a trial or that of what the job does after it."""

        def fail(log: TrialLog, files: BlobStore, path: str) -> None:
            if path.endswith(name):
                raise StorageError("the disk is full")

        monkeypatch.setattr(TrialLog, "put", fail)

        assert repr(error_of(Driver(tmp_path, score_all))) == "StorageError('the disk is full')"

    def test_jobs_that_have_left_are_forgotten(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The driver's process keeps nothing of their threads, however many jobs a search has."""
        threads: list[weakref.ref[_JobThread]] = []
        n_known: list[int] = []
        start = _JobThread.start

        def remember(job: _JobThread) -> None:
            threads.append(weakref.ref(job))
            start(job)

        def code(job: Job) -> None:
            gc.collect()
            n_known.append(sum(thread() is not None for thread in threads))
            score_all(job)

        monkeypatch.setattr(_JobThread, "start", remember)
        trials = Driver(tmp_path, code, trials_per_job=1).run(8)

        assert [trial.job for trial in trials] == [*range(8)]
        assert n_known[-1] <= 3  # the last one that left may still be ending

    def test_tuner_is_told_the_job_from_the_first_trial_on(self, tmp_path: Path) -> None:
        """A job that leaves after two trials makes room for the next, and the tuner gets that one's id at once."""

        def code(job: Job) -> None:
            for run in job.trials():
                run.finish(score=1.0)
                if job.n_finished == 2:
                    return

        trials = Driver(tmp_path, code).run(5)

        assert CountingTuner.asked == [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4)]
        assert [t.job for t in trials] == [0, 0, 2, 2, 4]

    def test_limit(self, tmp_path: Path) -> None:
        """No job gets more trials than ``trials_per_job``."""
        trials = Driver(tmp_path, score_all, trials_per_job=3).run(7)

        assert [t.job for t in trials] == [0, 0, 0, 3, 3, 3, 6]

    def test_plain_problem(self, tmp_path: Path) -> None:
        """``train`` runs trial after trial in one job; a failure ends its trial only."""
        trials = Driver(tmp_path, score_all, trials_per_job=4, problem=PlainProblem).run(6)

        assert [t.job for t in trials] == [0, 0, 0, 0, 4, 4]
        assert [t.state for t in trials] == [State.COMPLETE, State.FAILED, *[State.COMPLETE] * 4]
        assert "as the test wants" in (trials[1].error or "")

    def test_children_inherit_within_a_job(self, tmp_path: Path) -> None:
        """A phase inherits the published weights of the phase before."""
        import torch
        from torch import nn

        def code(job: Job) -> None:
            for run in job.trials():
                network = nn.Linear(2, 1)
                run.inherit(network)
                with torch.no_grad():
                    network.bias += 1.0
                run.save(network)
                run.finish(score=network.bias.item())

        CountingTuner.script = staticmethod(
            lambda lineage, number, job: Proposal(point={"x": number}, parents=(number - 1,) if number else ())
        )
        trials = Driver(tmp_path, code).run(4)

        scores = [t.metrics["score"] for t in trials]
        assert [later - earlier for earlier, later in itertools.pairwise(scores)] == pytest.approx([1.0] * 3)
        assert [t.inherited for t in trials[1:]] == [1.0] * 3
        assert [t.donor for t in trials] == [None, 0, 1, 2]

    def test_output_is_in_its_trials_log(self, tmp_path: Path) -> None:
        """Each trial has its own log; output after the last trial is in the job's log."""

        def code(job: Job) -> None:
            for run in job.trials():
                print(f"in {run.number}")
                run.finish(score=1.0)
                print(f"after {run.number}")

        driver = Driver(tmp_path, code)
        driver.run(2)

        read = driver.records.files.read_if_present
        assert read(log_path(0)) == b"in 0\n"
        assert read(log_path(1)) == b"after 0\nin 1\n"
        assert read(log_path(0, "job")) == b"after 1\n"


class TestRules:
    def test_next_without_finish_is_abandoned(self, tmp_path: Path) -> None:
        """A trial without a result is FAILED(abandoned), and its reports do not count for the next."""

        def code(job: Job) -> None:
            for run in job.trials():
                run.report(1, score=100.0 + run.number)
                if run.number != 1:
                    run.finish(score=1.0)

        trials = Driver(tmp_path, code).run(3)

        assert [t.state for t in trials] == [State.COMPLETE, State.FAILED, State.COMPLETE]
        assert trials[1].reason == Reason.ABANDONED
        assert "run.finish" in (trials[1].error or "")
        assert [t.curve[0][1]["score"] for t in trials] == [100.0, 101.0, 102.0]

    def test_leaving_with_an_open_trial_abandons_it(self, tmp_path: Path) -> None:
        """A job that ends within a trial, or before its first, abandons that trial."""
        trials = Driver(tmp_path, lambda job: None).run(3)

        assert [(t.state, t.reason) for t in trials] == [(State.FAILED, Reason.ABANDONED)] * 3
        assert [t.job for t in trials] == [0, 1, 2]

    def test_first_result_counts(self, tmp_path: Path) -> None:
        """A second ``finish`` changes nothing, and is recorded as a note."""

        def code(job: Job) -> None:
            for run in job.trials():
                run.finish(score=1.0)
                run.finish(score=2.0)

        driver = Driver(tmp_path, code)
        trials = driver.run(2)

        assert [t.metrics for t in trials] == [{"score": 1.0}] * 2
        assert driver.records.files.read_if_present(log_path(0, "extra_results")) == b"{'score': 2.0}\n"

    @pytest.mark.parametrize("what", ["report", "save", "inherit", "save_resume_point"])
    def test_calls_after_the_result_are_refused(self, tmp_path: Path, what: str) -> None:
        """A call after the result is refused by name, and ends the job."""
        from torch import nn

        def code(job: Job) -> None:
            for run in job.trials():
                run.finish(score=1.0)
                if run.number == 0:
                    given = {"report": (1,), "save_resume_point": (1, nn.Linear(1, 1))}.get(what, (nn.Linear(1, 1),))
                    getattr(run, what)(*given)

        driver = Driver(tmp_path, code)
        trials = driver.run(3)

        assert [t.state for t in trials] == [State.COMPLETE] * 3
        assert [t.job for t in trials] == [0, 1, 1]
        [left] = [event for event in driver.events if isinstance(event, JobLeftWorker) and event.error]
        assert f"run.{what}: trial 0 has its result already" in (left.error or "")
        assert what in (driver.records.read("jobs/000000.json") or {})["error"]

    def test_finish_belongs_to_train_many(self, tmp_path: Path) -> None:
        """``train`` must return its scores, and can't call ``finish``."""
        search = Search(problem=Spec.of(MixedProblem), tuner=Spec("nas.tuners.random.RandomTuner"))
        summary = run_search(search, root=str(tmp_path), budget=Budget(trials=1), finalists=1)

        assert "must be called in `train_many(job)`" in (next(iter(summary.lineage)).error or "")

    def test_missing_and_infinite_scores_fail_the_trial(self, tmp_path: Path) -> None:
        """A phase without its metric is FAILED, and the job continues."""

        def code(job: Job) -> None:
            for run in job.trials():
                scores = [{}, {"score": float("nan")}, {"score": 0.0}][run.number]
                run.finish(**scores)

        trials = Driver(tmp_path, code).run(3)

        assert [t.reason for t in trials] == [Reason.NO_METRIC, Reason.NOT_FINITE, None]
        assert trials[0].error == (
            "run.finish received {}, without score. Call run.finish(score=value), or declare other metrics"
        )
        assert trials[1].error == "run.finish received score=nan"
        assert trials[2].metrics == {"score": 0.0}
        assert {t.job for t in trials} == {0}

    def test_exception_ends_its_trial_and_the_job(self, tmp_path: Path) -> None:
        """After an exception the next trial begins a new job."""

        def code(job: Job) -> None:
            for run in job.trials():
                if run.number == 1:
                    raise RuntimeError("as the test wants")
                run.finish(score=1.0)

        trials = Driver(tmp_path, code).run(4)

        assert [t.state for t in trials] == [State.COMPLETE, State.FAILED, State.COMPLETE, State.COMPLETE]
        assert "as the test wants" in (trials[1].error or "")
        assert [t.job for t in trials] == [0, 0, 2, 2]

    def test_stopped_trial_and_its_job(self, tmp_path: Path) -> None:
        """A caught stop ends the trial; one that is raised ends the job, too."""

        def code(job: Job) -> None:
            for run in job.trials():
                try:
                    run.report(1, score=20.0 if run.number in (0, 2) else 1.0)
                except TrialStopped:
                    if run.number == 2:
                        raise
                    continue
                run.finish(score=5.0)

        trials = Driver(tmp_path, code, stopper=HighStopper((Metric("score"),))).run(5)

        assert [t.state for t in trials] == [State.STOPPED, State.COMPLETE, State.STOPPED, *[State.COMPLETE] * 2]
        assert trials[0].metrics == {"score": 20.0}
        assert [t.job for t in trials] == [0, 0, 0, 3, 3]


class TestAsking:
    def test_stop_ends_the_job(self, tmp_path: Path) -> None:
        """STOP from the tuner ends every waiting job."""
        ended: list[int] = []

        def code(job: Job) -> None:
            score_all(job)
            ended.append(job.number)

        CountingTuner.script = staticmethod(lambda lineage, number, job: STOP if number == 3 else None)
        trials = Driver(tmp_path, code, slots=2).run(10)

        assert len(trials) == 3
        assert sorted(ended) == [0, 1]

    def test_wait_is_asked_again(self, tmp_path: Path) -> None:
        """A job waits while the tuner answers WAIT, and gets its trial after another's result."""

        def script(lineage: Lineage, number: int, job: int) -> Answer | None:
            return WAIT if number == 2 and sum(t.is_finished for t in lineage) < 2 else None

        CountingTuner.script = staticmethod(script)
        trials = Driver(tmp_path, score_all, slots=2).run(4)

        assert [t.state for t in trials] == [State.COMPLETE] * 4
        assert {t.job for t in trials} == {0, 1}

    def test_parents_that_run_elsewhere(self, tmp_path: Path) -> None:
        """Jobs that wait for trials of one another do not deadlock, with any number of slots."""

        def script(lineage: Lineage, number: int, job: int) -> Proposal:
            pending = [t.number for t in lineage if not t.is_finished]
            return Proposal(point={"x": number}, parents=tuple(pending[-1:]))

        CountingTuner.script = staticmethod(script)
        for slots in (1, 2, 4):
            trials = Driver(tmp_path / str(slots), score_all, slots=slots).run(12)

            assert [t.state for t in trials] == [State.COMPLETE] * 12
            for trial in trials:
                for parent in trial.parents:
                    assert (trials[parent].finished or 0) <= (trial.started or 0)

    @pytest.mark.parametrize("slots", [2, 3])
    def test_a_job_has_one_pending_trial(self, tmp_path: Path, slots: int) -> None:
        """No job is asked for while a trial of its own is pending, nor runs on two slots."""

        def script(lineage: Lineage, number: int, job: int) -> Proposal:
            asked.append((job, [t.number for t in lineage.pending if t.job == job]))
            running = [t.number for t in lineage.pending if t.state == State.RUNNING]
            parents = [*(t.number for t in lineage.pending[-1:]), *running][-1:]
            return Proposal(point={"x": number}, parents=tuple(parents))

        def code(job: Job) -> None:
            for run in job.trials():
                time.sleep(0.02)
                run.finish(score=run.point["x"])

        asked: list[tuple[int, list[int]]] = []
        CountingTuner.script = staticmethod(script)
        trials = Driver(tmp_path, code, slots=slots, trials_per_job=4).run(40)

        assert [t.state for t in trials] == [State.COMPLETE] * 40
        assert [(job, to_come) for job, to_come in asked if to_come] == []
        assert max(Counter(t.job for t in trials).values()) <= 4

    @pytest.mark.parametrize("slots", [2, 3])
    def test_deterministic(self, tmp_path: Path, slots: int) -> None:
        """With ``deterministic``, each slot has one job, whatever the speeds."""
        trials = Driver(tmp_path, score_all, slots=slots, deterministic=True).run(9)

        assert [t.job for t in trials] == [n % slots for n in range(9)]


class TestSessions:
    def test_running_job_starts_again(self, tmp_path: Path) -> None:
        """A job whose session ended between two trials keeps its id and its number of finished trials."""
        stays: list[tuple[int, int]] = []

        def code(job: Job) -> None:
            stays.append((job.number, job.n_finished))
            score_all(job)

        driver = Driver(tmp_path, code)
        driver.run(3)
        trials = driver.run(5)

        assert [t.job for t in trials] == [0] * 5
        assert stays == [(0, 0), (0, 3)]

    def test_job_that_left_does_not_come_back(self, tmp_path: Path) -> None:
        """A job that left by itself is recorded; a larger budget begins another job."""

        def code(job: Job) -> None:
            for run in job.trials():
                run.finish(score=1.0)
                if job.n_finished == 3:
                    return

        driver = Driver(tmp_path, code)
        driver.run(3)
        trials = driver.run(5)

        assert driver.records.ended_jobs() == {0}
        assert [t.job for t in trials] == [0, 0, 0, 3, 3]

    def test_interrupted_trial_is_yielded_first(self, tmp_path: Path) -> None:
        """An interrupted trial keeps its job, and runs first, as attempt 2."""
        seen: list[tuple[int, int, int]] = []

        def code(job: Job) -> None:
            for run in job.trials():
                seen.append((job.number, job.n_finished, run.number))
                for step in range(200):
                    if run.number == 2 and len(seen) == 3:
                        run.report(step, score=0.0)
                run.finish(score=1.0)

        driver = Driver(tmp_path, code)
        trials = driver.run(5, interrupt_after=2)
        n_before = sum(t.is_finished for t in trials)
        trials = driver.run(5)

        assert n_before in (2, 3)
        assert [t.state for t in trials] == [State.COMPLETE] * 5
        assert {t.job for t in trials} == {0}
        assert [t.attempt for t in trials][:2] == [1, 1]
        assert seen[-1] == (0, 4, 4)

    def test_a_trial_that_comes_as_its_job_leaves(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is interrupted if the session has ended; a thread would wait for its result forever."""
        asked, left = threading.Event(), threading.Event()

        class Jobs(dict[int, _JobThread]):
            """Ends the session between the look for a job and the answer to it."""

            def get(self, job: int, default: None = None) -> _JobThread | None:
                if (found := super().get(job, default)) is not None:
                    pool.close()
                    assert left.wait(60)
                return found

        def post(event: Event) -> None:
            if isinstance(event, TrialRequested):
                asked.set()
            if isinstance(event, JobLeftWorker):
                left.set()

        ManyProblem.code = staticmethod(score_all)
        files = open_root(str(tmp_path))
        spec = RuntimeSpec(problem=Spec.of(ManyProblem), url=files.url, options={}, jobs_request_trials=True)
        pool = InProcessPool(spec, files, ManyProblem())
        monkeypatch.setattr(pool, "_jobs", Jobs())
        first, second = (Trial(number=n, index=n, proposal=Proposal(point={"x": n}), job=0, attempt=1) for n in (0, 1))
        Records(files).propose(first)
        assert pool.run(Assignment(first, is_last=False), post)
        assert asked.wait(60)
        results: list[Trial | None] = []
        thread = threading.Thread(target=lambda: results.append(pool.run(Assignment(second), post)), daemon=True)
        thread.start()
        thread.join(60)

        assert left.is_set()
        assert results == [None]

    def test_same_table_with_interruptions(self, tmp_path: Path) -> None:
        """With ``deterministic``, interruptions at any moment do not change the table."""

        def code(job: Job) -> None:
            for run in job.trials(most=3):
                run.report(1, score=0.0)
                run.finish(score=run.point["x"] + 0.5)

        def table(trials: list[Trial]) -> list[tuple[object, ...]]:
            return [(t.number, t.job, t.point["x"], t.state, t.metrics, t.learned) for t in trials]

        whole = Driver(tmp_path / "whole", code, slots=2, deterministic=True).run(11)
        broken = Driver(tmp_path / "broken", code, slots=2, deterministic=True)
        for n in range(1, 11):
            broken.run(11, interrupt_after=n)
        assert table(broken.run(11)) == table(whole)


class TestMistakes:
    @pytest.mark.parametrize("most", [0, -1, 1.5, "many", True])
    def test_trials_per_job(self, most: object) -> None:
        """An invalid limit is refused with the allowed values."""
        search = Search(problem=Spec.of(PlainProblem), tuner=Spec("nas.tuners.random.RandomTuner"), trials_per_job=most)  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match=r"job\.trials_per_job=.*: must be .* or unlimited"):
            search.build()

    def test_problem_without_code(self) -> None:
        """A problem must define ``train`` or ``train_many``."""
        search = Search(problem=Spec.of(EmptyProblem), tuner=Spec("nas.tuners.random.RandomTuner"))
        with pytest.raises(ConfigurationError, match=r"must define `train\(run\)` or `train_many\(job\)`"):
            search.build()


def test_whole_search(tmp_path: Path) -> None:
    """``run_search`` runs jobs, then trains each finalist as a job of its own."""
    ManyProblem.code = staticmethod(score_all)
    search = Search(problem=Spec.of(ManyProblem), tuner=Spec("nas.tuners.random.RandomTuner"))

    summary = run_search(search, root=str(tmp_path), budget=Budget(trials=4), finalists=2, name="many")

    trials = sorted(summary.lineage, key=lambda t: t.number)
    assert [t.job for t in trials] == [0, 0, 0, 0, 4, 5]
    assert summary.winner is not None
