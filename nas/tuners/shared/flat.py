"""A space as a table with the same columns for every point, as models need it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from nas.core.point import Point
from nas.spaces.domain import Domain, Numeric
from nas.spaces.space import Space

if TYPE_CHECKING:
    import numpy as np

_N_DRAWS = 256


class FlatSpace:
    """The decisions of a space, conditional ones included, found by drawing 256 points.

    A decision that none of these points has gets no column. It is drawn at random.

    Attributes:
        domains: The domains by name of the decision, in the order found.
        defaults: The values of decisions that a point does not have: the middle of a range, the first option.
        n_coordinates: The length of a vector: 1 per number, 1 per option of a choice.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        self.domains: dict[str, Domain] = {}
        rng = random.Random("flat")

        def ask(name: str, domain: Domain) -> float:
            self.domains.setdefault(name, domain)
            return domain.sample(rng)

        for _ in range(_N_DRAWS):
            space.decide(ask)
        self.defaults = {n: d.from_unit(0.5) if isinstance(d, Numeric) else 0 for n, d in self.domains.items()}
        self.n_coordinates = sum(1 if isinstance(d, Numeric) else d.n for d in self.domains.values())

    def answers(self, point: Point) -> dict[str, float]:
        """Returns the point's values, or defaults, in the order of ``domains``."""
        own = {decision.name: decision.answer for decision in self.space.decisions(point)}
        return {name: own.get(name, default) for name, default in self.defaults.items()}

    def point(self, answers: Mapping[str, float], rng: random.Random) -> Point:
        """Returns the point with these values; other decisions are drawn."""
        return self.space.decide(lambda name, domain: answers[name] if name in answers else domain.sample(rng))

    def vectors(self, points: Iterable[Point]) -> np.ndarray:
        """Returns ``(points, n_coordinates)``: numbers scaled to 0..1, choices one-hot."""
        import numpy as np

        rows: list[list[float]] = []
        for answers in map(self.answers, points):
            row: list[float] = []
            for name, domain in self.domains.items():
                if isinstance(domain, Numeric):
                    row.append(domain.to_unit(answers[name]))
                else:
                    row += [float(option == answers[name]) for option in range(domain.n)]
            rows.append(row)
        return np.array(rows, dtype=np.float64).reshape(len(rows), self.n_coordinates)

    def answers_of(self, vector: Iterable[float]) -> dict[str, float]:
        """Returns the values of a vector; a choice takes the option with the greatest number."""
        left, found = list(vector), {}
        for name, domain in self.domains.items():
            n = 1 if isinstance(domain, Numeric) else domain.n
            own, left = left[:n], left[n:]
            found[name] = domain.from_unit(own[0]) if isinstance(domain, Numeric) else own.index(max(own))
        return found
