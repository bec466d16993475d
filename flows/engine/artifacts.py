"""What Prefect shows beside the task runs: checkpoint, leaderboard and lineage artifacts, written in the background.

Never on the search's path: a server that is slow or gone costs artifacts, which are counted and said at the end.
"""

from __future__ import annotations

import base64
import logging
import queue
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import httpx

from nas.core.metric import Metric
from nas.core.trial import Trial
from nas.executors.events import Event, Finished, StopRequested

LEADERBOARD_S = 5.0
CANCEL_POLL_S = 5.0
TIMEOUT_S = 10.0
N_LEADERS = 20

logger = logging.getLogger("prefect.heirloom")


class RunArtifacts:
    """Writes the artifacts of one flow run over Prefect's REST API, from a thread of its own.

    Args:
        client: Reaches Prefect's API; see ``api_client``.
        flow_run: The flow run's id.
        metric: Ranks the leaderboard.
        stages: The plan's, in its order; the scores of a later one go before, as they are of fuller trainings.
        task_run_of: The task run that shows a trial.
        post: Where a cancel asked for in Prefect is posted.
    """

    def __init__(
        self,
        client: httpx.Client,
        flow_run: str,
        metric: Metric,
        stages: Sequence[str],
        *,
        task_run_of: Callable[[int], str | None],
        post: Callable[[Event], None],
    ) -> None:
        self.n_lost = 0
        self._flow_run = flow_run
        self._metric = metric
        self._stages = {name: place for place, name in enumerate(stages)}
        self._task_run_of = task_run_of
        self._post = post
        self._client = client
        self._queue: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._leaders: list[Trial] = []
        self._leaderboard: str | None = None
        self._is_stale = False
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._work, name="heirloom-showcase", daemon=True)
        self._thread.start()

    def introduce(self, lineage: str, tags: Sequence[str], earlier: Sequence[str], finished: Iterable[Trial]) -> None:
        """Tags the flow run, says how the lineage is drawn, and takes over from earlier sessions.

        Args:
            lineage: The text of an artifact ``lineage``.
            tags: The flow run's; those of a search's flow runs have one in common.
            earlier: The flow runs of earlier sessions, which stay Running for ever after a ``kill -9``.
            finished: The trials that they finished, for the leaderboard.
        """
        links = "".join(f"\n* [flow run {flow_run}](/runs/flow-run/{flow_run})" for flow_run in earlier)
        text = lineage + (f"\n\nEarlier sessions of this search, the newest first:\n{links}" if earlier else "")
        self._queue.put(lambda: self._send("PATCH", f"/flow_runs/{self._flow_run}", {"tags": list(tags)}))
        self._queue.put(lambda: self._create("lineage", "How the whole search is drawn", text))
        for flow_run in earlier:
            self._queue.put(partial(self._mark_crashed, flow_run))
        self._queue.put(partial(self._rank, list(finished)))

    def observe(self, event: Event) -> None:
        """Takes a finished trial; returns at once."""
        if isinstance(event, Finished):
            self._queue.put(lambda: self._take(event.trial))

    def close(self, timeout_s: float) -> None:
        """Writes what is left, within ``timeout_s``."""
        self._queue.put(None)
        self._is_closing.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self.n_lost += self._queue.qsize()

    def _mark_crashed(self, flow_run: str) -> None:
        """Marks the flow run of an earlier session and what ran in it, unless it has ended, or is another server's."""
        answer = self._client.get(f"/flow_runs/{flow_run}")
        if answer.status_code == httpx.codes.NOT_FOUND:
            return
        if answer.raise_for_status().json()["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED"):
            return
        message = f"its driver is gone; continued by flow run {self._flow_run}"
        crashed = {"state": {"type": "CRASHED", "name": "Crashed", "message": message}, "force": True}
        unfinished = {"state": {"type": {"any_": ["PENDING", "RUNNING"]}}}
        asked = {"flow_runs": {"id": {"any_": [flow_run]}}, "task_runs": unfinished}
        for task_run in self._send("POST", "/task_runs/filter", asked).json():
            self._send("POST", f"/task_runs/{task_run['id']}/set_state", crashed)
        self._send("POST", f"/flow_runs/{flow_run}/set_state", crashed)

    def _work(self) -> None:
        next_board = next_poll = time.monotonic()
        while True:
            try:
                write = self._queue.get(timeout=1.0)
            except queue.Empty:
                write = _nothing
            if write is None:
                self.n_lost += not self._try(self._write_leaderboard)
                return
            self.n_lost += not self._try(write)
            if self._is_stale and time.monotonic() >= next_board:
                self._try(self._write_leaderboard)
                next_board = time.monotonic() + LEADERBOARD_S
            if time.monotonic() >= next_poll and not self._is_closing.is_set():
                self._try(self._honor_cancel)
                next_poll = time.monotonic() + CANCEL_POLL_S

    def _try(self, do: Callable[[], object]) -> bool:
        """Returns whether it succeeded; a server that is slow, gone, or none of Prefect's raises whatever it likes."""
        try:
            do()
        except Exception as error:
            logger.warning("not shown in Prefect: %r", error)
            return False
        return True

    def _take(self, trial: Trial) -> None:
        self._rank([trial])
        if trial.checkpoint is not None:
            key, about = f"checkpoint-{trial.number:04d}", f"The weights that trial {trial.number} published"
            self._create(key, about, checkpoint_text(trial), self._task_run_of(trial.number))

    def _rank(self, trials: Iterable[Trial]) -> None:
        name = self._metric.name
        scored = [trial for trial in trials if trial.value(name) is not None]
        self._leaders += scored
        self._leaders.sort(key=lambda t: (-self._stages.get(t.stage, 0), -self._metric.rank(t.metrics[name])))
        del self._leaders[N_LEADERS:]
        self._is_stale |= bool(scored)

    def _write_leaderboard(self) -> None:
        if not self._is_stale:
            return
        text = leaderboard_text(self._leaders, self._metric)
        known, self._leaderboard = self._leaderboard, None  # made anew, should this fail
        if known is None:
            self._leaderboard = self._create("leaderboard", "The best trials so far", text)
        else:
            self._send("PATCH", f"/artifacts/{known}", {"data": text})
            self._leaderboard = known
        self._is_stale = False

    def _create(self, key: str, about: str, text: str, task_run: str | None = None) -> str:
        body = {"key": key, "type": "markdown", "description": about, "data": text}
        body |= {"flow_run_id": self._flow_run} | ({} if task_run is None else {"task_run_id": task_run})
        return str(self._send("POST", "/artifacts/", body).json()["id"])

    def _send(self, method: str, path: str, body: Mapping[str, Any]) -> httpx.Response:
        return self._client.request(method, path, json=dict(body)).raise_for_status()

    def _honor_cancel(self) -> None:
        state = self._client.get(f"/flow_runs/{self._flow_run}").raise_for_status().json()["state_type"]
        if state in ("CANCELLING", "CANCELLED"):
            self._post(StopRequested("cancelled in Prefect"))


