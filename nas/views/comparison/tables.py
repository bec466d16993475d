"""Tables of compared searches: plain values for csv and json, and texts for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nas.core.metric import Metric
from nas.views.comparison.groups import SCORES, Group, Pair, groups_of, pairs_of, tested_group
from nas.views.comparison.intervals import TEST, Mean
from nas.views.comparison.searches import ComparedSearch, shared_metric
from nas.views.formatting import amount, as_json, cell, count, duration, number, score
from nas.views.trial_summary import SHARED

_EQUAL = 1e-12
"""Greatest mean difference of equal scores, as a share of the greatest score: sums round."""


@dataclass(frozen=True)
class Comparison:
    """Searches that rank by one metric, in groups over seeds.

    Attributes:
        metric: The metric.
        groups: The groups, the best first.
        pairs: The best group with two or more seeds against the others.
    """

    metric: Metric
    groups: tuple[Group, ...]
    pairs: tuple[Pair, ...]

    @classmethod
    def of(cls, searches: Sequence[ComparedSearch]) -> Comparison:
        """Returns the comparison of these searches.

        Raises:
            ConfigurationError: they rank by different metrics.
        """
        metric = shared_metric(searches)
        groups = groups_of(searches, metric)
        return cls(metric, tuple(groups), tuple(pairs_of(groups)))

    @property
    def searches(self) -> list[tuple[Group, ComparedSearch]]:
        """The searches with their groups, group by group."""
        return [(group, search) for group in self.groups for search in group.searches]


def comparison_columns(comparison: Comparison) -> dict[str, list[Any]]:
    """Returns a row per search as columns of plain values; None is unknown."""
    rows = comparison.searches
    winners = [search.snapshot.winner for _, search in rows]
    return {
        "name": [search.name for _, search in rows],
        "group": [group.label for group, _ in rows],
        "problem": [search.problem for _, search in rows],
        "tuner": [search.tuner for _, search in rows],
        "seed": [search.seed for _, search in rows],
        "standing": [search.snapshot.standing for _, search in rows],
        "metric": [comparison.metric.name for _ in rows],
        "validation": [search.validation for _, search in rows],
        "validation_is_shared": [search.is_shared for _, search in rows],
        "test": [search.test for _, search in rows],
        "test_is_shared": [search.is_shared and search.test is not None for _, search in rows],
        "best_trial": [None if winner is None else winner.number for winner in winners],
        "best_stage": [None if winner is None else winner.stage for winner in winners],
        "trials": [len(search.snapshot.lineage) for _, search in rows],
        "hours": [search.hours for _, search in rows],
        "inherited": [search.inherited for _, search in rows],
    }


def comparison_json(comparison: Comparison) -> str:
    """Returns searches, groups and tests as one JSON object."""
    columns = comparison_columns(comparison)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    metric = {"name": comparison.metric.name, "direction": comparison.metric.direction}
    content = {
        "metric": metric,
        "searches": rows,
        "groups": [_plain_group(group) for group in comparison.groups],
        "tests": [_plain_pair(pair) for pair in comparison.pairs],
    }
    return f"{as_json(content, indent=1)}\n"


def _plain_group(group: Group) -> dict[str, Any]:
    means = {name: group.mean(value) for name, value in GROUP_VALUES.items()}
    plain = {name: None if mean is None else _plain_mean(mean) for name, mean in means.items()}
    return {"group": group.label, "seeds": sorted(group.counted), **plain}


def _plain_mean(mean: Mean) -> dict[str, Any]:
    return {"mean": mean.value, "interval_95": _ends(mean), "n": mean.n}


def _plain_pair(pair: Pair) -> dict[str, Any]:
    difference = pair.test.difference
    return {
        **{"first": pair.first, "second": pair.second, "score": pair.score, "test": TEST, "seeds": difference.n},
        **{"difference": difference.value, "interval_95": _ends(difference), "p": pair.test.p},
    }


def _ends(mean: Mean) -> list[float] | None:
    return None if mean.half is None else [mean.value - mean.half, mean.value + mean.half]


GROUP_VALUES: Mapping[str, Callable[[ComparedSearch], float | None]] = {
    **SCORES,
    "trials": lambda search: float(len(search.snapshot.lineage)),
    "hours": lambda search: search.hours,
    "inherited": lambda search: search.inherited,
}
"""Values of which groups have means."""


def search_texts(comparison: Comparison) -> dict[str, list[str]]:
    """Returns a row per search as columns of text."""
    rows = comparison.searches
    name = comparison.metric.name
    return {
        "name": [search.name for _, search in rows],
        "seed": [str(search.seed) for _, search in rows],
        f"validation {name}": [_score(search.validation, search) for _, search in rows],
        f"test {name}": [_score(search.test, search) for _, search in rows],
        "trials": [f"{len(search.snapshot.lineage):,}" for _, search in rows],
        "time": [duration(3600 * search.hours) for _, search in rows],
        "inherited": [cell("inherited", search.inherited) for _, search in rows],
        "standing": [search.snapshot.standing for _, search in rows],
        "group": [group.label for group, _ in rows],
    }


def group_texts(comparison: Comparison) -> dict[str, list[str]]:
    """Returns a row per group as columns of text."""
    groups, name = comparison.groups, comparison.metric.name
    means = {key: [group.mean(value) for group in groups] for key, value in GROUP_VALUES.items()}
    return {
        "group": [group.label for group in groups],
        "seeds": [str(len(group.counted)) for group in groups],
        f"validation {name}": [mean_text(mean) for mean in means["validation"]],
        f"test {name}": [mean_text(mean) for mean in means["test"]],
        "trials": ["" if mean is None else amount(mean.value) for mean in means["trials"]],
        "time": ["" if mean is None else duration(3600 * mean.value) for mean in means["hours"]],
        "inherited": ["" if mean is None else cell("inherited", mean.value) for mean in means["inherited"]],
    }


def mean_text(mean: Mean | None) -> str:
    """Returns a mean with its interval: ``0.9421 ± 0.0032``."""
    if mean is None:
        return ""
    value = score(mean.value + 0.0)  # 0, not -0.0000
    return value if mean.half is None else f"{value} ± {number(mean.half, 2)}"


def _difference_text(comparison: Comparison, pair: Pair) -> str:
    """Returns the mean difference of a pair; one that only rounding separates from 0 is 0."""
    value, difference = SCORES[pair.score], pair.test.difference
    searches = (search for group, search in comparison.searches if group.label in (pair.first, pair.second))
    is_zero = abs(difference.value) <= _EQUAL * max(abs(value(search) or 0.0) for search in searches)
    return mean_text(replace(difference, value=0.0) if is_zero else difference)


def pair_texts(comparison: Comparison) -> dict[str, list[str]]:
    """Returns a row per paired test as columns of text; empty without tests."""
    pairs = comparison.pairs
    if not pairs:
        return {}
    return {
        f"{pairs[0].first} minus": [pair.second for pair in pairs],
        "score": [pair.score for pair in pairs],
        "difference": [_difference_text(comparison, pair) for pair in pairs],
        "seeds": [str(pair.test.difference.n) for pair in pairs],
        "p": ["all equal" if pair.test.p is None else number(pair.test.p, 2) for pair in pairs],
    }


def test_title(comparison: Comparison) -> str:
    """Returns the name of the tests, and the number for which p is not corrected."""
    return f"{TEST}, over common seeds; p is not corrected for {count(len(comparison.pairs), 'test')}"


def test_lines(comparison: Comparison) -> Iterator[str]:
    """Yields a line per paired test, and lines on what the groups leave out."""
    if comparison.pairs:
        yield f"{test_title(comparison)}:"
    for pair in comparison.pairs:
        n_seeds, difference = pair.test.difference.n, _difference_text(comparison, pair)
        p = "all differences are equal" if pair.test.p is None else f"p = {number(pair.test.p, 2)}"
        yield f"  {pair.score}: {pair.first} minus {pair.second}: {difference} ({n_seeds} seeds, {p})"
    yield from notes(comparison)


def notes(comparison: Comparison) -> Iterator[str]:
    """Yields lines on searches that means leave out, and on missing seeds."""
    rows = comparison.searches
    if waiting := [search.name for _, search in rows if search.snapshot.standing != "finished"]:
        yield f"not finished, so not in means and tests: {', '.join(waiting)}"
    if shared := [search.name for _, search in rows if search.is_shared]:
        yield f"not in means and tests, as shared weights gave the score: {', '.join(shared)}"
    finished = [search for _, search in rows if search.snapshot.standing == "finished" and not search.is_shared]
    if partial := [search.name for search in finished if search.is_partial]:
        yield f"not in means and tests, as no final has a score to compare: {', '.join(partial)}"
    if len({search.problem for _, search in rows}) > 1:
        yield "the searches have different problems: compare scores only if their data are the same"
    yield from _test_notes(comparison.groups, comparison.pairs)


def _test_notes(groups: Sequence[Group], pairs: Sequence[Pair]) -> Iterator[str]:
    """Yields lines on groups with too few seeds for a test."""
    base = tested_group(groups)
    if base is None:
        has_seeds = any(len({search.seed for search in group.searches}) > 1 for group in groups)
        if has_seeds:
            yield "no interval and no test: no group has two finished seeds with a full score of their own weights"
        else:
            yield "no interval and no test: each group has one seed only. Add seeds: -m seed=0,1,2,3,4"
        return
    if base is not groups[0]:
        yield f"too few seeds for a test: {groups[0].label}. Tests are against {base.label}"
    if len(groups) > 1 and not pairs:
        yield f"no paired test: no other group on its problem has two seeds in common with {base.label}"


def _score(value: float | None, search: ComparedSearch) -> str:
    return "" if value is None else score(value) + SHARED * search.is_shared
