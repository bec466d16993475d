"""The family tree: descent, weights that were inherited, and the score of each trial."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from nas.core.ranking import competitors
from nas.core.shared_scores import shared_scores
from nas.core.supernet import epoch_of, supernet_epochs
from nas.core.trial import Donor, State, Trial
from nas.views.formatting import count, number
from nas.views.page.chart import WITH_SHARED_WEIGHTS, Text
from nas.views.page.edge_paths import curve, way_around
from nas.views.page.epoch_columns import lay_out_epochs
from nas.views.page.folding import FoldedLineage, fold_chains
from nas.views.page.layout import Layout, lay_out
from nas.views.page.legend import LegendItem, Path, edge_item, legend_rows, node_item, ramp_item
from nas.views.page.palette import LIGHT, N_STEPS, ScoreScale, in_light
from nas.views.page.shapes import dot, pill
from nas.views.page.templates import render
from nas.views.trial_summary import SHARED, donor_of, trial_summary

if TYPE_CHECKING:
    from nas.core.lineage import Lineage
    from nas.core.metric import Metric
    from nas.views.table import Tests

MAX_LABELED = 60
_CHARACTER = 7.0  # the width of a digit in 12 px text
_WIDTH = 1180.0
_MARGIN = 16.0


Band = tuple[float, float, float, float]
"""Place, width and height of a rectangle behind the trials of a family or a column."""


class Edge(NamedTuple):
    """An edge to a child; ``source`` is None if it comes from another search."""

    kind: str
    source: int | None
    child: int
    width: str
    path: str


class Node(NamedTuple):
    """A trial.

    Attributes:
        kind: Its state and other classes.
        trial: Its number.
        parent: Its first parent, or None.
        place: Its place.
        name: Its name for screen readers.
        summary: The text of its tip.
        paths: Its mark.
        label: Its number and its score, or an empty text.
        folded: The trials of a folded chain, of which it is the first.
    """

    kind: str
    trial: int
    parent: int | None
    place: str
    name: str
    summary: str
    paths: tuple[Path, ...]
    label: str
    folded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Content of a tree in drawing order, and its size in pixels."""

    width: float
    height: float
    is_labeled: bool
    bands: tuple[Band, ...]
    texts: tuple[Text, ...]
    edges: tuple[Edge, ...]
    nodes: tuple[Node, ...]
    legend: tuple[LegendItem, ...]


@dataclass(frozen=True, slots=True)
class _Style:
    """Sizes in pixels: half a mark's width and height, and the distances of columns and rows."""

    half_width: float
    half_height: float
    column: float
    row: float

    @classmethod
    def fitting(cls, longest_label: int, layout: Layout, n_trials: int) -> _Style:
        """Returns the sizes for this many trials."""
        if n_trials <= MAX_LABELED:
            half = longest_label * _CHARACTER / 2 + 9
            return cls(half, 12, 2 * half + (34 if layout.n_columns <= 9 else 24), 34)
        radius = 5.5 if n_trials <= 150 else 4.2 if n_trials <= 400 else 3.4
        column = min(72.0, max(4 * radius, _WIDTH / max(1, layout.n_columns)))
        return cls(radius, radius, column, 2 * radius + 3)


def family_tree_svg(lineage: Lineage, metric: Metric, *, winner: int | None = None, heading: str = "") -> str:
    """Returns the family tree as an SVG file with its own background, colors and legend.

    Args:
        lineage: The trials.
        metric: The score that colors them.
        winner: The trial whose line of ancestors is emphasized; by default the first of ``competitors``.
        heading: A line above the picture.
    """
    stages = list(dict.fromkeys(trial.stage for trial in sorted(lineage, key=lambda trial: trial.number)))
    best = next((trial.number for trial in competitors(lineage, [metric], stages)), None)
    tree = draw_tree(lineage, metric, winner=best if winner is None else winner)
    width = max(tree.width, 620.0)
    rows, legend_height = legend_rows(tree.legend, width)
    top = 38.0 if heading else 14.0
    title = f"{heading or 'Family tree'}: {count(len(lineage), 'trial')}"
    return render(
        "picture.svg",
        tree=tree,
        title=title,
        heading=heading,
        rows=rows,
        margin=_MARGIN,
        top=top,
        tree_top=top + legend_height,
        width=width + 2 * _MARGIN,
        height=top + legend_height + tree.height + _MARGIN,
        css=in_light(render("tree.css", n_steps=N_STEPS)),
        colors=LIGHT,
    )


