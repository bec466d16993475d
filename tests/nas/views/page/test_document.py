"""The page, its family tree and its curve: what they show, that foreign text stays text, and a real browser."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.pareto import numbers_on_front
from nas.core.policy import Policy
from nas.core.supernet import supernet_epochs
from nas.core.trial import Reason, State, Trial
from nas.storage.open import open_root
from nas.views.comparison.curves import best_so_far
from nas.views.comparison.searches import ComparedSearch
from nas.views.page.chart import Chart, Frame, ticks
from nas.views.page.curve import best_curve
from nas.views.page.document import lineage_page
from nas.views.page.epoch_columns import lay_out_epochs
from nas.views.page.epochs import epoch_charts
from nas.views.page.layout import lay_out
from nas.views.page.palette import N_STEPS, ScoreScale
from nas.views.page.plan import policy_plan
from nas.views.page.scatter import objectives_scatter
from nas.views.page.templates import render
from nas.views.page.tree import MAX_LABELED, Drawing, draw_tree, family_tree_svg
from nas.views.snapshot import Snapshot, read_snapshot
from nas.views.trial_summary import trial_summary
from tests.support.chromium import column, shown
from tests.support.sample_searches import BEGAN, evolved, one_shot, trial, write_search

ACCURACY = Metric("accuracy")
OBJECTIVES = (ACCURACY, Metric("flops", "minimize"))
SVG = "{http://www.w3.org/2000/svg}"
ATTACK = "</title></script><script>document.title='taken'</script><img src=x onerror=\"document.title='taken'\">"


def snapshot_of(trials: list[Trial], folder: Path, **more: Any) -> Snapshot:
    """What the records of a search with these trials say."""
    write_search(folder, "search", trials, **more)
    return read_snapshot(open_root(f"{folder}/search"), BEGAN + 100)


def two_objectives(trials: list[Trial], folder: Path) -> Snapshot:
    """A search that also wants its networks small: accuracy costs flops, some more than others."""
    sized = [
        replace(t, metrics={**t.metrics, "flops": 1e6 * t.metrics["accuracy"] ** 9 * (1 + t.number * 7 % 11)})
        if t.metrics
        else t
        for t in trials
    ]
    return snapshot_of(sized, folder, metrics=OBJECTIVES)


def tree_of(trials: list[Trial], **more: Any) -> ET.Element:
    """The tree's drawing, parsed."""
    return parsed_tree(draw_tree(Lineage.of(trials), ACCURACY, **more))


def parsed_tree(drawing: Drawing) -> ET.Element:
    """A tree's SVG, parsed."""
    return ET.fromstring(f"<svg>{render('tree.svg', tree=drawing, has_links=False)}</svg>")


def parsed(chart: Chart) -> ET.Element:
    """A chart's SVG, parsed."""
    return ET.fromstring(render("chart.svg", chart=chart))


def having(element: ET.Element, kind: str) -> list[ET.Element]:
    return [inner for inner in element.iter() if kind in inner.get("class", "").split()]


