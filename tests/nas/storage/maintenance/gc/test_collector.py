"""Collections in a real folder: recorded before the first delete, consistent after any kill, within the budget."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nas.core.errors import AlreadyPublishedError, CorruptError, MissingError, SearchBusyError
from nas.core.metric import Metric
from nas.core.reference import Reference
from nas.core.trial import State, Trial
from nas.inheritance.donors.other_searches import donors_for_other_searches
from nas.storage.maintenance.gc.collector import CollectionPlan, CollectorSettings, GarbageCollector
from nas.storage.maintenance.gc.mark import OTHER_SEARCHES
from nas.storage.maintenance.gc.retention import Retention
from nas.storage.open import open_root
from nas.storage.record_format import FORMAT
from nas.storage.records import Records
from tests.support.record_files import sealed
from tests.support.sample_searches import IDENTITY
from tests.support.stored_trials import all_files, real_checkpoint, trial

METRIC = Metric("accuracy")


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(open_root(str(tmp_path / "root" / "mine"), retry_s=0.0))


def publish(records: Records, *trials: Trial) -> list[Trial]:
    """Publishes trials, and returns all recorded ones."""
    for one in trials:
        records.propose(one)
        if one.is_finished:
            records.commit(one)
    return records.load()[0]


def whole(records: Records, number: int, packs: Iterable[Reference] = (), size: int = 5000, **fields: Any) -> Trial:
    """Returns a trial with weights."""
    return trial(number, checkpoint=real_checkpoint(records.files, number, packs, size), **fields)


def family(records: Records) -> list[Trial]:
    """Returns a trial whose first child shares its pack, two more children, and an orphan of a lost attempt."""
    first = whole(records, 0, score=0.1)
    assert first.checkpoint is not None
    trials = publish(
        records,
        first,
        whole(records, 1, first.checkpoint.packs, parents=[0], score=0.9),
        whole(records, 2, parents=[0], score=0.2),
        whole(records, 3, parents=[0], score=0.3),
    )
    records.files.publish("packs/000002-lost.safetensors", [b"an attempt that was lost"])
    return trials


def collector(records: Records, retention: Retention, **chosen: Any) -> GarbageCollector:
    defaults: dict[str, Any] = {"metrics": (METRIC,), "finalists": lambda trials: (), "uses_ancestors": True}
    defaults["other_searches"] = lambda: donors_for_other_searches(records)
    return GarbageCollector(records, retention, CollectorSettings(**{**defaults, **chosen}))


def collect(records: Records, retention: Retention, inheritable: Iterable[int] = (), **chosen: Any) -> CollectionPlan:
    """Collects as flows.gc does. Returns the plan."""
    made = collector(records, retention, **chosen)
    plan = made.plan(records.load()[0], inheritable, records.files.walk())
    made.collect(plan)
    return plan


def paths(records: Records) -> set[str]:
    return {stored.path for stored in records.files.walk()}


def weights(records: Records) -> set[str]:
    return {path for path in paths(records) if path.startswith(("packs/", "manifests/", "files/"))}


def assert_readable(records: Records, trials: Iterable[Trial]) -> None:
    """Checks that every file of every trial with weights has its published contents."""
    for one in trials:
        for reference in () if one.checkpoint is None else all_files(one.checkpoint):
            assert len(records.files.read(reference)) == reference.bytes


class TestCollection:
    def test_weights_are_deleted_and_the_lineage_stays(self, records: Records) -> None:
        """Trials outside the plan lose their weights and are marked; all records and other weights stay."""
        before = family(records)
        kept_records = {p for p in paths(records) if p.startswith("trials/")}
        plan = collect(records, Retention("best:1"), session=7)
        after, _ = records.load()

        assert [t.number for t in after if t.weights_deleted] == [0, 2, 3] == sorted(plan.weights_deleted)
        assert [t.checkpoint for t in after] == [None, before[1].checkpoint, None, None]
        assert [replace(t, weights_deleted=False) for t in after] == [
            t if t.number == 1 else replace(t, checkpoint=None) for t in before
        ]
        assert kept_records <= paths(records)
        assert weights(records) == {file.path for file in all_files(after[1].checkpoint)}  # type: ignore[arg-type]
        assert_readable(records, after)

    def test_the_record_holds_the_reasons(self, records: Records) -> None:
        """gc/0001.json holds the session, the plan and a reason for each trial; the next record is 0002."""
        family(records)
        collect(records, Retention("best:2"), session=7)
        collect(records, Retention("best:1"), session=8)
        first, second = records.read("gc/0001.json"), records.read("gc/0002.json")

        assert first is not None
        assert second is not None
        assert (first["session"], first["keep"], first["max_gb"]) == (7, "best:2", None)
        assert first["trials"] == {"0": "not kept by keep=best:2", "2": "not kept by keep=best:2"}
        assert list(second["trials"]) == ["3"]
        assert records.weights_deleted() == {0, 2, 3}

    def test_weights_are_deleted_for_every_reader(self, records: Records) -> None:
        """A trial looked up by number, or by another search, has no weights either."""
        family(records)
        collect(records, Retention("best:1"))
        fresh = Records(records.files)

        found, again = fresh.finished_trial(2), fresh.result(records.load()[0][2])
        assert found is not None
        assert again is not None
        assert (found.weights_deleted, found.checkpoint, again.weights_deleted) == (True, None, True)

    @pytest.mark.parametrize("record", [{}, {"trials": {"x": "why"}}, {"trials": None}, {"trials": 3}])
    def test_a_record_that_can_not_be_read(self, records: Records, record: dict[str, object]) -> None:
        """A gc record with invalid content is corrupt, and the error names it."""
        family(records)
        records.publish("gc/0001.json", record)

        with pytest.raises(CorruptError, match=r"gc/0001\.json can't be read"):
            records.load()

    def test_empty_folders_are_deleted(self, records: Records, tmp_path: Path) -> None:
        """A checkpoint's own folder of files is deleted with its last file."""
        family(records)
        collect(records, Retention("best:1"))

        assert [path.name for path in (tmp_path / "root/mine/files").iterdir()] == ["000001-aa"]

    def test_foreign_files_stay(self, records: Records, tmp_path: Path) -> None:
        """A file with a foreign name stays, also among deleted weights, and no collection fails."""
        family(records)
        stranger = tmp_path / "root/mine/files/000002-aa/not\nours"
        stranger.write_text("?")
        collect(records, Retention("best:1"))

        assert stranger.exists()
        assert not (tmp_path / "root/mine/files/000003-aa").exists()

    def test_nothing_to_delete_writes_nothing(self, records: Records) -> None:
        """A collection that deletes nothing writes no record."""
        family(records)
        collect(records, Retention("all"))
        before = paths(records)
        plan = collect(records, Retention("all"))

        assert (plan.weights_deleted, plan.garbage) == ({}, ())
        assert paths(records) == before
        assert not any(path.startswith("gc/") for path in before)

    def test_needed_weights_stay(self, records: Records) -> None:
        """Donors of waiting trials, finalists, trials that the tuner may name, and donors of other searches stay."""
        trials = publish(
            records,
            *(whole(records, number, score=number / 10) for number in range(6)),
            trial(6, parents=[0], state=State.WAITING, score=None),
        )
        other = Records(records.files.sibling("other"))
        publish(other, trial(0, state=State.WAITING, donors=("mine:2", "mine:99", "nobody:3"), score=None))
        publish(Records(records.files.sibling("third")), trial(0, donors=("mine:4",)))
        records.files.sibling("broken").publish("trials/000000.proposal.json", [b"{}"])
        records.files.sibling("no search").publish("trials/000000.proposal.json", [b"?"])
        plan = collect(records, Retention("best:1"), inheritable=[1], finalists=lambda t: [3])

        assert set(plan.marked) == {0, 1, 2, 3}
        assert set(plan.weights_deleted) == {4}
        assert plan.n_kept == 1
        assert_readable(records, trials[:4])

    def test_initial_weights_of_other_searches_stay(self, records: Records) -> None:
        """A trial that is ``init.weights`` of another search stays. Searches of other formats need donors, too."""
        publish(records, *(whole(records, number, score=number / 10) for number in range(4)))
        other = Records(records.files.sibling("other"))
        identity = {**IDENTITY, "init": {"points": [], "weights": "mine:0"}}
        metrics = [{"name": "score", "direction": "maximize"}]
        other.publish("search.json", {"format": FORMAT, "identity": identity, "metrics": metrics})
        publish(other, trial(0))
        later = Records(records.files.sibling("later"))
        later.publish("search.json", {"format": FORMAT + 1})
        later.propose(trial(0, state=State.WAITING, donors=("mine:1",), score=None))
        plan = collect(records, Retention("best:1"))

        assert set(plan.weights_deleted) == {2}
        assert plan.marked == {0: OTHER_SEARCHES, 1: OTHER_SEARCHES}

    def test_folders_that_are_closed_to_this_user(self, records: Records, tmp_path: Path) -> None:
        """A folder beside the search that this user can't read (such as lost+found) is ignored."""
        publish(records, whole(records, 0), whole(records, 1))
        publish(Records(records.files.sibling("other")), trial(0, state=State.WAITING, donors=("mine:1",), score=None))
        (tmp_path / "root/lost+found").mkdir(mode=0)
        for folder in (tmp_path, *tmp_path.parents[:-2]):
            folder.chmod(folder.stat().st_mode | 0o055)

        def body() -> None:
            if os.getuid() == 0:
                os.seteuid(65534)  # root may look anywhere
            os._exit(0 if donors_for_other_searches(records) == {1} else 3)

        assert in_child(lambda event, arguments: None, body) == 0

    def test_exports_of_winners_stay(self, records: Records) -> None:
        """A recorded winner's export stays at any age; an export left by a crash is deleted."""
        family(records)
        named = records.files.publish("best/000001-aa/model.safetensors", [b"export"])
        records.files.publish("best/000002-bb/model.safetensors", [b"half an export"])
        records.publish("best-0001.json", {"number": 1, "trial": 1, "files": [named.to_json()]})
        plan = collect(records, Retention("all"), grace_s=-60.0)

        assert [garbage.file.path for garbage in plan.garbage] == [
            "best/000002-bb/model.safetensors",
            "packs/000002-lost.safetensors",
        ]
        assert records.files.read(named) == b"export"

    def test_another_process_collects(self, records: Records) -> None:
        """If another collection takes the number at the last moment, nothing is deleted."""
        trials = family(records)
        rival = f"{records.files.url}/gc/0001.json"

        def steal(event: str, arguments: tuple[object, ...]) -> None:
            if event == "os.link" and arguments[1] == rival:
                with open(rival, "xb") as file:
                    file.write(sealed({"gc": 1, "trials": {}}))

        def body() -> None:
            with suppress(AlreadyPublishedError):
                collect(records, Retention("best:1"))
                os._exit(1)

        assert in_child(steal, body) == 0
        assert records.read("gc/0001.json") == {"gc": 1, "trials": {}}
        assert weights(records) > {file.path for one in trials for file in all_files(one.checkpoint)}  # type: ignore[arg-type]

    @pytest.mark.parametrize("at", ["sessions", "gc"], ids=["before the record", "as the record is written"])
    def test_replaced_driver_deletes_nothing(self, records: Records, at: str) -> None:
        """A driver that finds a newer session deletes nothing, since that session may need the weights."""
        trials = family(records)
        session = f"{records.files.url}/sessions/0008.json"
        os.makedirs(os.path.dirname(session))

        def follow(event: str, arguments: tuple[object, ...]) -> None:
            if event == "os.link" and "/gc/" in str(arguments[1]):
                with open(session, "xb") as file:
                    file.write(b"{}")

        def body() -> None:
            with suppress(SearchBusyError):
                collect(records, Retention("best:1"), session=7)
                os._exit(1)

        if at == "sessions":
            records.publish("sessions/0008.json", {})
        assert in_child(follow, body) == 0
        assert os.path.exists(session)
        assert (records.read("gc/0001.json") is None) == (at == "sessions")
        assert_readable(records, trials)


