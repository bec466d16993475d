"""Conversion of a knob config into a space, and of a point into knobs."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

from nas.compat.rafiki.knobs import (
    ArchKnob,
    BaseKnob,
    CategoricalKnob,
    FixedKnob,
    FloatKnob,
    IntegerKnob,
    KnobValue,
    PolicyKnob,
)
from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.core.policy import Policy, parse_policies
from nas.spaces.parameters.space import Choice, Float, Int, ParameterSpace

MIN_LOG_BOUND = 1e-12
"""Replaces a bound of 0 on a logarithmic scale, as in Rafiki."""
TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a string"}
logger = logging.getLogger(__name__)


def knob_space(knobs: Mapping[str, BaseKnob]) -> ParameterSpace:
    """Returns the space of all knobs except policies.

    An ``ArchKnob`` becomes a dict with a choice for each position, from ``"0"``. Equal candidates of a position count
    once. An integer range that reaches 0 or below is linear, whatever ``is_exp`` is.

    Raises:
        ConfigurationError: a knob is invalid; the message names it.
    """
    parameters = {}
    for name, knob in knobs.items():
        if not isinstance(name, str) or not isinstance(knob, BaseKnob):
            raise ConfigurationError(f"knob {name!r}={knob!r:.200}: must be a knob with a string as its name")
        try:
            if not isinstance(knob, PolicyKnob):
                parameters[name] = _parameter(name, knob)
        except ConfigurationError as error:
            raise ConfigurationError(f"knob {name}: {error}") from error
    return ParameterSpace(parameters)


def knob_policies(knobs: Mapping[str, BaseKnob]) -> frozenset[Policy]:
    """Returns the policies that the template implements; several knobs may name the same one."""
    return parse_policies(knob.policy for knob in knobs.values() if isinstance(knob, PolicyKnob))


def knob_values(
    knobs: Mapping[str, BaseKnob], point: Point, policies: frozenset[Policy], pinned: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the arguments of a model's constructor: every knob in the order of the config.

    Args:
        knobs: The knobs, with those of ``replaced_knobs``.
        point: The values of all knobs except policies.
        policies: The policies that are on.
        pinned: The values of ``problem.knobs``, which hold for policies too.
    """
    found: dict[str, Any] = {}
    for name, knob in knobs.items():
        if isinstance(knob, PolicyKnob):
            found[name] = pinned[name] if name in pinned else parse_policies([knob.policy]) <= policies
        elif isinstance(knob, ArchKnob):
            found[name] = [point[name][str(i)] for i in range(len(knob))]
        else:
            found[name] = float(point[name]) if isinstance(knob, FloatKnob) else point[name]
    return found


def replaced_knobs(knobs: Mapping[str, BaseKnob], pinned: Mapping[str, Any]) -> dict[str, BaseKnob]:
    """Returns the knobs, with a fixed one for each value of ``problem.knobs``.

    Raises:
        ConfigurationError: a value has another type than its knob.
    """
    return {
        name: _fixed_knob(f"problem.knobs.{name}", pinned[name], knob) if name in pinned else knob
        for name, knob in knobs.items()
    }


def _fixed_knob(name: str, value: object, knob: BaseKnob) -> BaseKnob:
    """Returns a knob with a single value, which may be none of its candidates.

    A ``PolicyKnob`` is returned unchanged.

    Raises:
        ConfigurationError: the value has another type than the knob.
    """
    if isinstance(knob, ArchKnob):
        if not isinstance(value, list | tuple) or len(value) != len(knob):
            raise ConfigurationError(f"{name}={value!r}: must be a list of {len(knob)} values, like its ArchKnob")
        items = []
        for i, (item, candidates) in enumerate(zip(value, knob.items, strict=True)):
            items.append([_checked_value(f"{name}[{i}]", item, {candidate.dtype for candidate in candidates})])
        return ArchKnob(items)
    checked = _checked_value(name, value, {knob.value_type})
    return knob if isinstance(knob, PolicyKnob) else FixedKnob(checked)


def _checked_value(name: str, value: object, kinds: set[type]) -> Any:
    """Returns the value if it has one of these types; an int may become a float."""
    if type(value) in kinds and (not isinstance(value, float) or math.isfinite(value)):
        return value
    if type(value) is int and float in kinds:
        return float(value)
    allowed = " or ".join(sorted(TYPE_NAMES[kind] for kind in kinds))
    raise ConfigurationError(f"{name}={value!r} ({type(value).__name__}): must be {allowed}, like its knob")


def _parameter(name: str, knob: BaseKnob) -> Any:
    if isinstance(knob, FixedKnob):
        return knob.value.value
    if isinstance(knob, CategoricalKnob):
        return _choice(knob.values)
    if isinstance(knob, ArchKnob):
        return {str(i): _choice(values) for i, values in enumerate(knob.items)}
    if not isinstance(knob, IntegerKnob | FloatKnob):
        raise ConfigurationError(f"{type(knob).__name__} is not a knob of Rafiki. docs/reference/rafiki.md lists all")
    if knob.is_exp not in (True, False):
        logger.warning(
            "knob %s: is_exp (%r) is read as True. The third argument of %s sets a logarithmic scale",
            name, knob.is_exp, type(knob).__name__,
        )  # fmt: skip
    is_log = bool(knob.is_exp) and knob.value_min < knob.value_max
    if isinstance(knob, IntegerKnob):
        return Int(knob.value_min, knob.value_max, log=is_log and knob.value_min > 0)
    least = MIN_LOG_BOUND if is_log and knob.value_min == 0 else knob.value_min
    return Float(least, knob.value_max, log=is_log)


def _choice(values: list[KnobValue]) -> Any:
    """Returns a choice of the candidates, or their value if all are equal."""
    distinct = {(value.dtype, value.value): value.value for value in values}
    return Choice(*distinct.values()) if len(distinct) > 1 else next(iter(distinct.values()))
