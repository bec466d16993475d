"""The lineage as a table with one row per trial; column names are a contract."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nas.core.pareto import numbers_on_front
from nas.core.point import flat_point
from nas.core.redaction import clean
from nas.core.shared_scores import shared_scores
from nas.core.trial import Trial
from nas.views.formatting import as_json, last_line

if TYPE_CHECKING:
    import pandas as pd

    from nas.core.lineage import Lineage
    from nas.core.metric import Metric

Tests = Mapping[int, Mapping[str, Any]]
"""Test records by trial: ``{"metrics": {...}}`` or ``{"error": line}``."""

SECOND_PARENT = "second_parent"
SUGGESTED = "suggested"
SHARED_SCORE = "shared_score"
_FORMULA = ("=", "+", "-", "@", "\t", "\n", *"\uff1d\uff0b\uff0d\uff20")
"""Beginnings of formulas in spreadsheets (OWASP, CSV injection); ``clean`` turns a carriage return into a newline."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)

_FIRST: Mapping[str, tuple[str, Callable[[Trial], Any]]] = {
    "trial": ("Int64", lambda t: t.number),
    "parent": ("Int64", lambda t: t.parents[0] if t.parents else None),
    "donor": ("Int64", lambda t: t.donor),
    "generation": ("Int64", lambda t: t.generation),
    "job": ("Int64", lambda t: t.job),
    "stage": ("string", lambda t: t.stage),
    "state": ("string", lambda t: str(t.state)),
    "reason": ("string", lambda t: None if t.reason is None else str(t.reason)),
    "policies": ("string", lambda t: "+".join(sorted(t.policies))),
    "attempt": ("Int64", lambda t: t.attempt),
    "started": ("Float64", lambda t: t.started),
    "finished": ("Float64", lambda t: t.finished),
    "duration_s": ("Float64", lambda t: t.duration_s),
    "inherited": ("Float64", lambda t: t.inherited_share),
}
_LAST: Mapping[str, tuple[str, Callable[[Trial], Any]]] = {
    "checkpoint_bytes": ("Int64", lambda t: None if t.checkpoint is None else t.checkpoint.own_bytes),
    "weights_deleted": ("boolean", lambda t: t.weights_deleted),
    "error": ("string", lambda t: last_line(t.error)),
}


def lineage_columns(
    lineage: Lineage, tests: Tests | None = None, *, metrics: Sequence[Metric] = (), whole: Lineage | None = None
) -> dict[str, list[Any]]:
    """Returns the table as lists by column, one entry per trial in order of number.

    None stands for unknown or not finite.

    Args:
        lineage: The trials.
        tests: Test records by trial. The error of a failed test is shown in ``error``.
        metrics: Metrics of the problem. They get columns in this order, even if no trial has them yet; other metrics
            follow. If there are several, ``front`` marks trials on the front of their stage.
        whole: All trials of the search, if ``lineage`` is a part of it. They decide on fronts and shared scores.
    """
    trials = sorted(lineage, key=lambda trial: trial.number)
    tests = tests or {}
    whole = lineage if whole is None else whole
    columns = {name: [value(trial) for trial in trials] for name, (_, value) in _FIRST.items()}
    columns |= _spread("metric.", [trial.metrics for trial in trials], [metric.name for metric in metrics])
    columns |= _spread("test.", [tests.get(trial.number, {}).get("metrics") or {} for trial in trials])
    columns |= _spread("cost.", [trial.static_metrics for trial in trials])
    columns |= _spread("point.", [flat_point(trial.point) for trial in trials])
    if any(len(trial.parents) > 1 for trial in trials):
        columns[SECOND_PARENT] = [trial.parents[1] if len(trial.parents) > 1 else None for trial in trials]
    if any(trial.suggested for trial in trials):
        columns[SUGGESTED] = [[*trial.suggested] or None for trial in trials]
    if shared := shared_scores(whole):
        columns[SHARED_SCORE] = [trial.number in shared for trial in trials]
    if len(metrics) > 1:
        on_front = numbers_on_front(whole, metrics)
        columns["front"] = [trial.number in on_front for trial in trials]
    columns |= {name: [value(trial) for trial in trials] for name, (_, value) in _LAST.items()}
    for row, trial in enumerate(trials):
        failure = tests.get(trial.number, {}).get("error")
        if failure and columns["error"][row] is None:
            columns["error"][row] = f"test: {failure}"
    return {name: [_known(value) for value in values] for name, values in columns.items()}


