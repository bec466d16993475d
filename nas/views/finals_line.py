"""A line on finals that score below trials in hand, with the remedy."""

from __future__ import annotations

from nas.core.full_scores import PARTIAL, has_full_score
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.policy import Policy, Stage
from nas.core.ranking import better_in_hand
from nas.core.shared_scores import has_shared_score
from nas.core.trial import State, Trial
from nas.views.formatting import score


def finals_line(lineage: Lineage, winner: Trial | None, metric: Metric, final: Stage | None) -> str | None:
    """Returns a line if the best final scores below a trial in hand, else None.

    Only full scores are compared (`nas.core.full_scores`). ``more_epochs`` is named if it can train the winner, and no
    trial did so yet.

    Args:
        lineage: All trials.
        winner: The trial that is exported, or None.
        metric: The metric that ranks.
        final: The last stage of the plan, or None if there is only the search stage.
    """
    if winner is None or final is None:
        return None
    if winner.stage != final.name:
        return _taken_line(winner, _finals(lineage, metric, final), metric)
    remedies = ["more_epochs=N trains the winner further"] if _may_go_on(lineage, winner) else []
    remedies += [] if final.warm else ["policy=warm_final starts finals from inherited weights"]
    better = better_in_hand(list(lineage), winner, metric)
    taken = f"better in hand: {_scored(better[0], metric)}: export=best takes it" if better else None
    text = taken or _below(lineage, winner, metric)
    return text and "; ".join([text, *([", ".join(remedies)] if remedies else [])])


def _taken_line(winner: Trial, finals: list[Trial], metric: Metric) -> str | None:
    """Returns a line on a winner that ``export=best`` took instead of the best final."""
    if not finals:
        return None
    instead = f"export=best takes trial {winner.number} ({winner.stage}) instead of {_scored(finals[0], metric)}"
    return f"{instead}, which is worse; export=final takes the final"


def _may_go_on(lineage: Lineage, winner: Trial) -> bool:
    """Returns whether ``more_epochs`` was not used yet and can train the winner further.

    It needs weights, and a problem that inherits: one with a trial under SHARE_PARAMS.
    """
    inherits = any(Policy.SHARE_PARAMS in trial.policies for trial in lineage)
    return inherits and winner.checkpoint is not None and all(trial.more_epochs is None for trial in lineage)


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


def _below(lineage: Lineage, winner: Trial, metric: Metric) -> str | None:
    """Returns a text if the winner scores below its trial, which has no weights, else None."""
    trials = {trial.number: trial for trial in lineage}
    trains_again = winner.more_epochs is None and bool(winner.parents)
    parent = trials.get(winner.parents[0]) if trains_again else None
    if parent is None or not all(has_full_score(trial, trials.get, metric) for trial in (winner, parent)):
        return None
    value = parent.metrics[metric.name]
    if not metric.is_better(value, winner.metrics[metric.name]):
        return None
    return f"{_scored(winner, metric)}, is below its trial {parent.number}, {score(value)}, which has no weights"


def _scored(trial: Trial, metric: Metric) -> str:
    return f"trial {trial.number} ({trial.stage}), full validation {metric.name} {score(trial.metrics[metric.name])}"


def more_epochs_lines(lineage: Lineage, winner: Trial, metric: Metric) -> list[str]:
    """Returns a line on the newest trial of ``more_epochs``, if it has a score.

    The score before is named if the two compare.
    """
    trials = {trial.number: trial for trial in lineage}
    newest = next((t for t in sorted(lineage, key=lambda t: -t.number) if t.more_epochs is not None), None)
    if newest is None or (value := newest.value(metric.name)) is None:
        return []
    parent = trials[newest.parents[0]]
    is_comparable = parent.policies & PARTIAL == newest.policies & PARTIAL and not has_shared_score(parent, trials.get)
    before = parent.value(metric.name) if is_comparable else None
    share = "none" if newest.inherited is None else f"{newest.inherited:.0%}"
    done, end = "trained", ""
    if newest.state != State.COMPLETE:
        done, end = "was to train", ", and met the deadline" if newest.reached_deadline else ", and was stopped"
    text = f"more epochs: trial {newest.number} {done} trial {parent.number} for {newest.more_epochs} more, "
    text += f"from {share} of its weights{end}: {metric.name} {score(value)}"
    text += "" if before is None else f", before {score(before)}"
    return [text if newest.number == winner.number else f"{text}; the winner stays trial {winner.number}"]
