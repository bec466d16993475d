"""Options for one tuner of a multirun: ``only.evolution.population_size=8``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.spec import Spec

PREFIX = "only."


@dataclass(frozen=True, slots=True)
class OnlyOption:
    """An option of one tuner.

    Attributes:
        tuner: The tuner's name, as in ``tuner=evolution``, or the name of its class.
        override: The override for a job with this tuner: ``++tuner.population_size=8``.
    """

    tuner: str
    override: str


def split_only(overrides: Sequence[str]) -> tuple[list[str], tuple[OnlyOption, ...]]:
    """Returns the other overrides, and the options of one tuner.

    Raises:
        ConfigurationError: an option is not written as ``only.TUNER.KEY=VALUE``, or no job has its tuner.
    """
    others = [text for text in overrides if not text.lstrip("+").startswith(PREFIX)]
    options = tuple(_read(text.lstrip("+")) for text in overrides if text.lstrip("+").startswith(PREFIX))
    known = dict.fromkeys(_tuners(others))
    for option in options:
        if known and option.tuner not in known:
            raise no_such_tuner(option, list(known))
    return others, options


def no_such_tuner(option: OnlyOption, tuners: Sequence[str]) -> ConfigurationError:
    """Returns the error for an option whose tuner no job has."""
    key = option.override.removeprefix("++tuner.")
    there = f"The tuners are {', '.join(tuners)}" if len(tuners) > 1 else f"The tuner is {', '.join(tuners) or 'none'}"
    return ConfigurationError(f"{PREFIX}{option.tuner}.{key}: no job has this tuner. {there}")


def _read(text: str) -> OnlyOption:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    found = re.fullmatch(r"only\.(\w+)\.([\w.]+)=(.*)", text, re.DOTALL)
    if found is None:
        raise ConfigurationError(f"{text}: must be only.TUNER.KEY=VALUE, as only.evolution.population_size=8")
    option = OnlyOption(found[1], f"++tuner.{found[2]}={found[3]}")
    try:
        is_swept = OverridesParser.create().parse_override(option.override).is_sweep_override()
    except HydraException as error:
        raise ConfigurationError(f"can't read {text!r}: quote values of several words") from error
    if is_swept:
        raise ConfigurationError(f"{text}: must be one value, as the jobs of other tuners would run twice")
    return option


def _tuners(overrides: Sequence[str]) -> Iterator[str]:
    """Yields the tuners that the overrides choose, without those of yaml files and of a ``glob``."""
    for text in overrides:
        key, _, value = text.lstrip("+").partition("=")
        if key == "tuner" and "glob(" not in value:
            yield from re.findall(r"[\w.]+", value.removeprefix("choice"))
        elif key == "tuner._target_":
            yield from (Spec(name).name for name in re.findall(r"[\w.]+", value))


def value_of(override: str) -> tuple[str, Any]:
    """Returns key and value of an override."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_override(override)
    return str(parsed.key_or_group), parsed.value()
