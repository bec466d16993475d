"""Ask and tell: a search whose trials the calling code trains."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Literal

from nas.api.opened import OpenedSearch, SearchOptions, open_pipeline, search_of
from nas.api.results import Results
from nas.api.search import log_notice
from nas.callbacks.base import Callback
from nas.callbacks.callback_list import checked_callbacks
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError, SearchInterruptedError, TrialInterrupted
from nas.core.metric import plain_metrics
from nas.core.ranking import Export
from nas.core.spec import Spec
from nas.core.validation import closest_names
from nas.executors.event_queue import POLL_S
from nas.executors.events import StopRequested
from nas.executors.executor import Executor
from nas.search.definition import Search
from nas.search.session import run_session
from nas.storage.maintenance.gc.retention import Retention
from nas.training.job import Job
from nas.training.messages import LOG_DIR
from nas.training.problem import Ability, Problem
from nas.training.trial_run import TrialRun
from nas.tuners.base import Tuner

_LOOP_ENDED = "the loop ended"
_MEASURED = frozenset({Ability.STATIC_METRICS, Ability.MEASURE, Ability.EXAMPLE_BATCH})
"""Abilities by which a problem may give declared metrics without training."""


def open_search(
    problem: Search | type[Problem] | Problem | Spec | str,
    *,
    tuner: type[Tuner] | Tuner | Spec | str | None = None,
    root: str | os.PathLike[str] = "heirloom",
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    budget: Budget | int | None = None,
    finalists: int = 2,
    export: Export | None = None,
    retention: Retention | None = None,
    code: Literal["changed"] | None = None,
    retry: Literal["failed"] | None = None,
    callbacks: Sequence[Callback] = (),
    log_dir: str = LOG_DIR,
) -> SearchLoop:
    """Opens a search whose trials the calling code trains:

        with nas.open_search(MyProblem, tuner=MyTuner, budget=12) as search:
            for run in search:
                ...  # train run.point, with run.inherit, run.report and run.save
                run.finish(accuracy=...)

    The problem needs ``space`` and ``metrics``, but no ``train``. The same call continues the search, also after a
    kill. The loop is one job: it has one trial at a time. So the arguments are those of ``run_search`` without
    ``slots``, ``runner`` and ``progress``.

    Raises:
        ConfigurationError: an argument is invalid, or the search in the folder is another one.
    """
    search = search_of(problem, tuner, None)
    checked_callbacks(callbacks)
    if search.slots != 1:
        raise ConfigurationError(f"slots={search.slots}: must be 1 in a loop. Use run_search for several slots")
    settings = SearchOptions(
        root=root, options=options, name=name, budget=budget, finalists=finalists, retention=retention, code=code,
        retry=retry, export=export, log_dir=log_dir,
    )  # fmt: skip
    return SearchLoop(open_pipeline(search, settings, is_loop=True), options, callbacks)


class SearchLoop:
    """A search whose trials the calling code trains, as a context manager; see ``open_search``.

    A session starts with the first ``ask``. It ends with the block: without work left, the winner is tested and
    exported. Otherwise the next session continues. That a tuner has no more proposals shows in the next ``ask``. An
    exception that leaves the block makes the open trial FAILED; Ctrl-C and ``break`` do not, and the trial runs again.
    """

    def __init__(self, opened: OpenedSearch, options: Mapping[str, Any] | None, callbacks: Sequence[Callback]) -> None:
        self._opened = opened
        self._options = options
        self._callbacks = callbacks
        self._loop_trials: queue.SimpleQueue[_LoopTrial | None] = queue.SimpleQueue()
        self._open: _LoopTrial | None = None
        self._newest: _LoopTrial | None = None  # also one that ask() has not returned
        self._executor: Executor | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._is_inside = False
        self._has_ended = opened.end is not None
        self._torch_state = ExitStack()

    def __enter__(self) -> SearchLoop:
        from nas.training.seeds import kept_torch_state

        if self._thread is not None:
            raise ConfigurationError("search: must be entered once. Call nas.open_search again, which continues it")
        self._is_inside = True
        self._torch_state.enter_context(kept_torch_state())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._torch_state:
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        """Ends the session; ``error`` left the block."""
        self._is_inside = False
        if self._thread is None or (self._has_ended and not self._thread.is_alive()):
            return
        has_work = True
        try:
            has_work = error is not None or self._has_work()
        finally:
            if has_work:
                self._stop()
            if self._open is not None:
                self._open.end(error)
            self._join(self._thread)
        if self._error is not None and (error is None or isinstance(error, TrialInterrupted)):
            raise self._error

    def ask(self) -> TrialRun:
        """Returns the next trial, when the tuner has proposed it.

        End it by ``run.finish(accuracy=...)`` before the next call. A trial whose ``report`` raised ``TrialStopped``
        has ended.

        Raises:
            ConfigurationError: no trial is left, or the trial before is not finished.
            SearchFailedError: the search can't continue.
            SearchInterruptedError: another command took the search over.
            StorageError: the storage failed.
        """
        if (run := self._next()) is None:
            end = self._opened.pipeline.ended_by()
            why = "the tuner has no more proposals" if end == "tuner" else f"budget.{end or 'trials'} is used up"
            remedy = "Choose another name" if end == "tuner" else "Raise the budget"
            raise ConfigurationError(f"search.ask: {why}. {remedy}, or loop with `for run in search`")
        return run

    def __iter__(self) -> Iterator[TrialRun]:
        """Yields trials until none is left."""
        while (run := self._next()) is not None:
            yield run

    @property
    def results(self) -> Results:
        """The results so far."""
        return Results.read(self._opened.pipeline.records.files)

    def _next(self) -> TrialRun | None:
        import torch

        if not self._is_inside:
            raise ConfigurationError("search.ask: must be called inside `with nas.open_search(...) as search:`")
        if self._open is not None:
            self._open.check_ended()
            self._open.end()
            self._open = None
        if self._has_ended:
            return None
        self._start()
        self._open = self._loop_trials.get()
        if self._open is None:
            self._wait_for_end()
            return None
        torch.set_num_threads(self._opened.pipeline.prepared.search.n_threads)
        return self._open.run

    def _stop(self) -> None:
        """Asks the session to end; before it has begun, ``_begin`` does."""
        if self._executor is not None:
            self._executor.post(StopRequested(_LOOP_ENDED))

    def _join(self, thread: threading.Thread) -> None:
        """Waits for the end of the session. A trial that it offers meanwhile is interrupted."""
        while thread.is_alive():
            if self._newest is not None and not self._newest.has_ended:
                self._stop()
                self._newest.end()
            thread.join(POLL_S)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._drive, name="heirloom-controller", daemon=True)
            self._thread.start()

    def _wait_for_end(self) -> None:
        self._has_ended = True
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _drive(self) -> None:
        """Runs the session, on a thread of its own."""
        opened = self._opened
        try:
            run_session(
                opened.pipeline, code=opened.code, options=self._options, retries=opened.retries, observe=log_notice,
                callbacks=self._callbacks, train_many=self._train_many, begun=self._begin,
            )  # fmt: skip
        except SearchInterruptedError as error:
            self._error = None if str(error) == _LOOP_ENDED else error
        except BaseException as error:
            self._error = error
        finally:
            self._loop_trials.put(None)

    def _begin(self, executor: Executor) -> None:
        self._executor = executor
        if not self._is_inside:  # Ctrl-C while the session began
            self._stop()

    def _train_many(self, job: Job) -> None:
        """Offers each trial of a job to the calling code, and waits for its end."""
        for run in job.trials():
            self._newest = trial = _LoopTrial(run, self._opened.pipeline.prepared.problem)
            self._loop_trials.put(trial)
            trial.wait()

    def _has_work(self) -> bool:
        """Returns whether a trial is left to train."""
        pipeline = self._opened.pipeline
        trials, _ = pipeline.records.load()
        plan = pipeline.prepared.plan
        left = {trial.number for trial in trials if not trial.is_finished}
        if self._open is not None and self._open.is_decided and not isinstance(self._open.run.stop, TrialInterrupted):
            left.discard(self._open.run.number)
        if left:
            return True
        if pipeline.budget.allows_trial(sum(t.stage == plan.search.name and t.is_counted for t in trials)):
            return True
        return any(pipeline.ranking.next_finalists(trials, stage) for stage in plan.later)


class _LoopTrial:
    """A trial that the calling code trains while its job waits."""

    def __init__(self, run: TrialRun, problem: Problem) -> None:
        self.run = run
        self.has_result = False
        self._problem = problem
        self._ended = threading.Event()
        self._error: BaseException | None = None
        run.check_scores_by(self._check_scores)

    def check_ended(self) -> None:
        """Checks that the trial has its result, or was stopped.

        Raises:
            ConfigurationError: it has none.
        """
        if not self.is_decided:
            raise ConfigurationError(f"search.ask: trial {self.run.number} has no result. Call run.finish(...) before")

    @property
    def is_decided(self) -> bool:
        """Whether it has its result, or was stopped."""
        return self.has_result or self.run.stop is not None

    @property
    def has_ended(self) -> bool:
        """Whether the job went on."""
        return self._ended.is_set()

    def end(self, error: BaseException | None = None) -> None:
        """Lets the job go on, if it waits.

        An exception makes an open trial FAILED. Without one it is interrupted.

        Args:
            error: The exception that left the loop.
        """
        if self.has_ended:
            return
        if not self.is_decided and not isinstance(error, Exception):
            error = self.run.stop = TrialInterrupted(_LOOP_ENDED)
        self._error = None if self.has_result else error
        self._ended.set()

    def wait(self) -> None:
        """Waits until the calling code has ended the trial. Raises its exception."""
        self._ended.wait()
        if self._error is not None:
            raise self._error

    def _check_scores(self, scores: Mapping[str, float]) -> None:
        """Refuses a second result, and scores without a declared metric."""
        number = self.run.number
        if self.has_result:
            raise ConfigurationError(f"run.finish: trial {number} has its result. Call search.ask() for the next one")
        declared = [metric.name for metric in self._problem.metrics]
        missing = [name for name in declared if name not in scores]
        unknown = [name for name in scores if name not in declared]
        if missing and (unknown or not self._problem.abilities & _MEASURED):
            given = ", ".join(unknown) or "nothing"
            names = closest_names(given, missing)
            raise ConfigurationError(f"run.finish: trial {number} needs {names}, not {given}. Call run.finish again")
        try:
            plain_metrics(scores)
        except TypeError as error:
            raise ConfigurationError(f"run.finish: trial {number}: {error}. Call run.finish again") from error
        self.has_result = True
