"""The index of donors: the best of all committed trials, from the records alone."""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.errors import CorruptError, SearchNotFoundError
from nas.core.spec import Spec
from nas.core.trial import State, Trial
from nas.inheritance.donors.index import DonorIndex
from nas.search.definition import Search
from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from nas.storage.signature import Signature
from tests.support.donor_networks import Network, begin, best_of, chain, layers, n_same, offer, publish
from tests.support.problems import InOrderTuner, ScoreProblem, network

REPOSITORY = Path(__file__).parents[4]

networks = st.lists(st.sampled_from([4, 8]), min_size=1, max_size=4).map(lambda widths: chain(*widths))
fates = st.sampled_from([State.COMPLETE, State.COMPLETE, State.STOPPED, State.FAILED])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("finish"), networks, st.sampled_from([None, 0.1, 0.9]), fates),
        st.tuples(st.just("delete"), st.integers(0, 9)),
        st.tuples(st.just("ask"), networks),
    ),
    max_size=25,
)


@pytest.fixture
def root() -> BlobStore:
    return memory()


def memory() -> BlobStore:
    return open_root(f"memory://donors/{uuid4().hex}", retry_s=0)


def donor_of(index: DonorIndex, *widths: int) -> int | str | None:
    found = index.best_donor(Signature.of(chain(*widths)))
    return None if found is None else found.donor


