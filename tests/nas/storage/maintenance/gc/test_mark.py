"""Marking: in any lineage needed weights stay with every file that they name, and all others are deleted."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given as over
from hypothesis import settings
from hypothesis import strategies as st

from nas.core.lineage import ancestor_with_weights, lost_donors
from nas.core.metric import Metric
from nas.core.reference import on_disk
from nas.core.trial import Reason, State, Trial
from nas.storage.maintenance.gc.mark import ReferenceCounts, Roots, choose_deletions, mark
from nas.storage.maintenance.gc.retention import from_worst_to_best
from tests.support.stored_trials import all_files, given, lineages, paper_checkpoint, trial

METRIC = Metric("accuracy")
NUMBERS = st.frozensets(st.integers(0, 20))


def whole(number: int, **fields: object) -> Trial:
    """A trial with weights."""
    return trial(number, **{"checkpoint": paper_checkpoint(number), **fields})  # type: ignore[arg-type]


def after(trials: list[Trial], numbers: Collection[int]) -> list[Trial]:
    return [t.delete_weights() if t.number in numbers else t for t in trials]


class TestAnyLineage:
    @settings(max_examples=50)
    @over(
        trials=lineages(),
        inheritable=NUMBERS,
        finalists=NUMBERS,
        other_searches=NUMBERS,
        kept=NUMBERS,
        uses_ancestors=st.booleans(),
        max_bytes=st.one_of(st.none(), st.integers(-5_000, 200_000)),
    )
    def test_what_is_needed_survives(
        self,
        trials: list[Trial],
        inheritable: frozenset[int],
        finalists: frozenset[int],
        other_searches: frozenset[int],
        kept: frozenset[int],
        uses_ancestors: bool,
        max_bytes: int | None,
    ) -> None:
        """Whatever is deleted, every trial keeps its donors, and kept weights keep all their files."""
        roots = Roots(
            inheritable=inheritable,
            finalists=finalists,
            other_searches=other_searches,
            uses_ancestors=uses_ancestors,
        )
        marked = mark(trials, roots)
        order = from_worst_to_best(trials, METRIC)
        deletions = choose_deletions(trials, marked=marked, kept=kept, order=order, max_bytes=max_bytes)
        left = after(trials, (*deletions.not_kept, *deletions.for_space))

        for number in {*finalists, *other_searches, *inheritable} & set(range(len(trials))):
            assert left[number].checkpoint == trials[number].checkpoint
        for unfinished in (t for t in trials if not t.is_finished):
            assert given(left, unfinished, stands_in=uses_ancestors) == given(
                trials, unfinished, stands_in=uses_ancestors
            )
        staying = {file.path: file for t in left if t.checkpoint is not None for file in all_files(t.checkpoint)}
        assert all(path in deletions.remaining for path in staying)
        assert deletions.remaining.bytes == sum(on_disk(file.bytes) for file in staying.values())
        gone = {
            file.path
            for number in (*deletions.not_kept, *deletions.for_space)
            for file in all_files(trials[number].checkpoint)
        }  # type: ignore[arg-type]
        assert not any(path in deletions.remaining for path in gone - staying.keys())

    @settings(max_examples=50)
    @over(trials=lineages(), inheritable=NUMBERS, data=st.data())
    def test_no_later_proposal_is_given_other_weights(
        self, trials: list[Trial], inheritable: frozenset[int], data: st.DataObject
    ) -> None:
        """A proposal, or a child of one, whose parents are those that the tuner may name, is given the same weights."""
        marked = mark(trials, Roots(inheritable=inheritable))
        left = after(trials, choose_deletions(trials, marked=marked, kept=()).not_kept)
        may = sorted(n for n in range(len(trials)) if n in inheritable or not trials[n].is_finished)
        if not may:
            return
        child = trial(len(trials), parents=[data.draw(st.sampled_from(may))], state=State.FAILED, score=None)
        donors = data.draw(st.lists(st.sampled_from([*may, child.number]), min_size=1, max_size=3, unique=True))
        later = trial(len(trials) + 1, parents=[child.number], donors=tuple(donors))

        before = given([*trials, child], later, stands_in=True)
        assert given([*left, child], later, stands_in=True) == before

    @settings(max_examples=50)
    @over(trials=lineages(), inheritable=NUMBERS, kept=NUMBERS)
    def test_the_plan_deletes_all_that_it_may(
        self, trials: list[Trial], inheritable: frozenset[int], kept: frozenset[int]
    ) -> None:
        """Without a budget exactly the weights that are neither needed nor kept are deleted."""
        marked = mark(trials, Roots(inheritable=inheritable))
        holders = {t.number for t in trials if t.checkpoint is not None}

        assert choose_deletions(trials, marked=marked, kept=kept).not_kept == tuple(
            sorted(holders - marked.keys() - kept)
        )

    @settings(max_examples=50)
    @over(trials=lineages(), inheritable=NUMBERS, max_bytes=st.integers(0, 200_000))
    def test_the_disk_budget_deletes_no_more_than_it_must(
        self, trials: list[Trial], inheritable: frozenset[int], max_bytes: int
    ) -> None:
        """None of the deleted weights would have fit, and the budget is kept unless only needed ones are left."""
        marked = mark(trials, Roots(inheritable=inheritable))
        everybody = range(len(trials))
        order = from_worst_to_best(trials, METRIC)
        deletions = choose_deletions(trials, marked=marked, kept=everybody, order=order, max_bytes=max_bytes)
        left = [
            t.number for t in after(trials, (*deletions.not_kept, *deletions.for_space)) if t.checkpoint is not None
        ]

        for number in (*deletions.not_kept, *deletions.for_space):
            assert deletions.remaining.bytes + deletions.remaining.added_bytes(trials[number].checkpoint) > max_bytes  # type: ignore[arg-type]
        assert deletions.remaining.bytes <= max_bytes or set(left) <= marked.keys()


class TestMark:
    def test_donors_of_queued_and_running_trials(self) -> None:
        """Donors of trials that wait or run are needed; parents that are no donors, and finished trials', are not."""
        trials = [
            *(whole(n) for n in range(4)),
            trial(4, parents=[0], state=State.WAITING),
            trial(5, parents=[3], donors=(1,), state=State.RUNNING),
            trial(6, parents=[2]),
        ]

        assert set(mark(trials, Roots(uses_ancestors=False))) == {0, 1}

    def test_donors_without_share_params(self) -> None:
        """A trial that shares no parameters needs nobody's weights."""
        trials = [whole(0), trial(1, parents=[0], state=State.WAITING, policies=frozenset())]

        assert mark(trials, Roots(uses_ancestors=False)) == {}

    def test_ancestors_replace_donors(self) -> None:
        """Where a donor has failed, or runs and may fail, its nearest ancestor with weights is needed."""
        trials = [
            whole(0),
            whole(1, parents=[0]),
            trial(2, parents=[1], state=State.FAILED, score=None),
            trial(3, parents=[2], state=State.RUNNING),
            trial(4, parents=[3], state=State.WAITING),
        ]

        assert set(mark(trials, Roots())) == {1}
        assert set(mark(trials, Roots(uses_ancestors=False))) == set()

    def test_an_ancestor_with_deleted_weights_is_passed_over(self) -> None:
        """An ancestor whose weights were deleted earlier is passed over for the next one."""
        trials = [whole(0), trial(1, parents=[0], weights_deleted=True), trial(2, parents=[1], state=State.WAITING)]

        assert set(mark(trials, Roots())) == {0}

    def test_a_lost_donor_has_no_weights(self) -> None:
        """What a trial found missing or corrupt counts as absent: the ancestor before it is needed."""
        trials = [
            whole(0),
            whole(1, parents=[0]),
            trial(2, parents=[1], state=State.FAILED, reason=Reason.PARENT, inheritance={"lost": [1]}, score=None),
        ]
        waiting = trial(3, parents=[1], state=State.WAITING)

        assert lost_donors(trials) == {1}
        assert ancestor_with_weights(trials, 2, {1}) == 0
        assert set(mark([*trials, waiting], Roots())) == {0, 1}
        assert set(mark(trials, Roots(inheritable=frozenset({1})))) == {0, 1}

    def test_the_donor_that_a_running_trial_was_given(self) -> None:
        """The weights that a running trial was given stay, also if another ancestor would now replace its donor."""
        trials = [
            whole(0),
            whole(1, parents=[0]),
            trial(2, parents=[1], state=State.FAILED, score=None),
            trial(3, parents=[2], state=State.RUNNING, inheritance={"replaced": {"2": 1}}),
            trial(4, parents=[1], state=State.FAILED, inheritance={"lost": [1]}, score=None),
        ]

        assert set(mark(trials, Roots())) == {0, 1}

    def test_other_searches_donors_are_not_ours(self) -> None:
        """A donor of another search marks nothing here."""
        waiting = trial(1, state=State.WAITING, donors=("other:0",))

        assert mark([whole(0), waiting], Roots()) == {}


