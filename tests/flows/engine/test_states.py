"""The states of task runs."""

from __future__ import annotations

import pytest

from flows.engine.tasks import state_of
from nas.core.trial import Proposal, Reason, Trial
from nas.executors.events import Event, ExecutorFailed, Finished, TrialLost

WHY = "no answer from\nsftp://me:secret@host/root"
FAILED = Trial(number=0, index=0, proposal=Proposal(point={})).fail(Reason.EXCEPTION, WHY)


@pytest.mark.parametrize("event", [Finished(FAILED), TrialLost(0, 0, WHY), ExecutorFailed(OSError(WHY))])
def test_messages_hold_no_passwords(event: Event) -> None:
    """A state's message is one line without the password of a URL."""
    message = state_of(event).message

    assert message is not None
    assert "sftp://me:***@host/root" in message
    assert "\n" not in message
