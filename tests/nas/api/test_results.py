"""Results of a search in Python: table, tree, plot, and names that do not exist."""

from __future__ import annotations

import base64
import builtins
import re
from pathlib import Path
from typing import Any

import pytest

from nas import load
from nas.api.search import run_search
from nas.core.errors import ConfigurationError, SearchFailedError, SearchNotFoundError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.spec import Spec
from nas.core.trial import State
from nas.search.definition import TWO_STAGE, Search
from nas.views.plot import plot_scores
from nas.views.table import lineage_table
from tests.support.problems import InOrderTuner, ScoreProblem
from tests.support.sample_searches import BEGAN, evolved, one_shot, trial, write_search


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with the search ``one``."""
    write_search(tmp_path, "one", evolved(24))
    return tmp_path


def test_table_is_that_of_the_report(root: Path) -> None:
    """``to_frame`` has the report's columns and a row for each trial."""
    results = load("one", str(root))

    assert list(results.to_frame().columns) == list(lineage_table(results.lineage, results.tests).columns)
    assert len(results.to_frame()) == 24
    assert "best trial" in repr(results)


def test_reading_writes_nothing(root: Path) -> None:
    """Loading, drawing and the table leave the folder as it is."""
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    results = load("one", str(root))
    results.to_frame()
    results._repr_html_()

    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before


def test_running_search_is_read(root: Path) -> None:
    """A search whose trials are not finished has a table, a best trial and no winner."""
    write_search(root, "two", evolved(24)[:10])
    results = load("two", str(root))

    assert results.best is not None
    assert (results.winner, results.export, results.standing) == (None, None, "not finished")


def test_a_failed_extension_is_not_finished(tmp_path: Path) -> None:
    """A search that ends by failures has work left, although the winner of the session before is exported."""
    problem = Spec.of(ScoreProblem, search=[0.1, 0.2, *[None] * 8])
    search = Search(problem=problem, tuner=Spec.of(InOrderTuner, xs=list(range(10))))
    first = run_search(search, root=str(tmp_path), name="s", budget=2)
    with pytest.raises(SearchFailedError):
        run_search(search, root=str(tmp_path), name="s", budget=10)
    failed = load("s", str(tmp_path))

    assert (first.standing, failed.standing) == ("finished", "not finished")
    assert failed.export == first.export


def test_html_holds_the_tree(root: Path) -> None:
    """The representation for notebooks names the best trial, and has the tree as an image."""
    results = load("one", str(root))
    html = results._repr_html_()
    [data] = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    svg = base64.b64decode(data).decode()

    assert results.best is not None
    assert f"best: trial {results.best.number}, accuracy" in html
    assert svg.count('data-n="') == 24


def test_plot_has_all_scores(root: Path) -> None:
    """The plot has a point for each score, and a line of the best so far that never falls."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    results = load("one", str(root))
    axes = results.plot()
    [line] = axes.lines
    best = list(line.get_ydata())

    assert sum(len(points.get_offsets()) for points in axes.collections) == sum(
        trial.value("accuracy") is not None for trial in results.lineage
    )
    assert best == sorted(best)
    pyplot.close("all")


def test_shared_scores_are_marked(root: Path) -> None:
    """A score of shared weights says so in the text and the notebook, and has no part in the plot's line."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    write_search(root, "two", one_shot(3, 4, n_finals=0))
    shared = load("two", str(root))
    assert shared.best is not None
    score = f"{shared.best.metrics['accuracy']:.4f} with shared weights"
    axes = shared.plot()
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    pyplot.close("all")

    assert score in shared._repr_html_()
    assert "} with shared weights>" in repr(shared)
    assert "with shared weights" not in repr(load("one", str(root)))
    assert ([*axes.lines], labels) == ([], ["search with shared weights"])


