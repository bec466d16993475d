"""A driver that makes no sense ends its workers with a reason; none goes on without hearing anything."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from nas.core.errors import ServerError
from nas.core.spec import Spec
from nas.executors.in_process_pool import InProcessPool
from nas.executors.remote.agent import Agent, Ending
from nas.executors.remote.client import ChannelClient
from nas.storage.open import open_root
from nas.training.messages import RuntimeSpec

WELCOME = {
    "search": "search",
    "problem": {"target": "x.Y", "arguments": {}},
    "session": 1,
    "has_stopper": False,
    "jobs_request_trials": False,
    "resume_every_s": 600.0,
    "trial_timeout_s": None,
    "device": None,
    "n_threads": None,
    "lost_after_s": 30.0,
    "poll_s": 5.0,
    "code": {},
}


class HostileDriver(ThreadingHTTPServer):
    """Answers as it is told to, with status 200.

    Args:
        says: What it answers to each path; nothing more after the first answer to ``/listen``.
    """

    daemon_threads = True

    def __init__(self, says: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.says = {"/join": json.dumps(WELCOME).encode(), "/say": b"{}", **says}
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()


class _Handler(BaseHTTPRequestHandler):
    server: HostileDriver

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        answer = self.server.says[self.path]
        if self.path == "/listen":
            time.sleep(0.05)
            self.server.says["/listen"] = b'{"messages": []}'
        self.send_response(200)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *_: object) -> None:
        pass


@pytest.fixture
def driver() -> Iterator[Callable[..., HostileDriver]]:
    started: list[HostileDriver] = []

    def start(**says: bytes) -> HostileDriver:
        started.append(HostileDriver({f"/{path}": answer for path, answer in says.items()}))
        return started[-1]

    yield start
    for found in started:
        found.shutdown()
        found.server_close()


@pytest.mark.parametrize(
    "changes",
    [
        {"lost_after_s": float("nan")},
        {"lost_after_s": 1e12},
        {"lost_after_s": "30"},
        {"poll_s": 1e9},
        {"poll_s": -1.0},
        {"poll_s": None},
        {"trial_timeout_s": float("nan")},
        {"resume_every_s": -1.0},
        {"search": 5},
        {"problem": "x.Y"},
        {"session": True},
        {"has_stopper": 1},
        {"code": {"a.py": 1}},
        {"device": ["cuda"]},
        {"n_threads": 10**9},
        {"more": 1},
    ],
    ids=lambda changes: repr(changes).strip("{}").replace("'", ""),
)
def test_a_welcome_that_makes_no_sense_is_refused(
    driver: Callable[..., HostileDriver], changes: dict[str, Any]
) -> None:
    """Each field has its type and its bounds; the error names the driver and the field."""
    start = driver(join=json.dumps({**WELCOME, **changes}).encode())

    with pytest.raises(ServerError, match=f"{start.url} does not answer as a driver does: .*{next(iter(changes))}"):
        ChannelClient(start.url, "token").join({})


@pytest.mark.parametrize("answer", [b"{}", b"[]", b"", b"<html>", b'{"messages": []}'], ids=repr)
def test_what_is_no_welcome_is_refused(driver: Callable[..., HostileDriver], answer: bytes) -> None:
    """Another server's answer, say."""
    with pytest.raises(ServerError, match="does not answer as a driver does"):
        ChannelClient(driver(join=answer).url, "token").join({})


@pytest.mark.parametrize(
    "answer",
    [
        b'{"messages": [5]}',
        b'{"messages": ["ab"]}',
        b'{"messages": "ab"}',
        b'{"messages": [[1, 5]]}',
        b'{"messages": [[1, null]]}',
        b'{"messages": [[2, {"do": "leave", "why": ""}]]}',
        b'{"messages": [[1, {"do": "leave"}, 3]]}',
        b'{"messages": [[true, {"do": "leave"}]]}',
        b"{}",
        b"hello",
        b'{"messages": [[1, {}]]}',
        b'{"messages": [[1, {"do": ["run"]}]]}',
        b'{"messages": [[1, {"do": "run", "assignment": 5}]]}',
        b'{"messages": [[1, {"do": "dismiss", "job": 3}]]}',
        b'{"messages": [[1, {"do": "verdict", "trial": 0, "step": 0}]]}',
    ],
    ids=repr,
)
def test_a_message_that_makes_no_sense_ends_the_worker(
    driver: Callable[..., HostileDriver], tmp_path: Path, answer: bytes
) -> None:
    """With status 1 and the reason, whether it can't be read or can't be done."""
    client = ChannelClient(driver(listen=answer).url, "token")
    client.join({})
    files = open_root(str(tmp_path))
    pool = InProcessPool(RuntimeSpec(problem=Spec("x.Y"), url=str(tmp_path), options={}), files)
    endings: list[Ending] = []
    worker = threading.Thread(target=lambda: endings.append(Agent(client, pool).serve()), daemon=True)
    worker.start()
    worker.join(20)

    assert endings, "the worker goes on"
    assert endings[0].status == 1
    assert endings[0].why.startswith("the driver said what makes no sense: ")
