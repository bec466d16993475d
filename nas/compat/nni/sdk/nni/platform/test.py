"""A test of the trial's code, with ``NNI_PLATFORM=unittest``: it sets the configuration, and sees what is reported."""

from __future__ import annotations

import copy
import json
from typing import Any

_TYPES = {"final": "FINAL", "intermediate": "PERIODICAL"}
_params: Any = {}
_reports: list[dict[str, Any]] = []


def init_params(params: Any) -> None:
    """Sets the configuration, by itself or, with its ``parameter_id``, under ``parameters``; forgets what was told."""
    global _params
    _params = copy.deepcopy(params)
    _reports.clear()


def get_last_metric() -> dict[str, Any] | None:
    """What was reported last: ``value``, ``type`` (FINAL or PERIODICAL), ``sequence`` and ``parameter_id``."""
    return copy.deepcopy(_reports[-1]) if _reports else None


def ask(question: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer to a trial's question."""
    is_packed = isinstance(_params, dict) and "parameter_id" in _params and "parameters" in _params
    if "report" not in question:
        return {"parameters": copy.deepcopy(_params["parameters"] if is_packed else _params)}
    kind = _TYPES[question["report"]]
    _reports.append(
        {
            "parameter_id": _params["parameter_id"] if is_packed else None,
            "type": kind,
            "sequence": sum(report["type"] == kind for report in _reports),
            "value": json.loads(question["value"]),
        }
    )
    return {}
