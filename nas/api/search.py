"""The function that runs a search from Python."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, get_args

from nas.api.opened import OpenedSearch, SearchOptions, open_pipeline, search_of
from nas.api.results import Results
from nas.api.workers import check_not_imported, check_sent
from nas.callbacks.base import Callback
from nas.callbacks.callback_list import checked_callbacks
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.ranking import Export
from nas.core.spec import Spec
from nas.core.validation import check_choice
from nas.executors.events import Event, Notice
from nas.search.definition import PreparedSearch, Search, check_random_state
from nas.search.session import Runner, run_session
from nas.storage.blobs import BlobStore
from nas.storage.maintenance.gc.retention import Retention
from nas.storage.records import mark_outdated
from nas.storage.search_records import code_id
from nas.training.messages import LOG_DIR
from nas.training.problem import Problem
from nas.tuners.base import Tuner

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)


def run_search(
    problem: Search | type[Problem] | Problem | Spec | str,
    *,
    tuner: type[Tuner] | Tuner | Spec | str | None = None,
    root: str | os.PathLike[str] = "heirloom",
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    budget: Budget | int | None = None,
    slots: int | None = None,
    runner: Runner | None = None,
    finalists: int = 2,
    export: Export | None = None,
    retention: Retention | None = None,
    code: Literal["changed"] | None = None,
    retry: Literal["failed"] | None = None,
    callbacks: Sequence[Callback] = (),
    log_dir: str = LOG_DIR,
    progress: bool | None = None,
) -> Results:
    """Runs a search without Prefect: its trials, the finals, tests and the export.

    Call it again with the same arguments to resume the search.

    Args:
        problem: A class, an instance, a dotted path or a ``Spec``; or a whole ``Search``.
        tuner: A class, an instance, a dotted path or a ``Spec``; None with a ``Search``.
        root: A folder or an fsspec URL; ``memory://`` stores nothing on disk.
        options: The storage options for the URL: credentials, endpoints. They are not recorded.
        name: The search's name; by default made of the problem, the tuner and the identity's digest.
        budget: The limits of the search, or its number of trials; by default 16 trials.
        slots: Trials that run at a time; by default 1, or that of the ``Search``.
        runner: ``debug``: in this process, one trial at a time. ``threads``: in this process. ``processes``: a worker
            process for each slot. By default ``debug`` for one slot, else ``processes``.
        finalists: The number of best trials that are trained in full.
        export: ``"best"`` also lets a trial of an earlier stage win that has a full score better than all finals.
            By default as in the last session, ``"final"`` in a new search.
        retention: The rules for deleting weights; by default all are kept.
        code: ``"changed"`` goes on although code of the problem, the tuner or the stopper has changed. Older trials
            then give weights, but can't win.
        retry: ``"failed"`` repeats failed tests and exports, and makes a new trial of each FAILED one. Neither the
            budget of trials nor the tuner's numbers count it.
        callbacks: Observe the search. They are not called if nothing is left to run.
        log_dir: A local folder for loggers, which has a folder for each search, and in it one for each trial.
        progress: Whether the progress is shown; by default in a terminal and in a notebook.

    Raises:
        ConfigurationError: an argument is invalid.
        SearchFailedError: the search can't continue.
        SearchInterruptedError: another command took it over.
        StorageError: the storage failed. Finished trials are kept.
    """
    search = search_of(problem, tuner, slots)
    check_not_imported(search.slots)
    checked_callbacks(callbacks)
    kind = _runner_of(runner, search)

    def check(prepared: PreparedSearch, files: BlobStore) -> None:
        prepared.problem.check_runner(kind, search.slots, prepared.plan.search.policies)
        if kind == "processes":
            check_sent(search.problem, search.slots, files)

    opened = open_pipeline(
        search,
        SearchOptions(
            root=root, options=options, name=name, budget=budget, finalists=finalists, retention=retention,
            code=code, retry=retry, export=export, log_dir=log_dir,
        ),
        check=check,
    )  # fmt: skip
    files = opened.pipeline.records.files
    if opened.end is None:
        from nas.training.seeds import kept_torch_state

        state = nullcontext() if kind == "processes" else kept_torch_state()
        with _observed(opened, progress) as observe, state:
            run_session(
                opened.pipeline, runner=kind, url=opened.url, options=options, code=opened.code,
                retries=opened.retries, observe=observe, callbacks=callbacks,
            )  # fmt: skip
    return Results.read(files)


def _runner_of(runner: str | None, search: Search) -> Runner:
    """Returns the runner, by default the one that fits the slots.

    Raises:
        ConfigurationError: it can't run the search.
    """
    found: Any = ("debug" if search.slots == 1 else "processes") if runner is None else runner
    check_choice("runner", found, get_args(Runner))
    if found == "debug" and search.slots != 1:
        raise ConfigurationError(f"slots={search.slots}: must be 1 with runner=debug. Choose threads or processes")
    check_random_state(found, search.slots, deterministic=search.deterministic)
    return found  # type: ignore[no-any-return]


@contextmanager
def _observed(opened: OpenedSearch, progress: bool | None) -> Iterator[Callable[[Event], None]]:
    """Yields the observer of a session, which shows the progress if wanted."""
    from nas.views.notebook import is_notebook
    from nas.views.notebook_progress import open_progress

    shown = _is_interactive() or is_notebook() if progress is None else progress
    if not shown:
        yield log_notice
        return
    pipeline = opened.pipeline
    newest = code_id(opened.code["code"]["problem"])  # the session that runs it has no record yet
    trials = mark_outdated(pipeline.records.load()[0], newest)
    wanted = pipeline.n_trials_by_stage(trials, pipeline.budget.trials)
    with open_progress(pipeline.prepared.problem.metrics, wanted, trials) as shown_progress:
        shown_progress.limit_hours(pipeline.hours_left())
        yield shown_progress.observe


def _is_interactive() -> bool:
    import sys

    return sys.stderr is not None and sys.stderr.isatty()


def log_notice(event: Event) -> None:
    """Logs a notice; other events are not shown."""
    if isinstance(event, Notice):
        logger.warning(event.text)
