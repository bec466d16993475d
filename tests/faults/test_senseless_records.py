"""Records that are well-formed but that no search writes together are refused by every command."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from flows.cli.command import Invocation, run_command
from flows.engine.runner import Engine
from flows.final import final
from flows.gc import gc
from flows.report import report
from flows.search import search
from flows.verify import verify
from nas.core.errors import CorruptError
from nas.core.trial import Proposal, Trial
from nas.storage.lineage_checks import lineage_faults
from nas.storage.maintenance.inventory import read_inventory
from nas.storage.maintenance.verification import verify_search
from nas.storage.record_format import encode_record
from nas.storage.records import Records
from tests.support.hostile_search import HostileSearch

BEGUN = ["+tuner._target_=tests.support.problems.InOrderTuner", "tuner.xs=[5,7]", "seed=3", "budget.trials=3"]
HERE = ["runner=debug", "slots=1", "threads=1", "finalists=1"]
COMMANDS: dict[str, tuple[Callable[[Invocation], int], list[str]]] = {
    "search": (
        lambda invocation: search(invocation, Engine()),
        [*BEGUN, "problem._target_=tests.support.hostile_search.SavingProblem", *HERE],
    ),
    "report": (report, []),
    "final": (lambda invocation: final(invocation, Engine()), ["trust=true", *HERE]),
    "gc": (gc, ["trust=true", "keep=best:1", "dry_run=true"]),
    "verify": (verify, []),
}

PROPOSAL, FINAL, RESULT = "trials/000003.proposal.json", "trials/000002.proposal.json", "trials/000001.result.json"
"""Records of an unfinished trial of the search stage, of a final, and of a trial of the search stage."""
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "unknown stage": (PROPOSAL, {"stage": "tomorrow", "index": 0}, "stage 'tomorrow' must be one of 'search', 'final'"),
    "final without a parent": (FINAL, {"parents": []}, "must have one parent"),
    "final of two parents": (FINAL, {"parents": [0, 1]}, "must have one parent"),
    "final with another donor": (FINAL, {"donors": [0]}, "and no other donor"),
    "unfinished final without a parent": (PROPOSAL, {"stage": "final", "index": 1, "parents": []}, "one parent"),
    "final of a final": (PROPOSAL, {"stage": "final", "index": 1, "parents": [2]}, r"of stage .search., not \[2\]"),
    "parent in a later stage": (PROPOSAL, {"parents": [2]}, r"of stage .search., not \[2\]"),
    "donor in a later stage": (PROPOSAL, {"donors": [1, 2]}, r"of stage .search., not \[2\]"),
    "parent that does not exist": (PROPOSAL, {"parents": [99]}, "must be earlier trials"),
    "donor that does not exist": (PROPOSAL, {"donors": [99]}, "must be earlier trials"),
    "parent of itself": (PROPOSAL, {"parents": [3]}, "must be earlier trials"),
    "parents in a circle": (FINAL, {"parents": [3]}, "must be earlier trials"),
    "result of another stage": (PROPOSAL, {"learned": [2]}, "must follow from the proposals"),
    "index of another": (PROPOSAL, {"index": 0}, "must follow from the proposals"),
    "retry of another stage": (PROPOSAL, {"retry_of": 2}, "must follow from the proposals"),
    "more epochs of no trial": (PROPOSAL, {"more_epochs": 3, "parents": []}, "must go on with one parent"),
    "more epochs of a later stage": (PROPOSAL, {"more_epochs": 3, "parents": [1]}, "must be of stage .final."),
    "donor of a result that does not exist": (RESULT, {"donor": 99}, r"donors \[99\] must be other trials"),
    "donor of a result that is the trial": (RESULT, {"resolved_donor": 1}, r"donors \[1\] must be other trials"),
    "replaced by a trial that does not exist": (RESULT, {"inheritance": {"replaced": {"0": 99}}}, r"donors \[99\]"),
    "lost donor that does not exist": (RESULT, {"inheritance": {"lost": [99]}}, r"donors \[99\] must be"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> HostileSearch:
    return HostileSearch(tmp_path_factory.mktemp("senseless"))


@pytest.fixture
def records(whole: HostileSearch) -> Iterator[Records]:
    """Yields the records of a whole search, which a test may change."""
    yield Records(whole.files)
    for path in whole.place.rglob("*.json"):
        if path not in whole.whole:
            path.unlink()
    for path, content in whole.whole.items():
        if not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


def change(records: Records, path: str, changes: dict[str, Any]) -> None:
    record = copy.deepcopy(records.read(path))
    assert record is not None
    for key, value in changes.items():
        (record["proposal"] if key in ("parents", "donors") else record)[key] = value
    records.files.replace(path, encode_record(record))


def assert_refused(records: Records, path: str, why: str) -> None:
    with pytest.raises(CorruptError, match=rf"{path} (can't be read: .*{why}|{why}).*\. Restore it from a backup$"):
        Records(records.files).load()
    damages = {damage.path: damage.detail for damage in read_inventory(records.files).damages}
    assert path in damages


@pytest.mark.parametrize(("path", "changes", "why"), CASES.values(), ids=CASES)
def test_record_that_makes_no_sense_is_refused(records: Records, path: str, changes: dict[str, Any], why: str) -> None:
    """A record that contradicts those before it is a CorruptError that names it and the remedy; verify sees it."""
    change(records, path, changes)

    assert_refused(records, path, why)


def test_result_without_a_proposal_is_refused(records: Records) -> None:
    """A result whose proposal is missing, in the middle or beyond the last, names the proposal."""
    result = records.read(RESULT)
    assert result is not None
    records.publish("trials/000009.result.json", {**result, "trial": 9})
    assert_refused(records, "trials/000009.proposal.json", "is missing")

    records.files.delete("trials/000001.proposal.json")
    assert_refused(records, "trials/000001.proposal.json", "is missing")


def test_number_beyond_the_proposals_is_refused(records: Records) -> None:
    """A proposal after a gap names the first that is missing."""
    proposal = records.read(PROPOSAL)
    assert proposal is not None
    records.publish("trials/000007.proposal.json", {**proposal, "trial": 7})

    assert_refused(records, "trials/000004.proposal.json", "is missing")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_it(
    records: Records, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each command ends with one line that names the record and the remedy; nothing is written."""
    monkeypatch.chdir(Path(records.files.url).parent.parent)
    monkeypatch.setitem(verify_search.__kwdefaults__, "pause_s", 0)
    body, words = COMMANDS[command]
    words = ["name=search", f"storage.root={Path(records.files.url).parent}", *words]
    for case in (
        "unknown stage",
        "final without a parent",
        "parent in a later stage",
        "lost donor that does not exist",
    ):
        path, changes, _ = CASES[case]
        original = records.files.read_if_present(path)
        change(records, path, changes)

        status = run_command(command, body, words)
        said = capsys.readouterr()
        text = said.out if command == "verify" else said.err
        assert status in (1, 2)
        assert path in text, case
        assert "Restore" in text
        assert "Traceback" not in said.err
        records.files.replace(path, original or b"")


def test_time_is_linear_in_the_number_of_trials() -> None:
    """Ten times as many trials take about ten times as long to check."""

    def check(n: int) -> float:
        first = Trial(number=0, index=0, proposal=Proposal(point={}))
        proposals = (Proposal(point={}, parents=(number - 1,)) for number in range(1, n))
        others = [
            replace(first, number=number, index=number, proposal=proposal, learned=(number - 1,))
            for number, proposal in enumerate(proposals, start=1)
        ]
        started_s = process_time()
        assert not list(lineage_faults([first, *others], ["search"]))
        return process_time() - started_s

    assert min(check(5000) for _ in range(2)) < 40 * min(check(500) for _ in range(3))
