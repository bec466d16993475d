"""What a trial is judged by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nas.errors import ConfigurationError

Direction = Literal["maximize", "minimize"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A named number that ``train`` returns, and which way is better."""

    name: str
    direction: Direction = "maximize"

    def __post_init__(self) -> None:
        if self.direction not in ("maximize", "minimize"):
            raise ConfigurationError(
                f"metric {self.name}: direction ({self.direction!r}) must be 'maximize' or 'minimize'"
            )

    def rank(self, value: float) -> float:
        """A number that is greater for a better value."""
        return value if self.direction == "maximize" else -value

    def is_better(self, value: float, than: float) -> bool:
        """Whether ``value`` beats ``than`` strictly."""
        return self.rank(value) > self.rank(than)


def plain_metrics(metrics: Mapping[str, object]) -> dict[str, float | int]:
    """The metrics as plain Python numbers: numpy's and torch's scalars become float or int, whole stays whole.

    Raises:
        TypeError: a value is no number.
    """
    plain: dict[str, float | int] = {}
    for name, value in metrics.items():
        item = value.item() if hasattr(value, "item") else value
        if isinstance(item, bool) or not isinstance(item, int | float):
            raise TypeError(f"metric {name} must be a number, not {value!r} ({type(value).__name__})")
        plain[str(name)] = item
    return plain


def not_finite(metrics: Mapping[str, float]) -> list[str]:
    """The names of the metrics that are NaN or infinite."""
    return [name for name, value in metrics.items() if not is_finite(value)]


def is_finite(value: float) -> bool:
    """Whether the value is neither NaN nor infinite; a whole number never is, however long."""
    return isinstance(value, int) or math.isfinite(value)