class Tags(HTMLParser):
    """Every start tag with its attributes, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


# ---- the layout


@pytest.mark.parametrize("n", [1, 2, 12, 60, 61, 500])
def test_no_two_trials_in_one_place(n: int) -> None:
    """Within a column, trials stand at least a row apart."""
    layout = lay_out(Lineage.of(evolved(n) if n > 2 else [trial(i) for i in range(n)]), single_columns=8)

    columns: dict[int, list[float]] = {}
    for place, row in layout.places.values():
        columns.setdefault(place, []).append(row)
    assert len(layout.places) == n
    assert all(b - a >= 1 - 1e-9 for rows in columns.values() for a, b in pairwise(sorted(rows)))
    assert all(0 <= row <= layout.n_rows - 1 + 1e-9 for rows in columns.values() for row in rows)


def test_columns_are_generations() -> None:
    """A trial with relatives stands in the column of its generation, and below no other family."""
    trials = evolved(200)
    layout = lay_out(Lineage.of(trials), single_columns=8)

    relatives = {number for t in trials for number in (*t.parents, *([t.number] if t.parents else []))}
    assert all(layout.places[t.number][0] == t.generation for t in trials if t.number in relatives)
    assert all(above.bottom < below.top for above, below in pairwise(layout.families))
    below = math.inf if layout.single_row is None else layout.single_row
    assert {number for number, (_, row) in layout.places.items() if row < below} == relatives


def test_a_child_of_two_stands_below_the_elder_generation() -> None:
    """Of two parents, the one of the later generation is followed, so that edges lead to the right."""
    trials = [trial(0), trial(1, parents=(0,), generation=1), trial(2, parents=(0, 1), generation=2)]

    assert [lay_out(Lineage.of(trials), single_columns=8).places[n][0] for n in range(3)] == [0, 1, 2]


def test_a_line_of_thousands() -> None:
    """A line of 3,000 trials is laid out: no recursion, no quadratic time."""
    trials = [trial(n, parents=(n - 1,) if n else (), generation=n, score=0.5) for n in range(3000)]
    layout = lay_out(Lineage.of(trials), single_columns=8)

    assert (layout.n_columns, layout.n_rows) == (3000, 1)


def test_trials_without_relatives() -> None:
    """A search without parents is a grid, not one long column."""
    layout = lay_out(Lineage.of([trial(n) for n in range(20)]), single_columns=8)

    assert (layout.n_columns, layout.n_rows, layout.families) == (8, 3, ())


@pytest.mark.parametrize(("n_epochs", "n_subnets"), [(1, 0), (6, 5), (12, 30)])
def test_supernet_epochs_are_one_line(n_epochs: int, n_subnets: int) -> None:
    """Epochs stand in a row from left to right, and below each one the subnets that have its weights."""
    trials = one_shot(n_epochs, n_subnets)
    layout = lay_out_epochs(Lineage.of(trials))
    epochs = [t.number for t in trials if "supernet_epoch" in t.point]

    assert {layout.places[number][1] for number in epochs} == {0}
    starts = [layout.places[number][0] for number in epochs]
    assert starts == sorted(set(starts))
    within = {epoch: range(start, end) for epoch, (start, end) in zip(epochs, pairwise([*starts, 99]), strict=True)}
    subnets = [t for t in trials if t.stage == "search" and t.number not in epochs]
    assert all(layout.places[t.number][0] in within[t.resolved_donor] for t in subnets)  # type: ignore[index]
    assert all(layout.places[t.number][1] > 0 for t in trials if t.number not in epochs)
    assert len(set(layout.places.values())) == len(trials)
    assert [column.heading for column in layout.columns] == [
        *map(str, range(n_epochs)),
        *(["final"] if subnets else []),
    ]


def test_a_repeated_epoch_stands_below_the_line() -> None:
    """Of an epoch that failed and ran again, the newest trial is in the line, also before its subnets have weights."""
    failed = replace(trial(0, point={"supernet_epoch": 0}), state=State.FAILED, reason=Reason.LOST)
    trials = [failed, trial(1, point={"supernet_epoch": 0}, score=0.1), trial(2, donors=(1,)), trial(3)]
    layout = lay_out_epochs(Lineage.of(trials))

    assert layout.places == {1: (0, 0.0), 0: (0, 1.0), 2: (0, 2.0), 3: (1, 1.0)}
    assert [column.heading for column in layout.columns] == ["0", "other"]


# ---- the tree


@pytest.mark.parametrize("n", [0, 1, 12, MAX_LABELED, MAX_LABELED + 1, 400])
def test_standalone_svg(n: int) -> None:
    """The picture stands alone: well-formed, one mark a trial, own colors, nothing to load."""
    trials = evolved(n) if n > 2 else [trial(i, score=0.5) for i in range(n)]
    text = family_tree_svg(Lineage.of(trials), ACCURACY, heading="a <search> \x00\x1b & more")

    picture = ET.fromstring(text)
    legend = having(picture, "legend")[0]
    marks = [node for node in having(picture, "node") if node not in list(legend.iter())]
    assert (picture.tag, len(marks)) == (f"{SVG}svg", n)
    assert "var(" not in text
    assert not re.search(r"(href|src)=|url\((?!#)|@import", text)
    assert "a <search> \ufffd\ufffd & more" in "".join(picture.itertext())


def test_winner_of_a_standalone_svg() -> None:
    """By default a final is the winner, although a subnet has a better score of shared weights."""
    trials = [replace(t, metrics={**t.metrics, "accuracy": 0.1}) if t.stage == "final" else t for t in one_shot(4, 4)]
    picture = ET.fromstring(family_tree_svg(Lineage.of(trials), ACCURACY))
    [winner] = {int(node.get("data-n", "")) for node in having(picture, "winner") if node.get("data-n")}

    assert trials[winner].stage == "final"


def test_edges() -> None:
    """An edge leads from each parent, solid; from a donor that is no parent, dashed; as wide as the share inherited."""
    trials = [
        trial(0, score=0.5),
        trial(1, score=0.5),
        trial(2, parents=(0,), score=0.6, generation=1, donor=0, inherited=1.0),
        trial(3, parents=(0,), score=0.6, generation=1, donor=0, inherited=0.1),
        trial(4, parents=(0,), score=0.6, generation=1, donor=1, inherited=0.5),
        trial(5, parents=(0,), score=0.6, generation=1, donor="far:42", inherited=0.5),
    ]
    edges = having(tree_of(trials), "edge")

    solid = {(e.get("data-s"), e.get("data-c")): e for e in edges if "donor" not in e.get("class", "")}
    dashed = {(e.get("data-s"), e.get("data-c")) for e in edges if "donor" in e.get("class", "")}
    assert set(solid) == {("0", "2"), ("0", "3"), ("0", "4"), ("0", "5")}
    assert dashed == {("1", "4"), (None, "5")}
    widths = [float(solid["0", child].get("stroke-width", 0)) for child in "234"]
    assert widths[0] > widths[1] > widths[2]


def test_second_parents() -> None:
    """An edge from a second parent is dotted, and the legend says so; one that stands in no family is no stranger."""
    trials = [trial(0), trial(1), trial(2, parents=(0, 1), generation=1), trial(3)]
    drawing = draw_tree(Lineage.of(trials), ACCURACY)
    [edge] = having(parsed_tree(drawing), "second")

    assert (edge.get("data-s"), edge.get("data-c")) == ("1", "2")
    assert "from the second parent" in [item.text for item in drawing.legend]
    assert "no parent, no child but by crossing" in [text.text for text in drawing.texts]
    assert "by crossing" not in "".join(tree_of(evolved(30)).itertext())


def test_line_of_the_winner() -> None:
    """The winner and its ancestors, and the edges between them, are emphasized, and nothing else."""
    trials = evolved(50)
    lineage = Lineage.of(trials)
    tree = tree_of(trials, winner=48)

    line = [48, *(t.number for t in lineage.ancestors(48))]
    assert len(line) > 2
    assert {int(e.get("data-n", -1)) for e in having(tree, "node") if "line" in e.get("class", "").split()} == set(line)
    emphasized = [e for e in having(tree, "edge") if "line" in e.get("class", "").split()]
    assert {(int(e.get("data-c", 0)), int(e.get("data-s", 0))) for e in emphasized} == set(pairwise(line))


def test_every_state_has_a_mark() -> None:
    """Waiting, running, complete, stopped and failed trials are all drawn, and told in the legend."""
    trials = [
        trial(0, score=0.5),
        trial(1, score=0.4, state=State.STOPPED, reason=Reason.STOPPER),
        replace(trial(2), state=State.FAILED, reason=Reason.TIMEOUT),
        trial(3, state=State.RUNNING),
        trial(4),
    ]
    drawing = draw_tree(Lineage.of(trials), ACCURACY)

    said = " ".join(item.text for item in drawing.legend)
    for state in State:
        assert having(parsed_tree(drawing), str(state).lower())
        assert str(state).lower() in said


def test_labels() -> None:
    """Up to sixty trials carry their number and score; beyond, marks are small and have none."""
    small, large = evolved(MAX_LABELED), evolved(MAX_LABELED + 1)

    labels = ["".join(node.itertext()) for node in having(tree_of(small), "node")]
    assert all(label.split("trial")[0] == "" for label in labels)
    assert all(list(node)[-1].tag == "text" for node in having(tree_of(small), "node"))
    assert not any(list(node)[-1].tag == "text" for node in having(tree_of(large), "node"))


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_colors_of_scores(direction: Any) -> None:
    """The best score has the last step of the ramp and the worst the first, whichever way is better."""
    metric = Metric("loss", direction)
    scores = [0.1 * n for n in range(20)]
    scale = ScoreScale.of(scores, metric)
    assert scale is not None

    worst, *_, best = sorted(scores, key=metric.rank)
    steps = [scale.step(score) for score in sorted(scores, key=metric.rank)]
    assert (scale.step(worst), scale.step(best)) == (0, N_STEPS - 1)
    assert steps == sorted(steps)


def test_colors_of_an_outlier() -> None:
    """A score far from close ones, or scores whose difference is the least of floats, have colors."""
    close = [0.5 + 1e-9 * n for n in range(8)]
    scale = ScoreScale.of([-1e300, *close], ACCURACY)
    assert scale is not None

    assert (scale.step(-1e300), scale.step(close[-1]), scale.step(1e300)) == (0, N_STEPS - 1, N_STEPS - 1)
    assert ScoreScale(0.0, 5e-324, is_clipped=False).step(5e-324) == N_STEPS - 1


@pytest.mark.parametrize(("n_epochs", "n_subnets"), [(6, 5), (12, 30)])
def test_subnets_are_hollow(n_epochs: int, n_subnets: int) -> None:
    """A shared score gives no color, and stands in brackets; the scale of colors is that of the finals."""
    trials = one_shot(n_epochs, n_subnets)
    drawing = draw_tree(Lineage.of(trials), ACCURACY, winner=trials[-1].number)
    tree = parsed_tree(drawing)
    nodes = {int(node.get("data-n", "")): node for node in having(tree, "node")}

    colored = {n for n, node in nodes.items() if re.search(r"\bq\d", node.get("class", ""))}
    assert colored == {t.number for t in trials if t.stage == "final"}
    assert {int(node.get("data-n", "")) for node in having(tree, "epoch")} == supernet_epochs(trials)
    hollow = {int(node.get("data-n", "")) for node in having(tree, "shared")}
    assert hollow == {t.number for t in trials} - colored - supernet_epochs(trials)
    assert all("with shared weights" in nodes[n].get("aria-label", "") for n in hollow)
    if drawing.is_labeled:
        assert all(re.fullmatch(rf"{n}\s+\(0\.\d+\)", "".join(nodes[n][-1].itertext())) for n in hollow)
    assert drawing.legend[0].text.startswith("accuracy 0.9")
    said = [item.text for item in drawing.legend]
    assert "scored with shared weights, no accuracy of the architecture" in said
    assert "supernet epochs, each above the subnets that have its weights" in said
    assert "weights from another donor" not in said


def test_edges_of_a_supernet() -> None:
    """Epochs are joined; a subnet's edge is from its parent, since the epoch above it gave the weights."""
    trials = one_shot(6, 5)
    edges = having(tree_of(trials), "edge")

    spine = {(e.get("data-s"), e.get("data-c")) for e in edges if "spine" in e.get("class", "").split()}
    epochs = [str(n) for n in sorted(supernet_epochs(trials))]
    assert spine == set(pairwise(epochs))
    assert {(e.get("data-s"), e.get("data-c")) for e in edges} - spine == {
        (str(parent), str(t.number)) for t in trials for parent in t.parents if str(t.number) not in epochs
    }


