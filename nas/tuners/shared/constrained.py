"""Constraints on static metrics: a point that violates one is never trained.

The wrapped tuner is asked again, with the same lineage and number and other randomness, until its proposal satisfies
them. So an answer is still a function of lineage, number and seed. Tuners that propose no point twice treat refused
points as taken, and most of them then find another point themselves.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import plain_metrics
from nas.core.point import Point, point_key
from nas.core.supernet import epoch_of
from nas.core.trial import Proposal
from nas.core.validation import check_number
from nas.training.proxy_scores import ProxyScores
from nas.tuners.base import STOP, WAIT, Answer, Tuner
from nas.tuners.shared.wrapper import WrapperTuner

MAX_REFUSED = 200
"""The limit on refused proposals in a row."""
MAX_POINTS = 20_000
"""The limit on different refused points per ask; smaller spaces are searched completely."""
REPORT_AFTER_S = 10.0
"""Time until the first log line of a long ask; it doubles each time."""
_MAX_CACHED = 100_000
logger = logging.getLogger(__name__)


def checked_limits(constraints: object) -> dict[str, float]:
    """Returns the upper limits by name.

    Raises:
        ConfigurationError: the constraints are not numbers by name.
    """
    if not isinstance(constraints, Mapping):
        raise ConfigurationError(
            f"constraints={constraints!r}: must be numbers by name. Set for example +constraints.parameters=1e6"
        )
    for name, limit in constraints.items():
        check_number(f"constraints.{name}", limit)
    return {str(name): float(limit) for name, limit in constraints.items()}


class ConstrainedTuner(WrapperTuner):
    """Wraps a tuner, and refuses its proposals that violate a constraint.

    Args:
        inner: The wrapped tuner.
        static_metrics: Returns the metrics of a point that are known before training (``Problem.static_metrics``).
        limits: The upper limits by name.
        scores: The proxies that are computed on workers. The answer is WAIT until the limited ones are known.

    Raises:
        ConfigurationError: a limited metric is not known before training.
    """

    def __init__(
        self,
        inner: Tuner,
        static_metrics: Callable[[Point], Mapping[str, float]],
        limits: Mapping[str, float],
        scores: ProxyScores | None = None,
    ) -> None:
        super().__init__(inner)
        self.limits = dict(limits)
        self._static_metrics = static_metrics
        self._scores = scores or ProxyScores()
        self._computed = [name for name in limits if name in self._scores.available]
        self._static = [name for name in limits if name not in self._computed]
        self._scores.need(self._computed)
        self._values: dict[str, dict[str, float]] = {}  # a cache: static metrics by point key
        self._refused: dict[str, dict[str, float]] = {}  # those of the points refused in this ask
        self._started_s = self._next_report_s = 0.0
        self._known(inner.space.sample(random.Random(0)))

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the wrapped tuner's first answer that violates no constraint; supernet epochs violate none.

        Raises:
            ConfigurationError: too many proposals in a row violate one.
        """
        self._refused = {}
        self._started_s, self._next_report_s = time.monotonic(), REPORT_AFTER_S
        try:
            for self.inner.n_refused in range(MAX_REFUSED):
                answer = self.inner.ask(lineage.refusing(self._is_refused), number, job)
                if answer is STOP and number == 0 and self._refused:
                    raise self._no_point_error()
                if not isinstance(answer, Proposal) or epoch_of(answer.point) is not None:
                    return answer
                if self._is_refused(answer.point):
                    continue
                if self._computed and self._scores.find([answer.point], number) is None:
                    return WAIT
                if not self._is_refused(answer.point):  # now by its proxies too
                    return answer
            raise self._no_point_error()
        finally:
            self.inner.n_refused = 0

    def violated_by(self, point: Point) -> str:
        """Returns the limits of static metrics that a point violates, or an empty text."""
        known = self._known(point)
        return ", ".join(
            f"constraints.{name}={limit:g} ({known[name]:g})"
            for name, limit in self.limits.items()
            if name in known and not known[name] <= limit
        )

    def _is_refused(self, point: Point) -> bool:
        key = point_key(point)
        if key not in self._values:
            if len(self._values) >= _MAX_CACHED:
                self._values.clear()
            self._values[key] = self._known(point)
        proxies = self._scores.known(point) if self._computed else {}
        values = self._values[key] | {name: proxies[name] for name in self._computed if name in proxies}
        if all(value <= self.limits[name] for name, value in values.items()):
            return False
        self._refused[key] = values
        if len(self._refused) > MAX_POINTS:
            raise self._no_point_error()
        if time.monotonic() - self._started_s > self._next_report_s:
            self._next_report_s *= 2
            logger.warning("no point found yet: %s", self._describe_refusals())
        return True

    def _known(self, point: Point) -> dict[str, Any]:
        """Returns the limited static metrics of a point.

        Raises:
            ConfigurationError: one is not known, or the problem's code raised.
        """
        try:
            found = self._static_metrics(point) if self._static else {}
            if unknown := [name for name in self._static if name not in found]:
                names = ", ".join([*found, *sorted(self._scores.available)])
                remedy = f"Name one of {names}" if names else "Define `static_metrics`, or `build` and `example_inputs`"
                raise ConfigurationError(
                    f"constraints.{unknown[0]}: the problem does not know it before training. {remedy}"
                )
            return plain_metrics({name: found[name] for name in self._static})
        except ConfigurationError:
            raise
        except Exception as error:  # the problem's own code
            raise ConfigurationError(
                f"constraints: the problem's static_metrics failed on {point!r:.300} "
                f"({type(error).__name__}: {error}); fix it, or search without constraints"
            ) from error

    def _no_point_error(self) -> ConfigurationError:
        return ConfigurationError(
            f"{self._describe_refusals()}. Raise the limit, or use a space with points that satisfy it"
        )

    def _describe_refusals(self) -> str:
        """Returns a text on the constraint that refused most, with the nearest value."""

        def n_violating(name: str) -> int:
            known = (values[name] for values in self._refused.values() if name in values)
            return sum(not value <= self.limits[name] for value in known)

        name = max(self.limits, key=n_violating)
        least = min(values[name] for values in self._refused.values() if name in values)
        return (
            f"constraints.{name}={self.limits[name]:g} is violated by {n_violating(name)} of the {len(self._refused)} "
            f"points refused in a row; the smallest value is {least:g}"
        )