def in_child(watch: Callable[[str, tuple[object, ...]], None], body: Callable[[], object]) -> int:
    """Runs the body in its own process, whose system calls Python announces. Returns how it ended."""
    child = os.fork()
    if child == 0:
        sys.addaudithook(watch)
        try:
            body()
            os._exit(0)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(n_deletes: int, body: Callable[[], object]) -> bool:
    """Runs the body in a process killed before its n-th delete. Returns whether it got so far."""
    left = itertools.count(n_deletes, -1)

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.remove" and next(left) == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    status = in_child(watch, body)
    assert status in (0, -signal.SIGKILL)
    return status != 0


def test_a_kill_at_any_delete_loses_nothing(tmp_path: Path) -> None:
    """After kill -9 before any delete the remaining weights are readable, and the next collection deletes the rest."""
    family(Records(open_root(str(tmp_path / "whole"))))
    n_kills, was_killed = 0, True
    while was_killed:
        shutil.copytree(tmp_path / "whole", tmp_path / f"{n_kills}")
        records = Records(open_root(str(tmp_path / f"{n_kills}"), retry_s=0.0))
        was_killed = killed_at(n_kills, lambda: collect(records, Retention("best:1"), grace_s=-60.0))  # noqa: B023
        trials, _ = records.load()
        assert_readable(records, trials)
        assert records.weights_deleted() == {0, 2, 3}
        collect(records, Retention("best:1"), grace_s=-60.0)
        after, _ = records.load()
        assert [t.weights_deleted for t in after] == [True, False, True, True]
        assert weights(records) == {file.path for file in all_files(after[1].checkpoint)}  # type: ignore[arg-type]
        assert not any(".tmp-" in path for path in paths(records))
        n_kills += was_killed

    assert n_kills == 1 + 2 + 2 * 3 + 1  # the record's temporary name, the first (its pack stays), two more, the orphan


