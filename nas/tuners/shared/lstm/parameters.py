"""Parameters of the LSTM controller and their updates by Adam (Kingma and Ba 2015, arXiv:1412.6980)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

    Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

INITIAL_RANGE = 0.1
"""Parameters are drawn from minus to plus this number, as in ENAS."""
MAX_NORM = 5.0
"""Greater gradients are scaled down to this norm."""
DECAY = 0.999
"""The decay of squared gradients. There is no momentum, as in ENAS."""
EPSILON = 1e-3
"""Added to the root of the squared gradients, as in ENAS."""


class Parameters:
    """Arrays by name. Each is drawn when it is first used, by seed and name.

    So they do not depend on the order in which a tree of choices shows its decisions.

    Args:
        seed: The seed of the initial values.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.values: dict[str, Array] = {}
        self._squares: dict[str, tuple[int, Array]] = {}

    def get(self, name: str, *shape: int) -> Array:
        """Returns a parameter, which must not be changed."""
        if name not in self.values:
            import numpy as np

            rng = np.random.default_rng([*f"{self.seed}/{name}".encode()])
            self.values[name] = rng.uniform(-INITIAL_RANGE, INITIAL_RANGE, shape)
        return self.values[name]

    def ascend(self, gradients: Mapping[str, Array], learning_rate: float) -> None:
        """Moves the parameters along the gradients; those without one keep their values."""
        import numpy as np

        norm = math.sqrt(math.fsum(float(np.square(gradient).sum()) for gradient in gradients.values()))
        scale = min(1.0, MAX_NORM / norm) if norm > 0 else 1.0
        for name, gradient in gradients.items():
            clipped = scale * gradient
            n_updates, square = self._squares.get(name, (0, np.zeros_like(gradient)))
            square = DECAY * square + (1.0 - DECAY) * clipped * clipped
            self._squares[name] = (n_updates + 1, square)
            unbiased = square / (1.0 - DECAY ** (n_updates + 1))
            self.values[name] = self.values[name] + learning_rate * clipped / (np.sqrt(unbiased) + EPSILON)
