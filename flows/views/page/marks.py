"""The marks of the family tree: a trial's shape says its state and stage; samples of them explain it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flows.cli.formatting import markup
from flows.views.page.palette import N_STEPS, in_light
from nas.core.trial import State

MARKS_CSS = """
.tree text,.legend text{font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink)}
.tree text{font-variant-numeric:tabular-nums}
.tree .soft{fill:var(--soft)}
.band{fill:var(--band)}
.edge{fill:none;stroke:var(--edge);stroke-linecap:round}
.edge.donor{stroke:var(--donor);stroke-dasharray:5 4;stroke-linecap:butt}
.edge.second{stroke-dasharray:1.5 3;stroke-linecap:butt}
.edge.spine{stroke:var(--series);stroke-opacity:.55}
.edge.line{stroke:var(--accent)}
.edge.wedge{fill:var(--edge);stroke:none}
.tip{fill:var(--donor)}
.dense .edge.donor{opacity:.5}
.mark{stroke:var(--outline);stroke-width:1;fill:var(--paper)}
.dense .mark{stroke-width:.7}
.node.failed .mark{stroke:var(--soft);stroke-width:1.4}
.tree .node.failed text,.tree .node.waiting text{fill:var(--soft)}
.node.running .mark{stroke:var(--series);stroke-width:2;stroke-dasharray:5 3}
.node.waiting .mark{stroke:var(--soft);stroke-dasharray:1.5 2.5}
.node.shared .mark{fill:var(--paper);stroke:var(--series);stroke-width:1.5}
.tree .node.shared text{fill:var(--ink)}
.node.epoch .mark{fill:var(--series);stroke:var(--series)}
.tree .node.epoch text{fill:var(--paper)}
.ring{fill:none;stroke:var(--outline);stroke-width:1}
.node.line .mark,.node.line .ring{stroke:var(--accent);stroke-width:2.4}
.dense .node.line .mark{stroke-width:1.8}
.node .number{font-weight:700}
""" + "".join(f".q{i} .mark{{fill:var(--q{i})}}.tree .q{i} text{{fill:var(--t{i})}}\n" for i in range(N_STEPS))
WINNER_CSS = ".dense .node.winner .mark{fill:var(--accent);stroke:var(--paper);stroke-width:1}\n"


@dataclass(frozen=True, slots=True)
class LegendItem:
    """A sample as SVG, from x = 0 to its width and around y = 0, and what it means."""

    sample: str
    width: float
    text: str


def box(kind: str, half_width: float, half_height: float, radius: float) -> str:
    """A rectangle around (0, 0)."""
    place = f'x="{-half_width:.1f}" y="{-half_height:.1f}" width="{2 * half_width:.1f}" height="{2 * half_height:.1f}"'
    return f'<rect class="{kind}" {place} rx="{radius:.1f}"/>'


def pill(state: State, half_width: float, half_height: float, *, is_final: bool) -> str:
    """A mark with room for a label: square where the trial did not come to its end, ringed in a later stage."""
    radius = 3.0 if state in (State.STOPPED, State.FAILED) else half_height
    ring = box("ring", half_width + 3, half_height + 3, radius + 3) if is_final else ""
    return ring + box("mark", half_width, half_height, radius)


def dot(state: State, radius: float, *, is_final: bool = False, is_winner: bool = False) -> str:
    """A mark without a label: a star for the winner, a diamond in a later stage, else the state's shape."""
    if is_winner:
        corners = ((0, -1), (0.24, -0.32), (0.95, -0.31), (0.38, 0.12), (0.59, 0.81), (0, 0.4))
        mirrored = [*corners, *((-x, y) for x, y in reversed(corners[1:5]))]
        r = 2.3 * radius
        return f'<path class="mark" d="M{"L".join(f"{x * r:.1f} {y * r:.1f}" for x, y in mirrored)}Z"/>'
    if state == State.FAILED:
        a = 0.75 * radius
        return f'<path class="mark" d="M{-a:.1f} {-a:.1f}L{a:.1f} {a:.1f}M{-a:.1f} {a:.1f}L{a:.1f} {-a:.1f}"/>'
    if is_final:
        a = 1.45 * radius
        return f'<path class="mark" d="M0 {-a:.1f}L{a:.1f} 0L0 {a:.1f}L{-a:.1f} 0Z"/>'
    if state == State.STOPPED:
        return box("mark", 0.86 * radius, 0.86 * radius, 0)
    return f'<circle class="mark" r="{0.75 * radius if state == State.WAITING else radius:.1f}"/>'


def ramp_item(text: str) -> LegendItem:
    """The steps of the score's color."""
    step = '<g class="q{0}"><rect class="mark" x="{1}" y="-6" width="14" height="12"/></g>'
    return LegendItem("".join(step.format(i, 14 * i) for i in range(N_STEPS)), 14.0 * N_STEPS, text)


def edge_item(kind: str, text: str) -> LegendItem:
    """An edge of this kind: ``line``, ``donor`` or ``wedge``."""
    shape = "M0 -.6L28 -2.6V2.6L0 .6Z" if kind == "wedge" else "M0 0H28"
    return LegendItem(f'<path class="edge {kind}" stroke-width="2.6" d="{shape}"/>', 28, text)


def mark_item(shape: str, kind: str, text: str) -> LegendItem:
    """A pill or dot of this kind: a state, ``final`` or ``line winner``."""
    return LegendItem(f'<g class="node {kind}" transform="translate(12 0)">{shape}</g>', 24, text)


def legend_html(items: Sequence[LegendItem], *, dense: bool) -> str:
    """The legend as a list that wraps."""
    entries = (
        f'<li><svg aria-hidden="true" width="{item.width + 2:.0f}" height="18" viewBox="-1 -9 {item.width + 2:.0f} 18">'
        f"{item.sample}</svg>{markup(item.text)}</li>"
        for item in items
    )
    return f'<ul class="legend{" dense" if dense else ""}">{"".join(entries)}</ul>'


def legend_svg(items: Sequence[LegendItem], width: float) -> tuple[str, float]:
    """The legend as SVG rows of at most this width, and its height."""
    x, y, parts = 0.0, 10.0, []
    for item in items:
        needed = item.width + 8 + len(item.text) * 6.2
        if x > 0 and x + needed > width:
            x, y = 0.0, y + 22
        text = f'<text x="{item.width + 8:.0f}" y="4">{markup(item.text)}</text>'
        parts.append(f'<g transform="translate({x:.0f} {y:.0f})">{item.sample}{text}</g>')
        x += needed + 20
    return f'<g class="legend">{"".join(parts)}</g>', y + 18


def standalone_css() -> str:
    """The style of a picture that stands alone, in light colors."""
    return in_light(MARKS_CSS + WINNER_CSS)
