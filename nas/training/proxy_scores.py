"""The proxies of points that a tuner compares, as computed on workers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence

from nas.core.errors import ConfigurationError
from nas.core.point import Point, point_key
from nas.core.validation import closest_names
from nas.training.messages import ProxyRequest
from nas.training.problem import PROXY_ABILITIES


class ProxyScores:
    """The known proxies of the candidates for one proposal.

    A tuner calls ``find``. If that returns None, the tuner answers WAIT. The controller then has the unknown proxies
    computed on a worker, and asks again with the same lineage. The initial weights are seeded by seed and number. So
    the tuner's answer is a function of lineage, number and seed, and nothing must be recorded.

    Args:
        available: The proxies that the problem can give.
        seed: The search's seed.
    """

    def __init__(self, available: Iterable[str] = (), *, seed: int = 0) -> None:
        self.available = frozenset(available)
        self._seed = seed
        self._names: dict[str, None] = {}
        self._seed_found = 0  # of the last ``find``
        self._values: dict[tuple[int, str], Mapping[str, float]] = {}  # by seed of the initial weights and point key
        self._unknown: dict[str, Point] = {}

    @property
    def is_used(self) -> bool:
        """Whether a tuner needs proxies."""
        return bool(self._names)

    def need(self, names: Iterable[str]) -> None:
        """Adds proxies that ``find`` must return. Called before any ask."""
        self._names |= dict.fromkeys(names)

    def find(self, points: Sequence[Point], number: int) -> list[Mapping[str, float]] | None:
        """Returns the proxies of points for a proposal's number; None if some are unknown."""
        self._seed_found = seed = self._seed_of(number)
        found = {point_key(point): point for point in points}
        self._unknown = {key: point for key, point in found.items() if (seed, key) not in self._values}
        return None if self._unknown else [self._values[seed, point_key(point)] for point in points]

    def known(self, point: Point) -> Mapping[str, float]:
        """Returns the known proxies of a point, for the number of the last ``find``."""
        return self._values.get((self._seed_found, point_key(point)), {}) if self._values else {}

    def clear(self) -> None:
        """Forgets all values, after a proposal."""
        self._values = {}

    def take_request(self, trial: int) -> ProxyRequest | None:
        """Returns a request for what the last ``find`` did not know, or None; once.

        Args:
            trial: The number of the trial to propose.
        """
        points, self._unknown = tuple(self._unknown.values()), {}
        if not points:
            return None
        return ProxyRequest(number=trial, seed=self._seed_found, names=tuple(self._names), points=points)

    def add(self, request: ProxyRequest, values: Sequence[Mapping[str, float]] | None) -> None:
        """Adds the values of a request; None: they can't be computed, and are NaN."""
        lost = dict.fromkeys(request.names, math.nan)
        found = [lost] * len(request.points) if values is None else values
        for point, of_point in zip(request.points, found, strict=True):
            self._values[request.seed, point_key(point)] = of_point

    def _seed_of(self, number: int) -> int:
        digest = hashlib.blake2b(f"proxies/{self._seed}/{number}".encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") >> 1


def check_available(option: str, name: str, available: Iterable[str], others: Iterable[str]) -> None:
    """Checks that a metric is known before training: a proxy, or one of ``others``.

    Raises:
        ConfigurationError: it is not. The message names the option and the methods that the problem lacks.
    """
    known = sorted({*available, *others})
    if name in known:
        return
    methods = " and ".join(f"`{ability}`" for ability in sorted(PROXY_ABILITIES.get(name, ())))
    define = f"{methods or '`static_metrics` or `build`'} in the problem"
    remedy = f"Choose one of {closest_names(name, known)}, or define {define}" if known else f"Define {define}"
    raise ConfigurationError(f"{option}={name}: must be a metric that the problem knows before training. {remedy}")