class TestBudget:
    def test_worst_weights_are_deleted_first(self, records: Records) -> None:
        """The folder stays within the budget, a tenth of it free; the best keep their weights."""
        trials = publish(records, *(whole(records, n, size=100_000, score=n / 100) for n in range(20)))
        limit = 1_500_000
        collect(records, Retention(max_gb=limit / 1e9))
        left = [t.number for t in records.load()[0] if t.checkpoint is not None]

        assert on_disk(records) <= 0.9 * limit
        assert on_disk(records) > 0.8 * limit
        assert left == list(range(20 - len(left), 20))
        assert_readable(records, [trials[number] for number in left])

    def test_under_the_budget_nothing_is_deleted(self, records: Records) -> None:
        """Nothing is deleted below the budget, even with less than a tenth free."""
        publish(records, *(whole(records, n, size=100_000) for n in range(3)))

        assert collect(records, Retention(max_gb=(on_disk(records) + 5_000) / 1e9)).weights_deleted == {}

    def test_orphans_and_unkept_weights_are_deleted_first(self, records: Records) -> None:
        """If deleting orphans and unkept weights frees enough, nothing else is deleted."""
        publish(records, *(whole(records, n, size=100_000) for n in range(4)))
        records.files.publish("packs/000002-lost.safetensors", [bytes(100_000)])
        limit = on_disk(records) - 190_000
        plan = collect(records, Retention("last:3", max_gb=limit / 1e9))

        assert 0.9 * limit < on_disk(records) < limit
        assert plan.weights_deleted == {0: "not kept by keep=last:3"}

    def test_the_budget_overrides_the_plan(self, records: Records) -> None:
        """The budget overrides the plan, and needed weights override the budget, with a message."""
        publish(records, *(whole(records, n, size=100_000) for n in range(4)))
        plan = collect(records, Retention("last:4", max_gb=0.0002), inheritable=[0, 1])

        assert set(plan.weights_deleted) == {2, 3}
        assert plan.over_budget is not None
        assert "storage.max_gb=0.0002 is exceeded: 0.00" in plan.over_budget
        assert plan.over_budget.endswith("weights of 2 trials that are needed. Raise storage.max_gb.")
        assert "\n" not in plan.over_budget


