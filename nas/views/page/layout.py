"""Places of trials in the family tree: generations as columns, families one below the other.

A tidy tree (Reingold and Tilford 1981, IEEE TSE 7(2)) in linear time. Subtrees are pushed together until their outlines
touch, and a parent stands in the middle of its children. There is no recursion, so a line of thousands of trials works.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nas.core.lineage import Lineage
from nas.core.trial import Trial

_FAMILY_GAP = 0.5


@dataclass(frozen=True, slots=True)
class Family:
    """A trial without a parent and its descendants: the rows and columns that they take."""

    n_columns: int
    top: float
    bottom: float


@dataclass(frozen=True, slots=True)
class Column:
    """One or more columns with a heading: a supernet epoch with its subnets, or a stage."""

    heading: str
    start: int
    width: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Places by trial as (column, row).

    Attributes:
        places: Of each trial; a trial with relatives has its generation as column.
        families: Those of at least two members, from top to bottom.
        single_row: The first row of the trials without relatives, or None where there are none.
        n_columns: Columns in use.
        n_rows: Rows in use.
        columns: Columns with headings, in a search with supernet epochs (`nas.views.page.epoch_columns`).
    """

    places: Mapping[int, tuple[int, float]]
    families: tuple[Family, ...]
    single_row: float | None
    n_columns: int
    n_rows: float
    columns: tuple[Column, ...] = ()


@dataclass(slots=True)
class _Outline:
    """The upper and the lower edge of a subtree, from the deepest column to the root's."""

    upper: list[float] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    shift: float = 0.0


def lay_out(lineage: Lineage, *, single_columns: int) -> Layout:
    """Gives every trial a place.

    Args:
        lineage: The trials.
        single_columns: How many trials without relatives stand side by side, at least.
    """
    trials = sorted(lineage, key=lambda trial: trial.number)
    parent = tree_parents(trials)
    children: dict[int, list[int]] = {}
    for child, elder in parent.items():
        children.setdefault(elder, []).append(child)
    outlines, offset = _outlines(trials, children)
    column: dict[int, int] = {}
    for trial in trials:
        column[trial.number] = column[parent[trial.number]] + 1 if trial.number in parent else 0
    row: dict[int, float] = {}
    families, below = [], 0.0
    root_of: dict[int, int] = {}
    members: dict[int, int] = {}
    for trial in trials:
        root = root_of[trial.number] = root_of.get(parent.get(trial.number, -1), trial.number)
        members[root] = members.get(root, 0) + 1
    for root, outline in outlines.items():
        if members[root] == 1:
            continue
        top, bottom = min(outline.upper) + outline.shift, max(outline.lower) + outline.shift
        row[root] = below - top
        families.append(Family(len(outline.upper), top=below, bottom=below + bottom - top))
        below += bottom - top + 1 + _FAMILY_GAP
    for trial in trials:
        if trial.number in parent:
            row[trial.number] = row[parent[trial.number]] + offset[trial.number]
    n_columns = max((family.n_columns for family in families), default=0)
    singles = [trial.number for trial in trials if trial.number not in row]
    wide = max(n_columns, min(single_columns, len(singles)))
    single_row = below if singles else None
    for place, number in enumerate(singles):
        column[number], row[number] = place % wide, (single_row or 0.0) + place // wide
    return Layout(
        places={number: (column[number], row[number]) for number in row},
        families=tuple(families),
        single_row=single_row,
        n_columns=wide,
        n_rows=max(row.values(), default=-1.0) + 1,
    )


def tree_parents(trials: Iterable[Trial]) -> dict[int, int]:
    """Returns the parent that each trial follows.

    Of several parents it is that of the latest generation, so that columns are generations.
    """
    generation = {trial.number: trial.generation for trial in trials}
    parents = {}
    for trial in trials:
        known = [number for number in trial.parents if number in generation and number < trial.number]
        if known:
            parents[trial.number] = max(known, key=lambda number: generation[number])
    return parents


def _outlines(trials: list[Trial], children: Mapping[int, list[int]]) -> tuple[dict[int, _Outline], dict[int, float]]:
    """Returns the outline of each oldest ancestor's family, and other trials' rows relative to their parents'."""
    open_: dict[int, _Outline] = {}
    offset: dict[int, float] = {}
    for trial in reversed(trials):
        outline = _Outline()
        roots: list[float] = []
        for child in children.get(trial.number, ()):
            below = open_.pop(child)
            outline = _joined(outline, below) if roots else below
            roots.append(outline.lower[-1] + outline.shift)
        middle = (roots[0] + roots[-1]) / 2 if roots else 0.0
        for child, root in zip(children.get(trial.number, ()), roots, strict=True):
            offset[child] = root - middle
        outline.upper.append(middle - outline.shift)
        outline.lower.append(middle - outline.shift)
        outline.shift -= middle
        open_[trial.number] = outline
    return {number: open_[number] for number in sorted(open_)}, offset


def _joined(above: _Outline, below: _Outline) -> _Outline:
    """Returns one outline of two, the second pushed down until no column overlaps.

    The time is linear in the depth of the shallower one.
    """
    depth = min(len(above.upper), len(below.upper))
    gaps = (above.lower[-i] + above.shift - below.upper[-i] - below.shift for i in range(1, depth + 1))
    below.shift += max(gaps) + 1
    if len(above.upper) >= len(below.upper):
        for i in range(1, depth + 1):
            above.lower[-i] = below.lower[-i] + below.shift - above.shift
        return above
    for i in range(1, depth + 1):
        below.upper[-i] = above.upper[-i] + above.shift - below.shift
    return below
