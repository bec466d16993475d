"""The Prefect task of a trial, its edges, and the executor that submits it.

Prefect runs and shows trials; nothing is read back from it. An edge is ``wait_for`` with plain data as arguments.
Prefect records a future passed as an argument as nesting while its parent runs, and the edge is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

from prefect import task, task_engine
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.context import TagsContext
from prefect.states import Cancelled, Completed, Crashed, Failed

from flows.engine.task_runs import SubmittedRun, TrialFuture, TrialTaskRuns
from nas.core.errors import HeirloomError
from nas.core.redaction import one_line, public_line
from nas.core.trial import State as TrialState
from nas.core.trial import Trial, trial_name
from nas.executors.event_queue import POLL_S, EventQueue
from nas.executors.events import Action, Event, ExecutorFailed, Finished, StopKind, TrialLost
from nas.executors.pool import WorkerPool, compute_proxies, resume_job, run_attempt
from nas.training.messages import Assignment, JobStart, ProxyRequest
from nas.views.formatting import failure_line


class TaskBody:
    """The body of a task run, as an opaque object: Prefect would walk through plain data."""

    def __init__(self, body: Callable[[], Event | None]) -> None:
        self._body = body

    def __call__(self) -> State[Any]:
        """Runs the body and returns the state that Prefect shows."""
        return state_of(self._body())


def state_of(event: Event | None) -> State[Any]:
    """Returns the state of a task run that ended with ``event``.

    None is the event of a trial of an earlier session. Failed and Crashed keep their default names, because
    automations look at a state's name.
    """
    match event:
        case Finished(trial=trial) if trial.state == TrialState.FAILED:
            return Failed(message=failure_line(trial))
        case Finished(trial=trial):
            return Completed(name=str(trial.state), message=trial.reason and str(trial.reason))
        case TrialLost(why="interrupted"):
            return Cancelled(message="interrupted: runs again in the next session")
        case TrialLost(why=why):
            return Crashed(message=public_line(why))
        case ExecutorFailed(error=error):
            return Failed(message=public_line(error))
    return Completed(name="Restored", message="finished in an earlier session")


# The name is an argument and the tags come from a context, because with_options costs 1.5 ms per task. Retries are 0
# for users with PREFECT_TASKS_DEFAULT_RETRIES: Prefect would also repeat a task that returns Failed.
@task(name="trial", task_run_name="{name}", retries=0, cache_policy=NO_CACHE, persist_result=False)
def run_trial(name: str, donors: list[str], body: TaskBody) -> State[Any]:
    """Runs one trial, from its donors' checkpoints (plain references) to its durable result."""
    return body()


