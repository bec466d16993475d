"""Workers of a remote place as threads of this process, and a bad line: real HTTP, and no process to wait for."""

from __future__ import annotations

import itertools
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx

import nas
from nas.core.spec import Spec
from nas.executors.in_process_pool import InProcessPool
from nas.executors.remote.agent import Agent, Ending
from nas.executors.remote.client import ChannelClient
from nas.storage.open import open_root
from nas.training.messages import RuntimeSpec
from nas.training.problem import Problem

TOKEN = "a token of one session"


class Worker:
    """A worker on a thread of this process.

    Args:
        url: Where it finds its driver, or a line to it.
        root: The search's folder.
        problem: What it runs.
    """

    def __init__(self, url: str, root: Path, problem: Problem) -> None:
        self.client = ChannelClient(url, TOKEN)
        welcome = self.client.join({"version": nas.__version__, "host": "here", "pid": 1})
        spec = RuntimeSpec(
            problem=Spec.of(type(problem)),
            url=str(root),
            options={},
            session=welcome["session"],
            has_stopper=welcome["has_stopper"],
            jobs_request_trials=welcome["jobs_request_trials"],
        )
        self.agent = Agent(self.client, InProcessPool(spec, open_root(str(root)), problem))
        self.ending: Ending | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        self.ending = self.agent.serve()

    def leave(self) -> None:
        """As by Ctrl-C."""
        self.agent.end(Ending("interrupted (SIGINT)", 130))
        self.wait()

    def wait(self, timeout_s: float = 30.0) -> Ending:
        """Why it has ended."""
        self._thread.join(timeout_s)
        assert self.ending is not None
        return self.ending


class Lossy(ThreadingHTTPServer):
    """A line to a driver on which requests and replies get lost, and requests arrive twice.

    Args:
        url: The driver's.
        every: Of so many requests one gets lost, one's reply does, and one arrives twice.
    """

    daemon_threads = True

    def __init__(self, url: str, every: int = 4) -> None:
        super().__init__(("127.0.0.1", 0), _LossyHandler)
        self.target = httpx.Client(base_url=url, trust_env=False, timeout=30)
        self.every = every
        self.requests = itertools.count()
        self.n_lost = self.n_twice = 0
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def __enter__(self) -> Lossy:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()
        self.target.close()


class _LossyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Lossy

    def do_POST(self) -> None:
        fate = next(self.server.requests) % self.server.every
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {"authorization": self.headers["authorization"]}
        self.close_connection = True
        if fate == 1:
            self.server.n_lost += 1
            return
        try:
            answer = self.server.target.post(self.path, content=body, headers=headers)
            if fate == 3:
                self.server.n_twice += 1
                answer = self.server.target.post(self.path, content=body, headers=headers)
        except httpx.TransportError:  # the driver is gone
            return
        if fate == 2:
            self.server.n_lost += 1
            return
        self.send_response(answer.status_code)
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, format: str, *_: object) -> None:
        pass
