"""Inventory of a search: the files that its records name, and the records that are damaged.

A record is missing if another record shows that it existed. It is corrupt if its digest does not
match or its content is invalid.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from nas.core.checkpoint import Checkpoint
from nas.core.errors import CorruptError, StorageError
from nas.core.reference import Reference
from nas.core.trial import State, Trial
from nas.core.validation import short_repr
from nas.storage.blobs import BlobStore
from nas.storage.lineage_checks import lineage_faults
from nas.storage.maintenance.damage import Damage, DamageState, reason_of
from nas.storage.maintenance.tensor_ranges import tensor_ranges
from nas.storage.record_format import FORMAT, decode_record
from nas.storage.record_values import checked_as
from nas.storage.resume_points import parse_resume_point
from nas.storage.search_records import (
    check_best,
    check_collection,
    check_header,
    check_heartbeat,
    check_session,
    check_test,
)
from nas.storage.trial_records import check_resume_state, check_start, trial_from_records

MAX_MISSING = 1000
"""Maximum number of missing records reported per series."""

_Check = Callable[[dict[str, Any], int], object]
"""A reader's check of a record with a number; raises CorruptError."""


@dataclass(slots=True)
class Inventory:
    """Contents of a search by its records.

    Attributes:
        trials: Trials by number, each with its result if there is one; without trials whose proposal is damaged.
        checkpoints: Checkpoints of finished trials, by number.
        exports: Exported files of winners, each with its trial.
        resume_packs: Packs of resume points of unfinished trials, each with its trial.
        damages: Damaged records.
        n_records: Number of records that were read.
        n_bytes: Size of these records.
    """

    trials: dict[int, Trial] = field(default_factory=dict)
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    exports: list[tuple[int, Reference]] = field(default_factory=list)
    resume_packs: list[tuple[int, Reference]] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    n_records: int = 0
    n_bytes: int = 0


def read_inventory(files: BlobStore) -> Inventory:
    """Reads all records of a search.

    Args:
        files: The search's folder.

    Raises:
        StorageError: the folder can't be listed.
    """
    return _Reader(files).read()


