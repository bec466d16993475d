"""Artifacts of a flow run, with servers that accept them, refuse them, or are missing."""

from __future__ import annotations

import base64
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from flows.engine.artifacts import RunArtifacts, checkpoint_text
from nas.core.checkpoint import Checkpoint
from nas.core.metric import Metric
from nas.core.policy import Policy
from nas.core.ranking import Export
from nas.core.reference import Reference
from nas.core.trial import Proposal, Reason, State, Trial
from nas.executors.events import Event, Finished, StopRequested
from nas.storage.verified import digest_of
from tests.support.commands import until

ROOT = Path(__file__).parents[3]
LOSS = Metric("loss", "minimize")
MANIFEST = Reference("manifests/000007-ab.json", 120, digest_of(b"manifest"))
PACK = Reference("packs/000007-ab.safetensors", 4_000_000, digest_of(b"pack"))


class Api(ThreadingHTTPServer):
    """Records requests, and answers each with the same text."""

    def __init__(self, answer: str, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.status = status
        self.sent: list[tuple[str, str, dict[str, str]]] = []
        self.headers: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/api"

    def answer_to(self, path: str) -> str:
        return self.answer


class EarlierRun(Api):
    """A server with 50 unfinished task runs, of which it lists 20 at a time."""

    def answer_to(self, path: str) -> str:
        if path != "/api/task_runs/filter":
            return self.answer
        ended = {path for _, path, _ in self.sent}
        left = [{"id": f"t{n}"} for n in range(50) if f"/api/task_runs/t{n}/set_state" not in ended]
        return json.dumps(left[:20])


class _Handler(BaseHTTPRequestHandler):
    server: Api

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.sent.append((self.command, self.path, body))
        self._answer()

    do_PATCH = do_POST  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        self.server.headers.append({name.lower(): value for name, value in self.headers.items()})
        data = self.server.answer_to(self.path).encode()
        self.send_response(self.server.status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def api(request: pytest.FixtureRequest) -> Iterator[Api]:
    with Api(*getattr(request, "param", ('{"id": "a1", "state_type": "RUNNING"}',))) as api:
        threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield api
        api.shutdown()


def artifacts(
    url: str, events: list[Event], *, export: Export = "final", metrics: Sequence[Metric] = (LOSS,)
) -> RunArtifacts:
    stages = ["search", "final"]
    client = httpx.Client(base_url=url, timeout=10)
    return RunArtifacts(client, "f1", metrics, stages, export=export, task_run_of=lambda n: f"t{n}", post=events.append)


def trial(number: int, loss: float, stage: str = "search") -> Trial:
    point = Proposal(point={})
    return Trial(number=number, index=number, proposal=point, stage=stage, state=State.COMPLETE, metrics={"loss": loss})


def published(number: int) -> Trial:
    weights = Checkpoint(manifest=MANIFEST, packs=(PACK,))
    return replace(trial(number, 0.5), checkpoint=weights, donor=3, inherited=0.625)


def test_a_checkpoint_artifact_has_size_digest_and_donor() -> None:
    """Its text has paths, total size, digest, donor and share."""
    text = checkpoint_text(published(7))

    for row in (MANIFEST.path, PACK.path, "4,000,120", MANIFEST.digest, "trial 3", "62.5%"):
        assert row in text


def test_full_trainings_lead_the_leaderboard(api: Api) -> None:
    """Trials of a later stage come before cheap ones, then better scores come first."""
    shown = artifacts(api.url, [])
    for each in (trial(0, 0.3), trial(1, 0.1), trial(2, 0.4, "final"), trial(3, 0.2, "final")):
        shown.observe(Finished(each))
    shown.close(5)
    boards = [body["data"] for _, _, body in api.sent if "# Leaderboard" in body["data"]]

    assert re.findall(r"^\| \d+ \| (\d+) ", boards[-1], re.MULTILINE) == ["3", "2", "1", "0"]
    assert shown.n_lost == 0


def test_trials_that_cannot_win_are_not_on_the_leaderboard(api: Api) -> None:
    """A trial ended by a stopper or trained by older code does not rank; one at the deadline follows complete ones."""
    shown = artifacts(api.url, [])
    stopped = replace(published(1), state=State.STOPPED, reason=Reason.STOPPER, metrics={"loss": 0.1})
    at_deadline = replace(stopped, number=2, reason=Reason.DEADLINE, metrics={"loss": 0.2})
    for each in (trial(0, 0.5), stopped, at_deadline, replace(trial(3, 0.3), outdated=True), trial(4, 0.4)):
        shown.observe(Finished(each))
    shown.close(5)
    boards = [body["data"] for _, _, body in api.sent if "# Leaderboard" in body["data"]]

    assert re.findall(r"^\| \d+ \| (\d+) ", boards[-1], re.MULTILINE) == ["4", "0", "2"]


@pytest.mark.parametrize(("loss", "expected"), [(0.55, ["1", "0", "5"]), (0.4, ["5", "1", "0"])])
def test_the_winner_leads_the_leaderboard_if_the_finals_met_the_deadline(
    api: Api, loss: float, expected: list[str]
) -> None:
    """A final cut short leads only if it is better than the best complete search trial."""
    shown = artifacts(api.url, [])
    final = replace(published(5), stage="final", state=State.STOPPED, reason=Reason.DEADLINE, metrics={"loss": loss})
    for each in (trial(0, 0.6), trial(1, 0.5), final):
        shown.observe(Finished(each))
    shown.close(5)
    boards = [body["data"] for _, _, body in api.sent if "# Leaderboard" in body["data"]]

    assert re.findall(r"^\| \d+ \| (\d+) ", boards[-1], re.MULTILINE) == expected


def test_further_metrics_decide_between_equal_leaders(api: Api) -> None:
    """Of two trials with the same first metric, the one with the better second metric leads, as it would win."""
    shown = artifacts(api.url, [], metrics=(LOSS, Metric("parameters", "minimize")))
    for number, n_parameters in enumerate((900, 500)):
        shown.observe(Finished(replace(trial(number, 0.2), metrics={"loss": 0.2, "parameters": n_parameters})))
    shown.close(5)
    boards = [body["data"] for _, _, body in api.sent if "# Leaderboard" in body["data"]]

    assert re.findall(r"^\| \d+ \| (\d+) ", boards[-1], re.MULTILINE) == ["1", "0"]


def test_trials_in_hand_rank_among_finals_with_export_best(api: Api) -> None:
    """A trial with weights and a full score leads the finals if it is better, and one under QUICK_EVAL does not."""
    shown = artifacts(api.url, [], export="best")
    quick = replace(published(4), metrics={"loss": 0.1}, policies=frozenset({Policy.QUICK_EVAL}))
    for each in (published(0), replace(published(1), metrics={"loss": 0.2}), trial(2, 0.3, "final"), quick):
        shown.observe(Finished(replace(each, donor=None)))
    shown.close(5)
    boards = [body["data"] for _, _, body in api.sent if "# Leaderboard" in body["data"]]

    assert re.findall(r"^\| \d+ \| (\d+) ", boards[-1], re.MULTILINE) == ["1", "2", "0", "4"]


def test_scores_of_shared_weights_on_the_leaderboard(api: Api) -> None:
    """Supernet epochs are left out; subnets of the newest one lead, and their scores are marked, unlike a final's."""
    shown = artifacts(api.url, [])
    untrained = frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN})
    for epoch, losses in ((0, {1: 0.2, 2: 0.1}), (3, {4: 0.4, 5: 0.3})):
        shown.observe(Finished(replace(trial(epoch, 0.05), proposal=Proposal(point={"supernet_epoch": epoch}))))
        for number, loss in losses.items():
            shown.observe(Finished(replace(trial(number, loss), policies=untrained, donor=epoch, resolved_donor=epoch)))
    shown.observe(Finished(trial(6, 0.5, "final")))
    shown.close(5)
    boards = [body["data"] for _, _, body in api.sent if "# Leaderboard" in body["data"]]

    assert re.findall(r"^\| \d+ \| (\d+) \| ([^|]*) ", boards[-1], re.MULTILINE) == [
        ("6", "0.5000"),
        *((number, f"{score} with shared weights") for number, score in (("5", "0.3000"), ("4", "0.4000"))),
        *((number, f"{score} with shared weights") for number, score in (("2", "0.1000"), ("1", "0.2000"))),
    ]


