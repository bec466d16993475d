"""The interface between the search controller and whatever runs trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from nas.core.trial import Trial
from nas.executors.events import Action, Event, StopKind

if TYPE_CHECKING:
    from nas.training.messages import Assignment, JobStart, ProxyRequest


class Executor(Protocol):
    """Runs trials on slots. Only the controller's thread calls it, except for ``post``."""

    slots: int

    def now_s(self) -> float:
        """Returns the seconds of the clock used for deadlines; only differences count."""

    def submit(self, assignment: Assignment) -> None:
        """Starts an attempt. If the trial's job is on the slot already, that job runs it."""

    def resume(self, job_start: JobStart) -> None:
        """Starts a job again without a trial. It requests one or leaves."""

    def dismiss(self, job: int) -> None:
        """Tells a job that requested a trial that there are no more. It leaves."""

    def stop(self, subject: Trial | ProxyRequest, kind: StopKind) -> None:
        """Asks a running trial to end with a result; with ``interrupt``, without one.

        An interrupted trial ends within seconds. ``kill`` ends what does not react: a trial, its job if that runs
        without a trial, or the computation of proxies. It must run in a process of its own.
        """

    def next_event(self, until_s: float | None) -> Event | None:
        """Returns the next event, or None at ``until_s``."""

    def compute_proxies(self, request: ProxyRequest) -> None:
        """Starts the computation of proxies on the request's slot. Returns at once; posts ``ProxiesComputed``."""

    def call(self, action: Action, trial: Trial) -> Mapping[str, Any]:
        """Tests or exports a finished trial on a worker, and waits for the answer.

        Raises:
            ActionError: the problem's code raised.
            SearchInterruptedError: a stop was requested meanwhile.
        """

    def post(self, event: Event) -> None:
        """Queues an event. Any thread or signal handler may call it."""

    def close(self) -> None:
        """Ends whatever still runs and frees resources."""
