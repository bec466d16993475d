"""Options of any decision: those of a choice, or the equal bins of a range."""

from __future__ import annotations

import random
from dataclasses import dataclass

from nas.core.validation import check_int
from nas.spaces.domain import Domain, Numeric


@dataclass(frozen=True, slots=True)
class Bins:
    """Cuts ranges into equal bins on their scale.

    Attributes:
        n: The number of bins of a range.

    Raises:
        ConfigurationError: ``n`` is no whole number from 2 to 1000.
    """

    n: int

    def __post_init__(self) -> None:
        check_int("tuner.bins", self.n, 2, 1000)

    def n_options(self, domain: Domain) -> int:
        """Returns the number of options, or of bins."""
        return self.n if isinstance(domain, Numeric) else domain.n

    def answer(self, domain: Domain, option: int, rng: random.Random) -> float:
        """Returns the option, or a random number in the bin."""
        return domain.from_unit((option + rng.random()) / self.n) if isinstance(domain, Numeric) else option

    def option(self, domain: Domain, answer: float) -> int:
        """Returns the option, or the bin of a number."""
        if isinstance(domain, Numeric):
            return min(max(int(domain.to_unit(answer) * self.n), 0), self.n - 1)
        return int(answer)
