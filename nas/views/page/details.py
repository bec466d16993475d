"""Data of the page's script: details of trials, and later rows of the table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nas.core.redaction import clean, without_passwords
from nas.views.page.architecture import BOX_HEIGHT, BOX_WIDTH, Architecture, draw_architecture
from nas.views.page.changes import MAX_CHANGES, changes
from nas.views.page.failures import error_text
from nas.views.trial_summary import trial_summary

if TYPE_CHECKING:
    from nas.core.lineage import Lineage
    from nas.core.trial import Trial
    from nas.views.page.selection import Selection
    from nas.views.page.sheet import Row, Sheet
    from nas.views.snapshot import Snapshot

_MAX_REPORTS = 400
_FEW_BOXES = 60
"""The largest architecture of one of many trials."""
_MANY = 500


def page_data(snapshot: Snapshot, selection: Selection, sheet: Sheet, live_s: float | None) -> dict[str, Any]:
    """Returns the data as JSON without passwords and control characters.

    Args:
        snapshot: The search.
        selection: The trials of the page.
        sheet: The table.
        live_s: The seconds after which the page loads again, or None.
    """
    max_boxes = _FEW_BOXES if len(selection.drawn) > _MANY else 10 * _FEW_BOXES
    lineage = selection.drawn
    described = {
        "live_s": live_s,
        "metric": snapshot.metric.name,
        "name": snapshot.name,
        "box": [BOX_WIDTH, BOX_HEIGHT],
        "trials": {
            str(trial.number): {"summary": _summary(snapshot, trial), **_details(lineage, trial, max_boxes)}
            for trial in lineage
        },
        "rows": [_row(row) for row in sheet.later],
    }
    return _cleaned(described)  # type: ignore[no-any-return]


def _summary(snapshot: Snapshot, trial: Trial) -> str:
    return trial_summary(trial, snapshot.tests, is_shared=trial.number in snapshot.shared_scores)


def _details(lineage: Lineage, trial: Trial, max_boxes: int) -> dict[str, Any]:
    parent = next((number for number in trial.parents if number in lineage), None)
    found = changes(lineage, trial)
    above = None if parent is None else lineage[parent].point
    architecture = draw_architecture(trial.point, above, max_boxes=max_boxes)
    details = {
        "parent": parent,
        "stage": trial.stage,
        "changes": None if found is None else found[:MAX_CHANGES],
        "n_changes": len(found or ()),
        "curves": _curves(trial),
        "error": error_text(trial.error),
        "architecture": None if architecture is None else _drawn(architecture),
    }
    return {name: value for name, value in details.items() if value not in (None, "", {})}


def _drawn(architecture: Architecture) -> list[Any]:
    return [architecture.width, architecture.height, architecture.boxes, architecture.edges]


def _curves(trial: Trial) -> dict[str, list[list[float]]]:
    """Returns steps and values of each metric that the trial reported."""
    stride = math.ceil(len(trial.curve) / _MAX_REPORTS)
    kept = trial.curve[:: -stride or -1][::-1]  # with the last report
    curves: dict[str, list[list[float]]] = {}
    for step, metrics in kept:
        for name, value in metrics.items():
            if math.isfinite(value):
                steps, values = curves.setdefault(name, [[], []])
                steps.append(step)
                values.append(float(f"{value:.6g}"))
    return curves


def _row(row: Row) -> list[Any]:
    """Returns a row for the script: texts, some with their exact value or trial."""
    cells = [text if more is None else [text, more] for _, text, more in row.cells]
    return [row.trial, row.kind, cells]


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        return clean(without_passwords(value))
    if isinstance(value, Mapping):
        return {clean(name): _cleaned(inner) for name, inner in value.items()}
    return [_cleaned(inner) for inner in value] if isinstance(value, Sequence) else value