class TestReferenceCounts:
    def test_a_shared_pack_goes_with_its_last_name(self) -> None:
        """A pack that two checkpoints name is counted once, and stays until both are gone."""
        parent = paper_checkpoint(0, size=10_000)
        child = paper_checkpoint(1, parent.packs, size=1)
        references = ReferenceCounts([parent, child])

        assert references.bytes == 12_288 + 3 * 4096
        references.remove(parent)
        assert parent.packs[0].path in references
        assert parent.manifest.path not in references
        references.remove(child)
        assert references.bytes == 0
        assert parent.packs[0].path not in references

    @pytest.mark.parametrize(("size", "blocks"), [(0, 0), (1, 1), (4096, 1), (4097, 2)])
    def test_files_take_whole_blocks(self, size: int, blocks: int) -> None:
        """A file takes a whole number of blocks of the disk."""
        assert on_disk(size) == blocks * 4096


def test_a_trial_that_only_shares_keeps_its_weights() -> None:
    """Weights whose files others name anyway are not deleted for a budget that their few bytes do not decide."""
    parent = whole(0, score=0.1, checkpoint=paper_checkpoint(0, size=40_960))
    child = trial(1, parents=[0], score=0.9, checkpoint=paper_checkpoint(1, parent.checkpoint.packs, size=0))  # type: ignore[union-attr]
    other = whole(2, score=0.2, checkpoint=paper_checkpoint(2, size=40_960))
    trials = [parent, child, other]
    deletions = choose_deletions(trials, marked=[1], kept=[0, 1, 2], order=[parent, other], max_bytes=57_344)

    assert {*deletions.not_kept, *deletions.for_space} == {2}


def test_trials_keep_their_order_of_worth() -> None:
    """The disk takes those without a score first, then the worst of the search, and finals last."""
    trials = [whole(0, score=0.5), whole(1, score=None), whole(2, score=0.1), whole(3, score=0.0, stage="final")]
    best_least = Metric("accuracy", "minimize")

    assert [t.number for t in from_worst_to_best(trials, METRIC)] == [1, 2, 0, 3]
    assert [t.number for t in from_worst_to_best(trials, best_least)] == [1, 0, 2, 3]
