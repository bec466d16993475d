"""Limits of result records, which stay under 4 kB without the curve and returned text.

Loading a search reads every result, and object stores are slow and charge per request. Text that is cut from a record
is in the trial's logs.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from nas.core.trial import Trial

RECORD_BYTES = 3_906
"""Bytes of a result record without its digest."""
METRICS_BYTES = 600
STATIC_METRICS_BYTES = 300
ERROR_BYTES = 1_400
NOT_COPIED_BYTES = 500
WARNINGS_BYTES = 600
REPLACED_BYTES = 300
SUGGESTED_BYTES = 600
"""Bytes of the points that a trial suggests; more is an error."""
CURVE_VALUES, CURVE_BYTES = 300_000, 12 << 20
"""Three quarters of what a record may have: 75,000 reports of one metric."""
NUMBER_BYTES = 30
"""Bytes of a metric's value and its punctuation."""

_LISTS = {"replaced": REPLACED_BYTES, "not_copied": NOT_COPIED_BYTES}
V = TypeVar("V")
Curve = tuple[tuple[int, Mapping[str, float]], ...]


def json_size(value: object) -> int:
    """Returns the bytes that a value takes in a record."""
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace"))


def shorten(trial: Trial) -> Trial:
    """Returns the trial with its metrics, error, warnings and inheritance report cut to the limits.

    The first metrics, warnings and tensors are kept, and the end of the error. A curve keeps equally spaced reports.
    ``n_unlisted`` counts the tensors left out.
    """
    lists: dict[str, Any] = {key: trial.inheritance[key] for key in _LISTS if key in trial.inheritance}
    inheritance = {**trial.inheritance, **{key: {} for key in lists}, "n_unlisted": 10**9}
    if "warnings" in inheritance:
        inheritance["warnings"] = _first_texts(inheritance["warnings"], WARNINGS_BYTES)
    bare = replace(trial, static_metrics={}, metrics={}, curve=(), error=None, returned=None, inheritance=inheritance)
    room = RECORD_BYTES - json_size(bare.result_record())
    metrics = _first(trial.metrics, METRICS_BYTES)
    room -= json_size(metrics)
    static_metrics = _first(trial.static_metrics, min(STATIC_METRICS_BYTES, room))
    room -= json_size({"static_metrics": static_metrics})
    error = None if trial.error is None else _end(trial.error, min(ERROR_BYTES, room))
    room -= json_size(error)
    for key, limit in _LISTS.items():
        if key in lists:
            inheritance[key] = _first(lists[key], min(limit, room))
            room -= json_size(inheritance[key])
    inheritance["n_unlisted"] = len(lists.get("not_copied", ())) - len(inheritance.get("not_copied", ()))
    if not inheritance["n_unlisted"]:
        del inheritance["n_unlisted"]
    trial = replace(trial, curve=_thinned(trial.curve))
    return replace(trial, static_metrics=static_metrics, metrics=metrics, inheritance=inheritance, error=error)


def _thinned(curve: Curve) -> Curve:
    """Returns the curve, or equally spaced reports that a record can hold."""
    n_values = sum(3 + len(metrics) for _, metrics in curve)
    n_bytes = json_size([*curve]) if len(curve) > 1000 else 0
    every = max(math.ceil(n_values / CURVE_VALUES), math.ceil(n_bytes / CURVE_BYTES), 1)
    return curve[(len(curve) - 1) % every :: every] if curve else curve


def _first_texts(texts: Sequence[str], limit: int) -> list[str]:
    """Returns the first texts that fit into a number of bytes; the very first is cut."""
    if texts and json_size(texts[0]) >= limit:
        return _first_texts([texts[0][: len(texts[0]) * 3 // 4]], limit)
    sizes = itertools.accumulate(json_size(text) + 1 for text in texts)
    return [text for text, size in zip(texts, sizes, strict=True) if size <= limit]


def _first(entries: Mapping[str, V], limit: int) -> dict[str, V]:
    """Returns the first entries that fit into a number of bytes."""
    kept: dict[str, V] = {}
    for name, value in entries.items():
        limit -= json_size({name: value}) - 1  # one comma for two braces
        if limit < 0:
            break
        kept[name] = value
    return kept


def _end(text: str, limit: int) -> str:
    """Returns the end of a text that fits into a number of bytes."""
    limit = max(limit, 0)
    text = text[-max(limit, 1) :]
    while text and (excess := json_size(text) - limit) > 0:
        text = text[(excess + 5) // 6 :]  # a character takes at most 6 bytes, as an escape
    return text
