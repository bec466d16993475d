"""The Prefect flow run of a session."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.events.worker import EventsWorker
from prefect.runtime import flow_run as this_flow_run
from prefect.states import Cancelled, Completed, Failed

from flows.cli.program import command
from flows.engine.artifacts import RunArtifacts, api_client
from flows.engine.task_runs import TrialTaskRunner
from flows.engine.tasks import PrefectExecutor, tags_without_limits
from flows.views.summary import failure_of
from nas.core.errors import SearchInterruptedError
from nas.core.redaction import public_line, without_passwords
from nas.core.tracebacks import text_of
from nas.core.trial import State as TrialState
from nas.executors.events import Event, Finished
from nas.executors.pool import WorkerPool
from nas.storage.sessions import past_sessions

if TYPE_CHECKING:
    from flows.engine.session import SessionRun

DELIVERY_S = 5.0
"""Seconds to wait until the states of the last task runs are sent."""
N_EARLIER = 20
"""Earlier flow runs that are linked."""


class FlowRun:
    """The Prefect flow run of a session.

    Call ``run`` on a thread of its own, with a callable that calls ``body``.

    Args:
        session_run: The session.
        pool: Executes attempts.
        api_url: URL of Prefect's API.
        has_log: Whether log lines are sent; nobody reads those of a temporary server.

    Attributes:
        executor: Submits the task runs of trials.
        id: Id of the flow run, once it runs.
        error: Exception raised by Prefect itself.
    """

    def __init__(self, session_run: SessionRun, pool: WorkerPool, api_url: str, *, has_log: bool) -> None:
        self._run = session_run
        self._pool = pool
        self._api_url = api_url
        self._has_log = has_log
        self._has_complete = False
        self._artifacts: RunArtifacts | None = None
        records = session_run.context.records
        self.executor = PrefectExecutor(pool, session_run.context.machine.slots, records.finished_trial)
        self.id: str | None = None
        self.error: BaseException | None = None

    @property
    def n_artifacts_lost(self) -> int:
        """Number of artifacts that the server did not accept."""
        return 0 if self._artifacts is None else self._artifacts.n_lost

    def run(self, body: Callable[[], None]) -> None:
        """Runs the flow until Prefect has finished it."""
        name = self._run.context.name

        # Two threads more than slots: task runs that restore trials of earlier sessions return at once.
        runner: Any = TrialTaskRunner(max_workers=self._run.context.machine.slots + 2)

        @flow(
            name="heirloom",
            flow_run_name=name,
            task_runner=runner,
            retries=0,  # not PREFECT_FLOWS_DEFAULT_RETRIES: the same command continues a search
            validate_parameters=False,
            persist_result=False,
        )
        def heirloom(search: str, resumes: str | None) -> State[None]:
            try:
                body()
            except SearchInterruptedError as error:
                return Cancelled(message=public_line(error))
            except Exception as error:
                return Failed(message=public_line(error))
            finally:
                self.executor.wait_until_shown()
            pipeline = self._run.pipeline
            deterministic = pipeline.prepared.search.deterministic
            failure = None if self._has_complete else failure_of(pipeline.summary(), deterministic=deterministic)
            if failure is not None:
                return Failed(message=public_line(failure))
            return Completed(message="all trials have their records")

        try:
            with tags_without_limits():
                heirloom(name, next(iter(self._earlier()), None), return_state=True)
            EventsWorker.drain_all(timeout=DELIVERY_S)  # the states of the last task runs are sent in the background
        except BaseException as error:
            self.error = error

    def body(self) -> None:
        """Runs one session of the search inside the flow."""
        self.id = str(this_flow_run.get_id())
        context, pipeline = self._run.context, self._run.pipeline
        artifacts = self._artifacts = RunArtifacts(
            api_client(self._api_url),
            self.id,
            pipeline.prepared.problem.metrics,
            [stage.name for stage in pipeline.prepared.plan.stages],
            export=pipeline.ranking.export,
            task_run_of=self.executor.task_run_of,
            log_of=context.records.log if self._has_log else None,
            post=self.executor.post,
        )

        def observe(event: Event) -> None:
            self._run.progress.observe(event)
            if isinstance(event, Finished):
                self._has_complete |= event.trial.state == TrialState.COMPLETE
                self.executor.show(event.trial)
            artifacts.observe(event)

        artifacts.say(f"session {self._run.session} of search {context.name} begins, in {context.records.files.url}")
        try:
            self._run.run(self.executor, self._pool, self.id, observe, begun=lambda: self._introduce(artifacts))
        except BaseException as error:
            artifacts.say(f"session {self._run.session} ended: {text_of(error)}", logging.ERROR)
            raise
        artifacts.say(f"session {self._run.session} ended: all trials have their records")

    def _introduce(self, artifacts: RunArtifacts) -> None:
        context, earlier = self._run.context, self._earlier()
        root = context.records.files.url.rpartition("/")[0]
        hint = " (replace `***` by the password)" if without_passwords(context.root) != context.root else ""
        artifacts.introduce(
            _page_text(f"{command('report')} name={context.name} storage.root={root}", context.name, hint),
            tags=[f"search:{context.name}", f"session:{self._run.session}"],
            earlier=earlier,
            finished=[trial for trial in context.records.load()[0] if trial.is_finished],
        )

    def close_artifacts(self, timeout_s: float) -> None:
        """Writes the last artifacts."""
        if self._artifacts is not None:
            self._artifacts.close(timeout_s)

    def _earlier(self) -> list[str]:
        """Returns the flow runs of earlier sessions, newest first."""
        sessions = past_sessions(self._run.context.records)
        numbers = [n for n in sorted(sessions, reverse=True) if n < self._run.session and sessions[n]["flow_run"]]
        return [sessions[n]["flow_run"] for n in numbers[:N_EARLIER]]


def _page_text(report: str, name: str, hint: str) -> str:
    """Returns the path of the search's page, and the commands that write and open it."""
    return (
        f"The page of this search is `{Path.cwd() / f'{name}.html'}` after\n\n`{report} format=html`{hint}\n\n"
        "Add `open=true` to open it in a browser, and `live=true` to keep it fresh while the search runs."
    )
