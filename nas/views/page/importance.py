"""Importance of parameters by permutation (Breiman 2001, Machine Learning 45).

A random forest learns to predict the rank of a score. Then the values of one parameter are shuffled among trials that
it has not seen. The drop of R² is the parameter's importance. scikit-learn computes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nas.views.page.parameters import Parameter, varying_parameters

if TYPE_CHECKING:
    from nas.core.metric import Metric
    from nas.core.trial import Trial

MIN_TRIALS = 20
MIN_R2 = 0.05
GENERATION = "(generation)"
"""Stands for what a trial owes to its ancestors, whatever its parameters."""
_MAX_TRIALS = 1_000
_MAX_PARAMETERS = 40
_N_FOLDS, _N_TREES, _N_REPEATS = 3, 60, 3


@dataclass(frozen=True, slots=True)
class Importance:
    """Importance of parameters.

    Attributes:
        shares: Parameters with their part of all importance, the most important first; empty if it is not known.
        reason: The reason why it is not known.
        r2: The share of the variance of ranks that the model predicts on trials that it has not seen.
        n_trials: The number of trials.
    """

    shares: tuple[tuple[str, float], ...]
    reason: str = ""
    r2: float = 0.0
    n_trials: int = 0


def parameter_importance(trials: Sequence[Trial], metric: Metric) -> Importance:
    """Returns the importance of parameters for the scores of these trials, all of which have one.

    Of more than 1,000 trials the newest count, and of more than 40 parameters the first.
    """
    newest = sorted(trials, key=lambda trial: trial.number)[-_MAX_TRIALS:]
    if len(newest) < MIN_TRIALS:
        return Importance((), f"It needs {MIN_TRIALS} complete trials of the first stage; there are {len(newest)}.")
    parameters = varying_parameters(newest)[:_MAX_PARAMETERS]
    if parameters and len({trial.generation for trial in newest}) > 1:
        parameters.append(Parameter(GENERATION, tuple(float(trial.generation) for trial in newest)))
    scores = [metric.rank(trial.metrics[metric.name]) for trial in newest]
    if not parameters or len({*scores}) < 3:
        return Importance((), "All parameters, or all scores, are equal.")
    r2, drops = _permuted(parameters, scores)
    if r2 < MIN_R2:
        said = f"predicts the scores of trials that it has not seen no better than chance (R² {r2:.2f})"
        return Importance((), f"A model of the parameters {said}, so that none is known to matter.", r2, len(newest))
    positive = {p.name: max(0.0, drop) for p, drop in zip(parameters, drops, strict=True)}
    total = sum(positive.values()) or 1.0
    ranked = sorted(positive.items(), key=lambda item: -item[1])
    return Importance(tuple((name, drop / total) for name, drop in ranked), "", r2, len(newest))


def _permuted(parameters: Sequence[Parameter], scores: Sequence[float]) -> tuple[float, Any]:
    """Returns the mean R² on unseen trials, and its mean drop for each parameter."""
    import numpy as np
    from scipy.stats import rankdata
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance
    from sklearn.model_selection import KFold

    points = np.array([_codes(parameter) for parameter in parameters]).T
    ranks = rankdata(scores)
    r2s, drops = [], []
    for seen, unseen in KFold(_N_FOLDS, shuffle=True, random_state=0).split(points):
        forest = RandomForestRegressor(_N_TREES, min_samples_leaf=2, max_features=0.5, random_state=0)
        forest.fit(points[seen], ranks[seen])
        r2s.append(forest.score(points[unseen], ranks[unseen]))
        found = permutation_importance(
            forest, points[unseen], ranks[unseen], n_repeats=_N_REPEATS, random_state=0, scoring="r2"
        )
        drops.append(found.importances_mean)
    return float(np.mean(r2s)), np.mean(drops, axis=0)


def _codes(parameter: Parameter) -> list[float]:
    """Returns the rank of each value among the parameter's values, or -1 for none."""
    place = {value: float(i) for i, value in enumerate(parameter.options)}
    return [-1.0 if value is None else place[value] for value in parameter.values]
