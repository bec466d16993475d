"""Work on two threads: each item is done, and errors are raised."""

import threading
import time
from collections.abc import Iterator

import pytest

from nas.storage import background
from nas.storage.background import run_in_parallel

MUCH = 64 << 20


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "N_CORES", 2)


def test_both_threads_work() -> None:
    """Two items that wait for each other are done, so two threads take them."""
    meeting = threading.Barrier(2, timeout=30)
    run_in_parallel(range(2), MUCH, lambda _: meeting.wait())


@pytest.mark.parametrize("n_bytes", [0, MUCH])
def test_each_item_is_taken_once(n_bytes: int) -> None:
    """In any order of the threads each item is done exactly once."""
    done: list[int] = []
    run_in_parallel(range(5000), n_bytes, done.append)
    assert sorted(done) == list(range(5000))


@pytest.mark.parametrize("fails_beside", [True, False])
def test_a_failure_is_raised_and_ends_the_work(*, fails_beside: bool) -> None:
    """An error in either thread is raised, and the other ends before the last item."""
    meeting = threading.Barrier(2, timeout=30)
    caller = threading.current_thread()
    failed = threading.Event()
    n_later = 0

    def items() -> Iterator[int]:
        yield from range(100)

    def work(item: int) -> None:
        nonlocal n_later
        if item < 2:
            meeting.wait()  # each thread has one of the first two
            if (threading.current_thread() is not caller) == fails_beside:
                failed.set()
                raise OSError("the disk is gone")
            failed.wait(30)
            return
        n_later += 1
        time.sleep(0.1)  # the other may not be on its way out yet

    with pytest.raises(OSError, match="the disk is gone"):
        run_in_parallel(items(), MUCH, work)
    assert n_later < 50
