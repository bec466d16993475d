"""The searches under a root: which there are, and the one of a name."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flows.cli.formatting import cell, number
from flows.views.snapshot import Snapshot, last_session, read_snapshot
from nas.core.errors import ConfigurationError, HeirloomError, SearchNotFoundError
from nas.core.trial import State
from nas.storage.records import Records

if TYPE_CHECKING:
    from nas.core.lineage import Lineage
    from nas.storage.blobs import BlobStore

LAST = "last"
_N_NAMED = 5

Warn = Callable[[str], None]
"""Takes a line about something that was left out."""


@dataclass(frozen=True, slots=True)
class Found:
    """A folder that holds a search, and when that last said that it lives (0: never)."""

    name: str
    files: BlobStore
    last_activity: float


def find_searches(root: BlobStore, now: float, warn: Warn) -> list[Found]:
    """Returns the searches under a root, the newest activity first; reads no trial.

    What is no search, or can't be read, is left out and told.

    Raises:
        ConfigurationError: the root is itself a search's folder.
    """
    from nas.core.names import NAME

    found, others = [], []
    for name in root.names():
        if name == "search.json":
            folder, _, itself = root.url.rstrip("/").rpartition("/")
            raise ConfigurationError(
                f"storage.root ({root.url}) is a search's own folder; set storage.root={folder} name={itself}"
            )
        if not NAME.fullmatch(name):
            others.append(name)
            continue
        records = Records(root.below(name))
        try:
            if records.read("search.json") is None:
                others.append(name)
                continue
            session = last_session(records, now)
        except HeirloomError as error:
            warn(f"{name} is left out: {error}")
            continue
        found.append(Found(name, records.files, 0.0 if session is None else session.beat))
    if others:
        more = f" and {len(others) - _N_NAMED} more" if len(others) > _N_NAMED else ""
        warn(f"not searches, left out: {', '.join(others[:_N_NAMED])}{more}")
    return sorted(found, key=lambda search: (-search.last_activity, search.name))


def find_search(root: BlobStore, name: str, now: float, warn: Warn) -> BlobStore:
    """Returns the folder of the search of this name, or, for ``last``, of the one with the newest activity.

    Raises:
        SearchNotFoundError: there is none; the line says which there are.
    """
    from nas.core.names import check_name

    if name == LAST:
        searches = find_searches(root, now, warn)
        if not searches:
            raise SearchNotFoundError(_none_under(root))
        return searches[0].files
    files = root.below(check_name(name))
    if Records(files).read("search.json") is not None:
        return files
    names = [search.name for search in find_searches(root, now, lambda line: None)]
    if not names:
        raise SearchNotFoundError(f"no search {name}: {_none_under(root)}")
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.4) or names[:3]
    raise SearchNotFoundError(
        f"no search {name} among the {len(names)} under {root.url}; nearest: {', '.join(near)}; name=last is the newest"
    )


def _none_under(root: BlobStore) -> str:
    return f"no search lies under {root.url}; set storage.root, or begin one: python -m flows.search +tuner=evolution"


def read_searches(root: BlobStore, now: float, warn: Warn) -> list[Snapshot]:
    """Returns all searches under a root, newest first; one that can't be read is left out and told."""
    searches = []
    for search in find_searches(root, now, warn):
        try:
            searches.append(read_snapshot(search.files, now))
        except HeirloomError as error:
            warn(f"{search.name} is left out: {error}")
    if not searches:
        warn(_none_under(root))
    return searches


def search_columns(searches: Sequence[Snapshot]) -> dict[str, list[Any]]:
    """Returns the list of searches as plain values by column; None is unknown."""
    winners = [(s.winner, None if s.winner is None else s.winner.value(s.metric.name)) for s in searches]
    return {
        "name": [s.name for s in searches],
        "standing": [s.standing for s in searches],
        "trials": [len(s.lineage) for s in searches],
        **{str(state).lower(): [s.lineage.n_in_state(state) for s in searches] for state in State},
        "metric": [s.metric.name for s in searches],
        "best": [score for _, score in winners],
        "best_trial": [None if winner is None else winner.number for winner, _ in winners],
        "best_stage": [None if winner is None else winner.stage for winner, _ in winners],
        "last_activity": [s.last_activity for s in searches],
    }


def search_lines(searches: Sequence[Snapshot]) -> dict[str, list[str]]:
    """Returns the same for people: fewer columns, in words."""
    scores = [
        f"{s.metric.name} {number(s.winner.metrics[s.metric.name])} (trial {s.winner.number})" if s.winner else ""
        for s in searches
    ]
    return {
        "name": [s.name for s in searches],
        "standing": [s.standing for s in searches],
        "trials": [f"{len(s.lineage):,}" for s in searches],
        "best": scores,
        "last activity": [cell("last_activity", s.last_activity) for s in searches],
        "states": [states_text(s.lineage) for s in searches],
    }


def states_text(lineage: Lineage) -> str:
    """How many trials are in which state."""
    return ", ".join(f"{n:,} {str(state).lower()}" for state in State if (n := lineage.n_in_state(state)))