class _Reader:
    """Reads the records of a search separately, so that a damaged one hides no other."""

    def __init__(self, files: BlobStore) -> None:
        self._files = files
        self._inventory = Inventory()
        self._present: set[str] = set()
        self._stages: list[str] | None = None
        self._expected: dict[str, tuple[str, tuple[int, ...]]] = {}  # path -> reason, trials

    def read(self) -> Inventory:
        """Returns the inventory."""
        results, proposals = (self._numbered("trials", f".{kind}.json") for kind in ("result", "proposal"))
        starts = self._starts()
        self._search()
        self._trials(proposals, results, self._weights_deleted())
        self._check_lineage()
        self._expect_trials(starts)
        ended = self._sessions(starts)
        self._expect_results_of_manifests(starts, ended)
        names = [re.fullmatch(r"[0-9]{6,18}((?:-[0-9]{1,9})?\.json)", name) for name in self._files.names("tests")]
        for suffix in sorted({match[1] for match in names if match}):
            for number in self._numbered("tests", suffix, check_test):
                self._expect_result(number, f"tests/{number:06d}{suffix} exists")
        self._check_left_workers()
        for number in self._numbered("jobs", ".json"):
            self._expect(f"trials/{number:06d}.proposal.json", f"jobs/{number:06d}.json exists", (number,))
        self._winners()
        self._resume_points(results)
        for path, (reason, trials) in sorted(self._expected.items()):
            if path not in self._present:
                self._add_damage(path, "missing", f"expected because {reason}", trials)
        return self._inventory

    def _numbered(
        self, folder: str, suffix: str, check: _Check = lambda record, number: None
    ) -> dict[int, dict[str, Any]]:
        """Returns the records of a folder with this suffix that pass the readers' check."""
        found = {}
        for name, content in self._contents(folder, suffix).items():
            if re.fullmatch("[0-9]{4,18}", stem := name.removesuffix(suffix)):
                number = int(stem)
                trials = (number,) if folder in ("trials", "tests") else ()
                path = f"{folder}/{name}"
                check_it = partial(_with_number, check, number)
                if (record := self._parse(path, content, trials, check_it)) is not None:
                    found[number] = record
        return found

    def _starts(self) -> dict[int, dict[int, dict[str, Any]]]:
        """Returns the start records by trial and attempt."""
        names = [re.fullmatch(r"[0-9]{6,18}(\.start-([0-9]{1,9})\.json)", n) for n in self._files.names("trials")]
        suffixes = {int(match[2]): match[1] for match in names if match}
        found: dict[int, dict[int, dict[str, Any]]] = {}
        for attempt, suffix in sorted(suffixes.items()):
            check = partial(check_start, attempt=attempt)
            for number, record in sorted(self._numbered("trials", suffix, check).items()):
                found.setdefault(number, {})[attempt] = record
        return found

    def _check_left_workers(self) -> None:
        """Checks the records of workers that left by themselves; nothing else is read of them."""
        for name in self._files.names("trials"):
            if re.fullmatch(r"[0-9]{6,18}\.left-[0-9]{1,9}\.json", name):
                path = f"trials/{name}"
                if (content := self._content(path)) is not None:
                    self._parse(path, content, (int(name.partition(".")[0]),))

    def _contents(self, folder: str, suffix: str) -> dict[str, bytes | StorageError]:
        """Returns the records of a folder; if one can't be read, reads each separately."""
        try:
            return dict(self._files.read_folder(folder, suffix))
        except StorageError:
            names = [name for name in self._files.names(folder) if name.endswith(suffix)]
            found = {name: self._content(f"{folder}/{name}" if folder else name) for name in names}
            return {name: content for name, content in found.items() if content is not None}

    def _content(self, path: str) -> bytes | StorageError | None:
        try:
            return self._files.read_if_present(path)
        except StorageError as error:
            return error

    def _parse(
        self,
        path: str,
        content: bytes | StorageError,
        trials: tuple[int, ...] = (),
        check: Callable[[dict[str, Any]], object] = lambda record: None,
    ) -> dict[str, Any] | None:
        """Returns the record, or None after adding a damage; ``check`` raises CorruptError."""
        self._present.add(path)
        if isinstance(content, StorageError):
            self._add_damage(path, "unreadable", reason_of(content), trials)
            return None
        self._inventory.n_records += 1
        self._inventory.n_bytes += len(content)
        try:
            record = decode_record(content, is_large=path.startswith("resume/"))
            check(record)
        except CorruptError as error:
            self._add_damage(path, "corrupt", str(error), trials)
            return None
        return record

    def _add_damage(self, path: str, state: DamageState, detail: str, trials: tuple[int, ...]) -> None:
        self._inventory.damages.append(Damage(kind="record", path=path, state=state, detail=detail, trials=trials))

    def _expect(self, path: str, reason: str, trials: tuple[int, ...] = ()) -> None:
        self._expected.setdefault(path, (reason, trials))

    def _expect_result(self, number: int, reason: str) -> None:
        self._expect(f"trials/{number:06d}.result.json", reason, (number,))

    def _expect_series(self, pattern: str, numbers: Collection[int]) -> None:
        """Expects all records of a series, which is numbered from 1."""
        self._expect_all(pattern, 1, max(numbers, default=0), f"{pattern} exists")

    def _expect_all(self, pattern: str, first: int, last: int, reason: str) -> None:
        """Expects all records from the first number to the last; stops after ``MAX_MISSING``."""
        n_missing = 0
        for number in range(first, last + 1):
            n_missing += pattern.format(number) not in self._present
            if n_missing > MAX_MISSING:
                break
            self._expect(
                pattern.format(number), reason.format(last), (number,) if pattern.startswith("trials/") else ()
            )

    def _search(self) -> None:
        self._expect("search.json", "every search has one")
        if (content := self._content("search.json")) is None:
            return
        if (record := self._parse("search.json", content, check=_check_search)) is not None:
            self._stages = [stage["name"] for stage in record["identity"]["policy"]]

    def _weights_deleted(self) -> set[int]:
        """Returns the trials whose weights were deleted."""
        collections = self._numbered("gc", ".json", lambda record, number: check_collection(record))
        self._expect_series("gc/{:04d}.json", self._numbers_in("gc/([0-9]{4,9})"))
        return {number for record in collections.values() for number in check_collection(record)}

    def _trials(
        self,
        proposals: Mapping[int, dict[str, Any]],
        results: Mapping[int, dict[str, Any]],
        weights_deleted: Collection[int],
    ) -> None:
        for number, proposal in proposals.items():
            if (trial := self._parsed(f"trials/{number:06d}.proposal.json", number, proposal)) is not None:
                self._inventory.trials[number] = trial
        for number, result in results.items():
            path = f"trials/{number:06d}.result.json"
            proposal = proposals[number] if number in self._inventory.trials else {**_UNKNOWN_PROPOSAL, "trial": number}
            trial = self._parsed(path, number, proposal, result)
            if trial is None:
                continue
            if number in self._inventory.trials:
                self._inventory.trials[number] = trial
            if trial.checkpoint is not None and number not in weights_deleted:
                self._inventory.checkpoints[number] = trial.checkpoint
            if trial.state != State.FAILED:  # a trial may fail before its attempt starts
                reason = "the trial's result is from this attempt"
                self._expect(f"trials/{number:06d}.start-{trial.attempt}.json", reason, (number,))

    def _parsed(
        self, path: str, number: int, proposal: Mapping[str, Any], result: Mapping[str, Any] | None = None
    ) -> Trial | None:
        try:
            return trial_from_records(proposal, result, number=number)
        except CorruptError as error:
            reason = str(error.__cause__ or error)
            self._add_damage(path, "corrupt", f"not a valid trial record: {reason}", (number,))
            return None

    def _check_lineage(self) -> None:
        """Checks the trials before the first gap as readers do; drops those with false proposals."""
        trials = self._inventory.trials
        known = [trials[number] for number in itertools.takewhile(trials.__contains__, itertools.count())]
        for fault in lineage_faults(known, self._stages):
            self._add_damage(fault.path, "corrupt", fault.text, (fault.trial,))
            if fault.record == "proposal":
                trials.pop(fault.trial, None)

    def _expect_trials(self, starts: Mapping[int, object]) -> None:
        """Expects all proposals, and the results that other trials used."""
        trials = self._inventory.trials
        known = {int(match[1]) for path in self._present if (match := re.match(r"trials/([0-9]{6,18})\.", path))}
        known |= {seen for trial in trials.values() for seen in (*trial.learned, *trial.parents)}
        self._expect_all("trials/{:06d}.proposal.json", 0, max(known, default=-1), "trial {} exists")
        for trial in trials.values():
            for seen in trial.learned:
                self._expect_result(seen, f"the tuner knew it when it proposed trial {trial.number}")
            if trial.is_finished or trial.number in starts:
                for source in (*trial.parents, *trial.proposal.weight_donors):
                    if isinstance(source, int):
                        self._expect_result(source, f"its child, trial {trial.number}, has run")

    def _sessions(self, starts: Mapping[int, Mapping[int, Mapping[str, Any]]]) -> set[int]:
        """Returns the sessions that ended normally."""
        self._numbered("sessions", ".json", lambda record, number: check_session(record))
        self._expect_series("sessions/{:04d}.json", self._numbers_in("sessions/([0-9]{4,9})"))
        for number, attempts in starts.items():
            for attempt, record in attempts.items():
                if type(session := record.get("session")) is int and session > 0:
                    self._expect(f"sessions/{session:04d}.json", f"attempt {attempt} of trial {number} ran in it")
        beats = self._numbered("sessions", ".beat", lambda record, number: check_heartbeat(record))
        return {number for number, beat in beats.items() if beat["ended"]}

    def _numbers_in(self, pattern: str) -> list[int]:
        """Returns the numbers of the present records whose paths match, damaged ones included."""
        matches = (re.fullmatch(rf"{pattern}\.json", path) for path in self._present)
        return [int(match[1]) for match in matches if match]

    def _expect_results_of_manifests(
        self, starts: Mapping[int, Mapping[int, Mapping[str, Any]]], ended: Collection[int]
    ) -> None:
        """Expects the result of each manifest whose session ended normally."""
        for name in self._files.names("manifests"):
            number = int(stem) if re.fullmatch("[0-9]{6,18}", stem := name.partition("-")[0]) else -1
            if attempts := starts.get(number):
                last = attempts[max(attempts)].get("session")
                if type(last) is int and last in ended:
                    self._expect_result(number, f"manifests/{name} exists and session {last} ended normally")

    def _winners(self) -> None:
        """Reads the records of winners, which name the exported files."""
        contents = {n: c for n, c in self._contents("", ".json").items() if re.fullmatch(r"best-[0-9]{4,9}\.json", n)}
        self._expect_series("best-{:04d}.json", [int(name[5:-5]) for name in contents])
        for path, content in contents.items():
            check = partial(check_best, number=int(path[5:-5]))
            if (record := self._parse(path, content, (), check)) is not None:
                files = checked_as(tuple[Reference, ...], record["files"])
                self._inventory.exports += [(record["trial"], reference) for reference in files]
                self._expect_result(record["trial"], f"{path} names it")

    def _resume_points(self, results: Container[int]) -> None:
        """Reads the resume points of trials without a result."""
        for folder in self._files.names("resume"):
            if not re.fullmatch("[0-9]{6,18}", folder) or (number := int(folder)) in results:
                continue  # deleted with the result
            for name in self._files.names(f"resume/{folder}"):
                path = f"resume/{folder}/{name}"
                if not (match := re.fullmatch(r"(\d+)-[0-9a-f]{8}\.json", name)):
                    continue
                if (content := self._content(path)) is None:
                    continue  # deleted meanwhile
                check = partial(_check_resume_point, trial=number, number=int(match[1]))
                if (record := self._parse(path, content, (number,), check)) is not None:
                    packs = checked_as(tuple[Reference, ...], record["manifest"]["packs"])
                    self._inventory.resume_packs += [(number, pack) for pack in packs]


def _with_number(check: _Check, number: int, record: dict[str, Any]) -> object:
    return check(record, number)


def _check_search(record: dict[str, Any]) -> None:
    if record.get("format") != FORMAT:
        raise CorruptError(f"format {short_repr(record.get('format'))}: must be {FORMAT} for this version of Heirloom")
    check_header(record)


def _check_resume_point(record: dict[str, Any], trial: int, number: int) -> None:
    state, manifest = parse_resume_point(record, trial, number)
    check_resume_state(state)
    tensor_ranges(manifest)


_UNKNOWN_PROPOSAL: Mapping[str, Any] = {
    **dict.fromkeys(("index", "job", "seed", "generation"), 0),
    **{"stage": "unknown", "policies": [], "created": None, "learned": []},
    "proposal": {
        **dict.fromkeys(("donors", "policies", "fidelity", "derivation")),
        **{"point": {}, "parents": [], "reason": ""},
    },
}
"""Replacement for a damaged proposal, so that the trial's result can be read."""
