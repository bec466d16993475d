"""New trials for FAILED ones (``retry=failed``)."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from nas.api.results import Results
from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.errors import ActionError, ConfigurationError, SearchFailedError
from nas.core.metric import Metric
from nas.core.policy import Policy
from nas.core.spec import Spec
from nas.core.supernet import epoch_of, is_epoch
from nas.core.trial import Proposal, Reason, State, Trial
from nas.executors.in_process_pool import InProcessPool
from nas.search.admission import not_repeated
from nas.search.definition import Search
from nas.search.finals import newest_best
from nas.spaces.parameters.space import Int, ParameterSpace
from nas.spaces.supernet import SupernetSpace
from nas.storage.lineage_checks import lineage_faults
from nas.storage.maintenance.inventory import read_inventory
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.job import Job
from nas.training.messages import PROGRAM
from nas.training.problem import Problem
from nas.training.trial_run import TrialRun
from nas.tuners.evolution import EvolutionTuner
from nas.tuners.pbt import PbtTuner
from nas.tuners.supernet import RspsTuner
from tests.support.problems import network


class Breakable(Problem):
    """Trains as long as the trial's number is not among the broken ones."""

    metrics = (Metric("score"),)
    space = ParameterSpace({"x": Int(0, 99)})
    policies = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})
    broken: ClassVar[set[int]] = set()
    trained: ClassVar[list[int]] = []

    def train(self, run: TrialRun) -> dict[str, float]:
        """Scores the point, and raises if the trial is broken."""
        self.trained.append(run.number)
        if run.number in self.broken:
            raise OSError("no data")
        run.inherit(net := network())
        run.save(net)
        return {"score": run.point.get("x", 0) / 100}


class Looping(Breakable):
    """The same with jobs of two trials."""

    def train_many(self, job: Job) -> None:
        """Trains the trials of a job."""
        for run in job.trials(2):
            run.finish(**self.train(run))


class Shared(Breakable):
    """The same with supernet epochs and subnets."""

    policies = Breakable.policies | {Policy.SKIP_TRAIN}
    space = SupernetSpace(Breakable.space)


class DataTested(Breakable):
    """The same with tests, which need data."""

    has_data: ClassVar[bool] = True
    tested: ClassVar[list[int]] = []

    def test(self, run: TrialRun) -> dict[str, float]:
        """Scores a finalist if the data are there."""
        self.tested.append(run.number)
        if not self.has_data:
            raise OSError("no test data")
        return {"score": 0.5}


TUNER = Spec.of(EvolutionTuner, population_size=3, sample_size=2)


class Sessions:
    """Sessions of one search under a root in memory."""

    def __init__(self) -> None:
        self.root = f"memory://retry/{uuid4().hex}"

    def run(self, n_trials: int, *broken: int, problem: type[Problem] = Breakable, **more: Any) -> Results:
        Breakable.broken = set(broken)
        Breakable.trained.clear()
        tuner, deterministic = more.pop("tuner", TUNER), more.pop("deterministic", False)
        search = Search(problem=Spec.of(problem), tuner=tuner, deterministic=deterministic)
        budget = Budget(jobs=n_trials) if more.pop("jobs", False) else Budget(trials=n_trials)
        finalists = more.pop("finalists", 2)
        return run_search(search, root=self.root, name="s", budget=budget, finalists=finalists, **more)

    @property
    def records(self) -> Records:
        return Records(open_root(self.root).subfolder("s"))


@pytest.fixture
def sessions() -> Iterator[Sessions]:
    yield Sessions()
    Breakable.broken = set()


def in_search(found: Results) -> list[Trial]:
    return sorted((t for t in found.lineage if t.stage == "search"), key=lambda t: t.number)


def test_failed_trials_run_again_as_new_ones(sessions: Sessions) -> None:
    """A retry has the point, parents, donors, policies, index and seed of the failed trial, which stays FAILED."""
    first = sessions.run(8, 1, 4, 6)
    before = [sessions.records.read(f"trials/{n:06d}.result.json") for n in (1, 4, 6)]
    found = sessions.run(8, retry="failed")
    retries = [t for t in in_search(found) if t.retry_of is not None]

    assert [t.retry_of for t in retries] == [1, 4, 6]
    assert {t.state for t in retries} == {State.COMPLETE}
    for trial in retries:
        failed = found.lineage[trial.retry_of or 0]
        assert failed.state == State.FAILED
        assert (trial.proposal, trial.policies, trial.index, trial.seed, trial.generation) == (
            failed.proposal, failed.policies, failed.index, failed.seed, failed.generation
        )  # fmt: skip
    assert [sessions.records.read(f"trials/{n:06d}.result.json") for n in (1, 4, 6)] == before
    assert not {t.number for t in first.lineage} & set(Breakable.trained)
    assert any(t.parents for t in retries)
    assert all(t.inherited for t in retries if t.resolved_donors)


