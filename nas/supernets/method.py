"""The method of a differentiable search, as a tuner records it and a problem reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.core.validation import check_bool, check_choice, check_int, check_keys, check_number
from nas.supernets.connectivity import NONE, has_layer

METHODS = ("darts", "gdas", "drnas", "darts_pt")
TEMPERATURE = (10.0, 0.1)
SKIP = "skip_connect"
"""The name of the option without a layer, as in NAS-Bench-201."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A method and its options; the ``derivation`` of a supernet epoch.

    Attributes:
        method: ``darts``, ``gdas``, ``drnas`` or ``darts_pt``.
        n_epochs: The number of supernet epochs, for schedules.
        order: Of ``darts`` and ``darts_pt``: 1, or 2 for the gradient through a step of the weights.
        alpha_rate: The learning rate of alphas.
        alpha_decay: The weight decay of alphas.
        alpha_share: The share of the training images that train alphas. The others train weights.
        allows_none: Whether the point of the alphas may have the option ``none``.
        temperature: The first and the last temperature of ``gdas``.

    Raises:
        ConfigurationError: a value is not allowed.
    """

    method: str
    n_epochs: int = 6
    order: int = 1
    alpha_rate: float = 0.01
    alpha_decay: float = 1e-3
    alpha_share: float = 0.5
    allows_none: bool = True
    temperature: Sequence[float] = TEMPERATURE

    def __post_init__(self) -> None:
        check_choice("tuner.method", self.method, METHODS)
        check_int("tuner.n_epochs", self.n_epochs, 1)
        check_int("tuner.order", self.order, 1, 2)
        if self.order == 2 and self.method not in ("darts", "darts_pt"):
            raise ConfigurationError(f"tuner.order=2: must be 1 with method {self.method}. Use tuner=darts.")
        check_bool("tuner.allows_none", self.allows_none)
        check_number("tuner.alpha_rate", self.alpha_rate, 0)
        check_number("tuner.alpha_decay", self.alpha_decay, 0)
        check_number("tuner.alpha_share", self.alpha_share)
        if not 0 < self.alpha_share < 1:
            raise ConfigurationError(f"tuner.alpha_share={self.alpha_share}: must be above 0 and below 1.")
        object.__setattr__(self, "temperature", _temperatures(self.temperature))
        if self.method != "gdas" and self.temperature != TEMPERATURE:
            shown = list(self.temperature)
            raise ConfigurationError(
                f"tuner.temperature={shown}: must be left out with method {self.method}. Use tuner=gdas."
            )

    @property
    def excluded(self) -> tuple[str, ...]:
        """The options that the point of the alphas never has."""
        return () if self.allows_none else (NONE,)

    def to_json(self) -> dict[str, Any]:
        """Returns the method as plain JSON data."""
        return {**asdict(self), "temperature": list(self.temperature)}

    @classmethod
    def of(cls, derivation: object) -> Method | None:
        """Returns the method of a proposal's derivation, or None if it has none.

        Raises:
            ConfigurationError: an option is unknown, or its value is not allowed.
        """
        if not isinstance(derivation, Mapping) or "method" not in derivation:
            return None
        check_keys("derivation", derivation, [field.name for field in fields(cls)])
        return cls(**derivation)


def _temperatures(given: Any) -> tuple[float, float]:
    """Returns two positive numbers."""
    pair = tuple(given) if isinstance(given, list | tuple) else (given,)
    for value in pair:
        check_number("tuner.temperature", value)
    if len(pair) != 2 or min(pair) <= 0:
        raise ConfigurationError(f"tuner.temperature={given}: must be two positive numbers, such as [10,0.1].")
    return float(pair[0]), float(pair[1])


def n_skips(point: Point) -> int:
    """Returns the number of layers ``skip_connect`` of a point's network."""
    return sum(value == SKIP for name, value in point.items() if has_layer(point, name))


def n_nones(point: Point) -> int:
    """Returns the number of layers ``none`` of a point's network."""
    return sum(value == NONE for name, value in point.items() if has_layer(point, name))
