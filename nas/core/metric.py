"""What a trial is judged by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nas.core.errors import ConfigurationError

MAX_NAME = 100
Direction = Literal["maximize", "minimize"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A named number that ``train`` returns, and which way is better; the name has at most 100 characters.

    Attributes:
        reference: A value beyond which a score counts nothing: the metric's part of the reference point of the
            hypervolume (``nas.core.pareto``). None: the worst value that the search has seen.
    """

    name: str
    direction: Direction = "maximize"
    reference: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= MAX_NAME or not self.name.isprintable():
            raise ConfigurationError(f"metric name ({self.name!r:.120}) must be 1 to {MAX_NAME} printable characters")
        if self.direction not in ("maximize", "minimize"):
            raise ConfigurationError(
                f"metric {self.name}: direction ({self.direction!r}) must be 'maximize' or 'minimize'"
            )
        given = self.reference
        if given is not None and (
            isinstance(given, bool) or not isinstance(given, int | float) or not is_finite(given)
        ):
            raise ConfigurationError(f"metric {self.name}: reference ({given!r}) must be a finite number, or None")

    def rank(self, value: float) -> float:
        """Returns a number that is greater for a better value."""
        return value if self.direction == "maximize" else -value

    def is_better(self, value: float, than: float) -> bool:
        """Returns whether ``value`` beats ``than`` strictly."""
        return self.rank(value) > self.rank(than)


def plain_metrics(metrics: Mapping[str, object]) -> dict[str, float | int]:
    """Returns the metrics as plain Python numbers: numpy's and torch's scalars become float or int.

    Whole numbers stay whole within 64 bits; beyond they become floats, infinite ones where no float is as great.

    Raises:
        TypeError: a value is no number.
    """
    plain: dict[str, float | int] = {}
    for name, value in metrics.items():
        item = value.item() if hasattr(value, "item") else value
        if isinstance(item, bool) or not isinstance(item, int | float):
            raise TypeError(f"metric {name} must be a number, not {value!r} ({type(value).__name__})")
        plain[str(name)] = item if isinstance(item, float) or -(2**63) <= item < 2**63 else _as_float(item)
    return plain


def _as_float(whole: int) -> float:
    try:
        return float(whole)
    except OverflowError:
        return math.inf if whole > 0 else -math.inf


def not_finite(metrics: Mapping[str, float]) -> list[str]:
    """Returns the names of the metrics that are NaN or infinite."""
    return [name for name, value in metrics.items() if not is_finite(value)]


def is_finite(value: float) -> bool:
    """Returns whether the value is neither NaN nor infinite; a whole number never is, however long."""
    return isinstance(value, int) or math.isfinite(value)
