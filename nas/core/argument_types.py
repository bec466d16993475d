"""Types of constructor arguments, compared with their annotations and defaults."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from nas.core.parsing import signature_of
from nas.core.validation import short_repr

_RULES = {bool: "true or false", int: "a whole number", float: "a number"}
"""The rule for values of each type, in words."""


def unfit_argument(function: Callable[..., Any], arguments: Mapping[str, Any], *, by_default: bool) -> str | None:
    """Returns an error for the first value that does not fit a numeric argument, or None.

    Args:
        function: The class or function.
        arguments: Values by name.
        by_default: Whether the type of a default counts if there is no annotation.
    """
    for name, parameter in signature_of(function).parameters.items():
        if name not in arguments:
            continue
        kinds = _kinds(function, parameter, by_default)
        if kinds and not _fits(arguments[name], kinds):
            rule = " or ".join(_RULES[kind] for kind in _RULES if kind in kinds)
            return f"{name}={short_repr(arguments[name])}: must be {rule}"
    return None


def _kinds(function: Callable[..., Any], parameter: inspect.Parameter, by_default: bool) -> set[Any]:
    """Returns the numeric types of an argument; empty if it may take others."""
    annotation = _annotation(function, parameter)
    if annotation is None:
        is_known = by_default and type(parameter.default) in _RULES
        return {type(parameter.default)} if is_known else set()
    is_union = typing.get_origin(annotation) in (typing.Union, types.UnionType)
    members = set(typing.get_args(annotation)) if is_union else {annotation}
    members -= {type(None)}
    return members if members and members <= _RULES.keys() else set()


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    code = function.__init__ if isinstance(function, type) else function  # type: ignore[misc]
    try:
        return typing.get_type_hints(code).get(parameter.name)
    except Exception:  # a name that is imported for type checkers only
        return None


def _fits(value: object, kinds: set[Any]) -> bool:
    """Returns whether a value may be given. A whole float is an integer; None always may."""
    if value is None:
        return True
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, float) and value.is_integer():
        return bool(kinds & {int, float})
    return float in kinds if isinstance(value, float) else isinstance(value, int) and bool(kinds & {int, float})
