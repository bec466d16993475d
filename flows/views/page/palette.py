"""Colors that people with color-blindness tell apart, for light and dark; and the color of a score."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from flows.cli.formatting import number
from nas.core.metric import Metric

_RAMP = ("#edf8b1", "#c7e9b4", "#7fcdbb", "#41b6c4", "#1d91c0", "#225ea8", "#0c2c84")  # ColorBrewer YlGnBu
N_STEPS = len(_RAMP)
_CLIPPED = 0.25
"""The share of the worst scores that all get the first color: the others are left for those that compete."""

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
"""Where the page is dark, the best score is the brightest; where it is light, the darkest."""


def css_variables() -> str:
    """The colors as CSS variables of the page, dark where the reader's system is."""
    light, dark = (";".join(f"--{name}:{value}" for name, value in colors.items()) for colors in (LIGHT, DARK))
    return f":root{{color-scheme:light dark;{light}}}\n@media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"


def in_light(css: str) -> str:
    """Style with every variable replaced by its light color, for a picture that stands alone."""
    return re.sub(r"var\(--([a-z0-9]+)\)", lambda found: LIGHT[found[1]], css)


@dataclass(frozen=True, slots=True)
class ScoreScale:
    """Which of the ramp's steps a score gets: the last for the best.

    Attributes:
        low: The score that ends the first step's reach; worse ones are the first step's too.
        high: The best score.
        is_clipped: Whether scores worse than ``low`` exist.
    """

    low: float
    high: float
    is_clipped: bool

    @classmethod
    def of(cls, scores: Iterable[float], metric: Metric) -> ScoreScale | None:
        """The scale of these scores, or None where there are none."""
        ranked = sorted(scores, key=metric.rank)
        if not ranked:
            return None
        low = ranked[int(len(ranked) * _CLIPPED)]
        return cls(low, ranked[-1], metric.is_better(low, ranked[0]))

    def step(self, score: float) -> int:
        """The step of a score, 0 to ``N_STEPS - 1``."""
        if self.high == self.low:
            return N_STEPS - 1 if score == self.high else 0
        share = (score / 2 - self.low / 2) / (self.high / 2 - self.low / 2)  # of halves: the whole may be infinite
        return max(0, min(N_STEPS - 1, int(share * N_STEPS)))

    def text(self, score: float) -> str:
        """A score with as many decimals as tell those of this scale apart."""
        spread = abs(self.high - self.low)
        if isinstance(score, int) or not 1e-4 <= spread < 1e6 or abs(score) >= 1e6:
            return number(score)
        return f"{score:.{max(0, 2 - math.floor(math.log10(spread)))}f}"
