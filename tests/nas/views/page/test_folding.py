"""Long chains of only children are one mark in the tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Trial
from nas.storage.open import open_root
from nas.views.page.document import lineage_page
from nas.views.page.folding import MIN_CHAIN, fold_chains
from nas.views.page.tree import draw_tree
from nas.views.snapshot import read_snapshot
from tests.support.chromium import column, panel_of, shown, tip_of_dot
from tests.support.sample_searches import BEGAN, trial, write_search

ACCURACY = Metric("accuracy")


def chain(n: int) -> list[Trial]:
    """A founder and its line of only children; the last has two children."""
    line = [
        trial(i, parents=(i - 1,) if i else (), score=0.5 + i / 1000, generation=i, donor=i - 1 if i else None)
        for i in range(n)
    ]
    return [*line, *(trial(n + i, parents=(n - 1,), score=0.4, generation=n) for i in range(2))]


def test_chains_are_folded() -> None:
    """The middle of a chain is one mark; its ends, branches and the kept trial stay; short chains stay whole."""
    folded = fold_chains(Lineage.of(chain(30)))
    assert folded.folds == {3: tuple(range(3, 27))}
    assert [t.number for t in folded.lineage] == [0, 1, 2, 3, 27, 28, 29, 30, 31]
    assert folded.lineage[27].parents == (3,)

    assert fold_chains(Lineage.of(chain(MIN_CHAIN))).folds == {}
    assert fold_chains(Lineage.of(chain(30)), keep=15).folds == {3: tuple(range(3, 13)), 18: tuple(range(18, 27))}


def test_donors_are_not_folded() -> None:
    """A trial that gave its weights to another one as well stays."""
    trials = chain(30)
    trials[-1] = trial(31, parents=(29,), score=0.4, generation=30, donor=14, resolved_donor=14)

    assert all(14 not in numbers for numbers in fold_chains(Lineage.of(trials)).folds.values())


def test_tree_with_a_fold() -> None:
    """The drawing has a mark with the number of folded trials, joined to its neighbors, and no generations."""
    drawing = draw_tree(Lineage.of(chain(30)), ACCURACY, winner=29)
    node = next(node for node in drawing.nodes if node.folded)

    assert (node.trial, node.label, node.folded) == (3, "⋯  24", tuple(range(3, 27)))
    assert "24 trials folded" in node.summary
    assert {(edge.source, edge.child) for edge in drawing.edges} >= {(2, 3), (3, 27)}
    assert all(edge.kind == "line" for edge in drawing.edges if edge.child in (3, 27))
    assert "a long chain of only children, folded" in [item.text for item in drawing.legend]


@pytest.mark.slow
def test_fold_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """A click on a fold lists its trials in the table."""
    write_search(tmp_path, "search", chain(30))
    shown(browser, lineage_page(read_snapshot(open_root(f"{tmp_path}/search"), BEGAN)), tmp_path)
    browser.find_element("css selector", ".tree .fold").click()

    assert column(browser, "trial") == [str(n) for n in range(3, 27)]
    assert browser.get_log("browser") == []


@pytest.mark.slow
def test_folded_trials_in_a_browser(browser: Any, tmp_path: Path) -> None:
    """The dots of folded trials have their tips, and panels their summaries; the first one has its own as well."""
    write_search(tmp_path, "search", chain(14))
    shown(browser, lineage_page(read_snapshot(open_root(f"{tmp_path}/search"), BEGAN)), tmp_path)
    assert len(browser.find_elements("css selector", ".tree .fold")) == 1

    for number in (3, 5):
        about = f"stage search, generation {number}\naccuracy 0.50{number}"
        assert tip_of_dot(browser, number).startswith(f"trial {number}: COMPLETE\n{about}")
        title, summary = panel_of(browser, number)
        assert (title, summary.startswith(about)) == (f"trial {number}: COMPLETE", True)
    assert browser.get_log("browser") == []
