"""One self-contained HTML page about a search: its tree, curve, objectives, table. It loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from flows.cli.formatting import brief, clock, count, duration, markup, number
from flows.views.fronts import front_lines
from flows.views.page.curve import CURVE_CSS, best_curve
from flows.views.page.epochs import epoch_charts
from flows.views.page.marks import MARKS_CSS, WINNER_CSS, legend_html
from flows.views.page.palette import css_variables
from flows.views.page.scatter import SCATTER_CSS, objectives_scatter
from flows.views.page.sheet import sheet_html
from flows.views.page.tree import draw_tree
from flows.views.searches import states_text
from flows.views.trial_summary import SHARED, UNTRAINED
from nas.core.spec import Spec
from nas.core.trial import Trial

if TYPE_CHECKING:
    from flows.views.snapshot import Snapshot

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_MAX_LINE = 16
_LEAST_WIDTH, _LEAST_SCALE = 720, 0.45
_HINT = "Point at a trial for its details; click it for its row in the table."


def lineage_page(snapshot: Snapshot) -> str:
    """The page: header, family tree, curve, supernet epochs, objectives, table. All of it shows without scripts."""
    styles = css_variables() + MARKS_CSS + WINNER_CSS + CURVE_CSS + SCATTER_CSS + _beside("page.css")
    title = f"{snapshot.name}: {count(len(snapshot.lineage), 'trial')}"
    body = "".join(
        [
            _header(snapshot),
            _tree(snapshot),
            _curve(snapshot),
            _epochs(snapshot),
            _objectives(snapshot),
            _sheet(snapshot),
        ]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">\n'
        f'<link rel="icon" href="data:,"><title>{markup(title)}</title>\n<style>\n{styles}</style></head>\n<body>'
        f'{body}<div id="tip" role="tooltip" hidden></div>\n<script>\n{_beside("page.js")}</script></body></html>\n'
    )


def _beside(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _winner(snapshot: Snapshot) -> int | None:
    return None if snapshot.winner is None else snapshot.winner.number


# ---- the header


def _header(snapshot: Snapshot) -> str:
    facts = "".join(f"<dt>{markup(name)}</dt><dd>{value}</dd>" for name, value in _facts(snapshot))
    session = snapshot.session
    where = f" (session {session.number}, pid {session.pid} on {markup(session.host)})" if session else ""
    running = where if snapshot.standing == "running" else ""
    return (
        f"<header><h1>{markup(snapshot.name)}</h1>"
        f'<p class="soft">Heirloom search, <span class="is-{snapshot.standing.replace(" ", "-")}">'
        f"{snapshot.standing}</span>{running}, as of {clock(snapshot.taken)}</p>"
        f'<div class="top"><dl>{facts}</dl>{_winner_card(snapshot)}</div></header>\n'
    )


def _facts(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """What the header says, as (name, markup)."""
    identity = snapshot.identity
    trials = list(snapshot.lineage)
    yield "problem", _spec(identity.get("problem"))
    yield from ((name, markup(value)) for name, value in snapshot.about.items())
    yield "tuner", _spec(identity.get("tuner"))
    if chosen := identity.get("chosen_tuner"):
        yield "chosen tuner", _spec(chosen)
    if identity.get("stopper"):
        yield "stopper", _spec(identity["stopper"])
    yield "stages", ", ".join(_stage(stage) for stage in identity.get("policy", ()))
    if identity.get("constraints"):
        limits = (f"{name} at most {number(most)}" for name, most in identity["constraints"].items())
        yield "constraints", markup(", ".join(limits))
    if init := identity.get("init"):
        given = [count(len(init["points"]), "point")] if init["points"] else []
        given += [f"weights of {init['weights']}"] if init["weights"] else []
        yield "init", markup(", ".join(given))
    yield "seed", markup(identity.get("seed", ""))
    yield "trials", f"{len(trials):,}" + (f": {states_text(snapshot.lineage)}" if trials else "")
    shares = [t.inherited_share for t in trials if t.inherited_share is not None]
    if shares:
        yield (
            "inherited",
            f"{fmean(shares):.0%} of the parameters (mean of {count(len(shares), 'child')})".replace(
                "childs", "children"
            ),
        )
    spent = sum(t.duration_s or 0.0 for t in trials)
    if spent:
        yield "training time", f"{duration(spent)} in all"


def _spec(described: Any) -> str:
    """A class as ``fashion_mnist (width=64)``, its dotted path as a tip."""
    if not isinstance(described, Mapping) or "target" not in described:
        return markup(described)
    target = str(described["target"])
    given = {
        name: value for name, value in dict(described.get("arguments") or {}).items() if value not in (None, {}, [])
    }
    arguments = ", ".join(f"{name}={brief(value)}" for name, value in given.items())
    shown = f"{Spec(target).name}{f' ({arguments})' if arguments else ''}"
    return f'<span title="{markup(target)}">{markup(shown)}</span>'


def _stage(stage: Mapping[str, Any]) -> str:
    policies = " + ".join(map(str, stage.get("policies", ()))) or "in full"
    return f'{markup(stage.get("name"))} <span class="soft">({markup(policies)})</span>'


def _winner_card(snapshot: Snapshot) -> str:
    trial = snapshot.winner
    if trial is None:
        return '<div class="card"><p>No trial has a score yet.</p></div>'
    best = snapshot.best or {}
    is_winner = best.get("trial") == trial.number
    record = snapshot.tests.get(trial.number, {})
    test = record.get("metrics") or {}
    name = snapshot.metric.name
    others = {other: value for other, value in trial.metrics.items() if other != name}
    is_shared = trial.number in snapshot.shared_scores
    lines = [
        _score(name, trial.metrics.get(name), "validation", is_shared=is_shared),
        _score(name, test.get(name), "test"),
    ]
    if is_shared:
        lines.append(f"<p>{UNTRAINED}</p>")
    if others:
        lines.append(f"<p>{_scores(others)}</p>")
    if record.get("error"):
        lines.append(f"<p>test failed: {markup(record['error'])}</p>")
    if is_winner:
        lines += [f'<p class="soft">{markup(remark)}</p>' for remark in best.get("remarks", ())]
    if is_winner and best.get("export"):
        lines.append(f"<p>exported to <code>{markup(best['export'])}</code></p>")
    return (
        f'<div class="card"><p class="soft">{"Winner" if is_winner else "Best so far"}: '
        f'<a href="#trial-{trial.number}">trial {trial.number}</a>, stage {markup(trial.stage)}</p>'
        f"{''.join(lines)}{_line(snapshot, trial)}</div>"
    )


def _score(name: str, value: float | None, where: str, *, is_shared: bool = False) -> str:
    if value is None:
        return ""
    said = SHARED.strip() if is_shared else where
    return f'<p class="score {where}">{markup(name)} {number(value)} <span class="soft">{said}</span></p>'


def _scores(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{markup(name)} {number(value)}" for name, value in metrics.items())


def _line(snapshot: Snapshot, trial: Trial) -> str:
    """The winner's line from its founder on, as links; the middle of a long one is left out."""
    line = [*reversed([t.number for t in snapshot.lineage.ancestors(trial.number)]), trial.number]
    if len(line) == 1:
        return ""
    links = [f'<a href="#trial-{n}">{n}</a>' for n in line]
    if len(links) > _MAX_LINE:
        links[4:-6] = [f"({len(links) - 10} more)"]
    return f'<p class="line">line: {" → ".join(links)}</p>'


