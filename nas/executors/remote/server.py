"""The driver's end of the channel: a small HTTP server on a thread of its own, which answers while a tuner thinks.

Every request is a POST with JSON both ways and the session's token; each may be repeated
(``nas.executors.remote.client``).
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from typing import Any

from nas.core.errors import ConfigurationError, CorruptError, HeirloomError
from nas.executors.remote.protocol import MAX_BODY_BYTES, Message, dumps, loads

Route = Callable[[Message], Awaitable[Message]]
_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

STOP_S = 2.0
KEEP_ALIVE_S = 60
BACKLOG = 512
logger = logging.getLogger(__name__)


class RefusedError(HeirloomError):
    """Makes a request be answered with this status and this line."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Outbox:
    """Numbered messages to one worker, kept until it says that it has them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, Message]] = deque()
        self._n = 0
        self._bell = asyncio.Event()
        self.has_delivered = threading.Event()
        """Set while the worker has everything."""
        self.has_delivered.set()

    def put(self, message: Message) -> None:
        """Adds a message; any thread may call it."""
        with self._lock:
            self._n += 1
            self._kept.append((self._n, message))
            self.has_delivered.clear()
        self.ring()

    def ring(self) -> None:
        """Ends a wait for messages."""
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._bell.set)

    async def after(self, number: int, wait_s: float) -> list[tuple[int, Message]]:
        """The messages after this number, which the worker has; waits for one, but not longer than ``wait_s``."""
        if not self._pending(number):
            self._bell.clear()
            if not self._pending(number):
                try:
                    await asyncio.wait_for(self._bell.wait(), wait_s)
                except TimeoutError:
                    return []
        return self._pending(number)

    def _pending(self, number: int) -> list[tuple[int, Message]]:
        with self._lock:
            while self._kept and self._kept[0][0] <= number:
                self._kept.popleft()
            if not self._kept:
                self.has_delivered.set()
            return list(self._kept)


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        ConfigurationError: it can't.
    """
    try:
        # Named as TCP, as asyncio turns Nagle's algorithm off for such only: it cost 40 ms a request.
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, proto=socket.IPPROTO_TCP)[0]
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(BACKLOG)
        except OSError:
            found.close()
            raise
        return found
    except OSError as error:
        raise ConfigurationError(
            f"channel.host={host} channel.port={port}: can't listen there ({error.strerror or error}). "
            "Name another address of this machine or another port; channel.port=null takes any that is free"
        ) from error


class ChannelServer:
    """Serves the routes from its construction until it is closed.

    Args:
        host: The address that it listens at.
        port: 0: any that is free.
        token: What every request must bring.

    Attributes:
        port: Where it listens.
        loop: Of its thread.
        strangers: Connections that have brought no token yet, the oldest first.

    Raises:
        ConfigurationError: it can't listen there.
    """

    def __init__(self, host: str, port: int, token: str) -> None:
        self._token = token.encode()
        self._routes: Mapping[str, Route] = {}
        self._socket = listening_socket(host, port)
        self.port: int = self._socket.getsockname()[1]
        self.loop = asyncio.new_event_loop()
        self.strangers: dict[Any, Any] = {}
        self._server: Any = None
        self._thread = threading.Thread(target=self._serve, name="heirloom-channel", daemon=True)

    def start(self, routes: Mapping[str, Route]) -> None:
        """Answers requests from here on.

        Args:
            routes: What answers each path, as a coroutine of the server's thread.
        """
        import uvicorn

        from nas.executors.remote.connection import Line

        self._routes = routes
        self._server = uvicorn.Server(
            uvicorn.Config(
                self,
                http=Line,
                proxy_headers=False,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread.start()

    def close(self) -> None:
        """Listens no more; what is being answered is cut off after a second."""
        if self._server is None:
            self._socket.close()
            return
        self._server.should_exit = True
        self._thread.join(STOP_S)
        self._server = None

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._server.serve(sockets=[self._socket]))
        finally:
            self.loop.close()

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answers one request (ASGI)."""
        status, answer = await self._answer(scope, receive)
        data = dumps(answer)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
        if status != 200:  # its body may not have been read
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": data})

    async def _answer(self, scope: _Scope, receive: _Receive) -> tuple[int, Message]:
        try:
            headers = dict(scope["headers"])
            if not hmac.compare_digest(headers.get(b"authorization", b""), b"Bearer " + self._token):
                raise RefusedError(401, "wrong token: HEIRLOOM_CHANNEL_TOKEN must be the one that this driver printed")
            self.strangers.pop(scope["client"], None)
            route = self._routes.get(scope["path"])
            if route is None or scope["method"] != "POST":
                raise RefusedError(404, f"no such request: {scope['method']} {scope['path'][:100]}")
            return 200, await route(loads(await _body(headers, receive)))
        except RefusedError as error:
            return error.status, {"error": str(error)}
        except CorruptError as error:
            return 400, {"error": str(error)}
        except Exception:
            logger.exception("a request of a worker")
            return 500, {"error": "the driver failed to answer"}


async def _body(headers: Mapping[bytes, bytes], receive: _Receive) -> bytes:
    """The body of a request, of ``MAX_BODY_BYTES`` at most."""
    said = headers.get(b"content-length", b"0")
    n_bytes = int(said) if said.isdigit() else 0
    chunks: list[bytes] = []
    n_read = 0
    while n_bytes <= MAX_BODY_BYTES and n_read <= MAX_BODY_BYTES:
        part = await receive()
        if part["type"] == "http.disconnect":
            raise RefusedError(400, "the request broke off")
        chunks.append(part.get("body", b""))
        n_read += len(chunks[-1])
        if not part.get("more_body", False):
            return b"".join(chunks)
    raise RefusedError(413, f"a request has at most {MAX_BODY_BYTES} bytes")