def test_neither_budget_nor_tuner_counts_them(sessions: Sessions) -> None:
    """The budget of trials and the numbers of later proposals are those of a search without retries."""
    sessions.run(5, 0, 2)
    sessions.run(5, retry="failed")
    again = sessions.run(5)
    found = sessions.run(9)
    asked = [t for t in in_search(found) if t.retry_of is None]

    assert len(again.lineage) < len(found.lineage)
    assert [t.index for t in asked] == list(range(9))
    learned = [number for trial in in_search(found) for number in trial.learned]
    assert {t.number for t in in_search(found) if t.retry_of is not None} <= set(learned)
    assert len(learned) == len(set(learned))


def test_the_progress_expects_them_beside_the_budget(sessions: Sessions, capsys: pytest.CaptureFixture[str]) -> None:
    """In the session of the retries and in later ones the total is that of the budget, the retries and the finals."""
    sessions.run(3, 0, 2)
    for n_trials, retry in ((5, "failed"), (9, None)):
        n_finals = sum(trial.stage == "final" for trial in sessions.records.load()[0])
        sessions.run(n_trials, retry=retry, progress=True)
        totals = re.findall(r"^\[\d+/(\d+) done\]", capsys.readouterr().err, re.MULTILINE)

        assert int(totals[0]) == n_trials + 2 + max(2, n_finals)


def test_a_retry_that_fails_can_be_repeated(sessions: Sessions) -> None:
    """Each failed trial has one retry; another command repeats the retry."""
    sessions.run(3, 1, 2)
    n_trials = len(sessions.records.load()[0])
    sessions.run(3, n_trials, retry="failed")
    found = sessions.run(3, retry="failed")
    idle = sessions.run(3, retry="failed")

    chain = {t.retry_of: t.state for t in found.lineage if t.retry_of is not None}
    assert chain == {1: State.FAILED, 2: State.COMPLETE, n_trials: State.COMPLETE}
    assert len(idle.lineage) == len(found.lineage)
    assert Breakable.trained == []


def test_an_interrupted_retry_continues(sessions: Sessions) -> None:
    """Retries are durable before they run, so the next command runs them without the option."""
    sessions.run(4, 1, 3)
    n_trials = len(sessions.records.load()[0])
    Breakable.train, train = interrupt, Breakable.train  # type: ignore[method-assign]
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            sessions.run(4, retry="failed")
    finally:
        signal.signal(signal.SIGINT, handler)
        Breakable.train = train  # type: ignore[method-assign]
    found = sessions.run(4)

    assert {t.retry_of: t.state for t in found.lineage if t.retry_of is not None} == {
        1: State.COMPLETE, 3: State.COMPLETE
    }  # fmt: skip
    assert sorted(Breakable.trained)[:2] == [n_trials, n_trials + 1]


def interrupt(self: Breakable, run: TrialRun) -> dict[str, float]:
    raise KeyboardInterrupt


def test_failed_finals_and_searches_without_a_score(sessions: Sessions) -> None:
    """A failed final is trained again, and a search whose trials all failed gets its finals and its winner."""
    with pytest.raises(SearchFailedError):
        sessions.run(9, *range(9))  # max_failures
    n_failed = len(sessions.records.load()[0])
    final = 2 * n_failed + (9 - n_failed)
    lost = sessions.run(9, final, final + 1, retry="failed")
    found = sessions.run(9, retry="failed")

    assert {t.number: t.state for t in lost.lineage if t.stage == "final"} == {
        final: State.FAILED, final + 1: State.FAILED, final + 2: State.COMPLETE, final + 3: State.COMPLETE
    }  # fmt: skip
    finals = {t.number: t for t in found.lineage if t.stage == "final"}
    assert {t.retry_of: t.state for t in finals.values() if t.retry_of} == {
        final: State.COMPLETE, final + 1: State.COMPLETE
    }  # fmt: skip
    assert found.winner is not None
    assert found.winner.metrics["score"] == max(t.metrics["score"] for t in finals.values() if t.metrics)