# ---- the sections


def _tree(snapshot: Snapshot) -> str:
    winner, tests = _winner(snapshot), snapshot.tests
    drawing = draw_tree(snapshot.lineage, snapshot.metric, winner=winner, tests=tests, links=True)
    dense = "" if drawing.is_labeled else " dense"
    size = f'width="{drawing.width:.0f}" height="{drawing.height:.0f}"'
    if dense:  # fitted to the window, but never to less than can be seen
        size += f' style="min-width:{max(_LEAST_WIDTH, drawing.width * _LEAST_SCALE):.0f}px"'
    buttons = (
        ("out", "\N{MINUS SIGN}", "zoom out"),
        ("in", "+", "zoom in"),
        ("fit", "fit", "fit"),
        ("full", "1:1", "full size"),
    )
    tools = "".join(
        f'<button type="button" data-zoom="{action}" aria-label="{said}" title="{said}">{text}</button>'
        for action, text, said in buttons
    )
    return (
        '<section id="tree" aria-label="Family tree"><h2>Family tree</h2>'
        f"{legend_html(drawing.legend, dense=bool(dense))}"
        f'<div class="tools">{tools}<span class="soft">{_HINT} Drag to move, ctrl + wheel to zoom.</span></div>'
        f'<div class="view"><svg class="tree{dense}" viewBox="0 0 {drawing.width:.0f} {drawing.height:.0f}" {size} '
        f'role="group" aria-label="{count(len(snapshot.lineage), "trial")}, a link each">{drawing.body}</svg></div>'
        "</section>\n"
    )


def _curve(snapshot: Snapshot) -> str:
    svg, legend = best_curve(snapshot.lineage, snapshot.metric, winner=_winner(snapshot))
    return (
        f'<section id="curve" aria-label="Scores"><h2>Scores and the best so far</h2>{legend_html(legend, dense=False)}'
        f'<div class="plot">{svg}</div></section>\n'
    )


def _epochs(snapshot: Snapshot) -> str:
    """What supernet epochs report, such as skips and the entropy of choices; nothing without such epochs."""
    charts = "".join(
        f"<figure><figcaption>{markup(name)}</figcaption>{svg}</figure>"
        for name, svg in epoch_charts(snapshot.lineage, snapshot.metric)
    )
    heading = "<h2>Supernet epochs</h2>"
    return f'<section id="epochs">{heading}<div class="epochs">{charts}</div></section>\n' if charts else ""


def _objectives(snapshot: Snapshot) -> str:
    """The first two objectives against each other; nothing of a single one."""
    if len(snapshot.metrics) < 2:
        return ""
    svg, legend = objectives_scatter(snapshot.lineage, snapshot.metrics, winner=_winner(snapshot))
    lines = "".join(f'<p class="soft">{markup(line)}</p>' for line in front_lines(snapshot.lineage, snapshot.metrics))
    return (
        '<section id="objectives" aria-label="Objectives"><h2>Objectives and the front</h2>'
        f'{legend_html(legend, dense=False)}<div class="plot">{svg}</div>{lines}</section>\n'
    )


def _sheet(snapshot: Snapshot) -> str:
    return (
        '<section id="table" aria-label="Trials"><h2>Trials</h2><div class="tools">'
        '<label for="filter">Filter</label><input id="filter" type="search" autocomplete="off" '
        'placeholder="words, all of which a row must have"><span id="counted" class="soft" role="status"></span></div>'
        f'<div class="sheet" tabindex="0" role="region" aria-label="Table of trials">{sheet_html(snapshot)}</div>'
        "</section>\n"
    )
