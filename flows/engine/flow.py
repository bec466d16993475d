"""The flow run that shows one session of a search; the only place where a Prefect flow is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.events.worker import EventsWorker
from prefect.runtime import flow_run as this_flow_run
from prefect.states import Cancelled, Completed
from prefect.task_runners import ThreadPoolTaskRunner

from flows.engine.artifacts import RunArtifacts, api_client
from flows.engine.tasks import PrefectExecutor, tags_without_limits
from nas.core.errors import SearchInterruptedError
from nas.core.redaction import without_passwords
from nas.executors.events import Event, Finished
from nas.executors.pool import WorkerPool
from nas.storage.sessions import past_sessions

if TYPE_CHECKING:
    from flows.engine.session import _Task

DELIVERY_S = 5.0
N_EARLIER = 20


class FlowRun:
    """A session's flow run: create it, pass its ``body`` as an outcome to ``run`` on a thread.

    Attributes:
        executor: Submits the trials' task runs.
        id: The flow run's id, once it runs.
        error: What Prefect raised, where it was not the search.
    """

    def __init__(self, task: _Task, pool: WorkerPool, api_url: str) -> None:
        self._task = task
        self._api_url = api_url
        self._artifacts: RunArtifacts | None = None
        records = task.workplace.records
        self.executor = PrefectExecutor(pool, task.workplace.machine.slots, records.finished_trial)
        self.id: str | None = None
        self.error: BaseException | None = None

    @property
    def n_artifacts_lost(self) -> int:
        """Artifacts that the server did not take."""
        return 0 if self._artifacts is None else self._artifacts.n_lost

    def run(self, body: Callable[[], None]) -> None:
        """Runs the flow; returns when Prefect has let go of it."""
        name = self._task.workplace.name

        # Room beyond the slots for the task runs of trials of earlier sessions, which return at once.
        runner: Any = ThreadPoolTaskRunner(max_workers=self._task.workplace.machine.slots + 2)

        @flow(name="heirloom", flow_run_name=name, task_runner=runner, validate_parameters=False, persist_result=False)
        def heirloom(search: str, resumes: str | None) -> State[None]:
            try:
                body()
            except SearchInterruptedError as error:
                return Cancelled(message=str(error))
            return Completed(message="all trials have their records")

        try:
            with tags_without_limits():
                heirloom(name, next(iter(self._earlier()), None), return_state=True)
            EventsWorker.drain_all(timeout=DELIVERY_S)  # the last task runs' states, which are sent in the background
        except BaseException as error:
            self.error = error

    def body(self) -> None:
        """What the flow does: a session of the search."""
        self.id = str(this_flow_run.get_id())
        pipeline = self._task.pipeline
        stages = [stage.name for stage in pipeline.prepared.plan.stages]
        artifacts = self._artifacts = RunArtifacts(
            api_client(self._api_url),
            self.id,
            pipeline.metric,
            stages,
            task_run_of=self.executor.task_run_of,
            post=self.executor.post,
        )

        def observe(event: Event) -> None:
            self._task.progress.observe(event)
            if isinstance(event, Finished):
                self.executor.show(event.trial)
            artifacts.observe(event)

        self._task.run(self.executor, self.id, observe, begun=lambda: self._introduce(artifacts))

    def _introduce(self, artifacts: RunArtifacts) -> None:
        workplace, earlier = self._task.workplace, self._earlier()
        root = workplace.records.files.url.rpartition("/")[0]
        hint = " (`***` is a password)" if without_passwords(workplace.root) != workplace.root else ""
        artifacts.introduce(
            f"The whole lineage: `python -m flows.report name={workplace.name} storage.root={root} format=html`{hint}",
            tags=[f"search:{workplace.name}", f"session:{self._task.session}"],
            earlier=earlier,
            finished=[trial for trial in workplace.records.load()[0] if trial.is_finished] if earlier else [],
        )

    def close_artifacts(self, timeout_s: float) -> None:
        """Writes the last artifacts."""
        if self._artifacts is not None:
            self._artifacts.close(timeout_s)

    def _earlier(self) -> list[str]:
        """Returns the flow runs of the last sessions before this one, the newest first."""
        sessions = past_sessions(self._task.workplace.records)
        numbers = [n for n in sorted(sessions, reverse=True) if n < self._task.session and sessions[n]["flow_run"]]
        return [sessions[n]["flow_run"] for n in numbers[:N_EARLIER]]