def test_a_subnet_whose_parent_is_its_epoch() -> None:
    """A point that an epoch suggested has no edge from it, since it stands below; the winner's line has one."""
    epochs = [
        trial(0, score=0.1, point={"supernet_epoch": 0}),
        trial(1, parents=(0,), score=0.2, point={"supernet_epoch": 1}),
    ]
    subnets = [trial(n, parents=(1,), donors=(1,), donor=1, score=0.3) for n in (2, 3)]

    edges = having(tree_of([*epochs, *subnets], winner=3), "edge")
    assert {(e.get("data-s"), e.get("data-c")) for e in edges} == {("0", "1"), ("1", "3")}


@pytest.mark.parametrize(("n_epochs", "n_subnets"), [(6, 5), (12, 30)])
def test_edges_of_a_supernet_pass_between_marks(n_epochs: int, n_subnets: int) -> None:
    """An edge over several columns runs between two rows, so that no mark hides it: also the winner's line."""
    trials = one_shot(n_epochs, n_subnets)
    tree = tree_of(trials, winner=trials[-1].number)
    searched = {str(t.number) for t in trials if t.stage == "search"}
    marks = [node for node in having(tree, "node") if node.get("data-n") in searched]
    rows = {float(re.findall(r"[\d.]+", node.get("transform", ""))[1]) for node in marks}
    half = 12 if len(trials) <= MAX_LABELED else 3.4

    paths = [edge.get("d", "") for edge in having(tree, "edge")]
    lanes = [float(found[1]) for path in paths if (found := re.search(r" ([\d.]+)H", path))]
    assert lanes
    assert all(abs(lane - row) > half for lane in lanes for row in rows)


