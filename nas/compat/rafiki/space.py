"""A knob config as a space, and a point of it as the knobs of one model."""

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

LEAST_EXP = 1e-12
"""What Rafiki took for a bound of 0 on a logarithmic scale."""
KINDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}
logger = logging.getLogger(__name__)


def knob_space(knobs: Mapping[str, BaseKnob]) -> ParameterSpace:
    """The space of all knobs but policies; an ``ArchKnob`` is a dict with a choice for each place, from ``"0"`` on.

    Equal candidates of one place count once. A whole range that reaches 0 or below is linear, whatever ``is_exp`` says.

    Raises:
        ConfigurationError: a knob that can't be, by its name.
    """
    parameters = {}
    for name, knob in knobs.items():
        if not isinstance(name, str) or not isinstance(knob, BaseKnob):
            raise ConfigurationError(f"knob {name!r} ({knob!r:.200}) must be a knob by a name that is a text")
        try:
            if not isinstance(knob, PolicyKnob):
                parameters[name] = _parameter(name, knob)
        except ConfigurationError as error:
            raise ConfigurationError(f"knob {name}: {error}") from error
    return ParameterSpace(parameters)


def knob_policies(knobs: Mapping[str, BaseKnob]) -> frozenset[Policy]:
    """Returns the policies that the template honors; several knobs may name one."""
    return parse_policies(knob.policy for knob in knobs.values() if isinstance(knob, PolicyKnob))


def realized(knobs: Mapping[str, BaseKnob], point: Point, policies: frozenset[Policy]) -> dict[str, Any]:
    """What a model's constructor is given: every knob, in the order of the config."""
    found: dict[str, Any] = {}
    for name, knob in knobs.items():
        if isinstance(knob, PolicyKnob):
            found[name] = parse_policies([knob.policy]) <= policies
        elif isinstance(knob, ArchKnob):
            found[name] = [point[name][str(place)] for place in range(len(knob))]
        else:
            found[name] = float(point[name]) if isinstance(knob, FloatKnob) else point[name]
    return found


def fixed_knob(name: str, value: object, knob: BaseKnob) -> BaseKnob:
    """Returns a knob that has this value alone, which need not be one of its candidates; a policy's stays as it is.

    Raises:
        ConfigurationError: the value is not of the knob's type.
    """
    if isinstance(knob, ArchKnob):
        if not isinstance(value, list | tuple) or len(value) != len(knob):
            raise ConfigurationError(f"{name} ({value!r}) must be a list of {len(knob)} values, as its ArchKnob says")
        places = zip(value, knob.items, strict=True)
        return ArchKnob([[_typed(f"{name}[{i}]", v, {k.dtype for k in kinds})] for i, (v, kinds) in enumerate(places)])
    typed = _typed(name, value, {knob.value_type})
    return knob if isinstance(knob, PolicyKnob) else FixedKnob(typed)


def _typed(name: str, value: object, kinds: set[type]) -> Any:
    """Returns the value, if it is of one of these types; a whole number as a float where that is wanted."""
    if type(value) in kinds and (not isinstance(value, float) or math.isfinite(value)):
        return value
    if type(value) is int and float in kinds:
        return float(value)
    allowed = " or ".join(sorted(KINDS[kind] for kind in kinds))
    raise ConfigurationError(f"{name} ({value!r}, {type(value).__name__}) must be {allowed}, as its knob is")


def _parameter(name: str, knob: BaseKnob) -> Any:
    if isinstance(knob, FixedKnob):
        return knob.value.value
    if isinstance(knob, CategoricalKnob):
        return _choice(knob.values)
    if isinstance(knob, ArchKnob):
        return {str(place): _choice(values) for place, values in enumerate(knob.items)}
    if not isinstance(knob, IntegerKnob | FloatKnob):
        raise ConfigurationError(f"{type(knob).__name__} is no knob of Rafiki's; docs/reference/rafiki.md lists them")
    if knob.is_exp not in (True, False):
        logger.warning(
            "knob %s: is_exp (%r) is taken for True: the third argument of %s says whether its scale is logarithmic",
            name, knob.is_exp, type(knob).__name__,
        )  # fmt: skip
    is_log = bool(knob.is_exp) and knob.value_min < knob.value_max
    if isinstance(knob, IntegerKnob):
        return Int(knob.value_min, knob.value_max, log=is_log and knob.value_min > 0)
    least = LEAST_EXP if is_log and knob.value_min == 0 else knob.value_min
    return Float(least, knob.value_max, log=is_log)


def _choice(values: list[KnobValue]) -> Any:
    """One of the candidates, or, where all are equal, that value."""
    distinct = {(value.dtype, value.value): value.value for value in values}
    return Choice(*distinct.values()) if len(distinct) > 1 else next(iter(distinct.values()))
