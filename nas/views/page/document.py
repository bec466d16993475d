"""One self-contained HTML page about a search: its tree, curve, objectives and table. It loads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

from nas.core.ranking import winner_key
from nas.core.spec import Spec
from nas.core.trial import State
from nas.views.finals_line import finals_line
from nas.views.formatting import brief, states_text
from nas.views.fronts import front_lines
from nas.views.page.curve import best_curve
from nas.views.page.details import page_data
from nas.views.page.epochs import epoch_charts
from nas.views.page.failures import MAX_GROUPS, MAX_LINKS, failures
from nas.views.page.importance import GENERATION, parameter_importance
from nas.views.page.palette import DARK, LIGHT, N_STEPS
from nas.views.page.parallel import best_and_newest, parallel_coordinates
from nas.views.page.plan import policy_plan
from nas.views.page.scatter import objectives_scatter
from nas.views.page.selection import select
from nas.views.page.sheet import sheet_of
from nas.views.page.templates import render
from nas.views.page.timeline import slot_timeline
from nas.views.page.tree import draw_tree
from nas.views.trial_summary import SHARED, UNTRAINED

if TYPE_CHECKING:
    from nas.core.trial import Trial
    from nas.views.snapshot import Snapshot

_MAX_LINE = 16


def lineage_page(snapshot: Snapshot, *, live_s: float | None = None) -> str:
    """Returns the page; its layout is in ``templates/page.html``.

    Without scripts it lacks only what it shows of a chosen trial.

    Args:
        snapshot: The search.
        live_s: The page loads again after as many seconds. None: it does not.
    """
    trial, metric = snapshot.winner, snapshot.metric
    winner = None if trial is None else trial.number
    has_objectives = len(snapshot.metrics) > 1
    selection = select(snapshot)
    sheet = sheet_of(snapshot, selection.listed)
    scored = _trained(snapshot)
    importance = parameter_importance(scored, metric)
    failed = failures(snapshot)
    timeline = slot_timeline(snapshot.lineage, metric, now=snapshot.taken)
    parallel = parallel_coordinates(best_and_newest(scored, metric), metric, [name for name, _ in importance.shares])
    return render(
        "page.html",
        snapshot=snapshot,
        identity=snapshot.identity,
        specs={name: _spec(snapshot.identity.get(name)) for name in ("problem", "tuner", "chosen_tuner", "stopper")},
        states=states_text(snapshot.lineage),
        inherited=[t.inherited_share for t in snapshot.lineage if t.inherited_share is not None],
        training_s=sum(t.duration_s or 0.0 for t in snapshot.lineage),
        best=snapshot.best if snapshot.best and snapshot.best.get("trial") == winner else None,
        test=snapshot.tests.get(winner, {}) if winner is not None else {},
        better=finals_line(snapshot.lineage, trial, metric, snapshot.final),
        line=_line(snapshot, trial),
        selection=selection,
        tree=draw_tree(selection.drawn, metric, winner=winner, tests=snapshot.tests, shared=snapshot.shared_scores),
        curve=best_curve(snapshot.lineage, metric, winner=winner),
        epochs=epoch_charts(snapshot.lineage, metric),
        objectives=objectives_scatter(snapshot.lineage, snapshot.metrics, winner=winner) if has_objectives else None,
        front_lines=front_lines(snapshot.lineage, snapshot.metrics) if has_objectives else [],
        failures=failed,
        importance=importance,
        has_generations=any(name == GENERATION for name, _ in importance.shares),
        parallel=parallel,
        n_scored=len(scored),
        timeline=timeline,
        plan=policy_plan(snapshot),
        sections=[*_sections(len(failed), has_objectives=has_objectives, has_started=timeline is not None)],
        sheet=sheet,
        data=page_data(snapshot, selection, sheet, live_s),
        live_s=live_s,
        **_CONSTANTS,
    )


def _trained(snapshot: Snapshot) -> list[Trial]:
    """Returns complete trials of the first stage with a score of the present code.

    Trials of ``more_epochs`` are left out. So are shared scores, unless all are.
    """
    stage = snapshot.stages[0] if snapshot.stages else ""
    searched = [t for t in snapshot.lineage if t.stage == stage and t.more_epochs is None]
    scored = [t for t in searched if t.state == State.COMPLETE and winner_key(t, (snapshot.metric,)) is not None]
    return [trial for trial in scored if trial.number not in snapshot.shared_scores] or scored


def _sections(n_failures: int, *, has_objectives: bool, has_started: bool) -> Iterator[tuple[str, str]]:
    """Yields the sections of the page: id and name."""
    yield from (("tree", "Tree"), ("curve", "Scores"))
    if has_objectives:
        yield "objectives", "Objectives"
    yield "parameters", "Parameters"
    if has_started:
        yield "timeline", "Timeline"
    if n_failures:
        yield "errors", f"Errors ({n_failures})"
    yield from (("plan", "Plan and budget"), ("table", "Trials"))


_CONSTANTS: Mapping[str, object] = {
    "light": LIGHT,
    "dark": DARK,
    "n_steps": N_STEPS,
    "mean": fmean,
    "shared": SHARED.strip(),
    "untrained": UNTRAINED,
    "max_bars": 15,
    "max_failures": MAX_GROUPS,
    "max_links": MAX_LINKS,
}


def _spec(described: Any) -> tuple[str, str]:
    """Returns a class as ``fashion_mnist (width=64)``, and its dotted path."""
    if not isinstance(described, Mapping) or "target" not in described:
        return str(described), ""
    target = str(described["target"])
    given = dict(described.get("arguments") or {})
    arguments = ", ".join(f"{name}={brief(value)}" for name, value in given.items() if value not in (None, {}, []))
    return f"{Spec(target).name}{f' ({arguments})' if arguments else ''}", target


def _line(snapshot: Snapshot, trial: Trial | None) -> list[int | str]:
    """Returns the winner's line from its oldest ancestor on, without the middle of a long one."""
    if trial is None:
        return []
    line: list[int | str] = [*reversed([t.number for t in snapshot.lineage.ancestors(trial.number)]), trial.number]
    if len(line) > _MAX_LINE:
        line[4:-6] = [f"({len(line) - 10} more)"]
    return line