def _nothing() -> None:
    pass


def api_client(api_url: str) -> httpx.Client:
    """Returns a client of Prefect's API as Prefect's settings want it: environment, files and the active profile.

    They say who asks (``PREFECT_API_AUTH_STRING``, else ``PREFECT_API_KEY``), with which headers, and whom to trust.
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
    """Returns the markdown of a trial's checkpoint: path under the root, bytes, digest, donor, share inherited."""
    assert trial.checkpoint is not None
    inherited = "-" if trial.taken is None else f"{trial.taken:.1%}"
    rows = [
        ("manifest", f"`{trial.checkpoint.manifest.path}`"),
        *(("pack", f"`{pack.path}`") for pack in trial.checkpoint.packs),
        ("bytes", f"{trial.checkpoint.own_bytes:,}"),
        ("digest", f"`{trial.checkpoint.manifest.digest}`"),
        ("donor", "-" if trial.donor is None else f"trial {trial.donor}"),
        ("inherited", inherited),
    ]
    return f"# Checkpoint of trial {trial.number}\n\n| | |\n| --- | --- |\n" + "\n".join(
        f"| {k} | {v} |" for k, v in rows
    )


def leaderboard_text(leaders: list[Trial], metric: Metric) -> str:
    """Returns the markdown of the best trials so far."""
    head = (
        f"# Leaderboard\n\n| | trial | {metric.name} | stage | generation | donor | inherited |\n"
        + "| --- " * 7
        + "|\n"
    )
    rows = [
        f"| {place} | {t.number} | {t.metrics[metric.name]:.4f} | {t.stage} | {t.generation} | "
        f"{'-' if t.donor is None else t.donor} | {'-' if t.taken is None else f'{t.taken:.0%}'} |"
        for place, t in enumerate(leaders, 1)
    ]
    return head + "\n".join(rows)
