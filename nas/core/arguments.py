"""Classes whose instances know the arguments that they were built with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from os import PathLike
from typing import Any

from nas.core.parsing import signature_of

_ARGUMENTS, _ATTRIBUTES = "_heirloom_arguments", "_heirloom_attributes"
"""Attributes of an instance, with names that no user's class has."""
_SINGLE = (str, int, float, PathLike, type(None))
"""Types of the data arguments that are kept: paths and numbers.

Others may be large, and are in no record.
"""


class RecordsArguments:
    """Keeps the constructor's arguments of each instance, so that a search can record them."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__:
            cls.__init__ = _recording(cls.__init__)  # type: ignore[method-assign]


def arguments_of(instance: object) -> Mapping[str, Any] | None:
    """Returns the arguments that an instance was built with, by name; None: they are unknown."""
    if not signature_of(type(instance)).parameters:
        return {}
    found: Mapping[str, Any] | None = getattr(instance, _ARGUMENTS, None)
    return found


def data_of(instance: object) -> dict[str, Any]:
    """Returns the given ``data_arguments`` of an instance, by name."""
    names: Collection[str] = getattr(instance, "data_arguments", ())
    return {name: value for name, value in (arguments_of(instance) or {}).items() if name in names}


def changed_argument(instance: object) -> str | None:
    """Returns the name of an argument whose attribute was changed after the construction, or None.

    Numbers and texts are compared. An attribute that was None may have been filled in.
    """
    built: Mapping[str, Any] = getattr(instance, _ATTRIBUTES, {})
    now = {name: vars(instance).get(name, value) for name, value in built.items()}
    return next((name for name, value in built.items() if now[name] is not value and now[name] != value), None)


def _recording(init: Callable[..., None]) -> Callable[..., None]:
    """Returns a constructor that also keeps its arguments; the outermost of several constructors counts."""
    signature = signature_of(init)

    @functools.wraps(init)
    def recording(self: Any, *args: Any, **more: Any) -> None:
        is_outermost = _ARGUMENTS not in vars(self)
        if is_outermost:
            with suppress(TypeError):  # the constructor raises a better one
                bound = signature.bind(self, *args, **more)
                found = _by_name(signature, bound.arguments)
                kept = None if found is None else _kept(found, getattr(self, "data_arguments", frozenset()))
                setattr(self, _ARGUMENTS, kept)
        init(self, *args, **more)
        if is_outermost:
            own = {name: vars(self).get(name) for name in vars(self).get(_ARGUMENTS) or {}}
            setattr(self, _ATTRIBUTES, {name: own[name] for name in own if isinstance(own[name], str | int | float)})

    return recording


def _kept(arguments: Mapping[str, Any], data: Collection[str]) -> dict[str, Any]:
    """Returns arguments with copies of lists and dicts, and without data.

    A constructor may change its lists. Of data only paths are kept.
    """
    is_kept = {name: name not in data or isinstance(value, _SINGLE) for name, value in arguments.items()}
    return {name: _copied(value) for name, value in arguments.items() if is_kept[name]}


def _copied(value: Any) -> Any:
    """Returns a copy of plain data; other objects are returned as they are."""
    if type(value) in (list, tuple):
        return type(value)(map(_copied, value))
    return {key: _copied(each) for key, each in value.items()} if type(value) is dict else value


def _by_name(signature: inspect.Signature, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns arguments without ``self``; None if some have no names."""
    found: dict[str, Any] = {}
    for name, value in [*given.items()][1:]:
        kind = signature.parameters[name].kind
        if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            return None
        found |= value if kind == inspect.Parameter.VAR_KEYWORD else {name: value}
    return found
