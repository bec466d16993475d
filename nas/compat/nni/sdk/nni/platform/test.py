"""Unit tests of trial code (``NNI_PLATFORM=unittest``): the test sets the configuration and reads the reports."""

from __future__ import annotations

import copy
import json
from typing import Any

_TYPES = {"final": "FINAL", "intermediate": "PERIODICAL"}
_params: Any = {}
_reports: list[dict[str, Any]] = []


def init_params(params: Any) -> None:
    """Sets the configuration and deletes all reports.

    Args:
        params: The configuration, or a dict with ``parameter_id`` and the configuration as ``parameters``.
    """
    global _params
    _params = copy.deepcopy(params)
    _reports.clear()


def get_last_metric() -> dict[str, Any] | None:
    """Returns the last report: ``value``, ``type`` (FINAL or PERIODICAL), ``sequence`` and ``parameter_id``."""
    return copy.deepcopy(_reports[-1]) if _reports else None


def send(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the reply to a trial's request."""
    has_id = isinstance(_params, dict) and "parameter_id" in _params and "parameters" in _params
    if "report" not in request:
        return {"parameters": copy.deepcopy(_params["parameters"] if has_id else _params)}
    kind = _TYPES[request["report"]]
    _reports.append(
        {
            "parameter_id": _params["parameter_id"] if has_id else None,
            "type": kind,
            "sequence": sum(report["type"] == kind for report in _reports),
            "value": json.loads(request["value"]),
        }
    )
    return {}