def test_weights_are_shown_on_their_task_run(api: Api) -> None:
    """A checkpoint's artifact names the trial's task run and the flow run."""
    shown = artifacts(api.url, [])
    shown.observe(Finished(published(7)))
    shown.close(5)
    (sent,) = [body for _, _, body in api.sent if body.get("key") == "checkpoint-0007"]

    assert (sent["task_run_id"], sent["flow_run_id"], sent["type"]) == ("t7", "f1", "markdown")


def test_all_task_runs_of_an_earlier_session_are_ended() -> None:
    """However many are unfinished, each is marked as crashed once, and then their flow run."""
    with EarlierRun('{"id": "a1", "state_type": "RUNNING"}') as api:
        threading.Thread(target=api.serve_forever, kwargs={"poll_interval": 0.01}).start()
        shown = artifacts(api.url, [])
        shown.introduce("", [], ["f0"], [])
        shown.close(60)
        api.shutdown()
    *task_runs, flow_run = [path for _, path, _ in api.sent if path.endswith("/set_state")]

    assert sorted(task_runs) == sorted(f"/api/task_runs/t{n}/set_state" for n in range(50))
    assert flow_run == "/api/flow_runs/f0/set_state"
    assert shown.n_lost == 0


@pytest.mark.parametrize("api", [('{"state_type": "CANCELLING"}',), ('{"state_type": "CANCELLED"}',)], indirect=True)
def test_a_cancel_is_posted(api: Api) -> None:
    """A flow run canceled in Prefect asks the controller to stop."""
    events: list[Event] = []
    shown = artifacts(api.url, events)
    until(lambda: events, 60, what="the event")
    shown.close(5)

    assert events[:1] == [StopRequested("cancelled in Prefect")]