# ---- the curve


def test_best_so_far() -> None:
    """The step line goes through the search stage's running best; finals and failures are marks of their own."""
    scores = {0: 0.5, 1: 0.7, 2: 0.6, 3: 0.8}
    trials = [trial(n, score=score) for n, score in scores.items()]
    trials += [replace(trial(4), state=State.FAILED), trial(5, parents=(3,), score=0.95, stage="final")]
    curve = parsed(best_curve(Lineage.of(trials), ACCURACY, winner=5))

    (best,) = having(curve, "best")
    assert best.get("d", "").count("V") == 2
    assert [len(having(curve, kind)) for kind in ("complete", "final", "missing")] == [4, 2, 1]
    assert "★ 0.95" in "".join(curve.itertext())


def test_scores_on_a_part_of_the_data_look_another_way() -> None:
    """Those made under QUICK_EVAL are hollow, in any stage, and the legend and the mark's title say so."""
    quick = {"policies": frozenset({Policy.QUICK_EVAL})}
    trials = [trial(0, score=0.9, **quick), trial(1, score=0.7)]
    trials += [trial(n, parents=(0,), score=0.8, stage="final", **more) for n, more in ((2, quick), (3, {}))]
    chart = best_curve(Lineage.of(trials), ACCURACY)
    hollow = having(parsed(chart), "quick")

    assert [mark.get("data-n") for mark in hollow] == ["0", "2"]
    assert all("on a part of the validation data" in "".join(mark.itertext()) for mark in hollow)
    part = ", on a part of the validation data"
    assert [item.text for item in chart.legend[1:]] == [
        "complete",
        f"complete{part}",
        f"stage final{part}",
        "stage final",
    ]


def test_shared_scores_on_the_curve() -> None:
    """Shared scores are hollow marks, and the best so far leaves them out."""
    trials = one_shot(4, 4)
    chart = best_curve(Lineage.of(trials), ACCURACY, winner=trials[-1].number)
    curve = parsed(chart)

    assert having(curve, "best") == []
    assert len(having(curve, "epoch")) == 4
    assert len(having(curve, "shared")) == sum("op_0" in t.point and t.stage == "search" for t in trials)
    assert all("no accuracy of the architecture" in "".join(mark.itertext()) for mark in having(curve, "shared"))
    assert not any("best so far" in item.text for item in chart.legend)
    trained = trial(len(trials) - 2, score=0.5)
    chart = best_curve(Lineage.of([*trials[:-2], trained]), ACCURACY)
    [best] = having(parsed(chart), "best")
    assert re.fullmatch(r"M[\d.]+ [\d.]+H[\d.]+", best.get("d", ""))
    assert chart.legend[0].text == "best so far, stage search"


def test_only_trials_that_can_win_are_the_best(tmp_path: Path) -> None:
    """Trials of older code, stopped ones and scores of shared weights are the best of no curve and no stage."""
    trials = one_shot(2, 3, n_finals=0)
    best = len(trials)
    trials += [trial(best, score=0.05), trial(best + 1, score=0.91, outdated=True)]
    trials.append(trial(best + 2, score=0.92, state=State.STOPPED, reason=Reason.STOPPER))
    snapshot = replace(snapshot_of(trials, tmp_path), lineage=Lineage.of(trials))
    compared = best_so_far(ComparedSearch(snapshot=snapshot, budget={}), "trials")

    assert policy_plan(snapshot).stages[0].best == f"0.05 (trial {best})"
    assert compared is not None
    assert compared.values == (0.05,)
    assert [note.text for note in best_curve(snapshot.lineage, ACCURACY).notes] == ["0.05"]


def test_curves_leave_out_more_epochs(tmp_path: Path) -> None:
    """In a plan of one stage a training that goes on is no trial of the search; a retry is no further one."""
    trials = [trial(0, score=0.5), trial(1, state=State.FAILED), trial(2, score=0.6, point={"width": 8})]
    trials += [trial(3, score=0.7, index=1, retry_of=1), trial(4, parents=(3,), score=0.9, more_epochs=5)]
    snapshot = replace(snapshot_of(trials[:1], tmp_path), lineage=Lineage.of(trials))
    compared = best_so_far(ComparedSearch(snapshot=snapshot, budget={}), "trials")

    assert compared is not None
    assert (compared.values, compared.end) == ((0.5, 0.6, 0.7), 3.0)
    assert "3 trials; the best are drawn last" in lineage_page(snapshot)
    assert [note.text for note in best_curve(snapshot.lineage, ACCURACY).notes] == ["0.7"]


