"""The budget of a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.cli.settings.machine import Machine
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.search.definition import Search

LEAST_S = 1.0
"""Shortest time budget in seconds; a process alone takes longer to start."""


def read_budget(values: Mapping[str, Any], search: Search, machine: Machine) -> Budget:
    """Returns the budget; 16 trials if none is set.

    Raises:
        ConfigurationError: it conflicts with ``deterministic``, counts GPU-hours without a GPU, or is too short.
    """
    budget = Budget(**values["budget"])
    timed = [name for name in ("hours", "gpu_hours") if getattr(budget, name) is not None]
    if search.deterministic and timed:
        raise ConfigurationError(
            f"budget.{timed[0]} does not go with deterministic=true: measured time decides. Set budget.trials."
        )
    for name in timed:
        hours: float = getattr(budget, name)
        if 3600 * hours < LEAST_S and machine.runner != "simulated":
            raise ConfigurationError(
                f"budget.{name}={hours:g}: is {3600 * hours:.2g} s, too short for any trial; "
                f"it is in hours: half a minute is budget.{name}=0.0083"
            )
    has_gpu = machine.device == "cuda" if machine.workers is None else machine.workers.have_gpus
    if budget.gpu_hours is not None and not has_gpu:
        remedy = ". Add device=cuda, and every worker must have one." if machine.device == "auto" else ""
        remedy = remedy if machine.workers is None else ". Add runner.workers.have_gpus=true."
        where = machine.device if machine.workers is None else "simulated workers"
        raise ConfigurationError(f"budget.gpu_hours={budget.gpu_hours}: needs a GPU, but trials run on {where}{remedy}")
    return budget
