"""The inner tuner of a tuner that wraps another, from ``tuner.inner``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.core.spec import Spec
from nas.spaces.space import Space
from nas.tuners.base import StartupTrials, Tuner

RANDOM: Mapping[str, Any] = {"_target_": "nas.tuners.random.RandomTuner"}


def build_inner(inner: Mapping[str, Any] | None, space: Space, metrics: tuple[Metric, ...], seed: int) -> Tuner:
    """Returns the inner tuner.

    Args:
        inner: ``_target_`` and arguments; None: ``random``.
        space: The space of its points.
        metrics: Its metrics.
        seed: Its seed.

    Raises:
        ConfigurationError: it can't be built, is a list of points or pbt, or has a process of its own.
    """
    given = RANDOM if inner is None else inner
    if not isinstance(given, Mapping) or not given.get("_target_"):
        raise ConfigurationError(
            f"tuner.inner={given!r}: must be `_target_` and arguments of a tuner. A name goes with the tuners supernet "
            "and screened: +tuner=supernet tuner.inner=evolution"
        )
    spec = Spec.from_config(given)
    tuner = spec.build(space, metrics, seed=seed)
    if not isinstance(tuner, Tuner) or not tuner.may_be_inner:
        raise ConfigurationError(
            f"tuner.inner={spec.target}: must be a nas.Tuner other than pbt that is no list of points and has no "
            "process of its own. Write tuner.inner=evolution"
        )
    return tuner


def inner_startup_trials(tuner: Tuner, n_epochs: int = 0) -> StartupTrials | None:
    """Returns the first trials of an inner tuner, and ``n_epochs`` supernet epochs before them."""
    first = tuner.startup_trials
    if first is None:
        return None
    return StartupTrials(first.number + n_epochs, None if first.option is None else f"inner.{first.option}")


def inner_code_files(tuner: Tuner) -> dict[str, Path]:
    """Returns the files of an inner tuner that is not Heirloom's, for ``Tuner.code_files``."""
    module = type(tuner).__module__
    own = {} if module.startswith("nas.") else {f"{module}.py": Path(inspect.getfile(type(tuner)))}
    return own | dict(tuner.code_files)
