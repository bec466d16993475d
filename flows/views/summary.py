"""Summary of a search on standard output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from flows.cli.output import show_line
from flows.cli.settings.root import root_words
from flows.views.delivery import missing_lines
from flows.views.next_steps import failed_lines, next_commands
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import flat_point
from nas.core.policy import Stage
from nas.core.ranking import Export
from nas.core.redaction import without_passwords
from nas.core.shared_scores import has_shared_score
from nas.core.supernet import is_epoch
from nas.core.trial import State, Trial
from nas.search.failure_streak import failure_remedy
from nas.search.pipeline import Summary
from nas.views.finals_line import finals_line, more_epochs_lines
from nas.views.formatting import amount, brief, count, last_line, score
from nas.views.fronts import front_lines
from nas.views.trial_summary import SHARED, UNTRAINED


def print_summary(
    summary: Summary,
    metrics: Sequence[Metric],
    root: str,
    *,
    final: Stage | None = None,
    more: Sequence[str] = (),
    has_options: bool = False,
    ended: str | None = None,
    export: Export = "final",
    hours: tuple[float, float] | None = None,
) -> None:
    """Prints the best trial, paths and the next commands.

    Args:
        summary: The result of the search.
        metrics: Metrics of the problem. The first ranks; if there are several, fronts are printed.
        root: The storage root as the user wrote it; passwords are masked.
        final: The last stage of the policy plan, or None if there is only the search stage.
        more: Further overrides that ``flows.final`` needs.
        has_options: Whether the root was opened with options, which may be credentials and are not printed.
        ended: The reason why the search ended before its budget, or None.
        export: The rule that chose the best trial.
        hours: Hours used and hours of the budget, or None.
    """
    lineage, winner, metric = summary.lineage, summary.winner, metrics[0]
    states = ", ".join(f"{n} {s}" for s in State if (n := lineage.n_in_state(s)))
    lines = [f"search {summary.name}: {count(len(lineage), 'trial')} ({states})"]
    if ended is not None:
        lines.append(ended)
    if hours is not None:
        used, limit = hours
        lines.append(f"hours: {amount(used)} of {amount(limit, 6)}")
    lines += [*_inherited_lines(lineage), *outdated_lines(lineage), *failed_lines(lineage)]
    if winner is None:
        lines.append(f"best: {_why_no_winner(lineage, metric)}")
    else:
        lines += _winner_lines(summary, winner, metrics, final, export)
    if root.startswith("memory://"):
        lines.append("records and weights: in memory only, lost when this command ends")
    else:
        where = [f"name={summary.name}", *root_words(root)]
        commands = next_commands(lineage, winner, where, metric=metric, final=final, more=more)
        lines += [*_path_lines(summary), *_next_lines(commands, root, has_options=has_options)]
    for line in lines:
        show_line(line)


def _inherited_lines(lineage: Lineage) -> list[str]:
    shares = [t.inherited_share for t in lineage if t.inherited_share is not None]
    if not shares:
        return []
    return [f"inherited: {count(len(shares), 'trial')} took {fmean(shares):.0%} of their parameters from a donor"]


def _why_no_winner(lineage: Lineage, metric: Metric) -> str:
    if any(trial.outdated for trial in lineage):
        return "no trial of the newest code has a score"
    if any(is_epoch(trial) and trial.value(metric.name) is not None for trial in lineage):
        return "unknown, because only supernet epochs have a score"
    if lineage.n_in_state(State.COMPLETE):
        return "unknown, because no trial returned a number"
    return "no trial has a score"


def _winner_lines(
    summary: Summary, winner: Trial, metrics: Sequence[Metric], final: Stage | None, export: Export
) -> Iterator[str]:
    """Yields the winner's scores, ancestors and point, and what it lacks."""
    lineage, metric = summary.lineage, metrics[0]
    is_shared = has_shared_score(winner, {trial.number: trial for trial in lineage}.get)
    shared = SHARED if is_shared else ""
    rule = ", chosen by export=best" if export == "best" else ""
    shown = f"{metric.name} {score(winner.metrics[metric.name])}{shared}"
    yield f"best: trial {winner.number} ({winner.stage}), validation {shown}{rule}"
    if is_shared:
        yield UNTRAINED
    if final is not None and not any(t.stage == final.name and t.state == State.COMPLETE for t in lineage):
        yield f"not trained in full: no trial of stage {final.name} is COMPLETE"
    if winner.is_shortened and final is not None and winner.stage == final.name:
        share = winner.cost.get("epochs_share", winner.proposal.fidelity or 0.0)
        remedy = "raise budget.hours (or gpu_hours), or go on with more_epochs=N"
        yield f"trained for {100 * share:.3g}% of its epochs: {remedy}"
    yield from more_epochs_lines(lineage, winner, metric)
    if (better := finals_line(lineage, winner, metric, final)) is not None:
        yield better
    test = summary.tests.get(winner.number, {})
    if test.get("metrics"):
        yield "test: " + ", ".join(f"{name} {score(value)}{shared}" for name, value in test["metrics"].items())
    if "error" in test:
        yield f"test: failed: {test['error']}"
    yield "ancestors: " + " <- ".join(str(t.number) for t in [winner, *lineage.ancestors(winner.number)])
    yield from (summary.best or {}).get("remarks", ())
    yield from front_lines(lineage, metrics)
    yield "point: " + ", ".join(f"{name}={brief(value)}" for name, value in flat_point(winner.point).items())


