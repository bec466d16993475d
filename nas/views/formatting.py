"""Formatting of numbers, times and foreign text for people."""

from __future__ import annotations

import html
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from nas.core.lineage import Lineage
from nas.core.redaction import clean, escaped_json, one_line, public_line, without_passwords
from nas.core.trial import State, Trial
from nas.training.problem import LATENCY

SECRET_HINT = "  # replace *** by the secret"
"""Appended to a printed command whose secrets are masked. A shell reads it as a comment."""

_CREDENTIALS = re.compile(
    r"^(\+*(?:storage|problem)\.\w*options\b[^=]*"
    r"|\+*runner\.cluster\.(?:env|connect_options)\b[^=]*"
    r"|\+*(?:storage|problem|runner|runner\.cluster)(?==\s*\{.*(?:options|env)\b))=.*",
    re.DOTALL,
)
"""An override of a key that may hold credentials, or of a mapping with one."""


def markup(text: object) -> str:
    """Returns the text escaped for HTML and SVG, attribute values included."""
    return html.escape(clean(text))


def markdown(text: object) -> str:
    """Returns the text as one line of Markdown without markup, for a table's cell too."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", one_line(text))


def as_json(value: Any, indent: int | None = None) -> str:
    """Returns a value as JSON, in which escapes replace what a terminal would obey."""
    return escaped_json(json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent))


def masked(override: str) -> str:
    """Returns an override with passwords in URLs, and values of options that may hold credentials, masked."""
    return without_passwords(_CREDENTIALS.sub(r"\1=***", override))


def number(value: float, digits: int = 4) -> str:
    """Returns a number with ``digits`` significant digits; integers stay as they are."""
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def score(value: float) -> str:
    """Returns a score with four decimals; very small and great ones with digits."""
    if 0 < abs(value) < 1e-3:
        return f"{value:.4g}"
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.5g}"


def count(n: int, noun: str, plural: str = "") -> str:
    """Returns a count with its noun: ``1 trial``, ``1,200 trials``, ``3 children``."""
    return f"{n:,} {noun if n == 1 else plural or f'{noun}s'}"


def amount(value: float, digits: int = 3) -> str:
    """Returns an amount: whole and great numbers in full, others with digits: ``0.0288``, ``1.25``, ``1,234``."""
    is_in_full = value == int(value) or abs(value) >= 10**digits - 0.5
    return f"{value:,.0f}" if is_in_full else f"{value:.{digits}g}"


def duration(seconds: float) -> str:
    """Returns seconds in readable units: ``42 s``, ``3 min 05 s``, ``2 h 07 min``."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 3599.5:
        return f"{round(seconds) // 60} min {round(seconds) % 60:02d} s"
    return f"{round(seconds / 60) // 60} h {round(seconds / 60) % 60:02d} min"


def size(n_bytes: float) -> str:
    """Returns bytes in decimal units: ``912 B``, ``208.9 kB``, ``1.2 GB``."""
    power = min(4, int(math.log10(n_bytes) // 3)) if n_bytes >= 1 else 0
    return f"{n_bytes:.0f} B" if power == 0 else f"{n_bytes / 1000**power:.1f} {' kMGT'[power]}B"


def clock(seconds: float) -> str:
    """Returns seconds since 1970 as a UTC date and time."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return number(seconds)


def last_line(text: str | None) -> str | None:
    """Returns the last line that is not empty; in a traceback, the error."""
    lines = (text or "").strip().splitlines()
    return lines[-1].strip() if lines else None


def states_text(lineage: Lineage) -> str:
    """Returns the number of trials by state, as text."""
    return ", ".join(f"{n:,} {str(state).lower()}" for state in State if (n := lineage.n_in_state(state)))


def failure_line(trial: Trial) -> str:
    """Returns reason and error of a FAILED trial in one line, without passwords."""
    return public_line(": ".join(filter(None, [trial.reason and str(trial.reason), last_line(trial.error)])))


def brief(value: Any) -> str:
    """Returns a point's value in short: rounded floats, network nodes counted by kind."""
    if isinstance(value, list) and value and all(isinstance(node, dict) and "op" in node for node in value):
        kinds = Counter(str(node["op"]) for node in value)
        return f"{count(len(value), 'node')}: " + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    return number(value) if isinstance(value, float) else str(value)


def _steps(derivation: Any) -> Any:
    """Returns a derivation without the parent's network, which the parent's point shows."""
    if not isinstance(derivation, dict) or not isinstance(derivation.get("morphism"), dict):
        return derivation
    return {**derivation, "morphism": derivation["morphism"].get("operations")}


_UNITS: Mapping[str, Callable[[Any], str]] = {
    "inherited": lambda share: f"{100 * share:.0f}\N{NO-BREAK SPACE}%",
    "duration_s": duration,
    f"cost.{LATENCY}": lambda seconds: f"{1000 * seconds:.3g}\N{NO-BREAK SPACE}ms",
    "started": clock,
    "finished": clock,
    "last_activity": clock,
    "checkpoint_bytes": size,
    "weights_deleted": lambda is_deleted: "deleted" if is_deleted else "",
    "front": lambda is_on_front: "front" if is_on_front else "",
    "shared_score": lambda is_shared: "shared" if is_shared else "",
}


def cell(column: str, value: Any) -> str:
    """Returns the text of a table cell, with units and rounded floats; empty for None."""
    if value is None:
        return ""
    if column in _UNITS:
        return _UNITS[column](value)
    if column == "derivation":
        value = _steps(value)
    elif column.endswith(".nodes"):
        return clean(brief(value))
    if isinstance(value, list | dict | bool):
        return as_json(value)
    return number(value, 5) if isinstance(value, float) else clean(value)
