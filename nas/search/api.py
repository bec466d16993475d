"""The function that runs a search in this process."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from nas.callbacks.base import Callback
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.names import check_name
from nas.executors.events import Event, Notice
from nas.search.definition import Search, read_retry
from nas.search.identity import claim_identity, open_records
from nas.search.imported_weights import import_weights
from nas.search.pipeline import SearchPipeline, Summary, run_in_process
from nas.search.session_code import session_code
from nas.storage.blobs import BlobStore
from nas.storage.maintenance.gc.retention import Retention
from nas.storage.open import open_root

logger = logging.getLogger(__name__)


def run_search(
    search: Search,
    *,
    root: str = "heirloom",
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    budget: Budget | None = None,
    finalists: int = 2,
    retention: Retention | None = None,
    code: Literal["changed"] | None = None,
    retry: Literal["failed"] | None = None,
    callbacks: Sequence[Callback] = (),
) -> Summary:
    """Runs a search in this process, one trial at a time, without Prefect.

    Call it again with the same arguments to resume the search.

    Args:
        search: The definition of the search.
        root: A folder or an fsspec URL; ``memory://`` stores nothing on disk.
        options: The storage options for the URL: credentials, endpoints. They are not recorded.
        name: The search's name; by default made of the problem, the tuner and the identity's digest.
        budget: The limits of the search; by default 16 trials.
        finalists: The number of best trials that are trained in full.
        retention: The rules for deleting weights; by default all are kept.
        code: ``"changed"`` goes on although code of the problem, the tuner or the stopper has changed. Older trials
            then give weights, but can't win.
        retry: ``"failed"`` makes a new trial of each FAILED one, which neither the budget of trials nor the tuner's
            numbers count.
        callbacks: Observe the search. They are not called if nothing is left to run.
    """
    if search.deterministic and search.slots != 1:
        raise ConfigurationError(
            f"slots={search.slots}: must be 1 with deterministic=true: run_search runs one trial at a time"
        )
    retries_failed = read_retry(retry, deterministic=search.deterministic)
    prepared = replace(search, slots=1).build()
    budget = budget or Budget()
    prepared.check_budget(budget)
    files: BlobStore = open_root(root, options).subfolder(check_name(name or prepared.default_name))
    records = open_records(files)
    pipeline = SearchPipeline(prepared, records, budget, finalists=finalists, retention=retention)
    if pipeline.budget.gpu_hours is not None:
        raise ConfigurationError(
            f"budget.gpu_hours={pipeline.budget.gpu_hours}: needs a GPU: run_search trains on the CPU"
        )
    claim_identity(records, prepared)
    retries = retries_failed and bool(pipeline.failed())
    end = None if retries else pipeline.ended_by()
    found = session_code(
        records, prepared, allow_changes=code == "changed", is_finished=end is not None, notify=logger.warning
    )
    if end is not None:
        return pipeline.summary()
    import_weights(records, search.init)
    run_in_process(pipeline, code=found, options=options, retries=retries, observe=_log_notice, callbacks=callbacks)
    return pipeline.summary()


def _log_notice(event: Event) -> None:
    if isinstance(event, Notice):
        logger.warning(event.text)