@settings(max_examples=60, deadline=None)
@given(steps)
def test_index_answers_as_a_new_one_and_as_comparing_all(done: list[Any]) -> None:
    """After any proposals, results and deleted weights each answer equals that of comparing everything."""
    root = memory()
    records = begin(root, "search")
    lasting = DonorIndex(root, "search")
    pending: list[int] = []
    offered: dict[int, Network] = {}
    trials: dict[int, Trial] = {}
    for n_proposed, step in enumerate([*done, ("ask", chain(4, 8))]):
        records.propose(offer(n_proposed))
        pending.append(n_proposed)
        match step:
            case ("finish", weights, score, state):
                number = pending.pop(len(pending) // 2)
                offered[number] = weights
                trials[number] = offer(number, weights, score=score, state=state, finished=float(len(trials) // 2))
                records.commit(trials[number])
            case ("delete", place) if trials:
                number = sorted(trials)[place % len(trials)]
                records.publish_collection({"trials": {str(number): "for the test"}})
                trials.pop(number)
            case ("ask", weights):
                wanted = Signature.of(weights)

                answer = lasting.best_donor(wanted)
                assert answer == DonorIndex(root, "search").best_donor(wanted)
                assert (answer and answer.donor) == best_of(weights, offered, trials.values(), "finished")


def test_answer_names_the_trial(root: BlobStore) -> None:
    """The answer has the donor as a proposal names it, its trial with checkpoint, and the share."""
    records = begin(root, "search")
    publish(records, offer(0, chain(4)), offer(1, chain(4, 8, 8)))

    found = DonorIndex(root, "search").best_donor(Signature.of(chain(4, 8, 4)))
    assert found is not None
    assert (found.donor, found.shared) == (1, 2)
    assert found.trial == records.finished_trial(1)
    assert found.trial.checkpoint is not None


def test_root_may_be_a_folder(tmp_path: Path) -> None:
    """A search's root may be given as a folder."""
    publish(begin(open_root(str(tmp_path)), "search"), offer(0, chain(4)))

    assert donor_of(DonorIndex(tmp_path, "search"), 4, 8) == 0


def test_nothing_in_common_is_no_donor(root: BlobStore) -> None:
    """An empty search, or one of other networks, gives no donor."""
    records, index = begin(root, "search"), DonorIndex(root, "search")
    assert donor_of(index, 4) is None
    publish(records, offer(0, chain(8)), offer(1))

    assert donor_of(index, 4) is None
    assert index.best_donor({"a": 1}) is None


def test_point_is_compared_in_the_order_of_the_space(root: BlobStore) -> None:
    """The order comes from search.json, not from a record's keys; floats do not count."""
    publish(
        begin(root, "search"),
        offer(0, chain(4), point={"a": 1, "b": 2, "lr": 0.5}),
        offer(1, chain(4), point={"lr": 0.1, "a": 2, "b": 1}),
        offer(2, chain(4), point={"a": 1, "b": 1, "lr": 0.2}, state=State.FAILED),
    )

    found = DonorIndex(root, "search").best_donor({"a": 1, "b": 1, "lr": 0.5})
    assert found is not None
    assert (found.donor, found.shared) == (1, 1)


def test_trial_without_tensors_is_found_by_its_point(root: BlobStore) -> None:
    """A trial that published only files can be a donor by its point, never by a network."""
    records = begin(root, "search")
    publish(records, offer(0, {}, point={"b": 1, "a": 1}))
    index = DonorIndex(root, "search")

    found = index.best_donor({"b": 1, "a": 2})
    assert found is not None
    assert found.donor == 0
    assert donor_of(index, 4) is None


@pytest.mark.parametrize("wanted", [Signature.of(chain(4, 4)), {"b": 1, "a": 1}], ids=["network", "point"])
@pytest.mark.parametrize("asks_before", [True, False], ids=["known", "new"])
def test_trial_with_deleted_weights_is_no_donor(root: BlobStore, wanted: Any, asks_before: bool) -> None:
    """Once its weights are deleted, the next best trial is the answer, whether the index knew it or not."""
    records, index = begin(root, "search"), DonorIndex(root, "search")
    publish(records, *(offer(n, chain(4, 4), point={"b": 1, "a": 1}, score=n / 10) for n in range(4)))
    assert not asks_before or index.best_donor(wanted).donor == 3
    records.publish_collection({"trials": {"3": "for the test"}})
    assert index.best_donor(wanted).donor == 2
    records.publish_collection({"trials": {"1": "for the test", "2": "for the test"}})

    assert index.best_donor(wanted) == DonorIndex(root, "search").best_donor(wanted)
    assert index.best_donor(wanted).donor == 0


def test_deleted_weights_count_for_the_first_point(root: BlobStore) -> None:
    """A trial whose weights are deleted between a query by network and one by point is not the answer."""
    records, index = begin(root, "search"), DonorIndex(root, "search")
    publish(records, *(offer(n, chain(4), point={"b": 1}, score=n / 10) for n in range(2)))
    assert donor_of(index, 4) == 1
    records.publish_collection({"trials": {"1": "for the test"}})

    assert index.best_donor({"b": 1}).donor == 0


def test_weights_deleted_during_a_query_are_seen(root: BlobStore) -> None:
    """Weights deleted during a query (here as it reads the points) are seen before its answer."""
    records = begin(root, "search")
    publish(records, *(offer(n, chain(4), point={"b": 1}, score=n / 10) for n in range(3)))

    def deleting(point: Any) -> list[str]:
        if 2 not in records.weights_deleted():
            records.publish_collection({"trials": {"2": "for the test"}})
        return [str(point)]

    assert DonorIndex(root, "search", entries_of=deleting).best_donor({"b": 1}).donor == 1


def test_record_that_could_not_be_read_is_not_skipped(tmp_path: Path) -> None:
    """If one of several new records is damaged, every query raises; once it is whole, all of them count."""
    root = open_root(str(tmp_path), retry_s=0)
    records, index = begin(root, "search"), DonorIndex(root, "search")
    publish(records, offer(0, chain(8)))
    assert donor_of(index, 4) is None
    publish(records, *(offer(n, chain(4), score=1 / n) for n in range(1, 4)))
    torn = tmp_path / "search" / "trials" / "000002.result.json"
    whole = torn.read_bytes()
    torn.write_bytes(whole[:-1])

    for _ in range(2):
        with pytest.raises(CorruptError, match=r"000002\.result\.json"):
            donor_of(index, 4)
    torn.write_bytes(whole)
    assert donor_of(index, 4) == 1


class TestOtherSearches:
    def test_are_named_with_their_search(self, root: BlobStore) -> None:
        """A donor of another search is name:number, and is found only if that search was named."""
        publish(begin(root, "search"), offer(0, chain(4)))
        publish(begin(root, "other"), offer(0, chain(8)), offer(1, chain(4, 8)))

        assert donor_of(DonorIndex(root, "search"), 4, 8) == 0
        assert donor_of(DonorIndex(root, "search", others=["other"]), 4, 8) == "other:1"
        assert donor_of(DonorIndex(root, "other", others=["other", "search"]), 4, 4) == 1

    def test_all_are_seen_as_they_come(self, root: BlobStore, caplog: pytest.LogCaptureFixture) -> None:
        """With others="all" later searches count too; unreadable folders are skipped with a message."""
        begin(root, "search")
        index = DonorIndex(root, "search", others="all")
        assert donor_of(index, 4) is None
        root.publish("lost+found/x", [b""])
        root.publish("torn/search.json", [b"{"])
        publish(begin(root, "later"), offer(0, chain(4)))

        with caplog.at_level(logging.WARNING):
            assert donor_of(index, 4) == donor_of(index, 4, 8) == "later:0"
        assert [record.message for record in caplog.records if "torn" in record.message] != []
        assert len(caplog.records) == 1

    def test_that_is_named_must_be_readable(self, root: BlobStore) -> None:
        """A named search that is missing or damaged is an error with its name."""
        begin(root, "search")
        begin(root, "torn").files.publish("trials/000000.result.json", [b"{"])

        with pytest.raises(SearchNotFoundError, match="no search missing"):
            DonorIndex(root, "search", others=["missing"])
        with pytest.raises(SearchNotFoundError, match="no search missing"):
            DonorIndex(root, "missing")
        with pytest.raises(CorruptError, match=r"000000\.result\.json"):
            donor_of(DonorIndex(root, "search", others=["torn"]), 4)

    def test_scores_of_another_metric_do_not_count(self, root: BlobStore) -> None:
        """Among equals, a low score by this search's metric comes before a high one by another's."""
        publish(begin(root, "search"), offer(0, chain(4), score=0.1))
        publish(begin(root, "other", metric="loss"), offer(0, chain(4), score=0.9))
        publish(begin(root, "kin"), offer(0, chain(4), score=0.2))

        assert donor_of(DonorIndex(root, "search", others=["other"]), 4) == 0
        assert donor_of(DonorIndex(root, "search", others="all"), 4) == "kin:0"

    def test_points_of_another_problem_do_not_count(self, root: BlobStore) -> None:
        """Equal points of two problems are different networks; equal networks are the same."""
        begin(root, "search")
        publish(begin(root, "other", problem="tests.Other"), offer(0, chain(4), point={"b": 1}))
        index = DonorIndex(root, "search", others="all")

        assert index.best_donor({"b": 1}) is None
        assert donor_of(index, 4) == "other:0"


def test_real_search_is_found_by_its_network(tmp_path: Path) -> None:
    """A problem's saved weights are found by the user's network, with equal digests of all layers."""
    tuner = Spec.of(InOrderTuner, xs=[3, 7, 5])
    search = Search(problem=Spec.of(ScoreProblem), tuner=tuner)
    run_search(search, root=str(tmp_path), name="it", budget=Budget(trials=3), finalists=1)

    found = DonorIndex(open_root(str(tmp_path)), "it").best_donor(Signature.of(network()))
    assert found is not None
    assert found.shared == 3
    assert found.trial.point == {"x": 7}


WORKER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from tests.support.donor_networks import chain, offer
from nas.storage.open import open_root
from nas.storage.records import Records
records, own, n = Records(open_root(sys.argv[2]).subfolder("search")), int(sys.argv[3]), int(sys.argv[4])
for number in range(n):
    trial = offer(number, chain(*(4 + 4 * (number // 3**place % 3) for place in range(4))), score=number * 7 % 10 / 10)
    if own == 0:
        records.propose(trial)
    while records.proposed(number) is None:
        time.sleep(0.001)
    if number % 2 == own:
        records.commit(trial)
"""


def committed(folder: Path) -> Mapping[int, str]:
    """Returns the signature of each committed trial, by number, read without Heirloom's code."""
    found = {}
    for path in sorted(folder.glob("*.result.json")):
        record = json.loads(path.read_bytes())
        found[record["trial"]] = record["checkpoint"]["signature"]
    return found


def test_two_processes_publish_while_a_third_asks(tmp_path: Path) -> None:
    """Each answer is committed, and at least as good as the best one committed before the query."""
    n, root = 100, open_root(str(tmp_path))
    begin(root, "search")
    offered = {k: chain(*(4 + 4 * (k // 3**place % 3) for place in range(4))) for k in range(n)}
    scores = {k: k * 7 % 10 / 10 for k in range(n)}
    command = [sys.executable, "-c", WORKER, str(REPOSITORY), str(tmp_path)]
    workers = [subprocess.Popen([*command, str(own), str(n)]) for own in (0, 1)]
    index, n_asked, sizes = DonorIndex(root, "search"), 0, set()
    try:
        while any(worker.poll() is None for worker in workers) or n_asked < 3:
            wanted = offered[n_asked * 11 % n]
            before = committed(tmp_path / "search" / "trials")
            found = index.best_donor(Signature.of(wanted))
            standings = [(n_same(layers(wanted), layers(offered[k])), scores[k], k) for k in before]

            best = max(standings, default=(0, -math.inf, -1))
            assert (found is not None) >= (best[0] > 0)
            if found is not None:
                assert (found.shared, scores[int(found.donor)], int(found.donor)) >= best
                assert int(found.donor) in committed(tmp_path / "search" / "trials")
            n_asked += 1
            sizes.add(len(before))
            time.sleep(0.002)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert [worker.returncode for worker in workers] == [0, 0]
    assert len(sizes) > 2  # it was asked while they published
    rebuilt = DonorIndex(root, "search")
    for signature in map(Signature.of, offered.values()):
        assert index.best_donor(signature) == rebuilt.best_donor(signature)
