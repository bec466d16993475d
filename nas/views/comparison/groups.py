"""Groups of searches that differ by their seed only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nas.core.metric import Metric
from nas.core.point import flat_point
from nas.core.spec import Spec
from nas.views.comparison.intervals import Mean, PairedTest
from nas.views.comparison.searches import ComparedSearch
from nas.views.formatting import brief

_MAX_VALUE = 40
"""Characters of a value in a label."""
SCORES: Mapping[str, Callable[[ComparedSearch], float | None]] = {
    "validation": lambda search: search.validation,
    "test": lambda search: search.test,
}


@dataclass(frozen=True)
class Group:
    """Searches that differ by their seed only.

    Attributes:
        label: The tuner, and the settings by which other groups of this tuner differ.
        searches: The searches by seed.
    """

    label: str
    searches: tuple[ComparedSearch, ...]

    @property
    def counted(self) -> dict[int, ComparedSearch]:
        """The searches that means and tests include, by seed; the newest of two."""
        newest = sorted(self.searches, key=lambda search: search.snapshot.last_activity or 0.0)
        return {search.seed: search for search in newest if search.counts}

    def mean(self, value: Callable[[ComparedSearch], float | None]) -> Mean | None:
        """Returns the mean of a value over the seeds that have it."""
        found = (value(search) for search in self.counted.values())
        return Mean.of([one for one in found if one is not None])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two groups by one score: the first minus the second, over their common seeds."""

    first: str
    second: str
    score: str
    test: PairedTest


def groups_of(searches: Sequence[ComparedSearch], metric: Metric) -> list[Group]:
    """Returns the groups, the best mean validation score first."""
    by_settings: dict[str, list[ComparedSearch]] = {}
    for search in searches:
        by_settings.setdefault(_key(search, with_budget=False), []).append(search)
    parts = [part for group in by_settings.values() for part in _split_by_budget(group)]
    labels = _labels([part[0] for part in parts])
    found = [Group(label, tuple(sorted(p, key=lambda s: s.seed))) for label, p in zip(labels, parts, strict=True)]
    return sorted(found, key=lambda group: _place(group, metric))


def tested_group(groups: Sequence[Group]) -> Group | None:
    """Returns the group that the others are tested against: the best with two or more seeds."""
    return next((group for group in groups if len(group.counted) > 1), None)


def pairs_of(groups: Sequence[Group]) -> list[Pair]:
    """Returns the tested group against the others on its problem with two or more common seeds."""
    base, pairs = tested_group(groups), []
    for other in groups:
        if base is None or other is base or other.searches[0].problem != base.searches[0].problem:
            continue
        for score, value in SCORES.items():
            if (test := PairedTest.of(list(_differences(base, other, value)))) is not None:
                pairs.append(Pair(first=base.label, second=other.label, score=score, test=test))
    return pairs


def _differences(first: Group, second: Group, value: Callable[[ComparedSearch], float | None]) -> Iterator[float]:
    """Yields the differences of a value over the seeds for which both groups have it."""
    theirs = second.counted
    for seed, search in sorted(first.counted.items()):
        left, right = value(search), value(theirs[seed]) if seed in theirs else None
        if left is not None and right is not None:
            yield left - right


def _place(group: Group, metric: Metric) -> tuple[bool, float, str]:
    mean = group.mean(SCORES["validation"])
    return mean is None, 0.0 if mean is None else -metric.rank(mean.value), group.label


def _split_by_budget(searches: list[ComparedSearch]) -> list[list[ComparedSearch]]:
    """Returns the searches in one list, or by budget if a seed occurs twice."""
    if len({search.seed for search in searches}) == len(searches):
        return [searches]
    by_budget: dict[str, list[ComparedSearch]] = {}
    for search in searches:
        by_budget.setdefault(_key(search, with_budget=True), []).append(search)
    return list(by_budget.values())


def _settings(search: ComparedSearch, *, with_budget: bool) -> dict[str, Any]:
    """Returns all that distinguishes a group, as one level of keys."""
    identity = {key: value for key, value in search.snapshot.identity.items() if key != "seed"}
    budget = {"budget": search.budget} if with_budget else {}
    return flat_point({**identity, "data": search.data, **budget})


def _key(search: ComparedSearch, *, with_budget: bool) -> str:
    return json.dumps(_settings(search, with_budget=with_budget), sort_keys=True)


def _labels(searches: Sequence[ComparedSearch]) -> list[str]:
    """Returns a distinct label for each group, given a search of each."""
    settings = [_settings(search, with_budget=False) for search in searches]
    labels = []
    for search, own in zip(searches, settings, strict=True):
        peers = [s for other, s in zip(searches, settings, strict=True) if other.tuner == search.tuner]
        labels.append(", ".join([search.tuner, *_distinctions(own, peers)]))
    budgets = [", ".join(f"budget.{limit}={brief(n)}" for limit, n in search.budget.items()) for search in searches]
    return _numbered([_joined(label, budget, labels) for label, budget in zip(labels, budgets, strict=True)])


def _joined(label: str, budget: str, labels: Sequence[str]) -> str:
    return f"{label}, {budget}" if labels.count(label) > 1 and budget else label


def _numbered(labels: Sequence[str]) -> list[str]:
    """Returns the labels, with a number behind those that occur twice."""
    seen = Counter[str]()
    numbered = []
    for label in labels:
        seen[label] += 1
        numbered.append(f"{label} ({seen[label]})" if labels.count(label) > 1 else label)
    return numbered


def _distinctions(own: Mapping[str, Any], peers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields ``key=value`` for the settings that differ from those of another group with this tuner.

    A setting that is not given, or null, is left out.
    """
    for key, value in own.items():
        is_shown = value is not None and not key.startswith("space.")
        if is_shown and any(value != settings.get(key) for settings in peers):
            yield f"{_short_key(key)}={_short_value(key, value)}"


def _short_key(key: str) -> str:
    return key.replace("tuner.arguments.", "").replace(".arguments", "").removesuffix(".target")


def _short_value(key: str, value: Any) -> str:
    if key == "policy" and isinstance(value, list):
        return "+".join(str(stage.get("name")) for stage in value)
    text = Spec(str(value)).name if key.endswith(".target") else brief(value)
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"
