"""Events of an executor: their order, and the end of a wait."""

from __future__ import annotations

import math
import threading

import pytest

from nas.executors.event_queue import EventQueue
from nas.executors.events import StopRequested


@pytest.mark.parametrize("until_s", [None, 1e13, 1e300, math.inf])
def test_an_event_ends_a_wait_of_any_length(until_s: float | None) -> None:
    """A time that no clock of the system reaches is no error."""
    events, stop = EventQueue(), StopRequested("test")
    threading.Timer(0.05, events.post, [stop]).start()

    assert events.next_event(until_s) is stop


def test_no_event_comes_after_the_time() -> None:
    """The answer at the end of the wait is None."""
    assert EventQueue().next_event(0.0) is None
