"""Constraints on what is known before training: a proposal that breaks one is never trained.

The wrapped tuner is asked again, with the same lineage and number and other randomness, until its proposal keeps them;
so an answer is still a function of lineage, number and seed. Tuners that propose no point twice see broken points as
taken, so that most find another one by themselves.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import plain_metrics
from nas.core.point import Point, point_key
from nas.core.trial import Proposal, Trial
from nas.tuners.base import STOP, Answer, Tuner

MAX_ANSWERS = 200
"""Proposals in a row that may break a constraint."""
MAX_POINTS = 20_000
"""Different points that may be looked at for one proposal; a space of so many is searched through."""
TELL_AFTER_S = 10.0
"""When it says that it is still looking: after so long, then after twice that, and so on. No answer depends on it."""
_MAX_CACHED = 100_000
logger = logging.getLogger(__name__)


def checked_limits(constraints: object) -> dict[str, float]:
    """Returns the greatest value allowed, by name.

    Raises:
        ConfigurationError: they are no numbers by name.
    """
    if not isinstance(constraints, Mapping):
        raise ConfigurationError(f"constraints ({constraints!r}) holds keys: set +constraints.parameters=1e6")
    for name, limit in constraints.items():
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not math.isfinite(limit):
            raise ConfigurationError(f"constraints.{name} ({limit!r}) must be a number, the most that is allowed")
    return {str(name): float(limit) for name, limit in constraints.items()}


class ConstrainedTuner(Tuner):
    """Answers what another tuner does, but for proposals that break a constraint.

    Args:
        tuner: Asked, and asked again.
        static_metrics: What is known of a point before it is trained, by name (``Problem.static_metrics``).
        limits: The greatest value allowed, by name.

    Raises:
        ConfigurationError: one of them is not known before training.
    """

    def __init__(
        self, tuner: Tuner, static_metrics: Callable[[Point], Mapping[str, float]], limits: Mapping[str, float]
    ) -> None:
        super().__init__(tuner.space, tuner.metrics, seed=tuner.seed)
        self.tuner = tuner
        self.limits = dict(limits)
        self._static_metrics = static_metrics
        self._values: dict[str, dict[str, float]] = {}  # a cache: what is known of points, by their key
        self._refused: dict[str, dict[str, float]] = {}  # the same of those that broke a constraint in this ask
        self._began_s = self._silent_s = 0.0
        self._known(tuner.space.sample(random.Random(0)))

    @property
    def shown_name(self) -> str:
        """The tuner's."""
        return self.tuner.shown_name

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the first of the tuner's answers that is no proposal, or one that keeps the constraints.

        Raises:
            ConfigurationError: too many in a row break them.
        """
        self._refused = {}
        self._began_s, self._silent_s = time.monotonic(), TELL_AFTER_S
        try:
            for self.tuner.n_refused in range(MAX_ANSWERS):
                answer = self.tuner.ask(lineage.refusing(self._is_broken), number, job)
                if answer is STOP and number == 0 and self._refused:
                    raise self._given_up()
                if not isinstance(answer, Proposal) or not self._is_broken(answer.point):
                    return answer
            raise self._given_up()
        finally:
            self.tuner.n_refused = 0

    def given(self, point: Point, lineage: Lineage, number: int) -> Proposal:
        """As the tuner proposes it."""
        return self.tuner.given(point, lineage, number)

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Whom the tuner may name."""
        return self.tuner.may_inherit_from(lineage)

    def ranked(self, lineage: Lineage) -> Sequence[Trial]:
        """As the tuner ranks them."""
        return self.tuner.ranked(lineage)

    def broken_by(self, point: Point) -> str:
        """Returns the constraints that the point breaks, with its values; empty where it keeps all."""
        known = self._known(point)
        return ", ".join(
            f"constraints.{name}={limit:g} ({known[name]:g})"
            for name, limit in self.limits.items()
            if not known[name] <= limit
        )

    def _is_broken(self, point: Point) -> bool:
        key = point_key(point)
        if key not in self._values:
            if len(self._values) >= _MAX_CACHED:
                self._values.clear()
            self._values[key] = self._known(point)
        values = self._values[key]
        if all(values[name] <= limit for name, limit in self.limits.items()):
            return False
        self._refused[key] = values
        if len(self._refused) > MAX_POINTS:
            raise self._given_up()
        if time.monotonic() - self._began_s > self._silent_s:
            self._silent_s *= 2
            logger.warning("still looking for a point: %s", self._told())
        return True

    def _known(self, point: Point) -> dict[str, Any]:
        """Returns the values that are limited.

        Raises:
            ConfigurationError: one is not known, or the problem failed to say.
        """
        try:
            found = self._static_metrics(point)
            if unknown := [name for name in self.limits if name not in found]:
                names = ", ".join(found)
                remedy = f"name one of {names}" if names else "define `static_metrics`, or `build` and `example_inputs`"
                raise ConfigurationError(
                    f"constraints.{unknown[0]}: the problem does not know it before training; {remedy}"
                )
            return plain_metrics({name: found[name] for name in self.limits})
        except ConfigurationError:
            raise
        except Exception as error:  # the problem's own code
            raise ConfigurationError(
                f"constraints: the problem's static_metrics failed on {point!r:.300} "
                f"({type(error).__name__}: {error}); mend it, or search without constraints"
            ) from error

    def _given_up(self) -> ConfigurationError:
        return ConfigurationError(f"{self._told()}; allow more, or let the space hold points that keep it")

    def _told(self) -> str:
        """Which constraint refused most, and how near to it the nearest was."""

        def n_broken_by(name: str) -> int:
            return sum(not values[name] <= self.limits[name] for values in self._refused.values())

        name = max(self.limits, key=n_broken_by)
        least = min(values[name] for values in self._refused.values())
        return (
            f"constraints.{name}={self.limits[name]:g} is broken by {n_broken_by(name)} of the {len(self._refused)} "
            f"points that were refused in a row, the least having {least:g}"
        )
