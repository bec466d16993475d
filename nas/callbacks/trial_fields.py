"""The fields of a trial that loggers show: parameters before it runs, and results."""

from __future__ import annotations

import json
from typing import Any

from nas.core.point import flat_point
from nas.core.trial import Trial

MAX_TEXT = 500
"""Letters of a parameter; W&B and MLflow limit them."""
Field = str | int | float | bool


def trial_parameters(trial: Trial) -> dict[str, Field]:
    """Returns stage, generation, parent, policies, seed, and the point's values as ``point.<name>``."""
    fields: dict[str, Any] = {
        "trial": trial.number,
        "stage": trial.stage,
        "generation": trial.generation,
        "parent": ",".join(map(str, trial.parents)) or "none",
        "policies": "+".join(sorted(trial.policies)) or "none",
        "seed": trial.seed,
    }
    fields |= {f"point.{name}": value for name, value in flat_point(trial.point).items()}
    return {name: _plain(value) for name, value in fields.items()}


def trial_results(trial: Trial) -> dict[str, float]:
    """Returns the metrics of a finished trial, ``cost.<name>``, ``inherited`` and ``duration_s``."""
    known = {name: value for name in trial.metrics if (value := trial.value(name)) is not None}
    results = {**{f"cost.{name}": value for name, value in trial.static_metrics.items()}, **known}
    more = {"inherited": trial.inherited_share, "duration_s": trial.duration_s}
    return results | {name: value for name, value in more.items() if value is not None}


def _plain(value: Any) -> Field:
    if isinstance(value, bool | int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 3]}..."
