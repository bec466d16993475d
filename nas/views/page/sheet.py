"""The lineage as a table of the page, with the most important columns first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

from nas.views.formatting import cell
from nas.views.page.changes import changes, changes_text
from nas.views.table import lineage_columns

if TYPE_CHECKING:
    from nas.core.lineage import Lineage
    from nas.views.snapshot import Snapshot

MAX_ROWS = 500
"""Rows in the page's HTML; the script shows later ones, as many at a time."""
_LINKS = ("parent", "second_parent", "donor")
_ORDER = (
    *("metric.", "shared_score", "front", "test.", "state", "reason", "stage", "generation"),
    *_LINKS,
    "changed",
    *("inherited", "duration_s", "point.", "suggested", "cost.", "policies"),
    *("attempt", "job", "started", "finished", "checkpoint_bytes", "weights_deleted", "error"),
)
_LONG = 48


Cell = tuple[str, str, int | str | None]
"""Kind and text of a cell; for links the trial, for a rounded number its value."""


class Head(NamedTuple):
    """Head of a column.

    Attributes:
        name: Its name.
        is_numeric: Whether its values are numbers.
        is_descending: Whether the first click sorts that way.
        kind: ``metric``, ``link``, ``state`` or an empty text.
    """

    name: str
    is_numeric: bool
    is_descending: bool
    kind: str


class Row(NamedTuple):
    """A trial's number, the class of its row, and its cells."""

    trial: int
    kind: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table after its first column: heads, first rows, and later rows for the script."""

    heads: tuple[Head, ...]
    rows: tuple[Row, ...]
    later: tuple[Row, ...]


def sheet_of(snapshot: Snapshot, lineage: Lineage) -> Sheet:
    """Returns the table of some of a search's trials, without empty columns."""
    columns = lineage_columns(lineage, snapshot.tests, metrics=snapshot.metrics, whole=snapshot.lineage)
    trials = columns.pop("trial")
    columns["changed"] = [changes_text(changes(snapshot.lineage, lineage[trial])) for trial in trials]
    better = {f"{kind}.{m.name}": m.direction for m in snapshot.metrics for kind in ("metric", "test")}
    heads, cells = [], []
    for name in sorted(columns, key=_place):
        values = columns[name]
        texts = [cell(name, value) for value in values]
        if any(texts):
            is_numeric = _is_numeric(values)
            kind = "metric" if name in better else "link" if name in _LINKS else "state" if name == "state" else ""
            heads.append(Head(name, is_numeric, better.get(name) == "maximize", kind))
            number = ("n metric" if name in better else "n") if is_numeric else ""
            cells.append(_cells(name, values, texts, number=number))
    rows = tuple(_rows(snapshot, trials, zip(*cells, strict=True) if cells else repeat(())))
    return Sheet(tuple(heads), rows[:MAX_ROWS], rows[MAX_ROWS:])


def _rows(snapshot: Snapshot, trials: list[int], cells: Iterable[tuple[Cell, ...]]) -> Iterator[Row]:
    winner = None if snapshot.winner is None else snapshot.winner.number
    kinds = dict.fromkeys(snapshot.shared_scores, "shared")
    kinds |= {} if winner is None else {winner: f"winner {kinds.get(winner, '')}".rstrip()}
    for trial, row in zip(trials, cells, strict=False):
        yield Row(trial, kinds.get(trial, ""), row)


def _place(name: str) -> int:
    """Returns the place of a column; that of ``metric.accuracy`` is the one of ``metric.``."""
    kind = name.partition(".")[0] + "." if "." in name else name
    return _ORDER.index(kind)


def _is_numeric(values: list[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values if value is not None)


def _cells(name: str, values: list[Any], texts: list[str], *, number: str) -> Iterator[Cell]:
    """Yields the cells of a column; ``number`` is their kind if they are numbers."""
    for value, text in zip(values, texts, strict=True):
        if value is None:
            yield "", "", None
        elif name in _LINKS and isinstance(value, int):
            yield "n link" if number else "link", text, value
        elif number:
            exact = repr(value)
            yield number, text, None if text == exact else exact
        else:
            yield "state" if name == "state" else "long" if len(text) > _LONG else "", text, None
