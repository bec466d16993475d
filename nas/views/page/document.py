"""One self-contained HTML page about a search: its tree, curve, objectives and table. It loads nothing."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

from nas.core.spec import Spec
from nas.views.formatting import brief, states_text
from nas.views.fronts import front_lines
from nas.views.page.curve import best_curve
from nas.views.page.epochs import epoch_charts
from nas.views.page.palette import DARK, LIGHT, N_STEPS
from nas.views.page.scatter import objectives_scatter
from nas.views.page.sheet import sheet_of
from nas.views.page.templates import render
from nas.views.page.tree import draw_tree
from nas.views.trial_summary import SHARED, UNTRAINED

if TYPE_CHECKING:
    from nas.core.trial import Trial
    from nas.views.snapshot import Snapshot

_MAX_LINE = 16


def lineage_page(snapshot: Snapshot) -> str:
    """Returns the page. All of it shows without scripts; the layout is in ``templates/page.html``."""
    trial, metric = snapshot.winner, snapshot.metric
    winner = None if trial is None else trial.number
    has_objectives = len(snapshot.metrics) > 1
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
        line=_line(snapshot, trial),
        tree=draw_tree(snapshot.lineage, metric, winner=winner, tests=snapshot.tests),
        curve=best_curve(snapshot.lineage, metric, winner=winner),
        epochs=epoch_charts(snapshot.lineage, metric),
        objectives=objectives_scatter(snapshot.lineage, snapshot.metrics, winner=winner) if has_objectives else None,
        front_lines=front_lines(snapshot.lineage, snapshot.metrics) if has_objectives else [],
        sheet=sheet_of(snapshot),
        **_CONSTANTS,
    )


_CONSTANTS: Mapping[str, object] = {
    "light": LIGHT,
    "dark": DARK,
    "n_steps": N_STEPS,
    "mean": fmean,
    "shared": SHARED.strip(),
    "untrained": UNTRAINED,
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
    """Returns the winner's line from its founder on, without the middle of a long one."""
    if trial is None:
        return []
    line: list[int | str] = [*reversed([t.number for t in snapshot.lineage.ancestors(trial.number)]), trial.number]
    if len(line) > _MAX_LINE:
        line[4:-6] = [f"({len(line) - 10} more)"]
    return line
