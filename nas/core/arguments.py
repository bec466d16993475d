"""Classes whose instances know the arguments that they were built with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any


class RecordsArguments:
    """Keeps the constructor's arguments of each instance, so that a search can record them."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in cls.__dict__:
            cls.__init__ = _recording(cls.__init__)  # type: ignore[method-assign]


def arguments_of(instance: object) -> Mapping[str, Any] | None:
    """Returns the arguments that an instance was built with, by name; None: they are unknown."""
    if not inspect.signature(type(instance)).parameters:
        return {}
    found: Mapping[str, Any] | None = getattr(instance, "_arguments", None)
    return found


def _recording(init: Callable[..., None]) -> Callable[..., None]:
    """Returns a constructor that also keeps its arguments; the outermost of several constructors counts."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def recording(self: Any, *args: Any, **more: Any) -> None:
        if "_arguments" not in vars(self):
            with suppress(TypeError):  # the constructor raises a better one
                bound = signature.bind(self, *args, **more)
                self._arguments = _by_name(signature, bound.arguments)
        init(self, *args, **more)

    return recording


def _by_name(signature: inspect.Signature, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns arguments without ``self``; None if some have no names."""
    found: dict[str, Any] = {}
    for name, value in [*given.items()][1:]:
        kind = signature.parameters[name].kind
        if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
            return None
        found |= value if kind == inspect.Parameter.VAR_KEYWORD else {name: value}
    return found
