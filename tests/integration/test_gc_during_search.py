"""Collections between decisions change no trial's donors, and donors without weights are replaced."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nas.core.budget import Budget
from nas.core.errors import SearchInterruptedError
from nas.core.lineage import Lineage, restore_log
from nas.core.trial import Proposal, Reason, State, Trial
from nas.executors.events import Event, WeightsDeleted
from nas.search.controller import ControllerSettings, OnMissingWeights
from nas.storage.maintenance.gc.collector import CollectorSettings, GarbageCollector
from nas.storage.maintenance.gc.retention import Retention
from nas.storage.records import Records
from nas.tuners.base import Answer, Tuner, inheritable
from nas.tuners.evolution import EvolutionTuner
from nas.tuners.random import RandomTuner
from tests.support.scripted_executor import (
    COMPLETE,
    FAILED,
    FINAL,
    LOST,
    METRIC,
    SEARCH,
    SPACE,
    End,
    ListTuner,
    ScriptedExecutor,
    forget_all_records,
    fresh_records,
    make_controller,
)
from tests.support.stored_trials import trial

BARE = End(has_weights=False)


@pytest.fixture(autouse=True)
def clean_memory() -> Iterator[None]:
    yield
    forget_all_records()


@pytest.fixture
def records() -> Records:
    return fresh_records()


class WindowTuner(Tuner):
    """Names parents and other donors among the last few learned and the running trials."""

    def __init__(self, *, window: int, only_scored: bool) -> None:
        super().__init__(SPACE, (METRIC,))
        self.window = window
        self.only_scored = only_scored

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        learned = [t.number for t in lineage.newest() if not self.only_scored or t.value(METRIC.name) is not None]
        return [*learned[: self.window], *(trial.number for trial in lineage.pending)]

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        rng, may = self.rng(number), self.may_inherit_from(lineage)
        point = {"x": rng.randrange(1_000_000)}
        if not may or rng.random() < 0.2:
            return Proposal(point=point)
        donors = None if rng.random() < 0.5 else tuple(rng.sample(sorted(may), min(len(may), rng.randint(1, 2))))
        return Proposal(point=point, parents=(rng.choice(sorted(may)),), donors=donors)


def collector(records: Records, slots: int, keep: str = "all", **chosen: Any) -> GarbageCollector:
    """Returns a collector whose budget is always exceeded: at every result it deletes all unneeded weights."""
    defaults: dict[str, Any] = {"finalists": lambda t: (), "other_searches": lambda: (), "uses_ancestors": True}
    collector_settings = CollectorSettings(metrics=(METRIC,), slots=slots, **{**defaults, **chosen})
    return GarbageCollector(records, Retention(keep, max_gb=1e-9), collector_settings)


def run(
    records: Records,
    tuner: Tuner,
    *,
    collects: bool,
    slots: int = 1,
    stops: Sequence[int] = (),
    ends: dict[int, list[End]] | None = None,
    pick: Callable[[Sequence[Trial]], int] = lambda running: 0,
    **chosen: Any,
) -> dict[int, list[int | str]]:
    """Returns each trial's donors, in a search that is stopped and resumed after these numbers of results."""
    donors: dict[int, list[int | str]] = {}
    wanted = ControllerSettings(budget=Budget(trials=16), max_failures=99, **chosen)
    for session, stop_after in enumerate([*stops, None], 1):
        executor = ScriptedExecutor(records, slots, ends=ends, pick=pick, stop_after=stop_after, session=session)
        ends = {number: listed for number, listed in (ends or {}).items() if LOST not in listed}  # one loss, not two
        mine = collector(records, slots) if collects else None
        controller = make_controller(records, executor, tuner, settings=wanted, collector=mine)
        with suppress(SearchInterruptedError):
            controller.search(SEARCH)
        for number, given_to in executor.donors.items():
            assert donors.setdefault(number, given_to) == given_to
    return donors


ENDS = st.dictionaries(st.integers(0, 15), st.sampled_from([FAILED, BARE, LOST, COMPLETE]), max_size=10)


