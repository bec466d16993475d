"""Agreement of scores with the truth: rank correlation, chosen cells, and paired bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau, rankdata

Scores = NDArray[np.float64]
N_CHOICES = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """The agreement of a score, of which more is better, with the truth.

    Attributes:
        tau: Kendall's tau.
        half: The same in the half that is truly better.
        of_10: Mean truth of the best by score of 10 at random.
        ten: Mean truth of the ten first by score.
    """

    tau: float
    half: float
    of_10: float
    ten: float

    @classmethod
    def of(cls, scores: Scores, truth: Scores) -> Rank:
        """Returns the agreement; ties are broken at random."""
        rng = np.random.default_rng(0)
        better = truth >= np.median(truth)
        jittered = np.lexsort((rng.random(len(scores)), scores)).argsort()
        picks = rng.random((N_CHOICES, len(truth))).argpartition(10, axis=1)[:, :10]
        best = picks[np.arange(N_CHOICES), jittered[picks].argmax(1)]
        return cls(
            tau=tau(scores, truth),
            half=tau(scores[better], truth[better]),
            of_10=float(truth[best].mean()),
            ten=float(truth[jittered.argsort()[-10:]].mean()),
        )

    @classmethod
    def mean(cls, ranks: Sequence[Rank]) -> Rank:
        """Returns the means over seeds."""
        columns = zip(*((rank.tau, rank.half, rank.of_10, rank.ten) for rank in ranks), strict=True)
        means = [float(np.mean(column)) for column in columns]
        return cls(tau=means[0], half=means[1], of_10=means[2], ten=means[3])

    def cells(self) -> list[str]:
        """Returns the numbers as texts."""
        return [f"{self.tau:.3f}", f"{self.half:.3f}", f"{self.of_10:.2f}", f"{self.ten:.2f}"]


def tau(scores: Scores, truth: Scores) -> float:
    """Returns Kendall's tau; 0 if all scores are equal."""
    found = float(kendalltau(scores, truth).statistic)
    return 0.0 if np.isnan(found) else found


def ranks_of(scores: Scores) -> Scores:
    """Returns the rank of each score, from 1; equal scores have their mean rank."""
    found: Scores = rankdata(scores)
    return found


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of two taus with its 95 % interval.

    The interval is that of a paired bootstrap over cells and seeds.
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:+.3f} ({self.low:.3f} to {self.high:.3f})"

    @classmethod
    def of(cls, one: Sequence[Scores], other: Sequence[Scores], truth: Scores, *, n_draws: int = 1_000) -> Difference:
        """Returns the difference of the mean taus of two lists of scores.

        There is an array for each seed. A score without seeds is a list of one array. Lists of the same length have the
        same seeds.
        """
        rng = np.random.default_rng(1)
        n_seeds = max(len(one), len(other))
        draws = []
        for _ in range(n_draws):
            cells = rng.integers(len(truth), size=len(truth))
            seeds = rng.integers(n_seeds, size=n_seeds)
            sampled = [
                [scores[seed][cells] for seed in seeds] if len(scores) > 1 else [scores[0][cells]]
                for scores in (one, other)
            ]
            draws.append(mean_tau(sampled[0], truth[cells]) - mean_tau(sampled[1], truth[cells]))
        low, high = np.percentile(draws, [2.5, 97.5])
        return cls(mean_tau(one, truth) - mean_tau(other, truth), float(low), float(high))


def mean_tau(scores: Sequence[Scores], truth: Scores) -> float:
    """Returns the mean tau of some arrays of scores."""
    return float(np.mean([tau(one, truth) for one in scores]))
