"""A space as a table with one column a decision, for models that need every point to have the same columns."""

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
    """The decisions of a space, also those that not every point has; found by drawing 256 points.

    A decision that none of these points has is no column: it is drawn at random wherever it is met.

    Attributes:
        domains: By name, in the order in which they were met.
        defaults: What stands for a decision that a point does not have: the middle of a range, the first option.
        n_coordinates: The length of a vector: one place for a number, one for each option of a choice.
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
        """What the point says to each decision, in the order of ``domains``."""
        own = {decision.name: decision.answer for decision in self.space.decisions(point)}
        return {name: own.get(name, default) for name, default in self.defaults.items()}

    def point(self, answers: Mapping[str, float], rng: random.Random) -> Point:
        """Returns the point that these answers give; a decision without one is drawn."""
        return self.space.decide(lambda name, domain: answers[name] if name in answers else domain.sample(rng))

    def vectors(self, points: Iterable[Point]) -> np.ndarray:
        """One row a point: a number by its place on its scale from 0 to 1, a choice as 1 at its option, else 0."""
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
        """Returns the answers that a vector stands for: of a choice, the option with the greatest number."""
        left, found = list(vector), {}
        for name, domain in self.domains.items():
            n = 1 if isinstance(domain, Numeric) else domain.n
            own, left = left[:n], left[n:]
            found[name] = domain.from_unit(own[0]) if isinstance(domain, Numeric) else own.index(max(own))
        return found