@pytest.mark.parametrize("api", [("no", 500), ("<html>not Prefect</html>",), ('{"detail": "?"}',)], indirect=True)
def test_refused_artifacts_are_counted(api: Api) -> None:
    """An error or invalid answer loses one artifact, and nothing else."""
    shown = artifacts(api.url, [])
    for number in (1, 2):
        shown.observe(Finished(published(number)))
    shown.close(10)

    assert shown.n_lost == 3


def test_a_missing_server_does_not_block() -> None:
    """Without a server a thousand trials are observed, and closing ends within its bound."""
    shown = artifacts("http://127.0.0.1:9/api", [])
    for number in range(1000):
        shown.observe(Finished(published(number)))
    closing = threading.Thread(target=shown.close, args=(2,))
    closing.start()
    closing.join(60)

    assert not closing.is_alive()
    assert shown.n_lost >= 900


def test_what_close_counted_stays_counted() -> None:
    """A request that fails after ``close`` gave up adds to what was counted then."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        shown = artifacts(f"http://127.0.0.1:{silent.getsockname()[1]}/api", [])
        for number in range(1000):
            shown.observe(Finished(published(number)))
        connection, _ = silent.accept()  # of the first request
        with connection:
            shown.close(0.5)
            counted = shown.n_lost
    until(lambda: shown.n_lost != counted, 60, what="the end of the request")

    assert counted == 999
    assert counted < shown.n_lost <= counted + 4  # the request, the line of the log, the leaderboard, the log's rest


ASK = """
import sys
from flows.engine.artifacts import api_client

with api_client(sys.argv[1]) as client:
    client.get("/flow_runs/f1").raise_for_status()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "environment", "expected"),
    [
        ({"PREFECT_API_AUTH_STRING": "me:profile"}, {}, "Basic " + base64.b64encode(b"me:profile").decode()),
        ({"PREFECT_API_KEY": "from-profile"}, {}, "Bearer from-profile"),
        ({"PREFECT_API_KEY": "from-profile"}, {"PREFECT_API_KEY": "from-environment"}, "Bearer from-environment"),
        ({"PREFECT_API_KEY": "k"}, {"PREFECT_API_AUTH_STRING": "me:environment"}, "Basic bWU6ZW52aXJvbm1lbnQ="),
        ({}, {}, None),
    ],
    ids=["basic", "key", "environment", "both", "nothing"],
)
def test_credentials_come_from_prefects_settings(
    api: Api, tmp_path: Path, profile: dict[str, str], environment: dict[str, str], expected: str | None
) -> None:
    """The active profile, or the environment before it, gives the password or key of Prefect's server."""
    lines = [f'{name} = "{value}"' for name, value in profile.items()]
    profiles = tmp_path / "profiles.toml"
    profiles.write_text(
        "\n".join(
            ['active = "mine"', "[profiles.mine]", *lines, 'PREFECT_CLIENT_CUSTOM_HEADERS = "{\\"X-Mine\\": \\"1\\"}"']
        )
    )
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    ours |= {"PREFECT_PROFILES_PATH": str(profiles), "PREFECT_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", ASK, api.url], env=ours | environment, check=True, timeout=120)

    (headers,) = api.headers
    assert headers.get("authorization") == expected
    assert headers["x-mine"] == "1"
