"""Unit tests of trial code (``NNI_PLATFORM=unittest``): the test sets the configuration and reads the reports."""

from __future__ import annotations

import copy
import json
import os
from typing import Any

EXPERIMENT_ID, TRIAL_ID = "fakeidex", "fakeidtr"
"""The ids of a unit test in NNI."""
_params: Any = {}
_last: dict[str, Any] | None = None
_n_intermediate = 0


def init_params(params: Any) -> None:
    """Sets the configuration.

    Args:
        params: The configuration, or a dict with ``parameter_id`` and the configuration as ``parameters``.
    """
    global _params
    _params = copy.deepcopy(params)


def get_last_metric() -> dict[str, Any] | None:
    """Returns the last report.

    It has ``parameter_id``, ``trial_job_id`` (the variable ``NNI_TRIAL_JOB_ID``), ``type``, ``sequence`` and
    ``value``. The sequence counts the process's intermediate results from 0; that of a final result is 0.
    """
    return copy.deepcopy(_last)


def send(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the reply to a trial's request."""
    global _last, _n_intermediate
    has_id = isinstance(_params, dict) and "parameter_id" in _params and "parameters" in _params
    if "report" not in request:
        return {"parameters": copy.deepcopy(_params["parameters"] if has_id else _params)}
    is_final = request["report"] == "final"
    _last = {
        "parameter_id": _params["parameter_id"] if has_id else None,
        "trial_job_id": os.environ.get("NNI_TRIAL_JOB_ID"),
        "type": "FINAL" if is_final else "PERIODICAL",
        "sequence": 0 if is_final else _n_intermediate,
        "value": json.loads(request["value"]),
    }
    _n_intermediate += not is_final
    return {}
