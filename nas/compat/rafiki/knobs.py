"""Knobs: the hyper-parameters of a model template, as in Rafiki 0.2 and SINGA-Auto."""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TypeAlias

from nas.core.policy import ALIASES, Policy

Scalar: TypeAlias = str | int | float | bool


class KnobValue:
    """A candidate value.

    One instance at several positions of an ``ArchKnob`` means the same at each.

    Raises:
        TypeError: the value is not a string, number or boolean.
    """

    def __init__(self, value: Scalar) -> None:
        if not isinstance(value, bool | int | float | str):
            raise TypeError(f"value={value!r} ({type(value).__name__}): must be an int, float, bool or str")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"value={value!r}: must be finite")
        self._value = value

    def __repr__(self) -> str:
        return f"KnobValue({self._value!r})"

    @property
    def value(self) -> Scalar:
        """The value that the model receives."""
        return self._value

    @property
    def dtype(self) -> type:
        """The type of the value; ``bool`` for True and False, unlike in Rafiki."""
        return next(kind for kind in (bool, int, float, str) if isinstance(self._value, kind))


CategoricalValue: TypeAlias = Scalar | KnobValue


def _wrapped(values: Iterable[CategoricalValue], name: str) -> list[KnobValue]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name}={values!r}: must be a list")
    found = [value if isinstance(value, KnobValue) else KnobValue(value) for value in values]
    if not found:
        raise ValueError(f"{name} must have at least one value")
    return found


class BaseKnob(ABC):
    """The possible values of one keyword argument of a model."""

    @property
    @abstractmethod
    def value_type(self) -> type:
        """The type of the argument."""


class FixedKnob(BaseKnob):
    """A fixed value, which is not tuned."""

    def __init__(self, value: CategoricalValue) -> None:
        self._value = value if isinstance(value, KnobValue) else KnobValue(value)

    @property
    def value_type(self) -> type:
        """The type of the value."""
        return self._value.dtype

    @property
    def value(self) -> KnobValue:
        """The value as a ``KnobValue``."""
        return self._value


class CategoricalKnob(BaseKnob):
    """One of several values of one type.

    Raises:
        TypeError: the values have different types.
        ValueError: there is no value.
    """

    def __init__(self, values: Iterable[CategoricalValue]) -> None:
        self._values = _wrapped(values, "CategoricalKnob: values")
        kinds = list(dict.fromkeys(value.dtype.__name__ for value in self._values))
        if len(kinds) > 1:
            raise TypeError(f"CategoricalKnob: values must be of one type, not {' and '.join(kinds)}")

    @property
    def value_type(self) -> type:
        """The type of the values."""
        return self._values[0].dtype

    @property
    def values(self) -> list[KnobValue]:
        """The candidates as ``KnobValue``."""
        return self._values


class _RangeKnob(BaseKnob):
    """A number from ``value_min`` to ``value_max``; with ``is_exp`` on a logarithmic scale."""

    _kinds: type | tuple[type, ...]

    def __init__(self, value_min: float, value_max: float, is_exp: bool = False) -> None:
        for name, value in (("value_min", value_min), ("value_max", value_max)):
            is_number = isinstance(value, self._kinds) and not isinstance(value, bool)
            if not is_number or not abs(value) <= sys.float_info.max:
                kind = "an int" if self._kinds is int else "a finite float or int"
                raise ValueError(f"{type(self).__name__}: {name}={value!r}: must be {kind}")
        if value_min > value_max:
            raise ValueError(f"{type(self).__name__}: value_max={value_max}: must be at least value_min ({value_min})")
        self._value_min, self._value_max, self._is_exp = value_min, value_max, is_exp

    @property
    def is_exp(self) -> bool:
        """The argument of the constructor: whether the scale is logarithmic."""
        return self._is_exp


class IntegerKnob(_RangeKnob):
    """An integer from ``value_min`` to ``value_max``, both included.

    Raises:
        ValueError: a bound is not an int, or ``value_max`` is below ``value_min``.
    """

    _kinds = int

    @property
    def value_type(self) -> type:
        """``int``."""
        return int

    @property
    def value_min(self) -> int:
        """The lower bound."""
        return int(self._value_min)

    @property
    def value_max(self) -> int:
        """The upper bound."""
        return int(self._value_max)


class FloatKnob(_RangeKnob):
    """A number from ``value_min`` to ``value_max``, both included.

    Raises:
        ValueError: a bound is not a finite number, or ``value_max`` is below ``value_min``.
    """

    _kinds = (int, float)

    @property
    def value_type(self) -> type:
        """``float``."""
        return float

    @property
    def value_min(self) -> float:
        """The lower bound."""
        return float(self._value_min)

    @property
    def value_max(self) -> float:
        """The upper bound."""
        return float(self._value_max)


class PolicyKnob(BaseKnob):
    """Whether a policy is on in this trial; declares that the model implements it.

    Raises:
        ValueError: the policy is unknown.
    """

    def __init__(self, policy: str) -> None:
        if policy not in (*Policy.__members__, *ALIASES):
            raise ValueError(f"PolicyKnob: policy={policy!r}: must be one of {', '.join((*Policy, *ALIASES))}")
        self._policy = policy

    @property
    def value_type(self) -> type:
        """``bool``."""
        return bool

    @property
    def policy(self) -> str:
        """The name of the policy."""
        return self._policy


class ArchKnob(BaseKnob):
    """An architecture as a list with one of the candidates in ``items`` at each position.

    Raises:
        TypeError: a candidate is not a value.
        ValueError: a position has no candidates.
    """

    def __init__(self, items: Iterable[Iterable[CategoricalValue]]) -> None:
        if isinstance(items, str) or not isinstance(items, Iterable):
            raise TypeError(f"ArchKnob: items={items!r}: must be a list of lists")
        self._items = [_wrapped(values, f"ArchKnob: items[{i}]") for i, values in enumerate(items)]

    def __len__(self) -> int:
        return len(self._items)

    @property
    def value_type(self) -> type:
        """``list``."""
        return list

    @property
    def items(self) -> list[list[KnobValue]]:
        """The candidates of each position as ``KnobValue``."""
        return self._items
