"""Proxies that fail when they are told to."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.servers import SECRET


class HttpProxy:
    """Forwards requests to a server, and fails chosen ones. ``seen`` lists their methods and paths.

    Faults:

    - A status is returned instead of the server's reply.
    - ``reset``: The connection is reset before the server gets the request.
    - ``lost``: The server handles the request, and its reply is dropped.
    - ``short``: Half of the reply's body is sent.
    - ``half``: Half of the request is read, and nothing is forwarded.
    - ``unconditional``: The condition of the request is removed.
    - ``silent``: The server handles the request, and no reply is sent until the client closes the connection.
    - ``together``: The request is forwarded once there are four such requests.
    - ``late``: The connection is reset after a second.
    """

    def __init__(self, endpoint: str) -> None:
        self.seen: list[str] = []
        self._faults: list[tuple[str, str, int | str]] = []
        self._four = threading.Barrier(4, timeout=20)
        self._server_place = endpoint.removeprefix("http://")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def fail(self, fault: int | str, *, method: str, path: str = "", times: int = 1) -> None:
        """Makes the next requests of this method, whose path and query contain the text, fail."""
        self._faults += [(method, path, fault)] * times

    def take(self, method: str, path: str) -> int | str | None:
        """The fault of this request."""
        self.seen.append(f"{method} {path}")
        for planned in self._faults:
            if planned[0] == method and planned[1] in path:
                self._faults.remove(planned)
                return planned[2]
        return None

    def __enter__(self) -> HttpProxy:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def serve(self) -> None:
                fault = proxy.take(self.command, self.path)
                length = int(self.headers.get("Content-Length") or 0)
                if fault == "late":
                    time.sleep(1)
                if fault in ("reset", "late"):
                    return self.reset()
                body = self.rfile.read(length // 2 if fault == "half" else length)
                if fault == "half":
                    return self.reset()
                if fault == "together":
                    proxy._four.wait()
                if isinstance(fault, int):
                    return self.answer(fault)
                if fault == "unconditional":
                    del self.headers["If-None-Match"]
                server = http.client.HTTPConnection(proxy._server_place)
                server.request(self.command, self.path, body, dict(self.headers))
                reply = server.getresponse()
                content = reply.read()
                server.close()
                if fault == "lost":
                    return self.reset()
                if fault == "silent":
                    self.rfile.read(1)
                    self.close_connection = True
                    return None
                self.send_response(reply.status)
                for name, value in reply.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                        self.send_header(name, value)
                self.send_header("Content-Length", reply.getheader("Content-Length") or str(len(content)))
                self.end_headers()
                if fault == "short":
                    self.wfile.write(content[: len(content) // 2])
                    return self.reset()
                self.wfile.write(content)
                return None

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = serve  # noqa: N815

            def reset(self) -> None:
                self.wfile.flush()
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                self.connection.close()

            def answer(self, status: int) -> None:
                word = {500: "InternalError", 501: "NotImplemented", 503: "SlowDown", 403: "AccessDenied"}[status]
                content = f"<Error><Code>{word}</Code><Message>{word}, {SECRET}</Message></Error>".encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content if self.command != "HEAD" else b"")

            def log_message(self, *arguments: object) -> None:
                pass

        return Handler


class TcpProxy:
    """Passes bytes on to a port, until ``cut``, ``hush`` or so many went up; then it does so for new connections.

    Attributes:
        delay_s: Seconds by which everything from the port comes later.
    """

    def __init__(self, port: int, *, cut_after: int | None = None) -> None:
        self._target = port
        self._left = cut_after
        self._open: list[socket.socket] = []
        self._hushed: set[socket.socket] = set()
        self.n_connections = 0
        self.delay_s = 0.0
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])

    def cut(self) -> None:
        """Cuts all connections."""
        while self._open:
            with suppress(OSError):  # closed already
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def hush(self) -> None:
        """Takes all that comes on these connections from now on, and passes nothing on."""
        self._hushed |= set(self._open)

    def go_down(self) -> None:
        """Cuts all connections and refuses new ones."""
        with suppress(OSError):  # down already
            self._server.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() does not
        self._server.close()
        self.cut()

    def come_back(self) -> None:
        """Listens at the same port again."""
        self._server = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> TcpProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.go_down()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            self.n_connections += 1
            far = socket.create_connection(("127.0.0.1", self._target))
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open += [near, far]
            threading.Thread(target=self._pump, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                if up and self._left is not None:
                    self._left -= len(data)
                    if self._left < 0:
                        self._left = None
                        self.cut()
                if not up:
                    time.sleep(self.delay_s)
                if source not in self._hushed:
                    sink.sendall(data)
        except OSError:  # the other direction has closed both
            pass
        finally:
            for end in (source, sink):  # close() alone leaves the other direction in its recv()
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()
