"""One self-contained HTML page that compares searches. It loads nothing; trees are pages beside it."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from nas.views.comparison.charts import best_chart, group_legend, rank_chart
from nas.views.comparison.curves import MIN_SEEDS
from nas.views.comparison.tables import Comparison, group_texts, notes, pair_texts, search_texts, test_title
from nas.views.page.palette import DARK, LIGHT, N_STEPS
from nas.views.page.templates import render

SERIES_LIGHT = ("#1f6fb2", "#c24e00", "#00795a", "#a8458a", "#7a6200", "#6b4fc4", "#9b2c2c", "#4a5866")
SERIES_DARK = ("#6db7f2", "#ff9f55", "#4fd1a5", "#f08fc8", "#e3c44f", "#b39df5", "#f28b82", "#b5c0cc")
"""Colors of groups, in the order of both."""
MAX_THIN = 5
"""Number of groups above which single searches have no lines."""


def comparison_page(comparison: Comparison, folder: str, taken: float) -> str:
    """Returns the page; the layout is in ``comparison.html`` beside the other templates.

    Args:
        comparison: The searches.
        folder: The folder beside the page that holds ``NAME.html`` for each search.
        taken: The time of the snapshots.
    """
    groups, metric = comparison.groups, comparison.metric
    charts = {
        "Best so far": [best_chart(groups, metric, "trials"), best_chart(groups, metric, "hours")],
        "Rank over time": [rank_chart(groups, metric, "trials"), rank_chart(groups, metric, "hours")],
    }
    return render(
        "comparison.html",
        metric=metric,
        taken=taken,
        n_searches=len(comparison.searches),
        groups=group_texts(comparison),
        searches=search_texts(comparison),
        links=_links(comparison, folder),
        pairs=pair_texts(comparison),
        test_title=test_title(comparison),
        notes=list(notes(comparison)),
        is_dense=len(groups) > MAX_THIN,
        charts={title: [chart for chart in both if chart] for title, both in charts.items() if any(both)},
        legend=group_legend(groups),
        min_seeds=MIN_SEEDS,
        zip=zip,
        light=LIGHT,
        dark=DARK,
        n_steps=N_STEPS,
        series={"light": SERIES_LIGHT, "dark": SERIES_DARK},
    )


def _links(comparison: Comparison, folder: str) -> Mapping[str, str]:
    """Returns the address of each search's tree, by name, as seen from the page."""
    return {search.name: f"{quote(folder)}/{quote(search.name)}.html" for _, search in comparison.searches}
