"""The family tree as SVG: who descends from whom, whose weights went in, how good each trial is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flows.cli.formatting import count, markup, number
from flows.views.page.edge_paths import curve, way_around
from flows.views.page.epoch_columns import lay_out_epochs
from flows.views.page.layout import Layout, lay_out
from flows.views.page.marks import LegendItem, dot, edge_item, legend_svg, mark_item, pill, ramp_item, standalone_css
from flows.views.page.palette import ScoreScale, in_light
from flows.views.trial_summary import SHARED, donor_of, trial_summary
from nas.core.ranking import competitors
from nas.core.shared_scores import shared_scores
from nas.core.supernet import epoch_of, supernet_epochs
from nas.core.trial import Donor, State, Trial

if TYPE_CHECKING:
    from flows.views.table import Tests
    from nas.core.lineage import Lineage
    from nas.core.metric import Metric

MAX_LABELED = 60
_CHARACTER = 7.0  # the width of a digit in 12 px text
_WIDTH = 1180.0
_TIP = (
    '<defs><marker id="donor-tip" markerUnits="userSpaceOnUse" markerWidth="8" markerHeight="8" refX="7" refY="4" '
    'orient="auto"><path class="tip" d="M0 0.5L8 4L0 7.5Z"/></marker></defs>'
)


@dataclass(frozen=True, slots=True)
class Drawing:
    """The inside of an SVG, its size in pixels, and what explains it."""

    body: str
    width: float
    height: float
    is_labeled: bool
    legend: tuple[LegendItem, ...]


@dataclass(frozen=True, slots=True)
class _Style:
    """Sizes in pixels: half a mark's width and height, and the steps from column to column and row to row."""

    half_width: float
    half_height: float
    column: float
    row: float

    @classmethod
    def fitting(cls, longest_label: int, layout: Layout, n_trials: int) -> _Style:
        if n_trials <= MAX_LABELED:
            half = longest_label * _CHARACTER / 2 + 9
            return cls(half, 12, 2 * half + (34 if layout.n_columns <= 9 else 24), 34)
        radius = 5.5 if n_trials <= 150 else 4.2 if n_trials <= 400 else 3.4
        column = min(72.0, max(4 * radius, _WIDTH / max(1, layout.n_columns)))
        return cls(radius, radius, column, 2 * radius + 3)


def family_tree_svg(lineage: Lineage, metric: Metric, *, winner: int | None = None, heading: str = "") -> str:
    """The family tree as an SVG that stands alone: own background, own colors, its legend inside.

    Args:
        lineage: The trials.
        metric: The score that colors them.
        winner: The trial whose line of ancestors is emphasized; by default the first of ``competitors``.
        heading: A line above the picture.
    """
    stages = list(dict.fromkeys(trial.stage for trial in sorted(lineage, key=lambda trial: trial.number)))
    best = next((trial.number for trial in competitors(lineage, [metric], stages)), None)
    drawing = draw_tree(lineage, metric, winner=best if winner is None else winner)
    margin, top = 16.0, 38.0 if heading else 14.0
    width = max(drawing.width, 620.0) + 2 * margin
    legend, legend_height = legend_svg(drawing.legend, width - 2 * margin)
    height = top + legend_height + drawing.height + margin
    title = f'<text x="{margin:.0f}" y="26" style="font-size:15px;font-weight:600">{markup(heading)}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" role="img" class="tree{"" if drawing.is_labeled else " dense"}">'
        f"<title>{markup(heading or 'Family tree')}: {count(len(lineage), 'trial')}</title>"
        f"<style>{standalone_css()}</style>"
        f'<rect x=".5" y=".5" width="{width - 1:.0f}" height="{height - 1:.0f}" rx="8" '
        f'style="{in_light("fill:var(--paper);stroke:var(--rule)")}"/>'
        f"{title if heading else ''}"
        f'<g transform="translate({margin:.0f} {top:.0f})">{legend}</g>'
        f'<g transform="translate({margin:.0f} {top + legend_height:.0f})">{drawing.body}</g></svg>\n'
    )


def draw_tree(
    lineage: Lineage,
    metric: Metric,
    *,
    winner: int | None = None,
    tests: Tests | None = None,
    links: bool = False,
) -> Drawing:
    """The family tree, to be put into an ``<svg class="tree">`` of a page with the style ``MARKS_CSS``.

    Args:
        lineage: The trials.
        metric: The score that colors them.
        winner: The trial whose line of ancestors is emphasized.
        tests: Test records by trial, for the details.
        links: Each trial is a link to ``#trial-<number>``.
    """
    return _Tree(lineage, metric, winner, tests or {}, links).drawing()


