"""The records of a search, read while others write them."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nas.core.errors import ConfigurationError, CorruptError
from nas.core.trial import Proposal, State, Trial
from nas.storage.lazy_weights import StoredWeights
from nas.storage.open import open_root
from nas.storage.records import Records, StartedAttempts
from tests.support.donor_networks import chain, offer, publish

REPOSITORY = Path(__file__).parents[3]

PUBLISH = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.support.donor_networks import chain, offer, publish
from nas.storage.open import open_root
from nas.storage.records import Records
publish(Records(open_root(sys.argv[2])), *(offer(number, chain(4)) for number in range(120)))
"""

COMMIT = """
import random, sys, time
sys.path.insert(0, sys.argv[1])
import torch
from dataclasses import replace
from nas.core.errors import AlreadyPublishedError
from nas.storage.checkpoints import publish_checkpoint, publish_tensors
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.core.trial import Proposal, State, Trial
records, me = Records(open_root(sys.argv[2])), float(sys.argv[3])
for number in range(60):
    sys.stdin.readline()  # both begin it at once, so that neither is always late
    time.sleep(random.uniform(0, 0.04))
    trial = Trial(number=number, index=number, proposal=Proposal(point={}), attempt=1)
    try: records.propose(trial)
    except AlreadyPublishedError: pass
    stem = f"{number:06d}-{sys.argv[3]}"
    saved = publish_tensors(records.files, f"packs/{stem}.safetensors", {"x": torch.full((10_000,), me)})
    checkpoint = publish_checkpoint(records.files, stem, saved)
    done = replace(trial, state=State.COMPLETE, metrics={"x": me}, checkpoint=checkpoint)
    print(records.commit(done).metrics["x"], flush=True)
"""


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(open_root(str(tmp_path), retry_s=0))


def test_lineage_may_be_loaded_while_it_grows(records: Records, tmp_path: Path) -> None:
    """At any moment, each loaded result has its proposal, and no number is missing."""
    worker = subprocess.Popen([sys.executable, "-c", PUBLISH, str(REPOSITORY), str(tmp_path)])
    sizes = [0]
    try:
        while worker.poll() is None:
            trials, _ = records.load()
            assert sum(not trial.is_finished for trial in trials) <= 1 + len(trials) - sizes[-1]
            sizes.append(len(trials))
    finally:
        worker.kill()
        worker.wait()

    assert worker.returncode == 0
    assert sizes == sorted(sizes)
    assert len({*sizes}) > 2
    assert all(trial.state == State.COMPLETE for trial in records.load()[0])


@pytest.mark.slow
def test_of_two_processes_with_one_trial_the_first_result_counts(records: Records, tmp_path: Path) -> None:
    """If two processes publish a trial's result at once, both learn which one counts."""
    command = [sys.executable, "-c", COMMIT, REPOSITORY, tmp_path]
    workers = [
        subprocess.Popen([*command, who], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for who in "12"
    ]
    answers: list[list[str]] = [[], []]
    for _ in range(60):
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        for worker, own in zip(workers, answers, strict=True):
            assert worker.stdout is not None
            own.append(worker.stdout.readline().strip())
    for worker in workers:
        worker.communicate()
    trials, _ = records.load()

    assert [worker.returncode for worker in workers] == [0, 0]
    assert answers[0] == answers[1] == [str(trial.metrics["x"]) for trial in trials]
    assert {*answers[0]} == {"1.0", "2.0"}
    for trial in trials:
        assert trial.checkpoint is not None
        found = StoredWeights(records.files, trial.checkpoint).read_all()["x"]
        assert torch.equal(found, torch.full((10_000,), trial.metrics["x"]))


def test_listing_that_missed_a_record_is_made_good(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proposal missing from a listing, as during other writes, is read by its name."""
    publish(records, *(offer(number, chain(4)) for number in range(3)))
    list_all = os.listdir
    monkeypatch.setattr(os, "listdir", lambda place: [n for n in list_all(place) if not n.startswith("000001.")])

    trials, _ = records.load()
    assert [trial.number for trial in trials] == [0, 1, 2]


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_missing_number_is_named(records: Records, lost: int) -> None:
    """A lineage with a lost proposal is an error, not a shorter lineage."""
    publish(records, *(offer(number, chain(4)) for number in range(3)))
    records.files.delete(f"trials/{lost:06d}.proposal.json")

    with pytest.raises(CorruptError, match=rf"trials/{lost:06d}\.proposal\.json is missing\. Restore"):
        records.load()


def test_number_far_beyond_all_others_is_refused_at_once(records: Records) -> None:
    """A foreign file with a very long number uses no memory and is no trial."""
    publish(records, offer(0))
    records.propose(offer(999_999_999))

    with pytest.raises(CorruptError, match=r"trials/000001\.proposal\.json is missing"):
        records.load()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"stage": ""}, "stage='': "),
        ({"more_epochs": 2**63}, "more_epochs=9223372036854775808: "),
        ({"proposal": Proposal(point={}, donors=("nonsense",))}, r"donors\[0\]='nonsense': "),
        ({"proposal": Proposal(point={}, proxies={"flops": 2**64})}, "proxies"),
        ({"proposal": Proposal(point={}, derivation={1, 2})}, "Object of type set is not JSON serializable"),
        ({"proposal": Proposal(point={str(n): n for n in range(20_001)})}, "point has 20001 values; it may have 20000"),
    ],
    ids=["stage", "epochs", "donor", "proxy", "derivation", "point"],
)
def test_proposal_that_readers_refuse_is_not_published(records: Records, fields: dict[str, Any], said: str) -> None:
    """The error names trial, field and proposal; nothing is left that can't be read."""
    trial = replace(Trial(number=0, index=0, proposal=Proposal(point={})), **fields)

    with pytest.raises(ConfigurationError, match=rf"^trial 0 can't be recorded: {said}.*: Proposal\(point="):
        records.propose(trial)
    assert records.files.names("trials") == []


def test_a_worker_that_left_by_itself_is_no_loss(tmp_path: Path) -> None:
    """Of three attempts in a session, one lost, one left and one running, one loss counts."""
    records = Records(open_root(str(tmp_path)))
    trial = Trial(number=0, index=0, proposal=Proposal(point={}))
    records.propose(trial)
    for attempt in (1, 2, 3):
        records.start(replace(trial, attempt=attempt), {"session": 1, "host": "h", "pid": 1, "time": 0.0})
    before = records.load()[1][0].n_lost
    for _ in range(2):
        records.publish_worker_exit(replace(trial, attempt=1), "its worker left")

    assert before == 2
    assert records.load()[1] == {0: StartedAttempts(3, (1, 1, 1), 1)}
