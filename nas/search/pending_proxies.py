"""The proxies that a worker computes now, on a slot of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from nas.core.errors import SearchFailedError
from nas.core.metric import is_finite
from nas.executors.events import Event, Notice, ProxiesComputed
from nas.executors.executor import Executor
from nas.search.slots import SlotPool
from nas.training.messages import ProxyRequest
from nas.training.proxy_scores import ProxyScores


class PendingProxies:
    """Sends a tuner's requests for proxies to workers, one at a time.

    Nothing is recorded: a resumed search computes the same values again.

    Args:
        scores: Holds the tuner's requests, and gets the values.
        slots: The executor's slots.
        executor: Computes proxies.
        max_attempts: After this many losses of its worker, a request's values are NaN.
        observe: Called with messages for the user.
    """

    def __init__(
        self,
        scores: ProxyScores,
        slots: SlotPool,
        executor: Executor,
        *,
        max_attempts: int,
        observe: Callable[[Event], None],
    ) -> None:
        self._scores = scores
        self._slots = slots
        self._executor = executor
        self._max_attempts = max_attempts
        self._observe = observe
        self._request: ProxyRequest | None = None
        self._n_lost = 0
        self._is_cancelled = False

    @property
    def is_open(self) -> bool:
        """Whether a request has no answer yet, so that the tuner must not be asked."""
        return self._request is not None

    def start(self, trial: int) -> bool:
        """Takes the tuner's request after its answer WAIT, and returns whether there is one.

        Args:
            trial: The number of the trial to propose.
        """
        self._request, self._n_lost = self._scores.take_request(trial), 0
        return self.is_open

    def submit(self) -> None:
        """Sends the request to a free slot, unless it is on one."""
        if self._request is None or self._slots.reserved is not None:
            return
        if (slot := self._slots.first_free()) is not None:
            self._slots.reserved = slot
            self._request = replace(self._request, slot=slot)
            self._executor.compute_proxies(self._request)

    def cancel(self) -> None:
        """Gives the request up, and ends its computation where a process of its own does it."""
        if self._request is not None and self._slots.reserved is not None:
            self._is_cancelled = True
            self._executor.stop(self._request, "kill")
        else:
            self._request = None

    def handle(self, event: ProxiesComputed) -> None:
        """Adds the values; a lost request is sent again.

        Raises:
            SearchFailedError: the problem's code raised for all points.
        """
        self._slots.free_reserved()
        if self._is_cancelled:
            self._request, self._is_cancelled = None, False
            return
        number = event.request.number
        if event.values is None and not event.is_lost:
            raise SearchFailedError(f"proxies of the candidates for trial {number}: {event.error}")
        self._n_lost += event.is_lost
        if event.is_lost and self._n_lost < self._max_attempts:
            return
        if event.error is not None:
            self._observe(Notice(f"proxies: NaN for a candidate for trial {number}, which ranks last: {event.error}"))
        elif unknown := _without_values(event):
            text = f"proxies: {unknown} is not finite for any candidate for trial {number}"
            self._observe(Notice(f"{text}, and ranks none"))
        self._scores.add(event.request, event.values)
        self._request = None


def _without_values(event: ProxiesComputed) -> str | None:
    """Returns the first proxy that is finite for no point."""
    rows = event.values or ()
    return next((name for name in event.request.names if not any(is_finite(row[name]) for row in rows)), None)
