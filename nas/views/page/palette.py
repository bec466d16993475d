"""Colors for light and dark that color-blind people can distinguish, and the color of a score."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nas.core.metric import Metric
from nas.views.formatting import number

_RAMP = ("#edf8b1", "#c7e9b4", "#7fcdbb", "#41b6c4", "#1d91c0", "#225ea8", "#0c2c84")  # ColorBrewer YlGnBu
N_STEPS = len(_RAMP)
_CLIPPED = 0.25
"""The share of the worst scores that all get the first color."""

_INK, _PAPER = "#14181f", "#ffffff"
LIGHT: Mapping[str, str] = {
    "paper": _PAPER,
    "card": "#f6f8fa",
    "ink": "#1b2430",
    "soft": "#5a6675",
    "rule": "#d5dbe3",
    "band": "#f1f4f8",
    "edge": "#98a4b3",
    "outline": "#51606f",
    "accent": "#c24e00",
    "donor": "#8a4fb5",
    "series": "#1f6fb2",
    **{f"q{i}": color for i, color in enumerate(_RAMP)},
    **{f"t{i}": _INK if i < 5 else _PAPER for i in range(N_STEPS)},
}
DARK: Mapping[str, str] = {
    "paper": "#12161c",
    "card": "#1a2029",
    "ink": "#e4e9f0",
    "soft": "#9aa7b6",
    "rule": "#303945",
    "band": "#1a2028",
    "edge": "#5f6c7b",
    "outline": "#a9b5c2",
    "accent": "#ff9f55",
    "donor": "#c79ae8",
    "series": "#6db7f2",
    **{f"q{i}": color for i, color in enumerate(reversed(_RAMP))},
    **{f"t{i}": _PAPER if i < 2 else _INK for i in range(N_STEPS)},
}
"""On a dark page the best score is the brightest; on a light one, the darkest."""


def in_light(css: str) -> str:
    """Returns a style with each variable replaced by its light color."""
    return re.sub(r"var\(--([a-z0-9]+)\)", lambda found: LIGHT[found[1]], css)


@dataclass(frozen=True, slots=True)
class ScoreScale:
    """Steps of the ramp by score, the last one for the best.

    Attributes:
        low: The score at which the first step ends; worse ones have the first step as well.
        high: The best score.
        is_clipped: Whether scores worse than ``low`` exist.
    """

    low: float
    high: float
    is_clipped: bool

    @classmethod
    def of(cls, scores: Iterable[float], metric: Metric) -> ScoreScale | None:
        """Returns the scale of these scores, or None if there are none."""
        ranked = sorted(scores, key=metric.rank)
        if not ranked:
            return None
        low = ranked[int(len(ranked) * _CLIPPED)]
        return cls(low, ranked[-1], metric.is_better(low, ranked[0]))

    def step(self, score: float) -> int:
        """Returns the step of a score, 0 to ``N_STEPS - 1``."""
        low, high = self.low / 2, self.high / 2  # halves: the difference of two scores may be infinite
        if high == low:
            return N_STEPS - 1 if score == self.high else 0
        share = (score / 2 - low) / (high - low)
        return min(N_STEPS - 1, int(max(0.0, min(1.0, share)) * N_STEPS))

    def text(self, score: float) -> str:
        """Returns a score with enough decimals to distinguish the scores of this scale."""
        spread = abs(self.high - self.low)
        if isinstance(score, int) or not 1e-4 <= spread < 1e6 or abs(score) >= 1e6:
            return number(score)
        return f"{score:.{max(0, 2 - math.floor(math.log10(spread)))}f}"