class TestDeterministic:
    @settings(max_examples=40)
    @given(
        picks=st.lists(st.integers(0, 5), min_size=1, max_size=8),
        slots=st.integers(1, 4),
        window=st.integers(1, 4),
        only_scored=st.booleans(),
        stops=st.lists(st.integers(0, 6), max_size=3),
        ends=ENDS,
    )
    @pytest.mark.slow
    def test_collections_change_no_donor(
        self, picks: list[int], slots: int, window: int, only_scored: bool, stops: list[int], ends: dict[int, End]
    ) -> None:
        """With deterministic=true each trial has the same donors, whatever is deleted in whichever session."""
        forget_all_records()
        tuner, listed = WindowTuner(window=window, only_scored=only_scored), {n: [end] for n, end in ends.items()}
        rng = random.Random(str(picks))
        calm, weights_deleted = fresh_records(), fresh_records()
        expected = run(calm, tuner, collects=False, slots=slots, ends=listed, deterministic=True)
        found = run(
            *(weights_deleted, tuner),
            collects=True,
            slots=slots,
            stops=stops,
            ends=listed,
            pick=lambda running: rng.choice(picks),
            deterministic=True,
        )

        assert found == expected
        assert [t.proposal for t in weights_deleted.load()[0]] == [t.proposal for t in calm.load()[0]]

    @pytest.mark.parametrize("rule", ["global_recent", "global_best"])
    def test_collections_change_no_donor_by_rule(self, rule: str) -> None:
        """With deterministic=true a rule gives a trial that waits again the same donor, whatever was deleted."""
        tuner, found = RandomTuner(SPACE, (METRIC,), seed=3, donor=rule), []
        for stops in ((), (2, 1, 3), (4, 4)):
            records = fresh_records()
            plan = {"slots": 3, "stops": stops, "ends": {5: [LOST, COMPLETE]}, "deterministic": True}
            found.append(run(records, tuner, collects=bool(stops), **plan))
            assert any(trial.weights_deleted for trial in records.load()[0]) == bool(stops)

        assert any(found[0].values())
        assert found[1:] == found[:1] * 2

    def test_weights_are_deleted(self) -> None:
        """In such a search most trials lose their weights."""
        records = fresh_records()
        run(records, WindowTuner(window=2, only_scored=True), collects=True, slots=2, deterministic=True)

        assert sum(trial.weights_deleted for trial in records.load()[0]) >= 8


class TestDonors:
    @pytest.mark.parametrize(
        ("choice", "donors", "stand_in"), [("ancestor", [0], 0), ("scratch", [], None)], ids=["ancestor", "scratch"]
    )
    def test_a_donor_without_weights_is_replaced(
        self, records: Records, choice: OnMissingWeights, donors: list[int], stand_in: int | None
    ) -> None:
        """A donor with deleted weights is treated as on_missing_weights says, and the record shows it."""
        tuner = ListTuner((), (0,))
        make_controller(records, ScriptedExecutor(records), tuner).search(SEARCH)
        records.publish_collection({"trials": {"1": "for the test"}})
        executor = ScriptedExecutor(records, session=2)
        chosen = ControllerSettings(on_missing_weights=choice)
        make_controller(records, executor, ListTuner((1,)), settings=chosen).search(SEARCH)

        assert executor.donors[2] == donors
        assert records.load()[0][2].inheritance == {"replaced": {"1": stand_in}}

    def test_a_donor_without_weights_fails_the_child(self, records: Records) -> None:
        """With on_missing_weights=fail the child is FAILED(parent)."""
        make_controller(records, ScriptedExecutor(records), ListTuner(())).search(SEARCH)
        records.publish_collection({"trials": {"0": "for the test"}})
        chosen = ControllerSettings(on_missing_weights="fail")
        make_controller(records, ScriptedExecutor(records), ListTuner((0,)), settings=chosen).search(SEARCH)

        failed = records.load()[0][1]
        assert (failed.state, failed.reason) == (State.FAILED, Reason.PARENT)

    def test_a_lost_donor_is_replaced_from_then_on(self, records: Records) -> None:
        """Once a trial has found a donor's weights gone, later children get an ancestor's, also after a resume."""
        lost = End(state=State.FAILED, reason=Reason.PARENT, has_weights=False, lost=(1,))
        executor = ScriptedExecutor(records, ends={2: [lost]})
        make_controller(records, executor, ListTuner((), (0,), (1,), (1,))).search(SEARCH)
        again = ScriptedExecutor(records, session=2)
        make_controller(records, again, ListTuner((1,))).search(SEARCH)

        assert executor.donors == {0: [], 1: [0], 2: [1], 3: [0]}
        assert again.donors == {4: [0]}
        assert [t.inheritance.get("replaced") for t in records.load()[0][2:]] == [None, {"1": 0}, {"1": 0}]