def on_disk(records: Records) -> int:
    return sum(-(-stored.bytes // 4096) * 4096 for stored in records.files.walk())


class RunningSearch:
    """A search whose trials finish in turn, and a collector that is called as by the controller."""

    def __init__(self, records: Records, retention: Retention, *, slots: int = 1) -> None:
        self.records = records
        self.collector = collector(records, retention, slots=slots, session=1)
        self.trials: list[Trial] = []
        self.needed: Sequence[int] = ()
        self.now_s = 0.0

    def step(self, *, size: int = 50_000, at_end: bool = False, grows: bool = True) -> CollectionPlan | None:
        """Adds one more trial and collects if due."""
        if grows:
            number = len(self.trials)
            made = whole(self.records, number, size=size, score=number / 100)
            publish(self.records, made)
            self.trials.append(made)
            self.collector.add(made)
        plan = self.collector.collect_if_due(self.trials, lambda: self.needed, self.now_s, at_end=at_end)
        for number in plan.weights_deleted if plan is not None else ():
            self.trials[number] = self.trials[number].delete_weights()
        return plan


class TestRunningSearch:
    def test_the_budget_is_never_passed(self, records: Records) -> None:
        """After each collection there is room for two saves a slot, so that the budget holds while trials write."""
        controller, limit, most = RunningSearch(records, Retention(max_gb=0.006), slots=2), 6_000_000, 0
        for _ in range(25):
            controller.now_s += 1.0
            controller.needed = [trial.number for trial in controller.trials[-3:]]
            controller.step(size=400_000)
            most = max(most, on_disk(records))
            assert on_disk(records) + 2 * 2 * 400_000 <= limit
            assert all(controller.trials[number].checkpoint is not None for number in controller.needed)

        assert most > 0.6 * limit
        assert sum(trial.weights_deleted for trial in controller.trials) > 10
        assert_readable(records, records.load()[0])

    def test_resume_points_have_room(self, records: Records) -> None:
        """What long trials keep on the way counts as if each slot were to write its next one now."""
        controller = RunningSearch(records, Retention(max_gb=0.004), slots=2)
        records.files.publish("resume/000099/000001-aaaaaaaa.safetensors", [bytes(409_600)])
        for _ in range(15):
            controller.now_s += 1.0
            controller.step(size=200_000)
        settled = on_disk(records) - 409_600

        assert settled + 2 * (2 * 200_000 + 3 * 204_800) <= 4_000_000
        assert [stored.path for stored in records.files.walk() if "resume" in stored.path]
        assert 3 < sum(trial.weights_deleted for trial in controller.trials) < 15

    def test_an_exceeded_budget_is_reported_once(self, records: Records) -> None:
        """The message is returned once, and again only after the budget was kept in between."""
        controller = RunningSearch(records, Retention(max_gb=0.0002))
        told = []
        for number in range(6):
            controller.now_s += 100.0
            controller.needed = range(number + 1)
            plan = controller.step()
            told.append(plan is not None and plan.over_budget is not None)

        assert told.count(True) == 1
        controller.needed = ()
        controller.now_s += 100.0
        assert controller.step() is not None
        assert sum(t.checkpoint is not None for t in controller.trials) <= 1

    def test_the_plan_is_applied_now_and_then(self, records: Records) -> None:
        """Without a budget the plan is applied when the session begins, each minute, and at the end of a stage."""
        controller = RunningSearch(records, Retention("last:1"))
        first = [controller.step() is not None for _ in range(4)]
        controller.now_s += 59.0
        later = controller.step()
        controller.now_s += 2.0
        minute = controller.step()
        end = (controller.step(), controller.step(grows=False), controller.step(grows=False, at_end=True))

        assert first == [False] * 4  # the first collection found nothing
        assert later is None
        assert minute is not None
        assert sorted(minute.weights_deleted) == [0, 1, 2, 3, 4]
        assert end[:2] == (None, None)
        assert end[2] is not None
        assert sorted(end[2].weights_deleted) == [5]

    def test_an_interrupted_collection_is_finished_when_the_session_begins(self, records: Records) -> None:
        """Files that a killed collection had yet to delete are deleted, though the record already exists."""
        family(records)
        assert killed_at(3, lambda: collect(records, Retention("best:1")))
        trials, _ = records.load()
        assert [t.weights_deleted for t in trials] == [True, False, True, True]
        controller = RunningSearch(records, Retention("best:1"))
        controller.trials = trials
        plan = controller.step(grows=False)

        assert plan is not None
        assert plan.weights_deleted == {}
        assert weights(records) == {file.path for file in all_files(trials[1].checkpoint)}  # type: ignore[arg-type]

    def test_running_trials_keep_what_they_have_written(self, records: Records) -> None:
        """A pack of a trial that runs, which no record names yet, stays however old it is."""
        family(records)
        reference = records.files.publish("packs/000004-aa.safetensors", [b"not yet in a record"])
        ancient = records.files.publish("packs/000005-aa.safetensors", [b"of a session that was killed"])
        running = trial(4, parents=[1], state=State.RUNNING, score=None)
        trials = publish(records, running, trial(5, state=State.WAITING, score=None))
        for name in (reference.path, ancient.path):
            os.utime(f"{records.files.url}/{name}", (0, 0))
        controller = RunningSearch(records, Retention("best:1"))
        controller.trials = [*trials[:4], running, trials[5]]
        controller.step(grows=False)

        assert records.files.read(reference) == b"not yet in a record"
        with pytest.raises(MissingError):
            records.files.read(ancient)

    def test_age_is_by_the_storage_clock(self, records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where this machine's clock is wrong by days, what was written now is not old."""
        family(records)
        records.files.replace("sessions/0001.beat", b"{}")
        young = records.files.publish("packs/000009-aa.safetensors", [b"by some other host"])
        real = time.time
        monkeypatch.setattr("time.time", lambda: real() + 5 * 86_400)
        collect(records, Retention("all"), session=1)

        assert records.files.read(young) == b"by some other host"
