"""Trials without an experiment: configurations are empty and results are printed."""

from __future__ import annotations

import sys
from typing import Any


def send(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the reply to a trial's request."""
    if "report" in request:
        print(f"nni: {request['report']} result: {request['value']}")
        return {}
    print("nni: no experiment runs this trial, so its configuration is empty", file=sys.stderr)
    return {"parameters": {}}
