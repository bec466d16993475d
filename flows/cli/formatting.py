"""How numbers, times and foreign text are shown to people."""

from __future__ import annotations

import html
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from nas.core.redaction import without_passwords
from nas.training.problem import LATENCY

SECRET_HINT = "  # *** stands for a secret: write it again"
"""Follows a command to copy that lacks one; a shell takes it for a comment."""

_UNSHOWABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""What neither XML nor a terminal takes: control characters but tab and newline, and halves of characters."""


def clean(text: object) -> str:
    """Any text, with what no page and no terminal should be given replaced."""
    return _UNSHOWABLE.sub("\N{REPLACEMENT CHARACTER}", str(text))


def markup(text: object) -> str:
    """Any text, such that it is text and nothing else in HTML and SVG, also within quotes."""
    return html.escape(clean(text))


def masked(override: str) -> str:
    """Returns an override as it is shown: without the values of ``storage.options`` and without a password in a URL."""
    return without_passwords(re.sub(r"^(\+*storage\.options[^=]*)=.*", r"\1=***", override, flags=re.DOTALL))


def number(value: float, digits: int = 4) -> str:
    """Returns a number with so many significant digits; whole numbers stay whole."""
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def count(n: int, noun: str, plural: str = "") -> str:
    """``1 trial``, ``1,200 trials``, ``3 children``."""
    return f"{n:,} {noun if n == 1 else plural or f'{noun}s'}"


def duration(seconds: float) -> str:
    """Seconds in the units that fit: ``0.6 s``, ``42 s``, ``3 min 05 s``, ``2 h 07 min``."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 3599.5:
        return f"{round(seconds) // 60} min {round(seconds) % 60:02d} s"
    return f"{round(seconds / 60) // 60} h {round(seconds / 60) % 60:02d} min"


def size(n_bytes: float) -> str:
    """Bytes in decimal units: ``912 B``, ``208.9 kB``, ``1.2 GB``."""
    power = min(4, int(math.log10(n_bytes) // 3)) if n_bytes >= 1 else 0
    return f"{n_bytes:.0f} B" if power == 0 else f"{n_bytes / 1000**power:.1f} {' kMGT'[power]}B"


def clock(seconds: float) -> str:
    """Seconds since 1970 as a date and time, with its zone."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return number(seconds)


def last_line(text: str | None) -> str | None:
    """Returns the last line that says something: of a traceback, the error."""
    lines = (text or "").strip().splitlines()
    return lines[-1].strip() if lines else None


def brief(value: Any) -> str:
    """Returns a value of a point: floats with four significant digits, the nodes of a network by their kinds."""
    if isinstance(value, list) and value and all(isinstance(node, dict) and "op" in node for node in value):
        kinds = Counter(str(node["op"]) for node in value)
        return f"{count(len(value), 'node')}: " + ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    return number(value) if isinstance(value, float) else str(value)


def _steps(derivation: Any) -> Any:
    """What a proposal's derivation says, but for the parent's network, which the parent's point holds."""
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
}


def cell(column: str, value: Any) -> str:
    """What a cell of the report's table shows: units where there are some, rounded floats, nothing where unknown."""
    if value is None:
        return ""
    if column in _UNITS:
        return _UNITS[column](value)
    if column == "derivation":
        value = _steps(value)
    elif column.endswith(".nodes"):
        return clean(brief(value))
    if isinstance(value, list | dict | bool):
        return json.dumps(value, ensure_ascii=False)
    return number(value, 5) if isinstance(value, float) else clean(value)
