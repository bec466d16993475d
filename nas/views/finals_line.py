"""A line on finals that score below trials in hand, with the remedy."""

from __future__ import annotations

from nas.core.full_scores import has_full_score
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.policy import Stage
from nas.core.ranking import better_in_hand
from nas.core.trial import Trial
from nas.views.formatting import score


def finals_line(lineage: Lineage, winner: Trial | None, metric: Metric, final: Stage | None) -> str | None:
    """Returns a line if a final scores below a trial in hand, else None.

    Only full scores are compared (`nas.core.full_scores`).

    Args:
        lineage: All trials.
        winner: The trial that is exported, or None.
        metric: The metric that ranks.
        final: The last stage of the plan, or None if there is only the search stage.
    """
    if winner is None or final is None:
        return None
    finals = _finals(lineage, metric, final)
    remedy = "more_epochs=N trains a final further"
    remedy += "" if final.warm else ", policy=warm_final starts finals from inherited weights"
    if winner.stage != final.name:
        return f"export=best: better than {_scored(finals[0], metric)}; {remedy}" if finals else None
    if better := better_in_hand(list(lineage), winner, metric):
        return f"better in hand: {_scored(better[0], metric)}: export=best takes it; {remedy}"
    return next((f"{line}; {remedy}" for line in _below(lineage, finals, metric)), None)


def better_trial(lineage: Lineage, winner: Trial | None, metric: Metric, final: Stage | None) -> Trial | None:
    """Returns the trial in hand that ``export=best`` would export instead of a final, or None."""
    if winner is None or final is None or winner.stage != final.name:
        return None
    return next(iter(better_in_hand(list(lineage), winner, metric)), None)


def _finals(lineage: Lineage, metric: Metric, final: Stage) -> list[Trial]:
    """Returns the finals with a full score, best first."""
    trials = {trial.number: trial for trial in lineage}
    found = [t for t in lineage if t.stage == final.name and has_full_score(t, trials.get, metric)]
    return sorted(found, key=lambda trial: -metric.rank(trial.metrics[metric.name]))


def _below(lineage: Lineage, finals: list[Trial], metric: Metric) -> list[str]:
    """Returns a text for each final that scores below the trial that it trains again."""
    trials = {trial.number: trial for trial in lineage}
    lines = []
    for final in finals:
        trains_again = final.more_epochs is None and bool(final.parents)
        parent = trials.get(final.parents[0]) if trains_again else None
        if parent is not None and has_full_score(parent, trials.get, metric):
            value = parent.metrics[metric.name]
            if metric.is_better(value, final.metrics[metric.name]):
                lines.append(f"{_scored(final, metric)}, is below its trial {parent.number}, {score(value)}")
    return lines


def _scored(trial: Trial, metric: Metric) -> str:
    return f"trial {trial.number} ({trial.stage}), full validation {metric.name} {score(trial.metrics[metric.name])}"


def more_epochs_lines(lineage: Lineage, winner: Trial, metric: Metric) -> list[str]:
    """Returns a line on the newest trial of ``more_epochs``, if it has a score."""
    trials = {trial.number: trial for trial in lineage}
    newest = next((t for t in sorted(lineage, key=lambda t: -t.number) if t.more_epochs is not None), None)
    if newest is None or (value := newest.value(metric.name)) is None:
        return []
    parent = trials[newest.parents[0]]
    before = parent.value(metric.name)
    share = "none" if newest.inherited is None else f"{newest.inherited:.0%}"
    text = f"more epochs: trial {newest.number} trained trial {parent.number} for {newest.more_epochs} more, "
    text += f"from {share} of its weights: {metric.name} {score(value)}"
    text += "" if before is None else f", before {score(before)}"
    return [text if newest.number == winner.number else f"{text}; the winner stays trial {winner.number}"]