def test_trials_that_cannot_win_are_not_the_best_so_far(root: Path) -> None:
    """The plot's line leaves out older code, stopped trials and more epochs, as the curves of ``compare`` do."""
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    trials = [trial(0, score=0.9, outdated=True), trial(1, score=0.5), trial(2, score=0.6)]
    trials += [trial(3, score=0.8, state=State.STOPPED), trial(4, parents=(2,), score=0.7, more_epochs=5)]
    [line] = plot_scores(Lineage.of(trials), Metric("accuracy")).lines
    pyplot.close("all")

    assert (list(line.get_xdata()), list(line.get_ydata())) == ([1, 2], [0.5, 0.6])


def test_plot_needs_matplotlib(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Matplotlib one line names the extra."""
    importing = builtins.__import__

    def without_matplotlib(name: str, *arguments: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return importing(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)

    with pytest.raises(ConfigurationError, match=r'plot: needs Matplotlib.*pip install "heirloom-nas\[notebook\]"'):
        load("one", str(root)).plot()


def test_last_is_the_search_with_the_newest_activity(root: Path, tmp_path: Path) -> None:
    """``load("last")`` reads the search with the newest heartbeat; broken folders beside it do not matter."""
    write_search(root, "newer", evolved(5), active=BEGAN + 60)
    write_search(root, "older", evolved(5), active=BEGAN - 60)
    (root / "broken").mkdir()
    (root / "broken" / "search.json").write_text("{")

    assert load("last", str(root)).name == "newer"
    with pytest.raises(SearchNotFoundError, match=r"name=last: .* It holds no search"):
        load("last", str(tmp_path / "empty"))


def test_texts_are_short(root: Path) -> None:
    """Printing a trial, a lineage or a snapshot is one line."""
    results = load("one", str(root))
    assert results.best is not None
    printed = [repr(results.best), repr(results.lineage), repr(results.snapshot), repr(evolved(24)[1])]

    assert all(len(text) < 200 and "\n" not in text for text in printed), printed
    assert re.fullmatch(
        rf"<Trial {results.best.number} \(final\) COMPLETE, accuracy 0\.\d+, parents \d+.*, point \{{.*\}}>", printed[0]
    )
    long = trial(3, score=0.5, point={f"layer_{n}": [n] * 100 for n in range(500)}, error="line\n" * 1000)
    assert len(repr(long)) < 400


@pytest.mark.parametrize(("final", "better"), [(0.4, 0), (0.9, None)])
def test_a_better_trial_in_hand_is_told(tmp_path: Path, final: float, better: int | None) -> None:
    """A full score above that of the best final is an attribute, and is in the text and the notebook."""
    saved = next(t.checkpoint for t in evolved(24) if t.checkpoint is not None)
    whole = {"epochs_share": 1.0, "scale_share": 1.0}
    found = [
        trial(0, score=0.5, checkpoint=saved, cost=whole),
        trial(1, parents=(0,), score=final, stage="final", index=0, checkpoint=saved, cost=whole),
    ]
    write_search(tmp_path, "s", found, identity={"policy": TWO_STAGE.to_json()})
    results = load("s", str(tmp_path))
    told = None if results.better_in_hand is None else results.better_in_hand.number

    assert (results.best and results.best.number, told) == (1, better)
    assert ("better in hand: trial 0" in repr(results)) == (better is not None)
    assert ("better in hand: trial 0 (search), full" in results._repr_html_()) == (better is not None)


def test_unknown_names_are_refused(root: Path, tmp_path: Path) -> None:
    """A search or a metric that does not exist gives one line with those that do."""
    with pytest.raises(SearchNotFoundError, match=r"name=won: must be a search under .*\. Choose one"):
        load("won", str(root))
    with pytest.raises(SearchNotFoundError, match="It holds no search"):
        load("one", str(tmp_path / "empty"))
    with pytest.raises(ConfigurationError, match=r"metric=acc: must be a metric of the problem\. Choose accuracy"):
        load("one", str(root)).plot("acc")