class TestWhen:
    def test_observers_receive_collections(self, records: Records) -> None:
        """Each collection is an event that lists the trials without weights; the controller's trials show it too."""
        events: list[Event] = []
        tuner = WindowTuner(window=1, only_scored=True)
        chosen = ControllerSettings(budget=Budget(trials=6))
        executor = ScriptedExecutor(records)
        controller = make_controller(
            records, executor, tuner, settings=chosen, collector=collector(records, 1), observe=events.append
        )
        controller.search(SEARCH)
        controller.collect_garbage(at_end=True)
        weights_deleted = [number for event in events if isinstance(event, WeightsDeleted) for number in event.trials]

        assert (
            sorted(weights_deleted)
            == [trial.number for trial in controller.trials if trial.weights_deleted]
            == sorted(records.weights_deleted())
        )
        assert len(weights_deleted) == len(set(weights_deleted)) >= 4
        assert any(isinstance(event, WeightsDeleted) and event.over_budget for event in events)

    def test_tuners_see_deleted_weights(self, records: Records) -> None:
        """The tuner's lineage shows deleted weights as the records do."""
        seen: list[list[bool]] = []

        class Watching(WindowTuner):
            def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
                seen.append([t.weights_deleted for t in lineage.finished])
                assert [t.weights_deleted for t in lineage.finished] == [
                    t.weights_deleted for t in records.load()[0] if t.is_finished
                ]
                return super().ask(lineage, number, job)

        run(records, Watching(window=1, only_scored=True), collects=True)

        assert any(seen[-1])

    def test_later_stages_collect_too(self, records: Records) -> None:
        """A later stage deletes weights that it does not need; without a tuner every trial of the search is needed."""
        tuner = WindowTuner(window=1, only_scored=True)
        chosen = ControllerSettings(budget=Budget(trials=6))
        make_controller(records, ScriptedExecutor(records), tuner, settings=chosen).search(SEARCH)
        for asked, n_weights_deleted in ((None, 0), (tuner, 4)):
            executor = ScriptedExecutor(records, session=2)
            mine = collector(records, 1, finalists=lambda trials: [5])
            controller = make_controller(records, executor, asked, settings=chosen, collector=mine)
            controller.restore(SEARCH)
            controller.train_finalists(FINAL, controller.trials[5:6])
            controller.collect_garbage(at_end=True)
            assert len([n for n in records.weights_deleted() if n < 6]) == n_weights_deleted, asked


class TestInheritable:
    def test_results_not_yet_learned(self) -> None:
        """With deterministic=true a result that waits for an earlier one may be named once it is learned."""
        running, early = trial(0, state=State.RUNNING, score=None), trial(1)
        log = restore_log([running, early], deterministic_slots=2)

        assert inheritable(EvolutionTuner(SPACE, (METRIC,)), log, 0, [running, early]) == {1}

    def test_results_shown_as_running_may_be_named(self) -> None:
        """Results that later views show as running may be named as such, whatever their state."""
        stage = [trial(0), trial(1, state=State.FAILED, score=None), trial(2)]
        tuner, log = WindowTuner(window=1, only_scored=True), restore_log(stage, deterministic_slots=2)

        assert [inheritable(tuner, log, n_seen, stage) for n_seen in (0, 2, 3)] == [{0, 1, 2}, {0, 2}, {2}]

    def test_every_trial_by_default(self) -> None:
        """A tuner without may_inherit_from may name every trial; random search names none."""
        stage = [trial(0), trial(1, state=State.RUNNING, score=None)]
        log = restore_log(stage, deterministic_slots=None)

        assert inheritable(ListTuner(), log, 1, stage) == {0, 1}
        assert inheritable(RandomTuner(SPACE, (METRIC,)), log, 1, stage) == set()

    def test_evolution_names_its_population(self) -> None:
        """Evolution names the last population_size scored trials, and no failed one."""
        stage = [trial(0), trial(1), trial(2, state=State.FAILED, score=None), trial(3)]
        tuner = EvolutionTuner(SPACE, (METRIC,), population_size=2, sample_size=1)

        assert inheritable(tuner, restore_log(stage, deterministic_slots=None), 4, stage) == {1, 3}
