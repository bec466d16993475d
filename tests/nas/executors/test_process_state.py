"""The state of a worker process, which a trial may change and the next must not see."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nas.core.spec import Spec
from nas.core.trial import Proposal, State, Trial
from nas.executors import worker_process
from nas.executors.pool import WorkerLostError
from nas.executors.process_pool import ProcessPool
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.messages import Assignment, RuntimeSpec
from tests.support.breaking_problem import REPLACED, RESTORED, BreakingProblem

pytestmark = pytest.mark.slow

Train = Callable[[str], Trial]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Train]:
    """Yields ``worker`` of a problem that changes nothing itself."""
    with worker(tmp_path_factory.mktemp("state"), sets_up=False) as train:
        yield train


@contextmanager
def worker(folder: Path, *, sets_up: bool) -> Iterator[Train]:
    """Yields a function that trains a trial with a change, all on one slot."""
    url = str(folder / "search")
    spec = RuntimeSpec(problem=Spec.of(BreakingProblem, sets_up=sets_up), url=url, options={}, session=1)
    pool, records, count = ProcessPool(spec, 1), Records(open_root(url)), iter(range(1000))

    def train(change: str) -> Trial:
        number = next(count)
        trial = Trial(number=number, index=number, proposal=Proposal(point={"change": change}), slot=0, attempt=1)
        records.propose(trial)
        result = pool.run(Assignment(trial), lambda event: None)
        assert result is not None
        return result

    yield train
    pool.close()


@pytest.mark.parametrize("change", RESTORED)
def test_state_is_restored(train: Train, change: str) -> None:
    """A trial that changes its process is COMPLETE, and the next, in the same process, finds none of it."""
    before, changing, after = train("nothing"), train(change), train("nothing")

    assert [before.error, changing.error, after.error] == [None] * 3
    assert before.metrics == changing.metrics == after.metrics


def test_state_of_the_constructor_stays(tmp_path: Path) -> None:
    """What the problem's constructor has set is there in each trial, whatever an earlier one changed."""
    changes = ["nothing", "undo", "decimal", "alarm", "tiny numbers", "function mode", "dispatch mode", "saved tensors"]
    with worker(tmp_path, sets_up=True) as train:
        trials = [train(change) for change in [*changes, "device", "nothing"]]

    assert {trial.error for trial in trials} == {None}
    assert len({tuple(trial.metrics.items()) for trial in trials}) == 1


def test_import_hooks_stay(train: Train) -> None:
    """A library that a trial imports first works in later trials of the process."""
    trials = [train(change) for change in ("library", "library")]

    assert [trial.error for trial in trials] == [None] * 2
    assert len({trial.metrics["pid"] for trial in trials}) == 1


@pytest.mark.parametrize("change", REPLACED)
def test_worker_is_replaced(
    train: Train, change: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a change that can't be restored the next trial runs in another process; one line says why."""
    monkeypatch.setattr(worker_process, "KILL_TIMEOUT_S", 60.0)  # without its pipe it needs a while to end
    before, lost = train("nothing"), []
    with caplog.at_level(logging.DEBUG, logger="nas.executors.worker_process"):
        try:
            train(change)
        except WorkerLostError as error:
            lost.append(str(error))
        after = train("nothing")

    assert after.state == State.COMPLETE
    assert before.metrics["pid"] != after.metrics["pid"]
    assert len(lost) == (change in ("pipe", "descriptors", "our own code"))
    [line] = lost + caplog.messages
    assert "worker" in line
    assert ("exit status" in line) == (change == "pipe")
