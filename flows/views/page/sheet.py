"""The lineage as a table of a page: the columns of the report, those first that people look at first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flows.cli.formatting import cell, markup
from flows.views.table import lineage_columns

if TYPE_CHECKING:
    from flows.views.snapshot import Snapshot

_ORDER = (
    *("trial", "metric.", "shared_score", "front", "test.", "state", "reason", "stage", "generation"),
    *("parent", "second_parent", "donor", "inherited"),
    *(
        "duration_s",
        "point.",
        "suggested",
        "cost.",
        "policies",
        "attempt",
        "job",
        "started",
        "finished",
        "checkpoint_bytes",
        "weights_deleted",
    ),
    "error",
)
_LONG = 48


def sheet_html(snapshot: Snapshot) -> str:
    """The table; columns that hold nothing are left out."""
    columns = lineage_columns(snapshot.lineage, snapshot.tests, metrics=snapshot.metrics)
    names = [name for name in sorted(columns, key=_place) if any(cell(name, value) for value in columns[name])]
    better = {f"{kind}.{m.name}": m.direction for m in snapshot.metrics for kind in ("metric", "test")}
    numeric = {name: _is_numeric(columns[name]) for name in names}
    heads = "".join(_head(name, is_numeric=numeric[name], direction=better.get(name)) for name in names)
    winner = None if snapshot.winner is None else snapshot.winner.number
    rows = []
    for values in zip(*(columns[name] for name in names), strict=True):
        cells = (
            _cell(name, value, is_numeric=numeric[name], is_score=name in better)
            for name, value in zip(names, values, strict=True)
        )
        kinds = {"winner": values[0] == winner, "shared": values[0] in snapshot.shared_scores}
        kind = f' class="{" ".join(name for name, holds in kinds.items() if holds)}"' if any(kinds.values()) else ""
        rows.append(f'<tr id="trial-{values[0]}" data-n="{values[0]}"{kind}>{"".join(cells)}</tr>\n')
    return f"<table><thead><tr>{heads}</tr></thead><tbody>\n{''.join(rows)}</tbody></table>"


def _place(name: str) -> int:
    """Where a column stands; ``metric.accuracy`` where ``metric.`` does."""
    kind = name.partition(".")[0] + "." if "." in name else name
    return _ORDER.index(kind)


def _is_numeric(values: list[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values if value is not None)


def _head(name: str, *, is_numeric: bool, direction: str | None) -> str:
    """A column's head: a button that sorts; a score sorts with the best first."""
    first = ' data-first="descending"' if direction == "maximize" else ""
    kind = ' class="n"' if is_numeric else ""
    return f'<th scope="col"{kind}{first}><button type="button">{markup(name)}</button></th>'


def _cell(name: str, value: Any, *, is_numeric: bool, is_score: bool) -> str:
    if value is None:
        return "<td></td>"
    if name == "trial":
        return f'<th scope="row" class="n">{value}</th>'
    if name == "state":
        return f'<td><span class="chip {markup(value).lower()}">{markup(value)}</span></td>'
    if name in ("parent", "second_parent", "donor") and isinstance(value, int):
        return f'<td{" class=n" if is_numeric else ""}><a href="#trial-{value}">{value}</a></td>'
    text = cell(name, value)
    if is_numeric:
        exact = f' data-v="{value!r}"' if text != repr(value) else ""
        return f'<td class="n{" metric" if is_score else ""}"{exact}>{markup(text)}</td>'
    if len(text) > _LONG:
        return f'<td class="long" title="{markup(text)}">{markup(text)}</td>'
    return f"<td>{markup(text)}</td>"