def _path_lines(summary: Summary) -> Iterator[str]:
    yield f"records and weights: {summary.url}"
    if summary.best is not None:
        if summary.best["export"] is not None:
            yield f"export: {summary.url}/{summary.best['export']}"
        yield from missing_lines(summary.best.get("missing", {}))


def _next_lines(commands: Sequence[str], root: str, *, has_options: bool) -> Iterator[str]:
    """Yields the next commands, below a line that names the secrets that they lack."""
    secrets = ["this command's storage.options"] if has_options else []
    secrets += ["the password of storage.root for ***"] if without_passwords(root) != root else []
    yield f"next, with {' and '.join(secrets)}:" if secrets else "next:"
    yield from (f"  {line}" for line in commands)


def outdated_lines(lineage: Lineage) -> list[str]:
    """Returns a line about trials of older code, if there are any."""
    n_outdated = sum(trial.outdated for trial in lineage)
    return [f"older code: {count(n_outdated, 'trial')} can give weights, but not win"] if n_outdated else []


def failure_of(summary: Summary, *, deterministic: bool = False) -> str | None:
    """Returns an error if no trial of a finished search has a score, else None."""
    lineage = summary.lineage
    if summary.winner is not None or not len(lineage) or lineage.n_in_state(State.COMPLETE):
        return None
    none_has = f"no trial of {len(lineage)} has a score"
    if all(t.reached_deadline or not t.is_finished for t in lineage):
        return f"{none_has}: none ended in time. Raise budget.hours (or gpu_hours)"
    last = next((t for t in reversed(list(lineage)) if t.error), None)
    error = "" if last is None else str(last_line(last.error)).removesuffix(".")
    why = "" if last is None else f"; the last, trial {last.number}: {error}"
    return f"{none_has}{why}. {failure_remedy(deterministic=deterministic)}"


def end_by_tuner(lineage: Lineage, stage: str, n_wanted: int | None, reason: str = "") -> str:
    """Returns the line for a search stage that the tuner ended, with its reason if any."""
    n_trials = sum(trial.stage == stage and trial.is_counted for trial in lineage)
    of = count(n_trials, "trial") if n_wanted is None else f"{n_trials:,} of {count(n_wanted, 'trial')}"
    return f"the tuner has no more proposals: {of}{f'. {reason}' if reason else ''}"
