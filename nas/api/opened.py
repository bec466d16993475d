"""The steps before a session: definition, folder, identity and code."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from nas.core.budget import Budget
from nas.core.errors import ConfigurationError, StorageError
from nas.core.names import check_new_name
from nas.core.ranking import Export
from nas.core.spec import Spec
from nas.core.validation import check_int
from nas.search.definition import TWO_STAGE, PreparedSearch, Search, read_code, read_retry
from nas.search.identity import claim_identity
from nas.search.imported_weights import import_weights
from nas.search.pipeline import SearchPipeline
from nas.search.session_code import session_code
from nas.storage.blobs import BlobStore
from nas.storage.maintenance.gc.retention import Retention
from nas.storage.open import open_root, search_url
from nas.storage.records import Records
from nas.training.messages import LOG_DIR
from nas.tuners.base import Tuner

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """The settings of a session, which may differ from those of the session before.

    Attributes:
        root: A folder or an fsspec URL.
        options: The storage options for the URL.
        name: The search's name; None: the default name.
        budget: The limits of the search.
        finalists: The number of best trials that are trained in full.
        export: The trials that can become the winner; None: as in the last session.
        retention: The rules for deleting weights; None: all are kept.
        code: ``"changed"`` goes on although code has changed.
        retry: ``"failed"`` makes a new trial of each FAILED one, and repeats failed tests and exports.
        log_dir: The local folder of loggers.
    """

    root: str | os.PathLike[str] = field(repr=False)
    options: Mapping[str, Any] | None = field(default=None, repr=False)
    name: str | None = None
    budget: Budget | int | None = None
    finalists: int = 2
    export: Export | None = None
    retention: Retention | None = None
    code: Literal["changed"] | None = None
    retry: Literal["failed"] | None = None
    log_dir: str = LOG_DIR


@dataclass(frozen=True, slots=True)
class OpenedSearch:
    """A search whose identity is in its records.

    Attributes:
        pipeline: The search's pipeline.
        code: The result of ``session_code``.
        end: What ended the search: a field of the budget, or ``tuner``. None: work is left.
        retries: Whether FAILED trials run again, and failed tests and exports.
        url: The URL by which other processes open the search. It may hold a password.
    """

    pipeline: SearchPipeline
    code: Mapping[str, Any]
    end: str | None
    retries: bool
    url: str = field(repr=False)


def search_of(problem: object, tuner: object, slots: int | None) -> Search:
    """Returns the definition of a search that a user gave whole, or as its parts.

    Args:
        problem: A ``Search``; or a problem as a class, an instance, a dotted path or a spec.
        tuner: The tuner, in the same forms; must be None with a ``Search``.
        slots: The number of trials that run at a time; None: that of the ``Search``, or 1.

    Raises:
        ConfigurationError: one of them is something else.
    """
    n_slots = None if slots is None else check_int("slots", slots, 1)
    if isinstance(problem, Search):
        if tuner is not None:
            raise ConfigurationError("tuner=...: must not be given with a Search. Set Search(tuner=...)")
        return problem if n_slots is None else replace(problem, slots=n_slots)
    if tuner is None:
        raise ConfigurationError("tuner=None: must be a class, an instance or a dotted path. Pass tuner=MyTuner")
    seed = tuner.seed if isinstance(tuner, Tuner) else 0
    return Search(problem=cast("Spec", problem), tuner=cast("Spec", tuner), seed=seed, slots=n_slots or 1)


def open_pipeline(
    search: Search,
    options: SearchOptions,
    *,
    is_loop: bool = False,
    check: Callable[[PreparedSearch, BlobStore], None] = lambda prepared, files: None,
) -> OpenedSearch:
    """Opens the folder of a search, and creates or compares its identity.

    Args:
        search: The definition.
        options: The settings of the session.
        is_loop: Whether code outside the problem trains the trials.
        check: Called before anything is written.

    Raises:
        ConfigurationError: the definition or an option is invalid, or the search in the folder is another one.
    """
    retries_failed, may_change = read_retry(options.retry, deterministic=search.deterministic), read_code(options.code)
    prepared = search.build(is_loop=is_loop)
    budget = _budget_of(options.budget)
    prepared.check_budget(budget)
    if prepared.left_out and search.plan != TWO_STAGE:
        names = ", ".join(sorted(prepared.left_out))
        logger.warning("policies skipped, not declared by the problem: %s", names)
    name = prepared.default_name if options.name is None else options.name
    files = open_root(options.root, options.options).subfolder(check_new_name(name))
    records = Records(files)
    try:
        is_new = records.header() is None
    except StorageError:
        files.check_writable()  # its error has the remedy
        raise
    pipeline = SearchPipeline(
        prepared,
        records,
        budget,
        finalists=options.finalists,
        retention=options.retention,
        export=options.export,
        log_dir=options.log_dir,
    )
    if budget.gpu_hours is not None:
        raise ConfigurationError(f"budget.gpu_hours={budget.gpu_hours}: needs a GPU: run_search trains on the CPU")
    check(prepared, files)
    if is_new:
        files.check_writable()
    claim_identity(records, prepared)
    retries = retries_failed and pipeline.can_retry()
    end = None if retries else pipeline.ended_by()
    is_finished = end is not None
    code = session_code(records, prepared, allow_changes=may_change, is_finished=is_finished, notify=logger.warning)
    if not is_finished:
        if not is_new:
            files.check_writable()
        import_weights(records, search.init)
    return OpenedSearch(pipeline, code, end, retries, search_url(options.root, files))


def _budget_of(budget: Budget | int | None) -> Budget:
    if budget is None or isinstance(budget, Budget):
        return budget or Budget()
    return Budget(trials=check_int("budget", budget, 1))
