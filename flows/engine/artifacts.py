"""Prefect artifacts of a flow run (checkpoints, leaderboard, lineage) and its log, written in the background.

They never delay the search. If the server is down, they wait until it is back or the search ends. If it is slow or
refuses, some are lost. Lost ones are counted and reported at the end.
"""

from __future__ import annotations

import base64
import logging
import queue
import ssl
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import httpx

from flows.engine.run_log import RunLog
from nas.core.full_scores import is_in_hand
from nas.core.metric import Metric
from nas.core.ranking import Export, WinnerKey, competitors, winner_key
from nas.core.redaction import clean
from nas.core.shared_scores import has_shared_score
from nas.core.supernet import add_shared_epoch
from nas.core.trial import Trial
from nas.executors.events import Event, Finished, Notice, StopRequested, TrialLost
from nas.views.formatting import markdown, score
from nas.views.trial_summary import SHARED

LEADERBOARD_S = 5.0
CANCEL_POLL_S = 5.0
TIMEOUT_S = 10.0
RETRY_S = 2.0
"""Seconds between attempts to connect to a server that is down."""
N_LEADERS = 20

logger = logging.getLogger("prefect.heirloom")


class RunArtifacts:
    """Artifacts and log of one flow run, written over Prefect's REST API from a thread.

    Args:
        client: Client of Prefect's API; see ``api_client``.
        flow_run: Id of the flow run.
        metrics: The problem's metrics. The leaderboard shows the first; all rank it.
        stages: Stages of the policy plan in order. Later stages rank first, because they train more.
        export: With ``best``, trials in hand with a full score rank among the finals.
        task_run_of: Returns the task run of a trial.
        log_of: Reads the log of a trial, for the flow run's log; None: the flow run gets no log.
        post: Receives ``StopRequested`` if the flow run is cancelled in Prefect.
    """

    def __init__(
        self,
        client: httpx.Client,
        flow_run: str,
        metrics: Sequence[Metric],
        stages: Sequence[str],
        *,
        export: Export = "final",
        task_run_of: Callable[[int], str | None],
        log_of: Callable[[int], str] | None = None,
        post: Callable[[Event], None],
    ) -> None:
        self.n_lost = 0
        self._flow_run = flow_run
        self._metrics = metrics
        self._stages = {name: place for place, name in enumerate(stages)}
        self._export = export
        self._task_run_of = task_run_of
        self._post = post
        self._client = client
        self._log = None if log_of is None else RunLog(flow_run, log_of, partial(self._send, "POST", "/logs/"))
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._leaders: list[Trial] = []
        self._finished: dict[int, Trial] = {}
        self._epochs: dict[int, int] = {}
        self._leaderboard: str | None = None
        self._is_stale = False
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="heirloom-artifacts", daemon=True)
        self._thread.start()

    def introduce(self, lineage: str, tags: Sequence[str], earlier: Sequence[str], finished: Iterable[Trial]) -> None:
        """Tags the flow run, writes the lineage artifact and marks earlier flow runs as crashed.

        Args:
            lineage: Text of the artifact ``lineage``.
            tags: Tags of the flow run. All flow runs of a search share one tag.
            earlier: Flow runs of earlier sessions. After ``kill -9`` they would stay Running forever.
            finished: Trials of earlier sessions, for the leaderboard.
        """
        links = "".join(f"\n* [flow run {flow_run}](/runs/flow-run/{flow_run})" for flow_run in earlier)
        text = lineage + (f"\n\nEarlier sessions of this search, the newest first:\n{links}" if earlier else "")
        self._queue.put(lambda: self._send("PATCH", f"/flow_runs/{self._flow_run}", {"tags": list(tags)}))
        self._queue.put(lambda: self._create("lineage", "The command that draws the whole search", text))
        for flow_run in earlier:
            self._queue.put(partial(self._mark_crashed, flow_run))
        self._queue.put(partial(self._rank, list(finished)))

    def observe(self, event: Event) -> None:
        """Queues the artifacts and log lines of an event, and returns at once."""
        match event:
            case Finished(trial=Trial(number=number)) | TrialLost(trial=number):
                task_run = self._task_run_of(number)
            case Notice():
                task_run = None
            case _:
                return
        if isinstance(event, Finished):
            self._queue.put(lambda: self._take(event.trial, task_run))
        if self._log is not None:
            self._queue.put(partial(self._log.add, event, task_run))

    def say(self, text: str, level: int = logging.INFO) -> None:
        """Adds a line to the flow run's log."""
        if self._log is not None:
            self._queue.put(partial(self._log.say, text, level))

    def close(self, timeout_s: float) -> None:
        """Writes the remaining artifacts, within ``timeout_s``."""
        self._queue.put(None)
        self._is_closing.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            with suppress(queue.Empty):
                while True:
                    is_lost = self._queue.get_nowait() is not None
                    self.n_lost += is_lost
            self._queue.put(None)

    def _mark_crashed(self, flow_run: str) -> None:
        """Marks an earlier flow run and its task runs as crashed, unless they have ended."""
        answer = self._client.get(f"/flow_runs/{flow_run}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return
        if answer.raise_for_status().json()["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
            return
        message = f"the driver has ended; continued by flow run {self._flow_run}"
        crashed = {"state": {"type": "CRASHED", "name": "Crashed", "message": message}, "force": True}
        unfinished = {"state": {"type": {"any_": ["PENDING", "RUNNING"]}}}
        asked = {"flow_runs": {"id": {"any_": [flow_run]}}, "task_runs": unfinished}
        marked: set[str] = set()
        while found := {run["id"] for run in self._send("POST", "/task_runs/filter", asked).json()} - marked:
            for task_run in found:  # Prefect lists at most 200 at a time
                self._send("POST", f"/task_runs/{task_run}/set_state", crashed)
            marked |= found
        self._send("POST", f"/flow_runs/{flow_run}/set_state", crashed)

    def _work(self) -> None:
        next_board = next_poll = time.monotonic()
        while True:
            try:
                write = self._queue.get(timeout=1.0)
            except queue.Empty:
                write = _nothing
            if write is None:
                self._try_or_lose(self._write_leaderboard)
                self._try_or_lose(partial(self._send_log, everything=True))
                return
            self._try_or_lose(write)
            self._try_or_lose(self._send_log)
            if self._is_stale and time.monotonic() >= next_board:
                self._try(self._write_leaderboard)
                next_board = time.monotonic() + LEADERBOARD_S
            if time.monotonic() >= next_poll and not self._is_closing.is_set():
                self._try(self._check_cancelled)
                next_poll = time.monotonic() + CANCEL_POLL_S

    def _try(self, do: Callable[[], object]) -> bool:
        """Returns whether a call succeeded; any exception counts, because the server may be anything."""
        try:
            do()
        except Exception as error:
            logger.warning("not written to Prefect: %r", error)
            return False
        return True

    def _try_or_lose(self, do: Callable[[], object]) -> None:
        """Makes a call, and counts it as lost if it fails."""
        is_lost = not self._try(do)  # before the sum: ``close`` may add to it meanwhile
        self.n_lost += is_lost

    def _send_log(self, *, everything: bool = False) -> None:
        if self._log is not None:
            self._log.send_due(everything=everything)

    def _take(self, trial: Trial, task_run: str | None) -> None:
        self._rank([trial])
        if trial.checkpoint is not None:
            key, about = f"checkpoint-{trial.number:04d}", f"Weights published by trial {trial.number}"
            self._create(key, about, checkpoint_text(trial), task_run)

    def _rank(self, trials: Iterable[Trial]) -> None:
        trials = list(trials)
        self._finished |= {trial.number: trial for trial in trials}
        for trial in trials:
            add_shared_epoch(self._epochs, trial)
        scored = [trial for trial in trials if winner_key(trial, self._metrics) is not None]
        self._leaders += scored
        self._leaders.sort(key=self._place)
        del self._leaders[N_LEADERS:]
        self._is_stale |= bool(scored)

    def _place(self, trial: Trial) -> tuple[int, WinnerKey]:
        """Returns the sort key below the possible winners: later stages first, then better trials."""
        key = winner_key(trial, self._metrics, self._epochs)
        assert key is not None
        stage = self._stages.get(trial.stage, 0)
        if self._export == "best" and is_in_hand(trial, self._finished.get, self._metrics[0]):
            stage = len(self._stages) - 1
        return -stage, key

    def _write_leaderboard(self) -> None:
        if not self._is_stale:
            return
        winners = competitors(self._finished.values(), self._metrics, [*self._stages], self._export)
        leaders = [*{trial.number: trial for trial in (*winners, *self._leaders)}.values()][:N_LEADERS]
        shared = {trial.number for trial in leaders if has_shared_score(trial, self._finished.get)}
        text = leaderboard_text(leaders, self._metrics[0], shared)
        known, self._leaderboard = self._leaderboard, None  # created again if this fails
        if known is None:
            self._leaderboard = self._create("leaderboard", "The best trials so far", text)
        else:
            self._send("PATCH", f"/artifacts/{known}", {"data": text})
            self._leaderboard = known
        self._is_stale = False

    def _create(self, key: str, about: str, text: str, task_run: str | None = None) -> str:
        body = {"key": key, "type": "markdown", "description": about, "data": clean(text)}
        body |= {"flow_run_id": self._flow_run} | ({} if task_run is None else {"task_run_id": task_run})
        return str(self._send("POST", "/artifacts/", body).json()["id"])

    def _send(self, method: str, path: str, body: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> httpx.Response:
        while True:
            try:
                return self._client.request(method, path, json=body).raise_for_status()
            except (httpx.ConnectError, httpx.ConnectTimeout):  # the server has not seen the request
                if self._is_closing.wait(RETRY_S):
                    raise

    def _check_cancelled(self) -> None:
        state = self._client.get(f"/flow_runs/{self._flow_run}").raise_for_status().json()["state_type"]
        if state in ("CANCELLING", "CANCELLED"):
            self._post(StopRequested("cancelled in Prefect"))


def _nothing() -> None:
    pass


def api_client(api_url: str) -> httpx.Client:
    """Returns a client of Prefect's API that uses Prefect's own settings.

    The settings give credentials (``PREFECT_API_AUTH_STRING``, else ``PREFECT_API_KEY``), headers and certificates.
    """
    from prefect.settings import get_current_settings

    settings = get_current_settings()
    headers = {name: str(value) for name, value in settings.client.custom_headers.items()}
    if settings.api.auth_string is not None:
        user_and_password = settings.api.auth_string.get_secret_value()
        headers["Authorization"] = f"Basic {base64.b64encode(user_and_password.encode()).decode()}"
    elif settings.api.key is not None:
        headers["Authorization"] = f"Bearer {settings.api.key.get_secret_value()}"
    trusted = ssl.create_default_context(cafile=settings.api.ssl_cert_file or None)
    if settings.api.tls_insecure_skip_verify:
        trusted.check_hostname, trusted.verify_mode = False, ssl.CERT_NONE
    return httpx.Client(base_url=api_url, timeout=TIMEOUT_S, headers=headers, verify=trusted)


def checkpoint_text(trial: Trial) -> str:
    """Returns the Markdown text of a checkpoint: path, bytes, digest, donor and inherited share."""
    assert trial.checkpoint is not None
    inherited = "-" if trial.inherited_share is None else f"{trial.inherited_share:.1%}"
    rows = [
        ("manifest", f"`{trial.checkpoint.manifest.path}`"),
        *(("pack", f"`{pack.path}`") for pack in trial.checkpoint.packs),
        ("bytes", f"{trial.checkpoint.own_bytes:,}"),
        ("digest", f"`{trial.checkpoint.manifest.digest}`"),
        ("donor", "-" if trial.donor is None else f"trial {markdown(trial.donor)}"),
        ("inherited", inherited),
    ]
    return f"# Checkpoint of trial {trial.number}\n\n| | |\n| --- | --- |\n" + "\n".join(
        f"| {k} | {v} |" for k, v in rows
    )


def leaderboard_text(leaders: list[Trial], metric: Metric, shared: Container[int] = ()) -> str:
    """Returns the Markdown table of the best trials so far; scores of shared weights are marked."""
    head = (
        f"# Leaderboard\n\n| | trial | {markdown(metric.name)} | stage | generation | donor | inherited |\n"
        + "| --- " * 7
        + "|\n"
    )
    rows = [
        f"| {place} | {t.number} | {score(t.metrics[metric.name])}{SHARED if t.number in shared else ''} | "
        f"{markdown(t.stage)} | {t.generation} | {'-' if t.donor is None else markdown(t.donor)} | "
        f"{'-' if t.inherited_share is None else f'{t.inherited_share:.0%}'} |"
        for place, t in enumerate(leaders, 1)
    ]
    return head + "\n".join(rows)
