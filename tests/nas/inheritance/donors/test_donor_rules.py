"""Donor rules (Rafiki's ``ParamsType``): the resolved donors of trials, from the controller, with records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nas.core.budget import Budget
from nas.core.errors import SearchFailedError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.policy import Policy
from nas.core.trial import DonorRule, Proposal, Trial
from nas.inheritance.donors.other_searches import other_search_checkpoint
from nas.search.controller import ControllerSettings
from nas.storage.records import Records
from nas.tuners.base import Answer
from nas.tuners.random import RandomTuner
from tests.support.scripted_executor import (
    FAILED,
    METRIC,
    SEARCH,
    SPACE,
    End,
    ListTuner,
    ScriptedExecutor,
    cut_after,
    forget_all_records,
    fresh_records,
    make_controller,
    paths_in_order,
)

BARE = End(has_weights=False)
N_TRIALS = 14


@pytest.fixture(autouse=True)
def clean_memory() -> Iterator[None]:
    yield
    forget_all_records()


class SourceTuner(ListTuner):
    """Gives every point its donor by one rule."""

    def __init__(self, source: str, *, metric: Metric = METRIC) -> None:
        super().__init__()
        self.metrics = (metric,)
        self.source = source

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        point = {"x": number * 5 % 7}  # some score the same
        return Proposal(point=point, donors=(self.source,), policies=frozenset({Policy.SHARE_PARAMS}))


def search(records: Records, executor: ScriptedExecutor, source: str, *, metric: Metric = METRIC, **more: bool) -> None:
    settings = ControllerSettings(budget=Budget(trials=N_TRIALS), max_failures=99, on_missing_weights="fail", **more)
    make_controller(records, executor, SourceTuner(source, metric=metric), settings=settings).search(SEARCH)


def expected(trial: Trial, earlier: Sequence[Trial], source: str, metric: Metric) -> int | None:
    """Returns the donor by the definition: ``earlier`` are the results before the start, in order."""
    able = [t for t in earlier if t.checkpoint is not None and (t.slot == trial.slot or source.startswith("global"))]
    if source.endswith("recent"):
        return able[-1].number if able else None
    scored = sorted((t for t in able if t.value("accuracy") is not None), key=lambda t: t.number)
    best = min if metric.direction == "minimize" else max
    return best(scored, key=lambda t: t.metrics["accuracy"]).number if scored else None


@settings(deadline=None, max_examples=15)
@given(
    picks=st.lists(st.integers(0, 3), min_size=30, max_size=30),
    slots=st.integers(1, 4),
    direction=st.sampled_from(["maximize", "minimize"]),
    odd=st.dictionaries(st.integers(0, N_TRIALS - 1), st.sampled_from([FAILED, BARE]), max_size=6),
)
@pytest.mark.parametrize("source", list(DonorRule))
def test_each_rule_chooses_by_its_definition(
    source: str, picks: list[int], slots: int, direction: str, odd: dict[int, End]
) -> None:
    """It chooses among finished trials with weights; the first trials start from scratch."""
    records, turns = fresh_records(), iter(picks)
    metric = Metric("accuracy", direction)
    ends = {number: [end] for number, end in odd.items()}
    executor = ScriptedExecutor(records, slots, ends=ends, pick=lambda running: next(turns) % len(running))

    search(records, executor, source, metric=metric)

    trials, _ = records.load()
    assert len(trials) == N_TRIALS
    for trial in executor.submitted:
        earlier = [trials[number] for number in executor.order if trials[number].finished <= trial.started]
        donor = expected(trial, earlier, source, metric)
        assert executor.donors[trial.number] == ([] if donor is None else [donor])
        assert trials[trial.number].resolved_donor == donor
        assert trials[trial.number].inheritance["replaced"] == {source: donor}
    if not odd:
        assert any(trial.resolved_donor is not None for trial in trials)


@pytest.mark.parametrize("source", list(DonorRule))
def test_deterministic_donors_survive_kills(source: str) -> None:
    """With ``deterministic`` donors are the same in any order of finishing and after any kill."""
    found = []
    for place in (0, -1):
        whole = fresh_records()
        search(whole, ScriptedExecutor(whole, 3, pick=lambda running, at=place: at), source, deterministic=True)
        found.append([trial.resolved_donor for trial in whole.load()[0]])
        for n_files in (7, 16, 29):
            cut = cut_after(whole, min(n_files, len(paths_in_order(whole.files))))
            search(cut, ScriptedExecutor(cut, 3, session=2), source, deterministic=True)
            found.append([trial.resolved_donor for trial in cut.load()[0]])

    assert len(found[0]) == N_TRIALS
    assert any(donor is not None for donor in found[0])
    assert all(donors == found[0] for donors in found)


def test_an_unknown_rule_is_refused() -> None:
    """A name that is neither a rule nor another search's trial ends the search with the allowed ones."""
    records = fresh_records()
    checkpoint = partial(other_search_checkpoint, records)
    controller = make_controller(
        records, ScriptedExecutor(records), SourceTuner("local_worst"), other_search_checkpoint=checkpoint
    )

    with pytest.raises(SearchFailedError, match="'local_worst' must be a trial's number, 'search:number' or one of lo"):
        controller.search(SEARCH)


@pytest.mark.parametrize("choice", ["LOCAL_BEST", "local_recent", "GLOBAL_BEST", "global_recent", "best"])
def test_weights_of_a_tuners_donor_are_never_deleted(choice: str) -> None:
    """The donors of ``tuner.donor`` are among the trials that the tuner said it may name."""
    records = fresh_records()
    tuner = RandomTuner(SPACE, (METRIC,), seed=3, donor=choice)
    allowed: dict[int, set[int]] = {}

    class Watching(ListTuner):
        def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
            allowed[number] = {*tuner.may_inherit_from(lineage)}
            return tuner.ask(lineage, number, job)

    executor = ScriptedExecutor(records, 3, pick=lambda running: -1)
    controller = make_controller(records, executor, Watching(), settings=ControllerSettings(budget=Budget(trials=7)))
    controller.search(SEARCH)

    donors = {trial.index: trial.resolved_donor for trial in records.load()[0]}
    assert len([donor for donor in donors.values() if donor is not None]) >= 3
    assert all(donor is None or donor in allowed[index] for index, donor in donors.items())