def test_trained_scores_are_on_the_axis() -> None:
    """A final stays on the axis, also if most scores are shared ones far from its own; a far shared score does not."""
    trials = one_shot(6, 5, n_finals=0)
    trials = [replace(t, metrics={"accuracy": t.metrics["accuracy"] - (9 if t.number == 3 else 0)}) for t in trials]
    trials.append(trial(len(trials), score=-2.0, stage="final"))
    curve = parsed(best_curve(Lineage.of(trials), ACCURACY))

    assert [mark.get("data-n") for mark in having(curve, "beyond")] == ["3"]
    assert [mark.get("data-n") for mark in having(curve, "final") if mark.get("data-n")] == [str(len(trials) - 1)]


def test_charts_of_epochs() -> None:
    """Each metric that supernet epochs report has a chart over the epochs, the search's own first; others have none."""
    trials = one_shot(5, 3)
    charts = epoch_charts(Lineage.of(trials), ACCURACY)

    assert [name for name, _ in charts] == ["accuracy (mean of subnets)", "skips", "entropy"]
    for name, chart in charts[1:]:
        titles = [mark[0].text for mark in having(parsed(chart), "epoch")]
        own = [t for t in trials if "supernet_epoch" in t.point]
        said = (f"epoch {t.point['supernet_epoch']}, trial {t.number}: {name} {t.metrics[name]:.4g}" for t in own)
        assert titles == [*said]
    assert epoch_charts(Lineage.of(evolved(12)), ACCURACY) == []


@pytest.mark.parametrize("values", [[0.0], [2.0, 2.0], [-1.7e308, 1.7e308], [1.0, float("nan"), 3.0]])
def test_charts_of_any_range(values: list[float]) -> None:
    """One epoch, equal values, the ends of floats and NaN are drawn within the picture."""
    trials = [
        trial(n, score=0.5, metrics={"accuracy": 0.5, "skips": value}, point={"supernet_epoch": n})
        for n, value in enumerate(values)
    ]
    svg = render("chart.svg", chart=dict(epoch_charts(Lineage.of(trials), ACCURACY))["skips"])
    marks = having(ET.fromstring(svg), "epoch")
    places = [re.findall(r"[\d.]+", mark.get("transform", "")) for mark in marks]

    assert len(marks) == sum(value == value for value in values)
    assert all(0 < float(x) < 300 and 0 < float(y) < 140 for x, y in places)
    assert not re.search(r'[" ](nan|-?inf)\b', svg)


def test_best_so_far_of_a_loss() -> None:
    """Where less is better, the line goes down, and the axis says so."""
    metric = Metric("loss", "minimize")
    trials = [trial(n, score=1.0, metrics={"loss": loss}) for n, loss in enumerate([3.0, 2.0, 2.5, 1.0])]
    curve = parsed(best_curve(Lineage.of(trials), metric))

    (best,) = having(curve, "best")
    heights = [float(y) for y in re.findall(r"V([\d.]+)", best.get("d", ""))]
    assert heights == sorted(heights)
    assert len(heights) == 2
    assert "loss (lower is better)" in "".join(curve.itertext())


def test_outliers_do_not_flatten_the_curve() -> None:
    """A few scores far off are marked at the edge, so that the axis serves the others."""
    trials = [trial(n, score=0.9 + 0.001 * n) for n in range(30)] + [trial(30, score=-1e9)]
    curve = parsed(best_curve(Lineage.of(trials), ACCURACY))

    assert [e.get("data-n") for e in having(curve, "beyond")] == ["30"]


@pytest.mark.parametrize("scores", [[-1.7e308, 1.7e308], [1.7e308], [0.5, 0.6, 1.7e308, -1.7e308], [1e308, 1.7e308]])
def test_page_of_scores_at_the_ends_of_floats(scores: list[float], tmp_path: Path) -> None:
    """Scores whose differences are infinite are drawn within the picture, without "nan" and "inf"."""
    page = lineage_page(snapshot_of([trial(n, score=score) for n, score in enumerate(scores)], tmp_path))

    assert page.count('class="score') >= len(scores)
    assert not re.search(r'[" ](nan|-?inf)\b', page)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.9111, 0.9944), (0, 4999), (1e-7, 3e-7), (-5.0, 12.0)])
def test_ticks(low: float, high: float) -> None:
    """Ticks are round, lie within, and are three to eleven."""
    found = ticks(low, high)

    assert 3 <= len(found) <= 11
    assert low - 1e-12 <= found[0] < found[-1] <= high + 1e-12
    assert all(len(f"{tick:.12g}".strip("-0.").replace(".", "").rstrip("0")) <= 6 for tick in found)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.9111, 0.9944, ["0.92", "0.94", "0.96", "0.98"]),
        (2e-5, 8e-5, ["0.00002", "0.00004", "0.00006", "0.00008"]),
        (1e-7, 3e-7, ["1e-07", "1.5e-07", "2e-07", "2.5e-07", "3e-07"]),
        (0.9123451, 0.9123459, ["0.9123452", "0.9123454", "0.9123456", "0.9123458"]),
        (0.0, 4e6, ["0", "1e+06", "2e+06", "3e+06", "4e+06"]),
        (1234561.0, 1234569.0, ["1234562", "1234564", "1234566", "1234568"]),
    ],
)
def test_texts_of_ticks(low: float, high: float, expected: list[str]) -> None:
    """Ticks have the same decimals, or as many digits as tell them apart."""
    frame = Frame(width=100, height=100, left=50, right=90, top=10, bottom=90)

    assert [text.text for text in frame.texts(ticks(low, high), lambda value: 0.0)] == expected


