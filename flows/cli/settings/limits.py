"""Limits that each session may choose anew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.validation import check_bool, check_int, check_number
from nas.search.definition import read_retry


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a session; see ``conf/search.yaml``."""

    finalists: int
    max_attempts: int
    max_failures: int
    resume_every_s: float
    takeover: bool
    code_may_change: bool
    retries_failed: bool


def read_limits(values: Mapping[str, Any]) -> Limits:
    """Returns the limits of a configuration.

    Raises:
        ConfigurationError: a limit is invalid.
    """
    if values["code"] not in (None, "changed"):
        raise ConfigurationError(f"code={values['code']!r}: must be changed, to go on with other code")
    return Limits(
        finalists=check_int("finalists", values["finalists"], 1),
        max_attempts=check_int("max_attempts", values["max_attempts"], 1),
        max_failures=check_int("max_failures", values["max_failures"], 1),
        resume_every_s=float(check_number("resume_every_s", values["resume_every_s"], 0)),
        takeover=check_bool("takeover", values["takeover"]),
        code_may_change=values["code"] == "changed",
        retries_failed=read_retry(values.get("retry"), deterministic=values.get("deterministic") is True),
    )
