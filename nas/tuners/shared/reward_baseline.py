"""A moving baseline of rewards, for policy gradients."""

from __future__ import annotations

import math
from bisect import insort

from nas.core.outliers import GREATEST, outlier_limit


class RewardBaseline:
    """Moving mean and spread of rewards, and all rewards, from which outliers are known.

    Args:
        decay: The decay of mean and spread, from 0 to below 1.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self._mean: float | None = None
        self._spread = 0.0
        self._ascending: list[float] = []

    def advantage(self, reward: float) -> float | None:
        """Returns the distance above the mean in standard deviations, from -3 to 3.

        The mean moves afterwards; the spread includes the new reward. None: it is the first reward, or all are equal.
        """
        reward = max(-GREATEST, min(GREATEST, reward))
        insort(self._ascending, reward)
        if self._mean is not None and (limit := outlier_limit(self._ascending)) is not None:
            reward, self._mean = max(limit, reward), max(limit, self._mean)
            self._spread = min(self._spread, (self._ascending[-1] - limit) ** 2)
        if self._mean is None:
            self._mean = reward
            return None
        away = reward - self._mean
        self._mean += (1.0 - self.decay) * away
        self._spread = self.decay * self._spread + (1.0 - self.decay) * away * away
        if not (math.isfinite(self._spread) and self._spread > 0):
            self._spread = 0.0
            return None
        return max(-3.0, min(3.0, away / math.sqrt(self._spread)))
