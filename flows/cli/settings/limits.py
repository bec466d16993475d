"""Limits and budget of a session, which each one may choose anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from flows.cli.settings.machine import Machine
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.ranking import Export
from nas.core.validation import check_bool, check_choice, check_int, check_number
from nas.search.definition import Search, read_code, read_retry

LEAST_S = 1.0
"""Shortest time budget in seconds; a process alone takes longer to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a session; see ``conf/search.yaml``."""

    finalists: int
    export: Export | None
    max_attempts: int
    max_failures: int | None
    resume_every_s: float
    takeover: bool
    code_may_change: bool
    retries_failed: bool


def read_limits(values: Mapping[str, Any]) -> Limits:
    """Returns the limits of a configuration.

    Raises:
        ConfigurationError: a limit is invalid.
    """
    export = values.get("export")
    return Limits(
        finalists=check_int("finalists", values["finalists"], 1),
        export=None if export is None else cast("Export", check_choice("export", export, get_args(Export))),
        max_attempts=check_int("max_attempts", values["max_attempts"], 1),
        max_failures=None if (most := values["max_failures"]) is None else check_int("max_failures", most, 1),
        resume_every_s=float(check_number("resume_every_s", values["resume_every_s"], 0)),
        takeover=check_bool("takeover", values["takeover"]),
        code_may_change=read_code(values["code"]),
        retries_failed=read_retry(values.get("retry"), deterministic=values.get("deterministic") is True),
    )


def read_budget(values: Mapping[str, Any], search: Search, machine: Machine) -> Budget:
    """Returns the budget; 16 trials if none is set.

    Raises:
        ConfigurationError: it conflicts with ``deterministic``, counts GPU-hours without a GPU, or is too short.
    """
    budget = Budget(**values["budget"])
    search.check_budget(budget)
    for name in ("hours", "gpu_hours"):
        hours: float | None = getattr(budget, name)
        if hours is not None and 3600 * hours < LEAST_S and machine.runner != "simulated":
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
