"""Curves of points that were trained with and without inheritance, and the figures that they give (`pairs`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

BINS = (0.0, 1 / 8, 1 / 4, 1 / 3, 1 / 2, 1.0)
"""Ends of the shares that are counted together."""
SHORT = 1 / 3
"""Of the epochs, in the short arm."""
GENERATIONS = ((1, 1), (2, 3), (4, 5), (6, math.inf))
"""First and last of those that are told of together."""
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
        """What a row says."""
        return cls(*map(float, text.split(":")))


@dataclass(frozen=True, slots=True)
class Arm:
    """One training: what it reached (NaN where it was not finite), and when."""

    accuracy: float
    curve: Sequence[Scoring]

    @classmethod
    def of(cls, row: Row) -> Arm:
        """What a row says."""
        return cls(float(row["accuracy"] or "nan"), [Scoring.read(text) for text in row["curve"].split()])

    @property
    def last(self) -> Scoring:
        """All that it took."""
        return self.curve[-1] if self.curve else Scoring(0.0, math.nan, 0.0)

    def reached(self, accuracy: float, *, to_stay: bool) -> Scoring | None:
        """Returns the first scoring that has this accuracy, or from which on all have it."""
        at = [scoring.accuracy >= accuracy for scoring in self.curve]
        places = (place for place in range(len(at)) if (all(at[place:]) if to_stay else at[place]))
        return next((self.curve[place] for place in places), None)


@dataclass(frozen=True, slots=True)
class Pair:
    """A point that was trained both ways; generation 1 has a founder's weights."""

    name: str
    seed: int
    generation: int
    warm: Arm
    cold: Arm
    short: Arm

    @property
    def is_told(self) -> bool:
        """Whether the cold trial has learned something that the warm one could reach sooner."""
        first = self.cold.reached(self.cold.accuracy, to_stay=False)
        return first is not None and first.epochs > 0

    def share(self, unit: str, *, to_stay: bool) -> tuple[float, bool]:
        """What the warm trial takes to the cold one's last accuracy, of what the cold one takes; whether it gets there.

        Where it does not, all that it took, which is too little.
        """
        cold, warm = (arm.reached(self.cold.accuracy, to_stay=to_stay) for arm in (self.cold, self.warm))
        return getattr(warm or self.warm.last, unit) / getattr(cold, unit), warm is not None

    @property
    def gain(self) -> float:
        """By how much the warm trial ends higher; NaN where it was not finite."""
        return self.warm.accuracy - self.cold.accuracy

    @property
    def short_gain(self) -> float:
        """The same of the warm trial with a third of the epochs."""
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