def test_ticks_of_close_values_differ() -> None:
    """The charts of supernet epochs and of objectives tell close values apart."""
    values = [0.91234, 0.912352]
    epochs = [
        trial(n, score=0.5, metrics={"accuracy": 0.5, "skips": value}, point={"supernet_epoch": n})
        for n, value in enumerate(values)
    ]
    scored = [trial(n, score=value, metrics={"accuracy": value, "flops": 1e6}) for n, value in enumerate(values)]
    skips = dict(epoch_charts(Lineage.of(epochs), ACCURACY))["skips"]
    objectives = objectives_scatter(Lineage.of(scored), OBJECTIVES)

    assert [tick.text for tick in skips.ticks if tick.anchor == "end"] == ["0.912340", "0.912345", "0.912350"]
    assert [tick.text for tick in objectives.ticks if tick.anchor == "end"] == ["0.91234", "0.912345", "0.91235"]


def test_no_scores() -> None:
    """Without any score the curve says so."""
    for trials in ([trial(0)], []):
        chart = best_curve(Lineage.of(trials), ACCURACY)
        assert "no trial has a score yet" in "".join(parsed(chart).itertext())


# ---- the objectives


def test_scatter_shows_the_front(tmp_path: Path) -> None:
    """One mark a scored trial, those on the front told apart; a staircase a stage; nothing of one objective."""
    snapshot = two_objectives(evolved(60), tmp_path)
    picture = parsed(objectives_scatter(snapshot.lineage, OBJECTIVES, winner=58))

    scored = {t.number for t in snapshot.lineage if t.metrics}
    marks = having(picture, "score")
    leading = {int(mark.get("data-n", "")) for mark in having(picture, "leading")}
    assert {int(mark.get("data-n", "")) for mark in marks} == scored
    assert leading == numbers_on_front(snapshot.lineage, OBJECTIVES)
    assert len(having(picture, "front")) == 2
    assert "★ 58" in "".join(picture.itertext())
    page = lineage_page(snapshot)
    assert "Objectives and the front" in page
    assert "front (search): " in page
    assert "(the worst seen)" in page
    assert "Objectives and the front" not in lineage_page(snapshot_of(evolved(12), tmp_path / "one"))


def test_shared_scores_in_the_scatter(tmp_path: Path) -> None:
    """Shared scores are hollow here too, with the reason in title and legend; supernet epochs have no mark."""
    trials = one_shot(4, 4)
    snapshot = two_objectives(trials, tmp_path)
    chart = objectives_scatter(snapshot.lineage, OBJECTIVES)
    picture = parsed(chart)

    hollow = {int(mark.get("data-n", "")) for mark in having(picture, "shared")}
    assert hollow == {t.number for t in trials if t.stage == "search"} - supernet_epochs(trials)
    assert {int(mark.get("data-n", "")) for mark in having(picture, "score")} == {*hollow, *range(len(trials))[-2:]}
    assert all("no accuracy of the architecture" in "".join(mark.itertext()) for mark in having(picture, "shared"))
    assert "scored with shared weights, no accuracy of the architecture" in [item.text for item in chart.legend]


@pytest.mark.parametrize(
    "values",
    [
        [],
        [(0.5, 3.0)],
        [(0.5, 0.0), (0.5, 0.0)],
        [(0.1, 1e-9), (0.9, 1e12)],
        [(-1.7e308, -1.7e308), (1.7e308, 1.7e308)],
        [(0.5, 5e-324), (0.9, 1e-300)],
        [(0.5, 1.0), (1e300, 1.7e308)],
    ],
)
def test_scatter_of_any_range(values: list[tuple[float, float]]) -> None:
    """No trial, one, equal ones, twenty powers of ten, or the ends of floats: the marks lie within the picture."""
    trials = [trial(n, score=a, metrics={"accuracy": a, "flops": f}) for n, (a, f) in enumerate(values)]
    picture = parsed(objectives_scatter(Lineage.of(trials), OBJECTIVES))

    places = [re.findall(r"[\d.]+", mark.get("transform", "")) for mark in having(picture, "score")]
    assert len(places) == len(values)
    assert all(0 < float(x) < 1180 and 0 < float(y) < 460 for x, y in places)


# ---- the page


@pytest.fixture
def page(tmp_path: Path) -> str:
    """The page of a search with fifty trials."""
    return lineage_page(snapshot_of(evolved(50), tmp_path, tests={48: {"metrics": {"accuracy": 0.625}}}))


