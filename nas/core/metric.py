"""Metrics: named numbers that rank trials."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nas.core.errors import ConfigurationError
from nas.core.validation import MAX_WHOLE, short_repr

MAX_NAME = 100
Direction = Literal["maximize", "minimize"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number returned by ``train``, and its direction.

    Attributes:
        name: At most 100 printable characters.
        direction: Whether greater or smaller values are better.
        reference: The metric's coordinate of the hypervolume's reference point (``nas.core.pareto``): worse values do
            not count. None: the worst value of the search.
    """

    name: str
    direction: Direction = "maximize"
    reference: float | None = None

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
            raise ConfigurationError(
                f"metric name={short_repr(name):.120}: must be 1 to {MAX_NAME} printable characters"
            )
        if self.direction not in ("maximize", "minimize"):
            raise ConfigurationError(
                f"metric {self.name}: direction={self.direction!r}: must be 'maximize' or 'minimize'"
            )
        given = self.reference
        if given is not None and (
            isinstance(given, bool) or not isinstance(given, int | float) or not is_finite(given)
        ):
            raise ConfigurationError(f"metric {self.name}: reference={given!r}: must be a finite number, or None")

    def rank(self, value: float) -> float:
        """Returns the value, negated if smaller is better, so that greater ranks are better."""
        return value if self.direction == "maximize" else -value

    def is_better(self, value: float, than: float) -> bool:
        """Returns whether ``value`` is strictly better than ``than``."""
        return self.rank(value) > self.rank(than)


def choose_metrics(names: Any, known: Sequence[Metric], scores: Sequence[str]) -> tuple[Metric, ...]:
    """Returns the metrics that ``problem.objectives`` names, in its order.

    Args:
        names: A name, or a list of names. None: the first score.
        known: The metrics to choose from.
        scores: The names of which the choice must include one.

    Raises:
        ConfigurationError: a name is unknown or repeated, or there is no score.
    """
    chosen = [scores[0]] if names is None else [names] if isinstance(names, str) else names
    by_name = {metric.name: metric for metric in known}
    is_known = isinstance(chosen, list | tuple) and all(isinstance(n, str) and n in by_name for n in chosen)
    if not is_known or len({*chosen}) < len(chosen) or {*scores}.isdisjoint(chosen):
        others = [name for name in by_name if name not in scores]
        raise ConfigurationError(
            f"problem.objectives={short_repr(names)}: must be {' or '.join(scores)}, and any of {', '.join(others)}, "
            f"each once. Write for example problem.objectives=[{scores[0]},{others[0]}]."
        )
    return tuple(by_name[name] for name in chosen)


def plain_metrics(metrics: Mapping[str, object]) -> dict[str, float | int]:
    """Returns the metrics as Python numbers; scalars of numpy and torch become float or int.

    Integers beyond 64 bits become floats, or infinite if no float is as great.

    Raises:
        TypeError: a value is not a number.
    """
    plain: dict[str, float | int] = {}
    for name, value in metrics.items():
        item = _item(value)
        if isinstance(item, bool) or not isinstance(item, int | float):
            kind = type(value).__name__
            raise TypeError(f"metric {name} must be a number, not {short_repr(value)} ({kind}). Give a float")
        plain[str(name)] = item if isinstance(item, float) or -(2**63) <= item < 2**63 else _as_float(item)
    return plain


def _item(value: Any) -> Any:
    """Returns a scalar of numpy or torch as a Python number; other values as they are."""
    return value.item() if hasattr(value, "item") and math.prod(getattr(value, "shape", ())) == 1 else value


def _as_float(whole: int) -> float:
    try:
        return float(whole)
    except OverflowError:
        return math.inf if whole > 0 else -math.inf


def whole_step(name: str, step: object, least: int = -MAX_WHOLE) -> int:
    """Returns a step as an integer.

    Whole scalars of numpy and torch are steps, and floats such as 2.0.

    Raises:
        ConfigurationError: the step is no whole number, or too small. A bool is none here.
    """
    value = _item(step)
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(whole, bool) or not isinstance(whole, int) or not least <= whole <= MAX_WHOLE:
        allowed = "a whole number" if least < 0 else f"a whole number of at least {least}"
        raise ConfigurationError(f"{name}={short_repr(step)}: must be {allowed}. Count batches or epochs.")
    return whole


def not_finite(metrics: Mapping[str, float]) -> list[str]:
    """Returns the names of the metrics that are NaN or infinite."""
    return [name for name, value in metrics.items() if not is_finite(value)]


def finite_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics that are neither NaN nor infinite."""
    return {name: value for name, value in metrics.items() if is_finite(value)}


def is_finite(value: float) -> bool:
    """Returns whether the value is neither NaN nor infinite. Integers of any size are finite."""
    return isinstance(value, int) or math.isfinite(value)
