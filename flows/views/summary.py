"""Summary of a search on standard output."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
from nas.core.trial import State
from nas.search.pipeline import Summary
from nas.views.finals_line import finals_line, more_epochs_lines
from nas.views.formatting import brief, count, last_line, score
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
    write: Callable[[str], object] = show_line,
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
        write: Receives the lines.
    """
    lineage, winner = summary.lineage, summary.winner
    states = ", ".join(f"{n} {s}" for s in State if (n := lineage.n_in_state(s)))
    write(f"search {summary.name}: {len(lineage)} trials ({states})")
    if ended is not None:
        write(ended)
    if hours is not None:
        write("hours: {:.3g} of {:g}".format(*hours))
    shares = [t.inherited_share for t in lineage if t.inherited_share is not None]
    if shares:
        write(f"inherited: {len(shares)} trials took {sum(shares) / len(shares):.0%} of their parameters from a donor")
    for line in (*outdated_lines(lineage), *failed_lines(lineage)):
        write(line)
    if winner is None and any(trial.outdated for trial in lineage):
        write("best: no trial of the newest code has a score")
    elif winner is None and any(is_epoch(trial) and trial.value(metrics[0].name) is not None for trial in lineage):
        write("best: unknown, because only supernet epochs have a score")
    elif winner is None and lineage.n_in_state(State.COMPLETE):
        write("best: unknown, because no trial returned a number")
    elif winner is None:
        write("best: no trial has a score")
    else:
        ancestors = " <- ".join(str(t.number) for t in [winner, *lineage.ancestors(winner.number)])
        name = metrics[0].name
        is_shared = has_shared_score(winner, {trial.number: trial for trial in lineage}.get)
        shown = f"{score(winner.metrics[name])}{SHARED if is_shared else ''}"
        rule = ", chosen by export=best" if export == "best" else ""
        write(f"best: trial {winner.number} ({winner.stage}), validation {name} {shown}{rule}")
        if is_shared:
            write(UNTRAINED)
        if final is not None and not any(t.stage == final.name and t.state == State.COMPLETE for t in lineage):
            write(f"not trained in full: no trial of stage {final.name} is COMPLETE")
        if winner.is_shortened and final is not None and winner.stage == final.name:
            share = winner.cost.get("epochs_share", winner.proposal.fidelity or 0.0)
            write(f"trained for {100 * share:.3g}% of its epochs: raise budget.hours, or go on with more_epochs=N")
        for line in more_epochs_lines(lineage, winner, metrics[0]):
            write(line)
        if (better := finals_line(lineage, winner, metrics[0], final)) is not None:
            write(better)
        test = summary.tests.get(winner.number, {})
        if "metrics" in test:
            write("test: " + ", ".join(f"{name} {score(value)}" for name, value in test["metrics"].items()))
        if "error" in test:
            write(f"test: failed: {test['error']}")
        write(f"ancestors: {ancestors}")
        for remark in (summary.best or {}).get("remarks", ()):
            write(remark)
        for line in front_lines(lineage, metrics):
            write(line)
        write("point: " + ", ".join(f"{name}={brief(value)}" for name, value in flat_point(winner.point).items()))
    if root.startswith("memory://"):
        write("records and weights: in memory only, lost when this command ends")
        return
    write(f"records and weights: {summary.url}")
    if summary.best is not None:
        if summary.best["export"] is not None:
            write(f"export: {summary.url}/{summary.best['export']}")
        for line in missing_lines(summary.best.get("missing", {})):
            write(line)
    where = [f"name={summary.name}", *root_words(root)]
    with_what = ["this command's storage.options"] if has_options else []
    with_what += ["the password of storage.root for ***"] if without_passwords(root) != root else []
    write(f"next, with {' and '.join(with_what)}:" if with_what else "next:")
    for line in next_commands(lineage, winner, where, metric=metrics[0], final=final, more=more):
        write(f"  {line}")


def outdated_lines(lineage: Lineage) -> list[str]:
    """Returns a line about trials of older code, if there are any."""
    n_outdated = sum(trial.outdated for trial in lineage)
    return [f"older code: {count(n_outdated, 'trial')} can give weights, but not win"] if n_outdated else []


def failure_of(summary: Summary) -> str | None:
    """Returns an error if no trial of a finished search has a score, else None."""
    lineage = summary.lineage
    if summary.winner is not None or not len(lineage) or lineage.n_in_state(State.COMPLETE):
        return None
    none_has = f"no trial of {len(lineage)} has a score"
    if all(t.reached_deadline or not t.is_finished for t in lineage):
        return f"{none_has}: none ended in time. Raise budget.hours"
    last = next((t for t in reversed(list(lineage)) if t.error), None)
    error = "" if last is None else str(last_line(last.error)).removesuffix(".")
    why = "" if last is None else f"; the last, trial {last.number}: {error}"
    return (
        f"{none_has}{why}. Fix the problem, then add retry=failed (and code=changed if its code changed), "
        "or choose another name=..."
    )


def end_by_tuner(lineage: Lineage, stage: str, n_wanted: int | None, reason: str = "") -> str:
    """Returns the line for a search stage that the tuner ended, with its reason if any."""
    n_trials = sum(trial.stage == stage and trial.is_counted for trial in lineage)
    of = count(n_trials, "trial") if n_wanted is None else f"{n_trials:,} of {count(n_wanted, 'trial')}"
    return f"the tuner has no more proposals: {of}{f'. {reason}' if reason else ''}"