class _Tree:
    """Draws one lineage: places from the layout, sizes from the style."""

    def __init__(self, lineage: Lineage, metric: Metric, winner: int | None, tests: Tests, links: bool) -> None:
        self.trials = sorted(lineage, key=lambda trial: trial.number)
        self.metric, self.winner, self.tests, self.links = metric, winner, tests, links
        self.epochs, self.shared = supernet_epochs(self.trials), shared_scores(self.trials)
        self.is_labeled = len(self.trials) <= MAX_LABELED
        self.layout = (
            lay_out_epochs(lineage) if self.epochs else lay_out(lineage, single_columns=8 if self.is_labeled else 50)
        )
        scores = [(t.number in self.shared, v) for t in self.trials if (v := t.value(metric.name)) is not None]
        self.scale = ScoreScale.of([value for is_shared, value in scores if not is_shared], metric)
        self.shared_scale = ScoreScale.of([value for is_shared, value in scores if is_shared], metric)
        longest = max((len(self.label(trial)) for trial in self.trials), default=0)
        self.style = _Style.fitting(longest, self.layout, len(self.trials))
        line = [] if winner is None else [winner, *(t.number for t in lineage.ancestors(winner))]
        self.line = set(line)
        self.line_edges = set(zip(line[1:], line, strict=False))
        self.first_stage = self.trials[0].stage if self.trials else ""

    def x(self, column: float) -> float:
        return column * self.style.column + self.style.half_width + 10

    def y(self, row: float) -> float:
        below = self.layout.single_row
        heading = 16.0 if self.layout.families and below is not None and row >= below else 0.0
        return 40 + row * self.style.row + self.style.half_height + heading

    def place(self, trial: int) -> tuple[float, float]:
        column, row = self.layout.places[trial]
        return self.x(column), self.y(row)

    def drawing(self) -> Drawing:
        width = self.x(max(0, self.layout.n_columns - 1)) + self.style.half_width + 14
        bottom = max((self.place(trial.number)[1] for trial in self.trials), default=20.0)
        body = "".join([_TIP, *self.background(width), *self.edges(), *(self.node(trial) for trial in self.trials)])
        height = bottom + self.style.half_height + 10
        return Drawing(body, max(width, 200.0), height, self.is_labeled, tuple(self.legend()))

    def background(self, width: float) -> Iterator[str]:
        """The families' bands, and the generations above them."""
        pad = self.style.half_height + (6 if self.is_labeled else 2)
        for family in self.layout.families:
            top, bottom = self.y(family.top) - pad, self.y(family.bottom) + pad
            yield f'<rect class="band" x="1" y="{top:.1f}" width="{width - 2:.1f}" height="{bottom - top:.1f}" rx="7"/>'
        yield from self.column_bands(pad)
        n_columns = max((family.n_columns for family in self.layout.families), default=0)
        every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 1000) if n * self.style.column >= 26)
        if n_columns:
            yield '<text class="soft" x="4" y="10">generation</text>'
        for column in range(0, n_columns, every):
            yield f'<text class="soft" x="{self.x(column):.1f}" y="27" text-anchor="middle">{column}</text>'
        if self.layout.single_row is not None and self.layout.families:
            y = self.y(self.layout.single_row) - pad - 5
            yield f'<text class="soft" x="4" y="{y:.1f}">no parent, no child{self.but_crossed()}</text>'

    def column_bands(self, pad: float) -> Iterator[str]:
        """A band and a heading for each supernet epoch, or later stage."""
        top, bottom = self.y(0) - pad, self.y(max(1.0, self.layout.n_rows - 1)) + pad
        if self.layout.columns:
            yield '<text class="soft" x="4" y="10">supernet epoch</text>'
        for column in self.layout.columns:
            left = self.x(column.start) - self.style.half_width - 4
            width = (column.width - 1) * self.style.column + 2 * self.style.half_width + 8
            place = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{bottom - top:.1f}"'
            yield f'<rect class="band" {place} rx="7"/>'
            x = self.x(column.start)
            yield f'<text class="soft" x="{x:.1f}" y="27" text-anchor="middle">{markup(column.heading)}</text>'

    def but_crossed(self) -> str:
        """What the heading of those without a family adds where one is a parent, of a child that stands elsewhere."""
        below, parents = self.layout.single_row, {number for trial in self.trials for number in trial.parents}
        singles = (n for n, (_, row) in self.layout.places.items() if below is not None and row >= below)
        return " but by crossing" if parents & {*singles} else ""

    def edges(self) -> Iterator[str]:
        """Edges from parents, second ones first, from other donors, then the winner's line: the later lie above."""
        drawn: dict[str, list[str]] = {"second": [], "": [], "spine": [], "donor": [], "line": []}
        for trial in self.trials:
            donor = donor_of(trial)
            for parent in trial.parents:
                is_drawn = not self.is_below(trial, parent) or (parent, trial.number) in self.line_edges
                if parent in self.layout.places and is_drawn:
                    kind = "line" if (parent, trial.number) in self.line_edges else ""
                    kind = "second" if parent != trial.parents[0] else kind
                    kind = "spine" if parent in self.epochs and trial.number in self.epochs else kind
                    share = trial.inherited if donor == parent else None
                    drawn[kind].append(self.edge(parent, trial, kind, share=share))
            if isinstance(donor, str):
                drawn["donor"].append(self.stub(trial))
            elif donor is not None and self.has_donor_edge(trial, donor):
                drawn["donor"].append(self.edge(donor, trial, "donor", share=trial.inherited))
        for paths in drawn.values():
            yield from paths

    def has_donor_edge(self, trial: Trial, donor: Donor | None) -> bool:
        """Whether an edge shows the donor: not if it is a parent, or the epoch in whose column the trial stands."""
        return donor in self.layout.places and donor not in trial.parents and not self.is_below(trial, donor)

    def is_below(self, trial: Trial, source: Donor | None) -> bool:
        """Whether a subnet stands in the column of the epoch that gave its weights."""
        is_subnet = trial.number not in self.epochs and trial.stage == self.first_stage
        return is_subnet and source in self.epochs and source == donor_of(trial)

    def edge(self, source: int, child: Trial, kind: str, *, share: float | None) -> str:
        """An edge from the source's right to the child's left; below supernet epochs around the marks between them."""
        start, end, style = self.place(source), self.place(child.number), self.style
        is_far = self.layout.places[child.number][0] - self.layout.places[source][0] > 1
        if is_far and self.layout.columns and child.number not in self.epochs:
            path = way_around(start, end, half_width=style.half_width, column=style.column, row=style.row)
        else:
            path = curve(start, end, style.half_width)
        tip = ' marker-end="url(#donor-tip)"' if kind == "donor" and self.is_labeled else ""
        return (
            f'<path class="edge {kind}" data-s="{source}" data-c="{child.number}" '
            f'stroke-width="{self.stroke(share, kind)}"{tip} d="{path}"/>'
        )

    def stub(self, trial: Trial) -> str:
        """A donor in another search: an edge from nowhere."""
        x, y = self.place(trial.number)
        length = min(20.0, self.style.column / 2)
        start = f"M{x - self.style.half_width - length:.1f} {y - length / 2:.1f}l{length:.1f} {length / 2:.1f}"
        tip = ' marker-end="url(#donor-tip)"' if self.is_labeled else ""
        width = self.stroke(trial.inherited, "donor")
        return f'<path class="edge donor" data-c="{trial.number}" stroke-width="{width}"{tip} d="{start}"/>'

    def stroke(self, share: float | None, kind: str) -> str:
        """The width of an edge over which this share of the parameters was inherited."""
        if kind == "spine":
            return "5" if self.is_labeled else "3"
        least, most = (1.2, 3.0 if kind == "donor" else 5.0) if self.is_labeled else (0.7, 2.4)
        return f"{least + (most - least) * (share or 0.0):.1f}"

    def label(self, trial: Trial) -> str:
        """The number and the score, in brackets if of shared weights; without one the state. Epochs have their number.

        The number of an epoch is not that of its trial.
        """
        score = trial.value(self.metric.name)
        scale = self.shared_scale if trial.number in self.shared else self.scale
        shown = str(trial.state).lower() if score is None or scale is None else scale.text(score)
        shown = f"({shown})" if score is not None and trial.number in self.shared else shown
        shown = f"epoch {epoch_of(trial.point)}" if trial.number in self.epochs else shown
        return f"{'★ ' if trial.number == self.winner else ''}{trial.number}  {shown}"

    def node(self, trial: Trial) -> str:
        score = trial.value(self.metric.name)
        is_final, is_winner = trial.stage != self.first_stage, trial.number == self.winner
        is_shared, is_above = trial.number in self.shared, trial.number in self.epochs
        marks = {"final": is_final, "line": trial.number in self.line, "winner": is_winner}
        marks |= {"epoch": is_above, "shared": is_shared and not is_above}
        kinds = ["node", str(trial.state).lower(), *(kind for kind, holds in marks.items() if holds)]
        named = f"trial {trial.number}, {trial.state}"
        if score is not None:
            named += f", {self.metric.name} {number(score)}{SHARED if is_shared else ''}"
        if score is not None and self.scale is not None and not is_shared:
            kinds.append(f"q{self.scale.step(score)}")
        x, y = self.place(trial.number)
        if self.is_labeled:
            head, _, tail = self.label(trial).partition("  ")
            text = f'<tspan class="number">{head}</tspan>\N{NO-BREAK SPACE} {tail}'
            shape = pill(trial.state, self.style.half_width, self.style.half_height, is_final=is_final)
            shape += f'<text text-anchor="middle" y="4.2">{text}</text>'
        else:
            shape = dot(trial.state, self.style.half_height, is_final=is_final, is_winner=is_winner)
        parent = f' data-p="{trial.parents[0]}"' if trial.parents else ""
        summary = trial_summary(trial, self.tests, is_shared=is_shared)
        tag, link = ("a", f' href="#trial-{trial.number}"') if self.links else ("g", "")
        return (
            f'<{tag} class="{" ".join(kinds)}" data-n="{trial.number}"{parent}{link} aria-label="{markup(named)}" '
            f'transform="translate({x:.1f} {y:.1f})"><title>{markup(summary)}</title>'
            f"{shape}</{tag}>"
        )

    def legend(self) -> Iterator[LegendItem]:
        """What occurs in this tree."""
        if self.scale is not None:
            worse = " or worse" if self.scale.is_clipped else ""
            low, high = self.scale.text(self.scale.low), self.scale.text(self.scale.high)
            yield ramp_item(f"{self.metric.name} {low}{worse} to {high}")
        stages = {trial.number: trial.stage for trial in self.trials}
        best = "best trial" if stages.get(self.winner or 0) == self.first_stage else "winner"
        if len(self.line) > 1:
            yield edge_item("line", f"line of the {best}" + (" (★)" if self.is_labeled else ""))
        if any(trial.parents for trial in self.trials):
            yield edge_item("wedge", "from the parent; width: share of weights inherited")
        if any(len(trial.parents) > 1 for trial in self.trials):
            yield edge_item("second", "from the second parent")
        if any(isinstance(d := donor_of(t), str) or self.has_donor_edge(t, d) for t in self.trials):
            yield edge_item("donor", "weights from another donor")
        yield from self.shared_legend()
        plain = {*self.trials_of_stage()} - self.epochs - self.shared
        for state in State:
            if any(trial.state == state and trial.number in plain for trial in self.trials):
                yield mark_item(self.sample(state), str(state).lower(), str(state).lower())
        for stage in dict.fromkeys(t.stage for t in self.trials if t.stage != self.first_stage):
            yield mark_item(self.sample(State.COMPLETE, is_final=True), "final", f"stage {stage}")
        if self.winner is not None and not self.is_labeled:
            yield mark_item(dot(State.COMPLETE, 4, is_winner=True), "line winner", best)

    def trials_of_stage(self) -> Iterator[int]:
        """The trials of the search stage."""
        return (trial.number for trial in self.trials if trial.stage == self.first_stage)

    def shared_legend(self) -> Iterator[LegendItem]:
        """What a supernet and its subnets look like."""
        if self.epochs:
            yield edge_item("spine", "supernet epochs, each above the subnets that have its weights")
        if self.shared - self.epochs:
            said = "scored with shared weights, no accuracy of the architecture"
            yield mark_item(self.sample(State.COMPLETE), "shared", said)

    def sample(self, state: State, *, is_final: bool = False) -> str:
        """A mark of the kind that this tree has."""
        return pill(state, 9, 5.5, is_final=is_final) if self.is_labeled else dot(state, 5, is_final=is_final)
