"""One connection to the driver: closed where its request takes too long to arrive, or strangers are too many.

uvicorn's own timer begins after a response: a connection that sends nothing, or half of a request, would stay for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_S = 10.0
"""From the connection, or the first byte of a later request, to the end of its header."""
BODY_S = 60.0
"""From there to the end of its body."""
MAX_STRANGERS = 128
"""Connections that have brought no token yet; one more, and the oldest of them is closed."""


class Line(H11Protocol):
    """A connection that has so long for each request; its application keeps ``strangers`` by their address."""

    _due: asyncio.TimerHandle | None = None
    _waits_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Counts it among the strangers, and waits for its first request."""
        super().connection_made(transport)
        strangers: dict[Any, Line] = self.config.app.strangers  # type: ignore[union-attr]
        strangers[self.client] = self
        if len(strangers) > MAX_STRANGERS:
            strangers.pop(next(iter(strangers))).transport.abort()
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Takes in a part of a request."""
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets it."""
        super().connection_lost(exc)
        self.config.app.strangers.pop(self.client, None)  # type: ignore[union-attr]
        if self._due is not None:
            self._due.cancel()

    def _wait(self) -> None:
        """Gives what is lacking of a request its time, once."""
        waits_s = {h11.IDLE: HEADER_S, h11.SEND_BODY: BODY_S}.get(self.conn.their_state)
        if waits_s == self._waits_s and self._due is not None:
            return
        if self._due is not None:
            self._due.cancel()
        self._waits_s = waits_s
        self._due = None if waits_s is None else self.loop.call_later(waits_s, self.transport.abort)
