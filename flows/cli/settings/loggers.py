"""Loggers that a configuration chooses, and their folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flows.cli.overrides import choices_of
from nas.callbacks.base import Callback
from nas.callbacks.extras import log_folder
from nas.core.errors import ConfigurationError
from nas.core.spec import Spec


def read_callbacks(values: Mapping[str, Any]) -> tuple[Callback, ...]:
    """Returns the callbacks of the group ``logger``, which holds one class for each name.

    Raises:
        ConfigurationError: one is no callback, or its package is missing.
    """
    chosen = values.get("logger") or {}
    if not isinstance(chosen, Mapping):
        raise ConfigurationError(
            f"logger={chosen}: must be one of {_names()}, or several: logger=[tensorboard,mlflow]."
        )
    for name, value in chosen.items():
        _check_is_class(name, value, chosen)
    return tuple(_build(name, config) for name, config in chosen.items())


def _check_is_class(name: str, value: object, chosen: Mapping[str, object]) -> None:
    """Raises an error if a value is set beside the loggers, not in one of them."""
    if isinstance(value, Mapping):
        return
    loggers = [f"logger.{other}.{name}" for other, config in chosen.items() if isinstance(config, Mapping)]
    remedy = f"Set {' or '.join(loggers)}." if loggers else f"Add logger=NAME, one of {_names()}."
    raise ConfigurationError(f"logger.{name}={value}: must be in a logger. {remedy}")


def _build(name: str, config: object) -> Callback:
    if not isinstance(config, Mapping) or not config.get("_target_"):
        raise ConfigurationError(
            f"logger.{name}: must have a _target_. Add logger=NAME, one of {_names()}, "
            f"or logger.{name}._target_=my_module.MyCallback."
        )
    callback = Spec.from_config(config).build()
    if not isinstance(callback, Callback):
        raise ConfigurationError(f"logger.{name}._target_={config['_target_']}: must be a subclass of nas.Callback.")
    return callback


def _names() -> str:
    return ", ".join(choices_of("logger"))


def read_log_dir(values: Mapping[str, Any]) -> str:
    """Returns the absolute path of the local folder for loggers.

    Raises:
        ConfigurationError: it is empty, or a URL.
    """
    return log_folder(values["log_dir"])
