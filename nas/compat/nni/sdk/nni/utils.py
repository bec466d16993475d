"""Names of ``nni.utils`` for tuners and trials."""

from __future__ import annotations

from enum import Enum
from typing import Any

from .nested import json2parameter, json2space

__all__ = [
    "ClassArgsValidator",
    "NoMoreTrialError",
    "NodeType",
    "OptimizeMode",
    "extract_scalar_reward",
    "json2parameter",
    "json2space",
    "merge_parameter",
    "split_index",
]


class NoMoreTrialError(Exception):
    """A tuner has no configuration now. It is asked again after the next result."""

    def __init__(self, ErrorInfo: str = "") -> None:  # noqa: N803 - the name that callers may use
        super().__init__(ErrorInfo)
        self.errorinfo = ErrorInfo

    def __str__(self) -> str:
        return self.errorinfo


class OptimizeMode(Enum):
    """The direction of the metric."""

    Minimize = "minimize"
    Maximize = "maximize"


class NodeType:
    """Keys of nested search spaces."""

    ROOT = "root"
    TYPE = "_type"
    VALUE = "_value"
    INDEX = "_index"
    NAME = "_name"


def extract_scalar_reward(value: Any, scalar_key: str = "default") -> Any:
    """Returns a result that is a number, or its entry ``scalar_key``.

    Raises:
        RuntimeError: there is no number.
    """
    if isinstance(value, dict):
        value = value.get(scalar_key)
    if isinstance(value, (int, float)):
        return value
    raise RuntimeError(f"a result must be a number, or a dict with a number as '{scalar_key}', not {value!r:.200}")


def split_index(params: Any) -> Any:
    """Returns the parameters with each choice replaced by its option, without the ``_index``."""
    if not isinstance(params, dict):
        return params
    if NodeType.INDEX in params:
        return split_index(params[NodeType.VALUE])
    return {key: split_index(value) for key, value in params.items()}


def merge_parameter(base_params: Any, override_params: Any) -> Any:
    """Returns ``base_params``, a namespace or a dict, updated with the values of a configuration.

    Raises:
        ValueError: ``base_params`` lacks a name of the configuration.
        TypeError: a value of ``base_params`` is not None and has another type.
    """
    values = base_params if isinstance(base_params, dict) else vars(base_params)
    for name, value in (override_params or {}).items():
        if name not in values:
            raise ValueError(f"the base parameters have no {name!r}, only {', '.join(map(str, values))}")
        if values[name] is not None and type(values[name]) is not type(value):
            raise TypeError(f"{name} is {values[name]!r} in the base parameters, {value!r} in the configuration")
        values[name] = value
    return base_params


class ClassArgsValidator:
    """The base class of validators of ``classArgs``; they are not called."""

    def validate_class_args(self, **kwargs: Any) -> None:
        """Is never called."""