def test_failed_tests_are_repeated(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry tests finalists again whose test failed, once each, and the newest winner's record has the score."""
    monkeypatch.setattr(DataTested, "has_data", False)
    monkeypatch.setattr(DataTested, "tested", [])
    run = partial(sessions.run, 4, problem=DataTested)
    failed = run().tests
    monkeypatch.setattr(DataTested, "has_data", True)
    kept, mended, idle = run().tests, run(retry="failed").tests, run(retry="failed").tests
    best = newest_best(sessions.records)

    assert [test["error"] for test in failed.values()] == 2 * ["DataTested.test raised OSError: no test data"]
    assert kept == failed
    assert {number: test["metrics"] for number, test in mended.items()} == {key: {"score": 0.5} for key in failed}
    assert idle == mended
    assert sorted(DataTested.tested) == sorted([*failed, *failed])
    assert best is not None
    assert (best["number"], best["test"]["metrics"]) == (2, {"score": 0.5})
    assert not read_inventory(sessions.records.files).damages


@pytest.mark.parametrize(
    "lack", [{"export": None, "files": [], "missing": {"export": "lost"}}, {"missing": {PROGRAM: "ValueError: no"}}]
)
def test_a_failed_export_is_repeated(sessions: Sessions, lack: dict[str, Any]) -> None:
    """A retry exports the winner again whose export failed or raised; other calls show it."""
    sessions.run(4)
    best = newest_best(sessions.records)
    assert best is not None
    failed = best | {"number": 2} | lack
    sessions.records.publish("best-0002.json", failed)
    sessions.run(4)
    shown = newest_best(sessions.records)
    sessions.run(4, retry="failed")
    repeated = newest_best(sessions.records)

    assert shown == failed
    assert repeated is not None
    assert (repeated["number"], repeated["missing"]) == (3, best["missing"])
    assert not read_inventory(sessions.records.files).damages


def test_finals_after_a_retry_count_without_it(sessions: Sessions) -> None:
    """A final proposed after the retry of another one has the next index, so the records are in order."""
    sessions.run(6, 7)
    sessions.run(6, retry="failed")
    found = sessions.run(6, finalists=4)
    finals = sorted((t for t in found.lineage if t.stage == "final"), key=lambda t: t.number)

    assert [t.index for t in finals if t.retry_of is None] == list(range(len(finals) - 1))
    assert [t.retry_of for t in finals if t.retry_of is not None] == [7]
    assert len({t.seed for t in finals if t.retry_of is None}) == len(finals) - 1
    assert not read_inventory(sessions.records.files).damages


def test_finalist_with_a_retry_counts(sessions: Sessions) -> None:
    """A finalist whose final succeeded in a retry is one of the finalists, so no other is trained in its place."""
    sessions.run(6, 6)  # the first final fails, so the third best trial is trained
    sessions.run(6, retry="failed")
    found = sessions.run(6, finalists=3)

    assert [t.state for t in found.lineage if t.stage == "final"].count(State.COMPLETE) == 3


def test_supernet_epochs_that_the_tuner_repeated_are_left_out(sessions: Sessions) -> None:
    """Only the newest trial of an epoch is retried: a later one would put the shared weights back to that epoch."""
    tuner = Spec.of(RspsTuner, n_epochs=3, warm_up_epochs=2, subnets_per_epoch=2)
    run = partial(sessions.run, problem=Shared, tuner=tuner)
    run(3, 1, 2)
    run(8, retry="failed")
    epochs = [trial for trial in in_search(run(10, retry="failed")) if is_epoch(trial)]

    assert [epoch_of(trial.point) for trial in epochs] == [0, 1, 1, 1, 2]
    assert [trial.retry_of for trial in epochs] == [None, None, None, 2, None]


def test_retries_of_subnets_change_no_later_proposal(sessions: Sessions) -> None:
    """Neither the numbers of the inner tuner nor ``subnets_per_epoch`` count them."""
    tuner = Spec.of(RspsTuner, n_epochs=2, warm_up_epochs=1, subnets_per_epoch=4, n_rescored=0)
    undisturbed = in_search(Sessions().run(8, problem=Shared, tuner=tuner))
    sessions.run(3, 1, 2, problem=Shared, tuner=tuner)
    found = in_search(sessions.run(8, problem=Shared, tuner=tuner, retry="failed"))

    assert [trial.retry_of for trial in found if trial.retry_of is not None] == [1, 2]
    assert [trial.point for trial in found if trial.retry_of is None] == [trial.point for trial in undisturbed]


def test_failed_export_does_not_replace_an_earlier_one(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry whose export fails keeps the files of the export before."""
    sessions.run(4)
    best = newest_best(sessions.records)
    assert best is not None
    sessions.records.publish("best-0002.json", best | {"number": 2, "missing": {PROGRAM: "ValueError: no"}})

    def export(*_: object) -> None:
        raise ActionError("export of trial 4: its worker was killed by SIGKILL, in each of 3 tries")

    monkeypatch.setattr(InProcessPool, "call", export)
    sessions.run(4, retry="failed")
    repeated = newest_best(sessions.records)

    assert repeated is not None
    assert (repeated["number"], repeated["files"]) == (3, best["files"])


def test_finals_that_the_search_repeated_are_left_out() -> None:
    """A final killed at the deadline, and a trial of ``more_epochs``, were repeated by the same command."""
    search = Trial(number=0, index=0, proposal=Proposal(point={}), state=State.COMPLETE)
    retrained = replace(search, number=1, stage="final", proposal=Proposal(point={}, parents=(0,)))
    killed = replace(retrained, state=State.FAILED, reason=Reason.DEADLINE)
    full = replace(retrained, number=2, index=1)
    longer = replace(retrained, number=3, more_epochs=5, state=State.FAILED)
    repeated = replace(longer, number=4, state=State.COMPLETE)

    assert not_repeated([search, killed]) == [killed]
    assert not not_repeated([search, killed, full])
    assert not_repeated([search, killed, full, longer]) == [longer]
    assert not not_repeated([search, killed, full, longer, repeated])


def test_retry_of_an_earlier_interval_is_left_behind(sessions: Sessions) -> None:
    """A member of pbt goes on from its newest interval, and a retry counts as no interval."""
    run = partial(sessions.run, tuner=Spec.of(PbtTuner, population_size=2, fraction=0))
    run(6, 2)
    found = in_search(run(8, retry="failed"))
    *_, retry, first, second = found

    assert (retry.retry_of, retry.state, retry.parents) == (2, State.COMPLETE, (0,))
    assert [trial.proposal.derivation for trial in (first, second)] == [
        {"member": member, "interval": 3} for member in range(2)
    ]
    assert [trial.parents for trial in (first, second)] == [(4,), (5,)]


def test_in_jobs_that_request_trials_a_retry_is_a_job_of_its_own(sessions: Sessions) -> None:
    """A retry takes no other trial into its job, and counts as no job of the budget."""
    sessions.run(3, 1, 2, problem=Looping, jobs=True)
    found = sessions.run(3, problem=Looping, jobs=True, retry="failed")
    extended = sessions.run(4, problem=Looping, jobs=True)

    retries = [t for t in found.lineage if t.retry_of is not None]
    assert [t.state for t in retries] == [State.COMPLETE] * 2
    assert [t.job for t in retries] == [t.number for t in retries]
    jobs = {t.job for t in in_search(extended) if t.retry_of is None}
    assert len(jobs) == 4


def test_a_deterministic_search_refuses(sessions: Sessions) -> None:
    """A retry would change the table, so it does not go with ``deterministic=true``."""
    for is_begun in (False, True):
        with pytest.raises(ConfigurationError, match="retry=failed: must not be given with deterministic=true"):
            sessions.run(2, deterministic=True, retry="failed")
        assert (sessions.records.header() is not None) == is_begun
        sessions.run(2, 1, deterministic=True)


@pytest.mark.parametrize("options", [{"retry": "lost"}, {"budget": Budget(gpu_hours=1.0)}, {"finalists": 0}])
def test_invalid_options_begin_no_search(sessions: Sessions, options: dict[str, Any]) -> None:
    """Nothing is written before all options are checked."""
    search = Search(problem=Spec.of(Breakable), tuner=TUNER)

    with pytest.raises(ConfigurationError):
        run_search(search, root=sessions.root, name="s", **options)
    assert sessions.records.header() is None


@pytest.mark.parametrize("changes", [{"retry_of": 1}, {"index": 1}, {"learned": (0,)}, {"retry_of": 5}])
def test_records_that_contradict_one_another_are_refused(changes: dict[str, Any]) -> None:
    """A retry names an earlier trial, has its index, and learned nothing."""
    first = Trial(number=0, index=0, proposal=Proposal(point={"x": 1})).fail(Reason.EXCEPTION, "why")
    fields = {"number": 1, "index": 0, "proposal": first.proposal, "retry_of": 0, **changes}

    right = Trial(**{**fields, "retry_of": 0, "index": 0, "learned": ()})
    assert not list(lineage_faults([first, right], ["search"]))
    (fault,) = lineage_faults([first, Trial(**fields)], ["search"])
    assert fault.path == "trials/000001.proposal.json"
