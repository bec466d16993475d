"""Runners of a session, and the options that depend on the runner alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, cast

from nas.core.errors import ConfigurationError
from nas.core.validation import check_int, check_number

RunnerKind = Literal["debug", "threads", "processes", "dask", "ray", "simulated"]
RUNNERS = ("debug", "threads", "processes", "dask", "ray", "simulated")
WITH_PREFECT = frozenset({"threads", "processes", "dask", "ray"})
KILLABLE = frozenset({"processes", "dask", "ray"})
PLACES_GPUS = ("processes", "dask", "ray")
"""Runners whose workers see different GPUs."""


def read_wishes(values: Mapping[str, Any]) -> tuple[RunnerKind, int | None, int | None, float | None]:
    """Returns runner, slots, torch threads and timeout; None for each one that is not set.

    Raises:
        ConfigurationError: one of the values is invalid or conflicts with the runner.
    """
    runner = (values.get("runner") or {}).get("kind")
    if runner not in RUNNERS:
        raise ConfigurationError(f"runner={runner!r}: must be one of {', '.join(RUNNERS)}")
    slots, n_threads, timeout_s = values["slots"], values["threads"], values["trial_timeout_s"]
    for name, count in (("slots", slots), ("threads", n_threads)):
        if count is not None:
            check_int(name, count, 1)
    if runner == "debug" and slots not in (None, 1):
        raise ConfigurationError(f"slots={slots}: must be 1 with runner=debug. Choose runner=threads or processes.")
    if timeout_s is not None:
        timeout_s = float(check_number("trial_timeout_s", timeout_s, 0, excluded=0))
        if runner not in KILLABLE:
            raise ConfigurationError(
                f"trial_timeout_s={timeout_s:g}: needs runner=processes: code in {runner} can't be interrupted"
            )
    return cast("RunnerKind", runner), slots, n_threads, timeout_s
