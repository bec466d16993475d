"""Summary of a trial in a few lines, for tooltips and the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from nas.core.point import flat_point
from nas.core.trial import Donor, Trial
from nas.views.formatting import brief, count, duration, last_line, number, size
from nas.views.table import Tests

SHARED = " with shared weights"
"""Follows a score that is no accuracy of the architecture (`nas.core.shared_scores`)."""
UNTRAINED = "not trained itself: its score ranks subnets, and is no accuracy of the architecture"
_MAX_POINT = 600


def donor_of(trial: Trial) -> Donor | None:
    """Returns the donor of a trial, or the expected donor if it has not finished."""
    if trial.is_finished:
        return trial.donor
    return trial.resolved_donor if trial.resolved_donor is not None else next(iter(trial.proposal.weight_donors), None)


def trial_summary(trial: Trial, tests: Tests, *, is_shared: bool = False) -> str:
    """Returns state, scores, donors, cost, error and point of a trial.

    With ``is_shared`` its scores are marked as those of shared weights.
    """
    state = str(trial.state) if trial.reason is None else f"{trial.state} ({trial.reason})"
    lines = [f"trial {trial.number}: {state}", f"stage {trial.stage}, generation {trial.generation}"]
    if trial.retry_of is not None:
        lines.append(f"retry of {trial.retry_of}")
    if trial.more_epochs is not None:
        lines.append(f"goes on training {trial.parents[0]} for {count(trial.more_epochs, 'epoch')}")
    shared = SHARED if is_shared else ""
    lines += [f"{name} {number(value)}{shared}" for name, value in trial.metrics.items()]
    tested: Mapping[str, float] = tests.get(trial.number, {}).get("metrics") or {}
    lines += [f"test {name} {number(value)}{shared}" for name, value in tested.items()]
    if trial.static_metrics:
        lines.append("costs " + ", ".join(f"{name} {number(value)}" for name, value in trial.static_metrics.items()))
    if trial.returned is not None:
        lines.append(f"returned {trial.returned[:_MAX_POINT]}")
    if trial.parents:
        lines.append(f"parent {', '.join(map(str, trial.parents))}")
    if given := trial.inheritance.get("given"):
        each = ", ".join(f"{donor} ({share:.0%})" for donor, share in given.items())
        lines.append(f"donors {each} of the parameters")
    elif (donor := donor_of(trial)) is not None:
        share = "" if trial.inherited is None else f", {trial.inherited:.0%} of the parameters inherited"
        lines.append(f"donor {donor}{share}")
    if trial.duration_s is not None:
        threads = f" on {trial.cost['threads']:.0f} threads" if "threads" in trial.cost else ""
        lines.append(f"took {duration(trial.duration_s)}{threads}")
    if trial.checkpoint is not None:
        lines.append(f"checkpoint {size(trial.checkpoint.own_bytes)}")
    if trial.outdated:
        lines.append("ran older code: can give weights, but not win")
    if trial.weights_deleted:
        lines.append("its weights were deleted")
    if (error := last_line(trial.error)) is not None:
        lines.append(error[:200])
    point = ", ".join(f"{name}={brief(value)}" for name, value in flat_point(trial.point).items())
    return "\n".join([*lines, point[:_MAX_POINT] + ("…" if len(point) > _MAX_POINT else "")])
