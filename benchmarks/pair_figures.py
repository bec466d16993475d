"""Figures from the curves of points trained with and without inheritance (`pairs`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

BINS = (0.0, 1 / 8, 1 / 4, 1 / 3, 1 / 2, 1.0)
"""Bounds of the histogram of shares."""
SHORT = 1 / 3
"""The share of the epochs in the short arm."""
GENERATIONS = ((1, 1), (2, 3), (4, 5), (6, math.inf))
"""The first and last generation of each reported group."""
Row = Mapping[str, str]


class Scoring(NamedTuple):
    """A point of a curve."""

    epochs: float
    accuracy: float
    seconds: float

    def __str__(self) -> str:
        return f"{self.epochs:.4g}:{self.accuracy:.4f}:{self.seconds:.2f}"

    @classmethod
    def read(cls, text: str) -> Scoring:
        """Returns the scoring that ``str`` wrote."""
        return cls(*map(float, text.split(":")))


@dataclass(frozen=True, slots=True)
class Arm:
    """One training: its last accuracy (NaN if it was not finite) and its curve."""

    accuracy: float
    curve: Sequence[Scoring]

    @classmethod
    def of(cls, row: Row) -> Arm:
        """Returns the training of a row."""
        return cls(float(row["accuracy"] or "nan"), [Scoring.read(text) for text in row["curve"].split()])

    @property
    def last(self) -> Scoring:
        """The last scoring, with all epochs and seconds."""
        return self.curve[-1] if self.curve else Scoring(0.0, math.nan, 0.0)

    def reached(self, accuracy: float, *, lasting: bool) -> Scoring | None:
        """Returns the first scoring with this accuracy (``lasting``: from which all have it)."""
        at = [scoring.accuracy >= accuracy for scoring in self.curve]
        for index, scoring in enumerate(self.curve):
            if all(at[index:]) if lasting else at[index]:
                return scoring
        return None


@dataclass(frozen=True, slots=True)
class Pair:
    """A point that was trained with and without inheritance. Generation 1 inherits from a random point."""

    name: str
    seed: int
    generation: int
    warm: Arm
    cold: Arm
    short: Arm

    @property
    def is_comparable(self) -> bool:
        """Whether the cold trial has learned something, so that the pair can be compared."""
        first = self.cold.reached(self.cold.accuracy, lasting=False)
        return first is not None and first.epochs > 0

    def share(self, unit: str, *, lasting: bool) -> tuple[float, bool]:
        """Returns the warm trial's cost to reach the cold one's last accuracy, and whether it does.

        The cost is a share of the cold trial's. If the accuracy is not reached, it is that of the whole trial, a lower
        bound.
        """
        cold, warm = (arm.reached(self.cold.accuracy, lasting=lasting) for arm in (self.cold, self.warm))
        return getattr(warm or self.warm.last, unit) / getattr(cold, unit), warm is not None

    @property
    def gain(self) -> float:
        """The warm trial's last accuracy minus the cold one's; NaN if it was not finite."""
        return self.warm.accuracy - self.cold.accuracy

    @property
    def short_gain(self) -> float:
        """The gain of the warm trial with a third of the epochs."""
        return self.short.accuracy - self.cold.accuracy


def pairs_of(rows: Sequence[Row]) -> list[Pair]:
    """Returns the pairs, in the order of their searches and trials."""
    arms = {(int(row["seed"]), int(row["trial"]), row["arm"]): Arm.of(row) for row in rows}
    warm = sorted((seed, number) for seed, number, arm in arms if arm == "warm")
    n_seeds = len({seed for seed, _ in warm})
    names = [f"{number} of seed {seed}" if n_seeds > 1 else str(number) for seed, number in warm]
    parents = {(int(row["seed"]), int(row["trial"])): row["parent"] for row in rows}

    def generation(seed: int, number: int) -> int:
        parent = parents[seed, number]
        return 1 + generation(seed, int(parent)) if parent else 0

    return [
        Pair(name, at[0], generation(*at), arms[*at, "warm"], arms[*at, "cold"], arms[*at, "short"])
        for name, at in zip(names, warm, strict=True)
    ]


def interval(values: np.ndarray, statistic: Callable[..., np.ndarray]) -> tuple[float, float]:
    """Returns the 95 % interval of a statistic, by the percentile bootstrap."""
    draws = np.random.default_rng(0).integers(len(values), size=(10_000, len(values)))
    low, high = np.quantile(statistic(values[draws], axis=1), (0.025, 0.975), method="nearest")
    return float(low), float(high)


def report_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the lines of the figures of all rows with the same epochs and images."""
    everything = pairs_of(rows)
    pairs = [pair for pair in everything if pair.is_comparable]
    n_points = len({(row["seed"], row["trial"]) for row in rows})
    n_seeds = len({row["seed"] for row in rows})
    yield (
        f"{rows[0]['epochs']} epochs of {int(rows[0]['images']):,} images, {n_seeds} searches, {n_points} points, "
        f"{len(everything)} pairs"
    )
    if len(pairs) < len(everything):
        left_out = [pair for pair in everything if not pair.is_comparable]
        yield f"  left out, as the cold trial learned nothing: {trials_text(left_out)}"
    if not pairs:
        return
    for lasting in (False, True):
        aim = "to stay at the cold trial's last accuracy" if lasting else "to the cold trial's last accuracy"
        for unit in ("epochs", "seconds"):
            yield from share_lines(f"{unit} {aim}", [pair.share(unit, lasting=lasting) for pair in pairs])
        late = [pair for pair in pairs if not pair.share("epochs", lasting=lasting)[1]]
        yield f"    never: {trials_text(late)} of {len(pairs)} ({len(late) / len(pairs):.0%})"
    gains = np.array([pair.gain for pair in pairs if not math.isnan(pair.gain)])
    low, high = interval(gains, np.mean)
    yield (
        f"  last accuracy, warm less cold: mean {gains.mean():+.2%} ({low:+.2%} to {high:+.2%}), "
        f"{quantiles_text(gains)}"
    )
    short = np.array([pair.short_gain for pair in pairs if not math.isnan(pair.short_gain)])
    low, high = interval(short, np.mean)
    yield (
        f"  a third of the epochs, schedule and all, less cold: mean {short.mean():+.2%} ({low:+.2%} to {high:+.2%}), "
        f"{quantiles_text(short)}; as high in {np.sum(short >= 0) / len(pairs):.0%}"
    )
    for seed in sorted({pair.seed for pair in pairs}):
        yield gains_line(f"seed {seed}", [pair for pair in pairs if pair.seed == seed])
    for first, last in GENERATIONS:
        if group := [pair for pair in pairs if first <= pair.generation <= last]:
            yield gains_line(f"generations {first} to {max(pair.generation for pair in group)}", group)
    hurt = [pair for pair in pairs if not pair.gain >= 0]
    yield f"  inheritance hurts: {trials_text(hurt)} of {len(pairs)} ({len(hurt) / len(pairs):.0%})"
    for seed in sorted({int(row["seed"]) for row in rows}):
        yield from best_lines([row for row in rows if int(row["seed"]) == seed])