def told(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the figures of what was trained for the same epochs on the same images."""
    everything = pairs_of(rows)
    pairs = [pair for pair in everything if pair.is_told]
    n_points = len({(row["seed"], row["trial"]) for row in rows})
    n_seeds = len({row["seed"] for row in rows})
    yield (
        f"{rows[0]['epochs']} epochs of {int(rows[0]['images']):,} images, {n_seeds} searches, {n_points} points, "
        f"{len(everything)} pairs"
    )
    if len(pairs) < len(everything):
        yield f"  left out, as the cold trial learned nothing: {named([p for p in everything if not p.is_told])}"
    if not pairs:
        return
    for to_stay in (False, True):
        aim = "to stay at the cold trial's last accuracy" if to_stay else "to the cold trial's last accuracy"
        for unit in ("epochs", "seconds"):
            yield from told_of(f"{unit} {aim}", [pair.share(unit, to_stay=to_stay) for pair in pairs])
        late = [pair for pair in pairs if not pair.share("epochs", to_stay=to_stay)[1]]
        yield f"    never: {named(late)} of {len(pairs)} ({len(late) / len(pairs):.0%})"
    gains = np.array([pair.gain for pair in pairs if not math.isnan(pair.gain)])
    low, high = interval(gains, np.mean)
    yield f"  last accuracy, warm less cold: mean {gains.mean():+.2%} ({low:+.2%} to {high:+.2%}), {quantiles(gains)}"
    short = np.array([pair.short_gain for pair in pairs if not math.isnan(pair.short_gain)])
    low, high = interval(short, np.mean)
    yield (
        f"  a third of the epochs, schedule and all, less cold: mean {short.mean():+.2%} ({low:+.2%} to {high:+.2%}), "
        f"{quantiles(short)}; as high in {np.sum(short >= 0) / len(pairs):.0%}"
    )
    for seed in sorted({pair.seed for pair in pairs}):
        yield gains_of(f"seed {seed}", [pair for pair in pairs if pair.seed == seed])
    for first, last in GENERATIONS:
        if group := [pair for pair in pairs if first <= pair.generation <= last]:
            yield gains_of(f"generations {first} to {max(pair.generation for pair in group)}", group)
    hurt = [pair for pair in pairs if not pair.gain >= 0]
    yield f"  inheritance hurts: {named(hurt)} of {len(pairs)} ({len(hurt) / len(pairs):.0%})"
    for seed in sorted({int(row["seed"]) for row in rows}):
        yield from best_of([row for row in rows if int(row["seed"]) == seed])


def gains_of(what: str, pairs: Sequence[Pair]) -> str:
    """What some of the pairs gain on average, with all epochs and with a third of them."""
    gain, short = (np.mean([getattr(pair, name) for pair in pairs]) for name in ("gain", "short_gain"))
    n_before = np.mean([pair.generation for pair in pairs])
    return (
        f"    {what}: {gain:+.2%}, {short:+.2%} ({len(pairs)} pairs, trainings of ancestors: {n_before:.1f} on average)"
    )


def told_of(what: str, found: Sequence[tuple[float, bool]]) -> Iterator[str]:
    """Yields the distribution of shares of what the cold trials took, and of whether they were reached."""
    least = np.array([share for share, _ in found])
    shares = np.array([share if is_reached else math.inf for share, is_reached in found])
    low, high = interval(least, np.mean)
    least_of, most_of = ("", "") if np.isfinite(shares).all() else ("at least ", "at most ")
    yield (
        f"  {what}, as a share of what the cold trial takes: mean {least_of}{least.mean():.3g} ({low:.3g} to "
        f"{high:.3g}), the inverse {most_of}{times(least.mean())} ({times(high)} to {times(low)})"
    )
    low, high = interval(shares, np.median)
    yield f"    median {np.median(shares):.3g} ({low:.3g} to {high:.3g}); {quantiles(shares)}"
    counts = [f"{(shares <= 0).mean():.0%} 0"]
    counts += [f"{((shares > above) & (shares <= to)).mean():.0%} to {to:.3g}" for above, to in pairwise(BINS)]
    counts.append(f"{((shares > 1) & np.isfinite(shares)).mean():.0%} above, {np.isinf(shares).mean():.0%} never")
    yield f"    {', '.join(counts)}; at least 3 times fewer in {(shares <= 1 / 3).mean():.0%}"


def best_of(rows: Sequence[Row]) -> Iterator[str]:
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
    """Returns the highest of those that are finite, or NaN."""
    return max((accuracy for accuracy in accuracies if not math.isnan(accuracy)), default=math.nan)


def times(share: float) -> str:
    """Returns the inverse."""
    return f"{1 / share:.1f}" if share else "no bound"


def quantiles(values: np.ndarray) -> str:
    """Of a distribution."""
    found = np.quantile(values, (0.1, 0.25, 0.75, 0.9), method="nearest")
    return "quantiles 10, 25, 75, 90 %: " + ", ".join(f"{value:.3g}" for value in found)


def named(pairs: Sequence[Pair]) -> str:
    """How many, and which trials."""
    return f"{len(pairs)} (trials {', '.join(pair.name for pair in pairs)})" if pairs else "0"
