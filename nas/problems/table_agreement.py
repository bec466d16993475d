"""Agreement of a search of cells with the published accuracy of NAS-Bench-201, beside baselines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np
from scipy.stats import kendalltau

from nas.core.point import Point
from nas.core.shared_scores import shared_scores
from nas.core.supernet import is_epoch
from nas.core.trial import Trial
from nas.problems.images.cell_costs import EDGES, CellCosts
from nas.problems.nasbench201 import NasBench201Problem

CONVOLUTIONS = dict.fromkeys(EDGES, "nor_conv_3x3")
_SIGNS = {"accuracy": 1, "loss": -1, "live_flops": 1, "naswot": 1}
"""Scores by name; -1 if less is better."""
_N_LEAST = 3  # subnets of an epoch
_N_DRAWS = 2_000


@dataclass(frozen=True, slots=True)
class TableAgreement:
    """The agreement of trials with a column of the table.

    Attributes:
        table: The table.
        column: The column with the accuracy.
        costs: The costs of a cell.
    """

    table: NasBench201Problem
    column: str
    costs: CellCosts

    def lines(self, trials: Sequence[Trial], winner: Trial) -> Iterator[str]:
        """Yields the chosen cell's accuracy beside baselines, and tau for the subnets of each epoch."""
        values = self.table.values(self.column)
        yield (
            f"{self.column}: chosen cell {self._truth(winner.point):.2f}; six 3x3 convolutions "
            f"{self._truth(CONVOLUTIONS):.2f}; best cell {max(values):.2f}; one at random {fmean(values):.2f}, "
            f"standard deviation {stdev(values):.2f}"
        )
        shared = shared_scores(trials)
        cells = [trial for trial in trials if trial.metrics and not is_epoch(trial)]
        n_cells = len({tuple(trial.point.items()) for trial in cells})
        yield f"{self.column}: most live FLOPs of {n_cells} random cells {self._most_flops(n_cells):.2f}, the mean"
        by_donor: dict[object, list[Trial]] = {}
        for trial in cells:
            if trial.number in shared:
                by_donor.setdefault(trial.donor, []).append(trial)
        for donor, subnets in by_donor.items():
            if len(subnets) >= _N_LEAST:
                yield f"tau of {len(subnets)} subnets of trial {donor}: {', '.join(self._taus(subnets))}"

    def _taus(self, subnets: Sequence[Trial]) -> Iterator[str]:
        truth = [self._truth(trial.point) for trial in subnets]
        scores = [{**self.costs.of(trial.point), **trial.proposal.proxies, **trial.metrics} for trial in subnets]
        for name, sign in _SIGNS.items():
            if all(name in own for own in scores):
                yield f"{name} {tau([sign * own[name] for own in scores], truth):.2f}"

    def _truth(self, point: Point) -> float:
        return self.table.value(point, self.column)

    def _most_flops(self, n: int) -> float:
        """Returns the mean accuracy of the cell with most live FLOPs of ``n`` random ones."""
        rng, points = np.random.default_rng(0), self.table.points
        rows = rng.permutation(len(points))[:_N_DRAWS]
        flops = np.array([self.costs.of(points[row])["live_flops"] for row in rows])
        drawn = rng.integers(len(rows), size=(_N_DRAWS, n))
        chosen = rows[drawn[np.arange(_N_DRAWS), flops[drawn].argmax(1)]]
        return float(np.array(self.table.values(self.column))[chosen].mean())


def tau(scores: Iterable[float], truth: Iterable[float]) -> float:
    """Returns Kendall's tau; 0 if all scores are equal."""
    found = float(kendalltau([*scores], [*truth]).statistic)
    return 0.0 if np.isnan(found) else found