def gains_line(what: str, pairs: Sequence[Pair]) -> str:
    """Returns the line of the mean gains of some pairs, with all epochs and a third."""
    gain, short = (np.mean([getattr(pair, name) for pair in pairs]) for name in ("gain", "short_gain"))
    n_before = np.mean([pair.generation for pair in pairs])
    return (
        f"    {what}: {gain:+.2%}, {short:+.2%} ({len(pairs)} pairs, trainings of ancestors: {n_before:.1f} on average)"
    )


def share_lines(what: str, found: Sequence[tuple[float, bool]]) -> Iterator[str]:
    """Yields the lines of the distribution of some shares (``Pair.share``)."""
    least = np.array([share for share, _ in found])
    shares = np.array([share if is_reached else math.inf for share, is_reached in found])
    low, high = interval(least, np.mean)
    at_least, at_most = ("", "") if np.isfinite(shares).all() else ("at least ", "at most ")
    yield (
        f"  {what}, as a share of what the cold trial takes: mean {at_least}{least.mean():.3g} ({low:.3g} to "
        f"{high:.3g}), the inverse {at_most}{times(least.mean())} ({times(high)} to {times(low)})"
    )
    low, high = interval(shares, np.median)
    yield f"    median {np.median(shares):.3g} ({low:.3g} to {high:.3g}); {quantiles_text(shares)}"
    counts = [f"{(shares <= 0).mean():.0%} 0"]
    counts += [f"{((shares > above) & (shares <= to)).mean():.0%} to {to:.3g}" for above, to in pairwise(BINS)]
    counts.append(f"{((shares > 1) & np.isfinite(shares)).mean():.0%} above, {np.isinf(shares).mean():.0%} never")
    yield f"    {', '.join(counts)}; at least 3 times fewer in {(shares <= 1 / 3).mean():.0%}"


def best_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the best accuracies of both arms of one search, after equal total seconds."""
    arms = {}
    for arm in ("warm", "cold"):
        own = [row for row in sorted(rows, key=lambda row: int(row["trial"])) if row["arm"] in (arm, "both")]
        trained = [Arm.of(row) for row in own]
        arms[arm] = np.cumsum([one.last.seconds for one in trained]), [one.accuracy for one in trained]
    shorter_s = min(ends[-1] for ends, _ in arms.values())
    yield f"  seed {rows[0]['seed']}, best accuracy (trials) after equal total seconds:"
    for share in (0.25, 0.5, 0.75, 1.0):
        cells = []
        for arm, (ends, accuracies) in arms.items():
            n_done = int((ends <= share * shorter_s).sum())
            cells.append(f"{arm} {best(accuracies[:n_done]):.2%} ({n_done})")
        yield f"    {share * shorter_s:6.0f} s: {', '.join(cells)}"
    whole = (f"{arm} {best(accuracies):.2%} after {ends[-1]:.0f} s" for arm, (ends, accuracies) in arms.items())
    yield f"    all: {', '.join(whole)}"


def best(accuracies: Sequence[float]) -> float:
    """Returns the highest finite accuracy, or NaN."""
    return max((accuracy for accuracy in accuracies if not math.isnan(accuracy)), default=math.nan)


def times(share: float) -> str:
    """Returns the inverse of a share, as text."""
    return f"{1 / share:.1f}" if share else "no bound"


def quantiles_text(values: np.ndarray) -> str:
    """Returns four quantiles_text, as text."""
    found = np.quantile(values, (0.1, 0.25, 0.75, 0.9), method="nearest")
    return "quantiles 10, 25, 75, 90 %: " + ", ".join(f"{value:.3g}" for value in found)


def trials_text(pairs: Sequence[Pair]) -> str:
    """Returns the number of the pairs and their trials, as text."""
    return f"{len(pairs)} (trials {', '.join(pair.name for pair in pairs)})" if pairs else "0"