def draw_tree(
    lineage: Lineage,
    metric: Metric,
    *,
    winner: int | None = None,
    tests: Tests | None = None,
    shared: frozenset[int] | None = None,
) -> Drawing:
    """Returns the family tree, for the template ``tree.svg``.

    Args:
        lineage: The trials.
        metric: The score that colors them.
        winner: The trial whose line of ancestors is emphasized.
        tests: Test records by trial, for the details.
        shared: The trials of the search with shared scores, if ``lineage`` is a part of it.
    """
    shared = shared_scores(lineage) if shared is None else shared
    return _Tree(lineage, metric, winner, tests or {}, shared).drawing()


class _Tree:
    """Draws one lineage, with places from the layout and sizes from the style."""

    def __init__(
        self, lineage: Lineage, metric: Metric, winner: int | None, tests: Tests, shared: frozenset[int]
    ) -> None:
        self.original, all_trials = lineage, [*lineage]
        folded = FoldedLineage(lineage, {}) if supernet_epochs(all_trials) else fold_chains(lineage, keep=winner)
        self.folds, lineage = folded.folds, folded.lineage
        self.trials = sorted(lineage, key=lambda trial: trial.number)
        self.metric, self.winner, self.tests = metric, winner, tests
        self.epochs, self.shared = supernet_epochs(all_trials), shared & {trial.number for trial in all_trials}
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
        return Drawing(
            width=max(width, 200.0),
            height=bottom + self.style.half_height + 10,
            is_labeled=self.is_labeled,
            bands=(*self.family_bands(width), *self.column_bands()),
            texts=tuple(self.texts()),
            edges=tuple(self.edges()),
            nodes=tuple(self.node(trial) for trial in self.trials),
            legend=tuple(self.legend()),
        )

    @property
    def pad(self) -> float:
        """From the middle of a mark to the end of the band behind it."""
        return self.style.half_height + (6 if self.is_labeled else 2)

    def family_bands(self, width: float) -> Iterator[Band]:
        """Yields a band for each family."""
        for family in self.layout.families:
            top, bottom = self.y(family.top) - self.pad, self.y(family.bottom) + self.pad
            yield 1, top, width - 2, bottom - top

    def column_bands(self) -> Iterator[Band]:
        """Yields a band for each supernet epoch, or later stage."""
        top, bottom = self.y(0) - self.pad, self.y(max(1.0, self.layout.n_rows - 1)) + self.pad
        for column in self.layout.columns:
            left = self.x(column.start) - self.style.half_width - 4
            width = (column.width - 1) * self.style.column + 2 * self.style.half_width + 8
            yield left, top, width, bottom - top

    def texts(self) -> Iterator[Text]:
        """Yields the headings of columns, and that of the trials without a family."""
        n_columns = max((family.n_columns for family in self.layout.families), default=0)
        every = next(n for n in (1, 2, 5, 10, 20, 50, 100, 1000) if n * self.style.column >= 26)
        headings = {column.start: column.heading for column in self.layout.columns}
        if not self.folds:
            headings |= {column: str(column) for column in range(0, n_columns, every)}
        if headings:
            yield Text(4, 10, "supernet epoch" if self.layout.columns else "generation", "start", "soft")
        for place, heading in headings.items():
            yield Text(self.x(place), 27, heading, kind="soft")
        if self.layout.single_row is not None and self.layout.families:
            y = self.y(self.layout.single_row) - self.pad - 5
            yield Text(4, y, f"no parent, no child{self.but_crossed()}", "start", "soft")

    def but_crossed(self) -> str:
        """Returns an addition to the heading if one of these trials has a child."""
        below, parents = self.layout.single_row, {number for trial in self.trials for number in trial.parents}
        singles = (n for n, (_, row) in self.layout.places.items() if below is not None and row >= below)
        return " but by crossing" if parents & {*singles} else ""

    def edges(self) -> Iterator[Edge]:
        """Yields edges from second parents, parents and other donors, and last the winner's line."""
        drawn: dict[str, list[Edge]] = {"second": [], "": [], "spine": [], "donor": [], "line": []}
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
        """Returns whether an edge shows the donor: neither a parent nor the epoch above has one."""
        return donor in self.layout.places and donor not in trial.parents and not self.is_below(trial, donor)

    def is_below(self, trial: Trial, source: Donor | None) -> bool:
        """Returns whether a subnet stands in the column of the epoch that gave its weights."""
        is_subnet = trial.number not in self.epochs and trial.stage == self.first_stage
        return is_subnet and source in self.epochs and source == donor_of(trial)

    def edge(self, source: int, child: Trial, kind: str, *, share: float | None) -> Edge:
        """Returns an edge from the source's right to the child's left.

        Below supernet epochs it leads around the marks between them.
        """
        start, end, style = self.place(source), self.place(child.number), self.style
        is_far = self.layout.places[child.number][0] - self.layout.places[source][0] > 1
        if is_far and self.layout.columns and child.number not in self.epochs:
            path = way_around(start, end, half_width=style.half_width, column=style.column, row=style.row)
        else:
            path = curve(start, end, style.half_width)
        return Edge(kind, source, child.number, self.stroke(share, kind), path)

    def stub(self, trial: Trial) -> Edge:
        """Returns an edge from a donor in another search, which has no place."""
        x, y = self.place(trial.number)
        length = min(20.0, self.style.column / 2)
        start = f"M{x - self.style.half_width - length:.1f} {y - length / 2:.1f}l{length:.1f} {length / 2:.1f}"
        return Edge("donor", None, trial.number, self.stroke(trial.inherited, "donor"), start)

    def stroke(self, share: float | None, kind: str) -> str:
        """Returns the width of an edge over which this share of the parameters was inherited."""
        if kind == "spine":
            return "5" if self.is_labeled else "3"
        least, most = (1.2, 3.0 if kind == "donor" else 5.0) if self.is_labeled else (0.7, 2.4)
        return f"{least + (most - least) * (share or 0.0):.1f}"

    def label(self, trial: Trial) -> str:
        """Returns the number, and the score or the state; scores of shared weights are in brackets.

        A supernet epoch has its own number, which is not that of its trial.
        """
        score = trial.value(self.metric.name)
        scale = self.shared_scale if trial.number in self.shared else self.scale
        shown = str(trial.state).lower() if score is None or scale is None else scale.text(score)
        shown = f"({shown})" if score is not None and trial.number in self.shared else shown
        shown = f"epoch {epoch_of(trial.point)}" if trial.number in self.epochs else shown
        return f"{'★ ' if trial.number == self.winner else ''}{trial.number}  {shown}"

    def fold(self, trial: Trial) -> Node:
        """Returns the mark of a folded chain, of which ``trial`` is the first."""
        x, y = self.place(trial.number)
        numbers = self.folds[trial.number]
        values = [v for n in numbers if (v := self.original[n].value(self.metric.name)) is not None]
        best = f", best {self.metric.name} {number(max(values, key=self.metric.rank))}" if values else ""
        name = f"{count(len(numbers), 'trial')} folded, each the only child of the one before: {numbers[0]} to "
        half = max(self.style.half_width, 16.0) if self.is_labeled else 2 * self.style.half_width
        return Node(
            kind="node fold line" if trial.number in self.line else "node fold",
            trial=trial.number,
            parent=trial.parents[0],
            place=f"{x:.1f} {y:.1f}",
            name=f"{name}{numbers[-1]}{best}",
            summary=f"{name}{numbers[-1]}{best}\nThe table has them.",
            paths=(Path("mark", pill(State.WAITING, half, self.style.half_height)),),
            label=f"⋯  {len(numbers)}" if self.is_labeled else "",
            folded=numbers,
        )

    def node(self, trial: Trial) -> Node:
        if trial.number in self.folds:
            return self.fold(trial)
        x, y = self.place(trial.number)
        size = self.style.half_width, self.style.half_height
        is_final, is_shared = trial.stage != self.first_stage, trial.number in self.shared
        name = f"trial {trial.number}, {trial.state}"
        if (score := trial.value(self.metric.name)) is not None:
            name += f", {self.metric.name} {number(score)}{SHARED if is_shared else ''}"
        return Node(
            kind=" ".join(["node", *self.kinds(trial, score)]),
            trial=trial.number,
            parent=trial.parents[0] if trial.parents else None,
            place=f"{x:.1f} {y:.1f}",
            name=name,
            summary=trial_summary(self.original[trial.number], self.tests, is_shared=is_shared),
            paths=self.paths(trial.state, size, is_final=is_final, is_winner=trial.number == self.winner),
            label=self.label(trial) if self.is_labeled else "",
        )

    def kinds(self, trial: Trial, score: float | None) -> Iterator[str]:
        """Yields the classes of a trial: its state, and the step of its color."""
        is_shared, is_epoch = trial.number in self.shared, trial.number in self.epochs
        marks = {"final": trial.stage != self.first_stage, "line": trial.number in self.line}
        marks |= {"winner": trial.number == self.winner, "epoch": is_epoch, "shared": is_shared and not is_epoch}
        yield str(trial.state).lower()
        yield from (kind for kind, holds in marks.items() if holds)
        if score is not None and self.scale is not None and not is_shared:
            yield f"q{self.scale.step(score)}"

    def paths(
        self, state: State, size: tuple[float, float], *, is_final: bool = False, is_winner: bool = False
    ) -> tuple[Path, ...]:
        """Returns a mark of the kind that this tree has, with half its width and height."""
        if not self.is_labeled:
            return (Path("mark", dot(state, size[1], is_final=is_final, is_winner=is_winner)),)
        ring = (Path("ring", pill(state, *size, margin=3)),) if is_final else ()
        return (*ring, Path("mark", pill(state, *size)))

    def legend(self) -> Iterator[LegendItem]:
        """Yields what occurs in this tree."""
        if self.scale is not None:
            yield ramp_item(self.scale, self.metric.name)
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
                yield node_item(self.sample(state), str(state).lower(), str(state).lower())
        for stage in dict.fromkeys(t.stage for t in self.trials if t.stage != self.first_stage):
            yield node_item(self.sample(State.COMPLETE, is_final=True), "final", f"stage {stage}")
        if self.folds:
            yield node_item(
                (Path("mark", pill(State.WAITING, 10, 5)),), "fold", "a long chain of only children, folded"
            )
        if self.winner is not None and not self.is_labeled:
            yield node_item([Path("mark", dot(State.COMPLETE, 4, is_winner=True))], "line winner", best)

    def trials_of_stage(self) -> Iterator[int]:
        """Returns the trials of the search stage."""
        return (trial.number for trial in self.trials if trial.stage == self.first_stage)

    def shared_legend(self) -> Iterator[LegendItem]:
        """Yields the marks of a supernet and its subnets."""
        if self.epochs:
            yield edge_item("spine", "supernet epochs, each above the subnets that have its weights")
        if self.shared - self.epochs:
            yield node_item(self.sample(State.COMPLETE), "shared", f"scored {WITH_SHARED_WEIGHTS}")

    def sample(self, state: State, *, is_final: bool = False) -> tuple[Path, ...]:
        return self.paths(state, (9, 5.5 if self.is_labeled else 5), is_final=is_final)