def lineage_table(lineage: Lineage, tests: Tests | None = None, *, metrics: Sequence[Metric] = ()) -> pd.DataFrame:
    """Returns the lineage as a pandas table with nullable types, one row per trial.

    The columns, in order:

    * ``trial, parent, donor, generation, job, stage, state, reason, policies, attempt, started, finished, duration_s,
      inherited``: ``parent`` is the first parent; ``donor`` gave most weights (``"name:42"`` in another search).
    * ``metric.<name>``, ``test.<name>``, ``cost.<name>`` (known before training), ``point.<name>`` (dots for nesting).
    * ``second_parent`` if a trial has two parents; ``suggested`` (points) if a trial suggests any; ``shared_score`` if
      a score is one of shared weights (`nas.core.shared_scores`); ``front`` if there are several metrics.
    * ``checkpoint_bytes``, ``weights_deleted``, ``error`` (its last line).

    ``tests`` and ``metrics`` are those of ``lineage_columns``.
    """
    columns = lineage_columns(lineage, tests, metrics=metrics)
    types = {name: kind for name, (kind, _) in {**_FIRST, **_LAST}.items()}
    return to_table(columns, {**types, SECOND_PARENT: "Int64"})


def to_table(columns: Mapping[str, Sequence[Any]], types: Mapping[str, str] | None = None) -> pd.DataFrame:
    """Returns columns of plain values as a table with nullable types, so that integers stay integers.

    Args:
        columns: The values; None is unknown.
        types: Types of columns, used if the values allow it. By default the type follows from the values.
    """
    import pandas as pd

    wanted = types or {}
    whole = {name: [_unicode(value) for value in values] for name, values in columns.items()}
    return pd.DataFrame(
        {_unicode(name): pd.Series(values, dtype=_dtype(values, wanted.get(name))) for name, values in whole.items()}
    )


def to_csv(table: pd.DataFrame) -> str:
    """Returns the table as csv; unknown values are empty, lists and dicts are JSON.

    A ``'`` stands before texts that a spreadsheet would take for formulas.
    """
    shown = table.copy()
    for name in shown.select_dtypes(["object", "string"]).columns:
        shown[name] = [_csv_cell(value) for value in shown[name]]
    shown.columns = [_csv_cell(name) for name in shown.columns]
    return str(shown.to_csv(index=False, lineterminator="\n"))


def to_json(table: pd.DataFrame) -> str:
    """Returns the table as a JSON array of objects, one per line; unknown values are ``null``."""
    import pandas as pd

    columns = {
        str(name): [None if value is pd.NA else value for value in table[name].tolist()] for name in table.columns
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return "[" + ",".join(f"\n{as_json(row)}" for row in rows) + "\n]\n"


def _spread(prefix: str, rows: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> dict[str, list[Any]]:
    """Returns a column for each name that a row has."""
    found = dict.fromkeys([*names, *(name for row in rows for name in row)])
    return {f"{prefix}{name}": [row.get(name) for row in rows] for name in found}


def _known(value: Any) -> Any:
    """Returns the value, or None if it is not finite."""
    if isinstance(value, list):
        return [_known(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _unicode(value: Any) -> Any:
    """Returns the value with lone surrogates escaped, because files and Arrow refuse them."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()
    if isinstance(value, Mapping):
        return {_unicode(key): _unicode(inner) for key, inner in value.items()}
    return [_unicode(inner) for inner in value] if isinstance(value, list | tuple) else value


def _dtype(values: Sequence[Any], wanted: str | None) -> Any:
    """Returns the nullable type that holds these values unchanged, or ``object``."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int} and wanted in (None, "Int64") and (kinds or wanted):
        fits = all(-(2**63) <= value < 2**63 for value in values if value is not None)
        return "Int64" if fits else "object"
    if kinds <= {int, float} and wanted in (None, "Float64"):
        return "Float64"
    for kind, dtype in ((bool, "boolean"), (str, "string")):
        if kinds <= {kind} and wanted in (None, dtype):
            return dtype
    return "object"


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list | dict | bool):
        return as_json(value)
    if not isinstance(value, str):
        return value
    text = clean(value)
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text
