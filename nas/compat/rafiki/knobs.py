"""Knobs: how a model template says what is tuned. The contract is that of Rafiki 0.2 and SINGA-Auto."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TypeAlias

from nas.core.policy import ALIASES, Policy

Scalar: TypeAlias = str | int | float | bool


class KnobValue:
    """A candidate value. One instance at several places of an ``ArchKnob`` means the same at each.

    Raises:
        TypeError: it is no text, number or boolean.
    """

    def __init__(self, value: Scalar) -> None:
        if not isinstance(value, bool | int | float | str):
            raise TypeError(f"a knob's value ({value!r}, {type(value).__name__}) must be an int, float, bool or str")
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"a knob's value ({value!r}) must be finite")
        self._value = value

    def __repr__(self) -> str:
        return f"KnobValue({self._value!r})"

    @property
    def value(self) -> Scalar:
        """What a model is given."""
        return self._value

    @property
    def dtype(self) -> type:
        """``bool`` for True and False, which Rafiki took for ``int``."""
        return next(kind for kind in (bool, int, float, str) if isinstance(self._value, kind))


CategoricalValue: TypeAlias = Scalar | KnobValue


def _wrapped(values: Iterable[CategoricalValue], name: str) -> list[KnobValue]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} ({values!r}) must be a list")
    found = [value if isinstance(value, KnobValue) else KnobValue(value) for value in values]
    if not found:
        raise ValueError(f"{name} must hold at least one value")
    return found


class BaseKnob(ABC):
    """What one keyword argument of a model may be."""

    @property
    @abstractmethod
    def value_type(self) -> type:
        """The type of what a model is given."""


class FixedKnob(BaseKnob):
    """One value, which is not tuned."""

    def __init__(self, value: CategoricalValue) -> None:
        self._value = value if isinstance(value, KnobValue) else KnobValue(value)

    @property
    def value_type(self) -> type:
        """Of the value."""
        return self._value.dtype

    @property
    def value(self) -> KnobValue:
        """The value, wrapped."""
        return self._value


class CategoricalKnob(BaseKnob):
    """One of ``values``, which are of one type.

    Raises:
        TypeError: they are of several.
        ValueError: there is none.
    """

    def __init__(self, values: Iterable[CategoricalValue]) -> None:
        self._values = _wrapped(values, "CategoricalKnob: values")
        kinds = list(dict.fromkeys(value.dtype.__name__ for value in self._values))
        if len(kinds) > 1:
            raise TypeError(f"CategoricalKnob: values must be of one type, not {' and '.join(kinds)}")

    @property
    def value_type(self) -> type:
        """Of each value."""
        return self._values[0].dtype

    @property
    def values(self) -> list[KnobValue]:
        """The candidates, wrapped."""
        return self._values


class _RangeKnob(BaseKnob):
    """A number from ``value_min`` to ``value_max``, both included; with ``is_exp`` on a logarithmic scale."""

    _kinds: type | tuple[type, ...]

    def __init__(self, value_min: float, value_max: float, is_exp: bool = False) -> None:
        for name, value in (("value_min", value_min), ("value_max", value_max)):
            if isinstance(value, bool) or not isinstance(value, self._kinds) or not math.isfinite(value):
                kind = "an int" if self._kinds is int else "a finite float or int"
                raise ValueError(f"{type(self).__name__}: {name} ({value!r}) must be {kind}")
        if value_min > value_max:
            raise ValueError(f"{type(self).__name__}: value_max ({value_max}) must be at least value_min ({value_min})")
        self._value_min, self._value_max, self._is_exp = value_min, value_max, is_exp

    @property
    def is_exp(self) -> bool:
        """As it was given."""
        return self._is_exp


class IntegerKnob(_RangeKnob):
    """A whole number from ``value_min`` to ``value_max``, both included.

    Raises:
        ValueError: a bound is no int, or they are the wrong way round.
    """

    _kinds = int

    @property
    def value_type(self) -> type:
        """``int``."""
        return int

    @property
    def value_min(self) -> int:
        """The least."""
        return int(self._value_min)

    @property
    def value_max(self) -> int:
        """The greatest."""
        return int(self._value_max)


class FloatKnob(_RangeKnob):
    """A number from ``value_min`` to ``value_max``, both included.

    Raises:
        ValueError: a bound is no finite number, or they are the wrong way round.
    """

    _kinds = (int, float)

    @property
    def value_type(self) -> type:
        """``float``."""
        return float

    @property
    def value_min(self) -> float:
        """The least."""
        return float(self._value_min)

    @property
    def value_max(self) -> float:
        """The greatest."""
        return float(self._value_max)


class PolicyKnob(BaseKnob):
    """Says that the model honors a policy, and whether it is on in this trial; False where the stage has it not.

    Raises:
        ValueError: there is no such policy.
    """

    def __init__(self, policy: str) -> None:
        if policy not in (*Policy.__members__, *ALIASES):
            raise ValueError(f"PolicyKnob: policy ({policy!r}) must be one of {', '.join((*Policy, *ALIASES))}")
        self._policy = policy

    @property
    def value_type(self) -> type:
        """``bool``."""
        return bool

    @property
    def policy(self) -> str:
        """Its name."""
        return self._policy


class ArchKnob(BaseKnob):
    """An architecture as a list: at each place one of the candidates in ``items``.

    Raises:
        TypeError: a candidate that is no value.
        ValueError: a place without candidates.
    """

    def __init__(self, items: Iterable[Iterable[CategoricalValue]]) -> None:
        if isinstance(items, str) or not isinstance(items, Iterable):
            raise TypeError(f"ArchKnob: items ({items!r}) must be a list of lists")
        self._items = [_wrapped(values, f"ArchKnob: items[{place}]") for place, values in enumerate(items)]

    def __len__(self) -> int:
        return len(self._items)

    @property
    def value_type(self) -> type:
        """``list``."""
        return list

    @property
    def items(self) -> list[list[KnobValue]]:
        """The candidates of each place, wrapped."""
        return self._items