class PrefectExecutor(EventQueue):
    """Executor that submits each attempt as a task run of the current flow run.

    Args:
        pool: Executes attempts.
        slots: Number of attempts at a time.
        find: Returns a finished trial by number, from the records.
    """

    def __init__(self, pool: WorkerPool, slots: int, find: Callable[[int], Trial | None]) -> None:
        super().__init__()
        self.slots = slots
        self.n_task_runs = 0
        self._pool = pool
        self._find = find
        self._job_trials = ThreadPoolExecutor(slots, thread_name_prefix="heirloom-answer")
        self._task_runs = TrialTaskRuns(max_late=2 * slots)

    def task_run_of(self, trial: int) -> str | None:
        """Returns the id of the task run of a trial that was submitted last."""
        return self._task_runs.id_of(trial)

    def submit(self, assignment: Assignment) -> None:
        """Submits the task run ``trial-0042`` with an edge from each parent and donor."""
        trial, donors = assignment.trial, assignment.donors
        has_ended = threading.Event()

        def attempt() -> Event:
            event = run_attempt(self._pool, assignment, self.post)
            has_ended.set()
            self.post(event)  # before Prefect ends the task run
            return event

        names = [f"{d.donor}: {d.checkpoint.manifest.path} {d.checkpoint.manifest.digest}" for d in donors]
        body: Callable[[], Event] = attempt
        if self._pool.has_job(trial.job):  # a job that waits for the trial gets it before Prefect starts the task run
            body = self._job_trials.submit(attempt).result
        future = self._submit(trial, TaskBody(body), names)

        def check_end(_: TrialFuture) -> None:
            if not has_ended.is_set():
                self.post(ExecutorFailed(_never_ran(future, trial), trial.job))

        future.add_done_callback(check_end)

    def next_event(self, until_s: float | None) -> Event | None:
        """Returns the next event, or None at ``until_s``."""
        event = super().next_event(until_s)
        match event:
            case Finished(trial=trial):
                self._task_runs.end(trial.number, is_source=trial.state != TrialState.FAILED)
            case TrialLost(trial=number):
                self._task_runs.lose(number)
        return event

    def wait_until_shown(self) -> None:
        """Waits until Prefect has ended the task runs of trials that have ended."""
        self._task_runs.wait()

    def resume(self, job_start: JobStart) -> None:
        """Starts a job without a trial; only its trials are task runs."""
        threading.Thread(
            target=resume_job, args=(self._pool, job_start, self.post), name="heirloom-resume", daemon=True
        ).start()

    def dismiss(self, job: int) -> None:
        """Tells a job that there are no more trials."""
        self._pool.dismiss(job)

    def show(self, trial: Trial) -> None:
        """Shows a finished trial that has no task run, as it was lost or never began."""
        if not self._task_runs.has_ended(trial.number):
            self._submit(trial, TaskBody(lambda: Finished(trial)))
            self._task_runs.end(trial.number, is_source=trial.state != TrialState.FAILED)

    def stop(self, subject: Trial | ProxyRequest, kind: StopKind) -> None:
        """Forwards to the pool."""
        self._pool.stop(subject, kind)

    def compute_proxies(self, request: ProxyRequest) -> None:
        """Computes on a thread of its own; it is no task run."""

        def compute() -> None:
            self.post(compute_proxies(self._pool, request))

        threading.Thread(target=compute, name="heirloom-proxies", daemon=True).start()

    def call(self, action: Action, trial: Trial) -> Mapping[str, Any]:
        """Tests or exports as a task run ``test-0042``, with an edge from the trial."""
        answers: list[Mapping[str, Any]] = []
        errors: list[BaseException] = []

        def body() -> Event:
            try:
                answers.append(self._pool.call(action, trial))
            except BaseException as error:
                errors.append(error)
                return ExecutorFailed(error)
            return Finished(trial)

        done = threading.Event()
        edges = self._edges([trial.number])
        future = self._start(f"{action}-{trial.number:04d}", trial, [], TaskBody(body), edges)
        future.add_done_callback(lambda _: done.set())
        while not done.wait(POLL_S):
            self.raise_if_stop_requested()
        if not answers:
            raise errors[0] if errors else _never_ran(future, trial)
        return answers[0]

    def close(self) -> None:
        """Closes the worker pool."""
        self._pool.close()
        self._job_trials.shutdown(wait=False)

    def _submit(self, trial: Trial, body: TaskBody, donors: Sequence[str] = ()) -> SubmittedRun:
        """Submits a task run of a trial, with its edges."""
        edges = self._edges(sources_of(trial))
        future = self._start(trial_name(trial.number), trial, list(donors), body, edges)
        self._task_runs.add(trial.number, future)
        return future

    def _start(
        self, name: str, trial: Trial, donors: list[str], body: TaskBody, edges: list[TrialFuture]
    ) -> SubmittedRun:
        with TagsContext(current_tags=set(tags_of(trial))):  # cheaper than prefect.tags, which opens four contexts
            future = run_trial.submit(name=name, donors=donors, body=body, wait_for=edges, return_state=False)
        self.n_task_runs += 1
        return cast("SubmittedRun", future)

    def _edges(self, sources: Sequence[int]) -> list[TrialFuture]:
        """Returns the task runs of trials, after those of earlier sessions are submitted again.

        FAILED trials have no edges: Prefect starts no task that waits for one, but their children still run.
        """
        to_restore: list[Trial] = []
        queue = list(dict.fromkeys(sources))
        seen = set(queue)
        while queue:
            number = queue.pop()
            if self._task_runs.is_known(number):
                continue
            trial = self._find(number)
            if trial is None or trial.state == TrialState.FAILED:
                continue
            to_restore.append(trial)
            queue += [source for source in sources_of(trial) if source not in seen]
            seen.update(queue)
        for trial in sorted(to_restore, key=lambda t: t.number):
            edges = self._task_runs.edges(sources_of(trial))
            restored = self._start(trial_name(trial.number), trial, [], TaskBody(lambda: None), edges)
            self._task_runs.restore(trial.number, restored)
        return self._task_runs.edges(dict.fromkeys(sources))


def sources_of(trial: Trial) -> list[int]:
    """Returns the parents and donors of a trial within its search, replacements of donors included."""
    stand_ins = trial.inheritance.get("replaced", {}).values()
    named = (*trial.parents, *trial.proposal.weight_donors, *stand_ins)
    return list(dict.fromkeys(source for source in named if isinstance(source, int)))


def tags_of(trial: Trial) -> list[str]:
    """Returns the tags of a task run, by which the UI filters."""
    return [
        f"stage:{one_line(trial.stage)}",
        f"generation:{trial.generation}",
        f"job:{trial.job}",
        *(f"policy:{policy}" for policy in sorted(trial.policies)),
        *([f"attempt:{trial.attempt}"] if trial.attempt > 1 else []),
    ]


@contextmanager
def tags_without_limits() -> Iterator[None]:
    """Lets task runs with tags start without asking the server about tag concurrency limits.

    Prefect 3.8 asks before every task run with a tag. A trial would wait for a busy server (250 ms measured), and
    forever if the server is gone. The controller counts slots itself. See docs/decisions/003.
    """
    asks = task_engine._concurrency  # type: ignore

    @contextmanager
    def at_once(names: list[str], **_: object) -> Iterator[None]:
        yield

    task_engine._concurrency = at_once  # type: ignore
    try:
        yield
    finally:
        task_engine._concurrency = asks  # type: ignore


def _never_ran(future: TrialFuture, trial: Trial) -> HeirloomError:
    return HeirloomError(f"Prefect ended the task run of trial {trial.number} before its code: {future.state.message}")
