"""The commands that a summary suggests, by what happened in the search."""

from __future__ import annotations

from collections.abc import Sequence

from flows.cli.overrides import as_shell
from flows.cli.program import command
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import point_key
from nas.core.policy import Stage
from nas.core.supernet import is_no_epoch
from nas.core.trial import State, Trial
from nas.search.admission import not_repeated
from nas.views.finals_line import better_trial
from nas.views.formatting import count, last_line


def next_commands(
    lineage: Lineage,
    winner: Trial | None,
    where: Sequence[str],
    *,
    metric: Metric,
    final: Stage | None,
    more: Sequence[str] = (),
) -> list[str]:
    """Returns the commands that fit the result: failed trials come first.

    Args:
        lineage: All trials.
        winner: The winner, or None.
        where: The overrides that name the search.
        metric: The metric that ranks.
        final: The last stage of the plan, or None if there is only the search stage.
        more: Further overrides that ``flows.final`` needs.
    """
    report = f"{command('report')} {as_shell(where)}"
    failed = not_repeated(lineage)
    lines = [f"{report} trial={failed[-1].number}"] if failed else []
    lines.append(f"{report} format=html")
    if winner is not None:
        lines.append(f"{report} trial={winner.number}")
    if final is None or winner is None:
        return [*lines, f"{report} format=csv"]
    train = f"{command('final')} {' '.join([as_shell(where), *more])}"
    if better_trial(lineage, winner, metric, final) is not None:
        lines.append(f"{train} finalists={_n_finals(lineage, final)} export=best")
    if n_finalists := _more_finalists(lineage, final):
        lines.append(f"{train} finalists={n_finalists}")
    return lines


def failed_lines(lineage: Lineage) -> list[str]:
    """Returns a line about FAILED trials with the error of the last, if there are any."""
    failed = not_repeated(lineage)
    if not failed:
        return []
    error = last_line(failed[-1].error)
    return [
        f"failed: {count(len(failed), 'trial')}; the last, trial {failed[-1].number}{f': {error}' if error else ''}"
    ]


def _n_finals(lineage: Lineage, final: Stage) -> int:
    return len({point_key(trial.point) for trial in lineage if trial.stage == final.name and not trial.outdated})


def _more_finalists(lineage: Lineage, final: Stage) -> int:
    """Returns twice the number of finals, at most the points of the stage before.

    0: all of them are trained, or the plan sets the number.
    """
    n_finals = _n_finals(lineage, final)
    stages = dict.fromkeys(trial.stage for trial in lineage if trial.stage != final.name)
    before = next(reversed(stages), None)
    scored = (trial for trial in lineage if trial.stage == before and trial.state == State.COMPLETE)
    n_points = len({point_key(trial.point) for trial in scored if is_no_epoch(trial) and not trial.outdated})
    return 0 if final.best is not None or n_points <= n_finals else min(max(2 * n_finals, 1), n_points)
