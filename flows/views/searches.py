"""Searches under a root, by name and by activity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flows.cli.program import command
from nas.core.errors import ConfigurationError, HeirloomError, SearchNotFoundError
from nas.core.names import LAST
from nas.core.trial import State
from nas.core.validation import near_names
from nas.storage.records import Records
from nas.views.formatting import cell, number, states_text
from nas.views.searches import Warn, find_searches
from nas.views.snapshot import Snapshot, read_snapshot
from nas.views.trial_summary import SHARED

if TYPE_CHECKING:
    from nas.core.trial import Trial
    from nas.storage.blobs import BlobStore


def read_name(values: Mapping[str, Any]) -> str:
    """Returns the option ``name`` of a command that needs a search.

    Raises:
        ConfigurationError: there is none.
    """
    if values["name"] is None:
        raise ConfigurationError(f"no name: add name=N, or name=last. `{command('report')}` lists the searches.")
    return str(values["name"])


def find_search(root: BlobStore, name: str, now: float, warn: Warn) -> BlobStore:
    """Returns the folder of a search by name; ``last`` is the one with the newest activity.

    Raises:
        SearchNotFoundError: there is no such search; the message lists the nearest names.
    """
    from nas.core.names import check_name

    if name == LAST:
        searches = find_searches(root, now, warn)
        if not searches:
            raise SearchNotFoundError(none_under(root))
        return searches[0].files
    files = root.subfolder(check_name(name))
    if Records(files).header() is not None:
        return files
    names = [search.name for search in find_searches(root, now, lambda line: None)]
    if not names:
        raise SearchNotFoundError(f"no search {name}: {none_under(root)}")
    near = near_names(name, names, cutoff=0.4) or names[:3]
    raise SearchNotFoundError(
        f"no search {name} among {len(names)} under {root.url}; nearest: {', '.join(near)}; name=last is the newest"
    )


def none_under(root: BlobStore) -> str:
    """Returns the error for a root without searches."""
    return f"no search under {root.url}: set storage.root, or start one: {command('search')} +tuner=evolution"


def read_searches(root: BlobStore, now: float, warn: Warn) -> list[Snapshot]:
    """Returns all searches under a root, newest first; unreadable ones are left out with a warning."""
    searches = []
    for search in find_searches(root, now, warn):
        try:
            searches.append(read_snapshot(search.files, now))
        except HeirloomError as error:
            warn(f"{search.name} is left out: {error}")
    if not searches:
        warn(none_under(root))
    return searches


def search_columns(searches: Sequence[Snapshot]) -> dict[str, list[Any]]:
    """Returns the list of searches as columns of plain values; None is unknown."""
    winners = [(s.winner, None if s.winner is None else s.winner.value(s.metric.name)) for s in searches]
    return {
        "name": [s.name for s in searches],
        "standing": [s.standing for s in searches],
        "trials": [len(s.lineage) for s in searches],
        **{str(state).lower(): [s.lineage.n_in_state(state) for s in searches] for state in State},
        "metric": [s.metric.name for s in searches],
        "best": [score for _, score in winners],
        "best_is_shared": [None if s.winner is None else s.winner.number in s.shared_scores for s in searches],
        "best_trial": [None if winner is None else winner.number for winner, _ in winners],
        "best_stage": [None if winner is None else winner.stage for winner, _ in winners],
        "last_activity": [s.last_activity for s in searches],
    }


def search_lines(searches: Sequence[Snapshot]) -> dict[str, list[str]]:
    """Returns the list of searches as columns of text for people."""
    scores = ["" if s.winner is None else _best_text(s, s.winner) for s in searches]
    return {
        "name": [s.name for s in searches],
        "standing": [s.standing for s in searches],
        "trials": [f"{len(s.lineage):,}" for s in searches],
        "best": scores,
        "last activity": [cell("last_activity", s.last_activity) for s in searches],
        "states": [states_text(s.lineage) for s in searches],
    }


def _best_text(search: Snapshot, winner: Trial) -> str:
    shared = SHARED if winner.number in search.shared_scores else ""
    return f"{search.metric.name} {number(winner.metrics[search.metric.name])}{shared} (trial {winner.number})"
