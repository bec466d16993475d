"""Scores that compare with those of finals, and the trials in hand that have them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nas.core.metric import Metric
from nas.core.policy import Policy
from nas.core.shared_scores import has_shared_score
from nas.core.trial import State, Trial

PARTIAL = frozenset({Policy.QUICK_EVAL, Policy.DOWNSCALE})
"""Policies whose scores do not compare with full ones."""


def has_full_score(trial: Trial, trial_of: Callable[[int], Trial | None], metric: Metric) -> bool:
    """Returns whether a trial's score is that of its own network on all validation data.

    A score under QUICK_EVAL is measured on a part of the data, and one under DOWNSCALE on a smaller network. Shared
    weights rank subnets only. A trial that trained for fewer epochs (EARLY_STOP) has a full score.

    Args:
        trial: The trial.
        trial_of: Returns the trial with a number, or None if it is unknown.
        metric: The metric that ranks.
    """
    if trial.state != State.COMPLETE or trial.outdated or trial.value(metric.name) is None:
        return False
    return not trial.policies & PARTIAL and not has_shared_score(trial, trial_of)


def is_in_hand(trial: Trial, trial_of: Callable[[int], Trial | None], metric: Metric) -> bool:
    """Returns whether a trial has a full score, and weights that can be exported."""
    return trial.checkpoint is not None and has_full_score(trial, trial_of, metric)


def trials_in_hand(trials: Iterable[Trial], metric: Metric) -> list[Trial]:
    """Returns the trials with a full score whose weights can be exported, best first.

    Of equal ones, the newer comes first: a final before the trial that it trains again.

    Args:
        trials: All trials of the search.
        metric: The metric that ranks.
    """
    by_number = {trial.number: trial for trial in trials}
    found = [trial for trial in by_number.values() if is_in_hand(trial, by_number.get, metric)]
    return sorted(found, key=lambda trial: (-metric.rank(trial.metrics[metric.name]), -trial.number))