def test_self_contained(page: str) -> None:
    """The page names nothing to load, and its policy would refuse it."""
    tags = Tags(page).tags

    policy = next(a["content"] for tag, a in tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    links = [
        value or "" for _, a in tags for name, value in a.items() if name in ("href", "src", "action", "xlink:href")
    ]
    assert all(link.startswith(("#", "data:")) for link in links)
    assert "://" not in page
    assert "@import" not in page


def test_what_the_page_says(page: str) -> None:
    """The header has problem, tuner, seed, states, and the winner's validation and test score."""
    text = " ".join(Tags(page).text.split())

    for said in ("digits", "evolution (population_size=8)", "seed7", "50: ", " complete", "0.625 test"):
        assert said in text


def test_page_without_scripts(page: str) -> None:
    """Each trial is a link in the tree to its row in the table, with its details as a title, without any script."""
    tags = Tags(page).tags

    rows = {f"#{a['id']}" for tag, a in tags if tag == "tr" and (a.get("id") or "").startswith("trial-")}
    nodes = [a for tag, a in tags if tag == "a" and (a.get("class") or "").startswith("node")]
    assert [a["href"] for a in nodes] == [f"#trial-{n}" for n in range(50)]
    assert {a["href"] for a in nodes} == rows
    assert all((a["aria-label"] or "").startswith("trial ") for a in nodes)


def test_details_of_a_trial() -> None:
    """Each of several donors is told with what it gave; so are threads, where a trial had more than a slot's."""
    cost = {"seconds": 90.0, "threads": 4.0}
    child = trial(2, parents=(0, 1), score=0.5, donor=1, inherited=0.9, inheritance={"given": {"1": 0.6, "0": 0.3}})

    told = trial_summary(replace(child, cost=cost), {}).splitlines()
    assert "donors 1 (60%), 0 (30%) of the parameters" in told
    assert "took 1 min 30 s on 4 threads" in told
    alone = trial_summary(replace(child, inheritance={}), {}).splitlines()
    assert "donor 1, 90% of the parameters inherited" in alone
    assert "took 1.5 s" in alone


def test_foreign_text_stays_text(tmp_path: Path) -> None:
    """Markup in points, errors, names of metrics and parameters is shown as it is and opens no tag."""
    trials = [
        trial(0, score=0.5, metrics={"accuracy": 0.5, ATTACK: 1.0}, point={ATTACK: ATTACK, "deep": {"list": [ATTACK]}}),
        replace(trial(1, parents=(0,)), state=State.FAILED, error=ATTACK),
        trial(2, parents=(0,), score=0.6, index=0, stage=ATTACK),
    ]
    stages = [{"name": name, "policies": [], "warm": False} for name in ("search", ATTACK)]
    identity = {"tuner": {"target": f"x.{ATTACK}Tuner", "arguments": {ATTACK: ATTACK}}, "policy": stages}
    snapshot = snapshot_of(trials, tmp_path, identity=identity, tests={0: {"error": ATTACK}})
    page = lineage_page(replace(snapshot, name=ATTACK, winner=trials[0], best={"trial": 0, "export": ATTACK}))

    tags = [tag for tag, _ in Tags(page).tags]
    assert "img" not in tags
    assert [a.get("type") for tag, a in Tags(page).tags if tag == "script"] == ["application/json", None]
    assert ATTACK not in page


def test_a_subnet_as_the_best(tmp_path: Path) -> None:
    """The card says that the best was not trained itself; the table marks each shared score, and not a final's."""
    page = lineage_page(snapshot_of(one_shot(4, 4, n_finals=0), tmp_path))
    text = " ".join(Tags(page).text.split())

    assert re.search(r"accuracy 0\.\d+ with shared weights", text)
    assert "not trained itself: its score ranks subnets, and is no accuracy of the architecture" in text
    assert len(re.findall(r"<tr id=[^>]*shared", page)) == page.count("<tr id=")
    page = lineage_page(snapshot_of(one_shot(4, 4, n_finals=2), tmp_path / "finals"))
    assert "not trained itself" not in " ".join(Tags(page).text.split())
    assert len(re.findall(r"<tr id=[^>]*shared", page)) == page.count("<tr id=") - 2


def test_empty_search(tmp_path: Path) -> None:
    """A search that has not proposed anything yet has a page."""
    assert "No trial has a score yet" in lineage_page(snapshot_of([], tmp_path))


# ---- a real browser


@pytest.mark.slow
@pytest.mark.parametrize("n", [12, 50, 500])
def test_page_in_a_browser(browser: Any, tmp_path: Path, n: int) -> None:
    """The page opens without an error or a request, with one mark and one row a trial."""
    address = shown(browser, lineage_page(snapshot_of(evolved(n), tmp_path)), tmp_path)

    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert {urlsplit(url).scheme for url in asked} <= {"file", "data"}
    assert {url for url in asked if url.startswith("file:")} <= {address}
    counted = "return ['.tree .node', '#table tbody tr'].map((s) => document.querySelectorAll(s).length)"
    assert browser.execute_script(counted) == [n, n]
    inside = "const b = document.documentElement; return b.scrollWidth <= b.clientWidth"
    assert browser.execute_script(inside)


@pytest.mark.slow
@pytest.mark.parametrize(("n_epochs", "n_subnets"), [(6, 5), (12, 30)])
def test_supernet_in_a_browser(browser: Any, tmp_path: Path, n_epochs: int, n_subnets: int) -> None:
    """Epochs are on one line, marks of subnets are hollow and below, no two marks overlap, and nothing is an error."""
    trials = one_shot(n_epochs, n_subnets)
    shown(browser, lineage_page(snapshot_of(trials, tmp_path)), tmp_path)
    script = """
        const box = (e) => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; };
        const all = (kind) => [...document.querySelectorAll(`.view .node${kind} .mark`)];
        const fill = (e) => getComputedStyle(e).fill;
        const paper = getComputedStyle(document.documentElement).backgroundColor;
        return [all(".epoch").map(box), all(".shared").map(box), all("").map(box),
                all(".shared").every((e) => fill(e) === paper), document.querySelectorAll("#epochs figure svg").length];
    """
    epochs, hollow, marks, are_hollow, n_charts = browser.execute_script(script)

    assert browser.get_log("browser") == []
    assert len(epochs) == n_epochs
    assert max(top for _, top, _, _ in epochs) - min(top for _, top, _, _ in epochs) < 1
    assert min(top for _, top, _, _ in hollow) > max(bottom for *_, bottom in epochs)
    assert (are_hollow, n_charts) == (True, 3)
    overlapping = [
        (one, other)
        for place, one in enumerate(marks)
        for other in marks[:place]
        if one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
    ]
    assert overlapping == []
    node = browser.find_element("css selector", f'.tree [data-n="{trials[n_epochs].number}"]')
    browser.execute_script("arguments[0].focus()", node)
    assert "with shared weights" in browser.find_element("id", "tip").text


@pytest.mark.slow
def test_objectives_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """Pointing at a trial lights its marks in all pictures; the filter dims them all."""
    shown(browser, lineage_page(two_objectives(evolved(50), tmp_path)), tmp_path)
    node = browser.find_element("css selector", '.tree [data-n="3"]')
    browser.execute_script('arguments[0].dispatchEvent(new MouseEvent("mouseover", {bubbles: true}))', node)

    assert browser.get_log("browser") == []
    assert len(browser.find_elements("css selector", '.score.hot[data-n="3"]')) == 4
    browser.find_element("id", "filter").send_keys("front final")
    on_front = column(browser, "trial")
    assert column(browser, "front") == ["front"] * len(on_front)
    lit = browser.find_elements("css selector", "#objectives .score[data-n]:not(.dim)")
    assert sorted(element.get_attribute("data-n") for element in lit) == sorted(on_front)


@pytest.mark.slow
def test_sorting_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """A click on a score's head sorts the best first, a second one the worst; trials without a score stay last."""
    trials = evolved(50)
    shown(browser, lineage_page(snapshot_of(trials, tmp_path)), tmp_path)
    head = next(b for b in browser.find_elements("css selector", "thead button") if b.text == "metric.accuracy")

    head.click()
    best_first = column(browser, "metric.accuracy")
    head.click()
    worst_first = column(browser, "metric.accuracy")
    scores = [float(text) for text in best_first if text]
    n_without = sum(not t.metrics for t in trials)
    assert scores == sorted(scores, reverse=True)
    assert n_without > 0
    assert best_first[-n_without:] == worst_first[-n_without:] == [""] * n_without
    assert worst_first[: len(scores)] == sorted(worst_first[: len(scores)], key=float)
    assert head.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"


@pytest.mark.slow
def test_filter_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """The filter keeps the rows that have all its words, dims the other marks, and says how many there are."""
    trials = evolved(50)
    shown(browser, lineage_page(snapshot_of(trials, tmp_path)), tmp_path)

    browser.find_element("id", "filter").send_keys("failed valueerror")
    failed = [str(t.number) for t in trials if t.state == State.FAILED]
    assert column(browser, "trial") == failed
    assert browser.find_element("id", "counted").text == f"{len(failed)} of 50 trials"
    assert len(browser.find_elements("css selector", ".tree .node:not(.dim)")) == len(failed)
    browser.execute_script("location.hash = '#trial-1'")
    browser.execute_script("return new Promise((done) => setTimeout(done, 100))")
    assert len(column(browser, "trial")) == 50


@pytest.mark.slow
def test_tip_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """Pointing at a trial, or reaching it by keyboard, shows its details and its line; Escape hides them."""
    trials = evolved(50)
    shown(browser, lineage_page(snapshot_of(trials, tmp_path)), tmp_path)
    tip = browser.find_element("id", "tip")
    node = browser.find_element("css selector", '.tree [data-n="48"]')

    assert not tip.is_displayed()
    browser.execute_script("arguments[0].focus()", node)
    assert tip.text.startswith("trial 48: COMPLETE\nstage final")
    line = {48, *(t.number for t in Lineage.of(trials).ancestors(48))}
    hot = browser.find_elements("css selector", ".tree .node.hot")
    assert {int(element.get_attribute("data-n")) for element in hot} == line
    node.send_keys("\ue00c")
    assert not tip.is_displayed()
    other = browser.find_element("css selector", '.tree [data-n="3"]')
    move = 'arguments[0].dispatchEvent(new MouseEvent("mouseover", {bubbles: true}))'
    browser.execute_script(move, other)
    assert tip.text.startswith("trial 3: ")


@pytest.mark.slow
def test_zoom_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """The buttons make the tree larger, smaller, and fit."""
    shown(browser, lineage_page(snapshot_of(evolved(500), tmp_path)), tmp_path)
    width = "return document.querySelector('.view .tree').getBoundingClientRect().width"
    before = browser.execute_script(width)
    browser.find_element("css selector", '[data-zoom="in"]').click()

    assert browser.execute_script(width) == pytest.approx(1.3 * before, rel=0.01)
    browser.find_element("css selector", '[data-zoom="fit"]').click()
    assert browser.execute_script(f"{width} <= document.querySelector('.view').clientWidth")


@pytest.mark.slow
def test_injection_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """A script in a point, an error or a name never runs, neither when the page opens nor in the tip."""
    trials = [
        trial(0, score=0.5, metrics={"accuracy": 0.5, ATTACK: 1.0}, point={ATTACK: ATTACK}),
        replace(trial(1, parents=(0,)), state=State.FAILED, error=ATTACK),
    ]
    shown(browser, lineage_page(replace(snapshot_of(trials, tmp_path), name=ATTACK)), tmp_path)
    browser.execute_script("arguments[0].focus()", browser.find_element("css selector", '.tree [data-n="1"]'))

    assert browser.title.startswith("</title></script>")
    assert ATTACK[:200] in browser.find_element("id", "tip").text
    assert browser.find_elements("css selector", "img") == []
    assert browser.get_log("browser") == []
