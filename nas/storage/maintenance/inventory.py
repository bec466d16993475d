"""The inventory of a search: which records should be there, which are lost, and what they promise.

A record has no digest. It is lost where it is missing although another record shows that it was there, and corrupt
where it is not what Heirloom writes under its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from nas.core.checkpoint import Checkpoint
from nas.core.errors import CorruptError, StorageError
from nas.core.reference import Reference, references
from nas.core.trial import State, Trial
from nas.core.validation import checked_fields, whole
from nas.storage.blobs import BlobStore
from nas.storage.maintenance.damage import Damage, Fate, reason_of
from nas.storage.manifest import Manifest
from nas.storage.records import from_bytes
from nas.storage.search_records import check_sweep
from nas.storage.trial_records import trial_from_records
from nas.storage.verified import digest_of

MAX_MISSING = 1000
"""How many records of one series are told to be missing."""


@dataclass(slots=True)
class Inventory:
    """What the records say that there is.

    Attributes:
        trials: By number, each with its result where it has one; those without a readable proposal are left out.
        checkpoints: What finished trials published, by number.
        exports: The files of the winners' folders, each with its trial.
        partials: The packs of partial checkpoints, each with its trial, which has no result yet.
        damages: Records that are lost.
        n_records: Records that were read.
        n_bytes: Their size.
    """

    trials: dict[int, Trial] = field(default_factory=dict)
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    exports: list[tuple[int, Reference]] = field(default_factory=list)
    partials: list[tuple[int, Reference]] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    n_records: int = 0
    n_bytes: int = 0


def take_inventory(files: BlobStore) -> Inventory:
    """Reads all records of the search whose folder is the root of ``files``.

    Raises:
        StorageError: its folders can't be listed.
    """
    return _Reader(files).read()


class _Reader:
    """Reads the records of one search, each for itself, so that one that is lost hides no other."""

    def __init__(self, files: BlobStore) -> None:
        self._files = files
        self._found = Inventory()
        self._there: set[str] = set()
        self._proof: dict[str, tuple[str, tuple[int, ...]]] = {}  # path -> why it should be there, whose it is

    def read(self) -> Inventory:
        """Returns the inventory."""
        results, proposals = (self._numbered("trials", f".{kind}.json") for kind in ("result", "proposal"))
        starts = self._starts()
        self._search()
        self._trials(proposals, results, self._weights_deleted())
        self._expect_trials(starts)
        ended = self._sessions(starts)
        self._expect_results_of_manifests(starts, ended)
        for number in self._numbered("tests", ".json"):
            self._expect_result(number, f"tests/{number:06d}.json is there")
        for number in self._numbered("jobs", ".json"):
            self._expect(f"trials/{number:06d}.proposal.json", f"jobs/{number:06d}.json is there", (number,))
        self._bests()
        self._partials(results)
        for path, (why, trials) in sorted(self._proof.items()):
            if path not in self._there:
                self._lose(path, Fate.MISSING, f"although {why}", trials)
        return self._found

    # ---- reading

    def _numbered(self, folder: str, suffix: str) -> dict[int, dict[str, Any]]:
        """Returns the records of a folder whose names are a number and this suffix."""
        found = {}
        for name, content in self._contents(folder, suffix).items():
            if re.fullmatch("[0-9]{4,18}", stem := name.removesuffix(suffix)):
                number = int(stem)
                trials = (number,) if folder in ("trials", "tests") else ()
                if (record := self._parse(f"{folder}/{name}", content, trials)) is not None:
                    found[number] = record
        return found

    def _starts(self) -> dict[int, dict[int, dict[str, Any]]]:
        """Returns the start records by trial and attempt."""
        names = [re.fullmatch(r"[0-9]{6,18}(\.start-([0-9]{1,9})\.json)", n) for n in self._files.names("trials")]
        suffixes = {int(match[2]): match[1] for match in names if match}
        found: dict[int, dict[int, dict[str, Any]]] = {}
        for attempt, suffix in sorted(suffixes.items()):
            for number, record in sorted(self._numbered("trials", suffix).items()):
                found.setdefault(number, {})[attempt] = record
        return found

    def _contents(self, folder: str, suffix: str) -> dict[str, bytes | StorageError]:
        """Returns the records of a folder; where one can't be read, each is read for itself."""
        try:
            return dict(self._files.read_all(folder, suffix))
        except StorageError:
            names = [name for name in self._files.names(folder) if name.endswith(suffix)]
            found = {name: self._content(f"{folder}/{name}" if folder else name) for name in names}
            return {name: content for name, content in found.items() if content is not None}

    def _content(self, path: str) -> bytes | StorageError | None:
        try:
            return self._files.read_if_present(path)
        except StorageError as error:
            return error

    def _parse(self, path: str, content: bytes | StorageError, trials: tuple[int, ...] = ()) -> dict[str, Any] | None:
        """Returns the record; None where it is lost, which is noted."""
        self._there.add(path)
        if isinstance(content, StorageError):
            self._lose(path, Fate.UNREADABLE, reason_of(content), trials)
            return None
        self._found.n_records += 1
        self._found.n_bytes += len(content)
        try:
            return from_bytes(content, path)
        except CorruptError:
            self._lose(path, Fate.CORRUPT, "no JSON object", trials)
            return None

    def _lose(self, path: str, fate: Fate, detail: str, trials: tuple[int, ...]) -> None:
        self._found.damages.append(Damage(kind="record", path=path, fate=fate, detail=detail, trials=trials))

    # ---- what should be there

    def _expect(self, path: str, why: str, trials: tuple[int, ...] = ()) -> None:
        self._proof.setdefault(path, (why, trials))

    def _expect_result(self, number: int, why: str) -> None:
        self._expect(f"trials/{number:06d}.result.json", why, (number,))

    def _expect_series(self, pattern: str, numbers: Collection[int]) -> None:
        """Numbers are given without gaps, from 1 on."""
        self._expect_all(pattern, 1, max(numbers, default=0), f"{pattern} is there")

    def _expect_all(self, pattern: str, first: int, last: int, why: str) -> None:
        """All numbers up to the last one; where a record has an absurd one, not so many as that says."""
        n_missing = 0
        for number in range(first, last + 1):
            n_missing += pattern.format(number) not in self._there
            if n_missing > MAX_MISSING:
                break
            self._expect(pattern.format(number), why.format(last), (number,) if pattern.startswith("trials/") else ())

    def _search(self) -> None:
        self._expect("search.json", "every search has one")
        if (content := self._content("search.json")) is not None:
            record = self._parse("search.json", content)
            if record is not None and not record.keys() >= {"format", "identity", "metrics"}:
                self._lose("search.json", Fate.CORRUPT, "no record of a search", ())

    def _weights_deleted(self) -> set[int]:
        """Returns the trials whose weights were deleted to make room."""
        collections = self._numbered("gc", ".json")
        self._expect_series("gc/{:04d}.json", collections)
        weights_deleted: set[int] = set()
        for number, record in collections.items():
            try:
                weights_deleted |= check_sweep(record)
            except CorruptError as error:
                self._lose(f"gc/{number:04d}.json", Fate.CORRUPT, f"no record of a garbage collection: {error}", ())
        return weights_deleted

    def _trials(
        self,
        proposals: Mapping[int, dict[str, Any]],
        results: Mapping[int, dict[str, Any]],
        weights_deleted: Collection[int],
    ) -> None:
        for number, proposal in proposals.items():
            if (trial := self._parsed(f"trials/{number:06d}.proposal.json", number, proposal)) is not None:
                self._found.trials[number] = trial
        for number, result in results.items():
            path = f"trials/{number:06d}.result.json"
            proposal = proposals[number] if number in self._found.trials else {**_STAND_IN, "trial": number}
            trial = self._parsed(path, number, proposal, result)
            if trial is None:
                continue
            if number in self._found.trials:
                self._found.trials[number] = trial
            if trial.checkpoint is not None and number not in weights_deleted:
                self._found.checkpoints[number] = trial.checkpoint
            if trial.state != State.FAILED:  # one may fail before its attempt starts
                why = "its result is of this attempt"
                self._expect(f"trials/{number:06d}.start-{trial.attempt}.json", why, (number,))

    def _parsed(
        self, path: str, number: int, proposal: Mapping[str, Any], result: Mapping[str, Any] | None = None
    ) -> Trial | None:
        try:
            return trial_from_records(proposal, result, number=number)
        except CorruptError as error:
            why = str(error.__cause__ or error)
            self._lose(path, Fate.CORRUPT, f"no record of a trial: {why}", (number,))
            return None

    def _expect_trials(self, starts: Mapping[int, object]) -> None:
        """Proposals without gaps, and the results that other trials built on."""
        trials = self._found.trials
        known = {int(match[1]) for path in self._there if (match := re.match(r"trials/([0-9]{6,18})\.", path))}
        known |= {seen for trial in trials.values() for seen in (*trial.learned, *trial.parents)}
        self._expect_all("trials/{:06d}.proposal.json", 0, max(known, default=-1), "trial {} is there")
        for trial in trials.values():
            for seen in trial.learned:
                self._expect_result(seen, f"the tuner knew it when it proposed trial {trial.number}")
            if trial.is_finished or trial.number in starts:
                for elder in (*trial.parents, *trial.proposal.weight_donors):
                    if isinstance(elder, int):
                        self._expect_result(elder, f"trial {trial.number}, its child, has run")

    def _sessions(self, starts: Mapping[int, Mapping[int, Mapping[str, Any]]]) -> set[int]:
        """Returns the sessions that have ended in order."""
        self._expect_series("sessions/{:04d}.json", self._numbered("sessions", ".json"))
        for number, attempts in starts.items():
            for attempt, record in attempts.items():
                if type(session := record.get("session")) is int and session > 0:
                    self._expect(f"sessions/{session:04d}.json", f"attempt {attempt} of trial {number} belongs to it")
        return {number for number, beat in self._numbered("sessions", ".beat").items() if beat.get("ended") is True}

    def _expect_results_of_manifests(
        self, starts: Mapping[int, Mapping[int, Mapping[str, Any]]], ended: Collection[int]
    ) -> None:
        """A manifest is followed by its trial's result, unless that very moment was its session's last."""
        for name in self._files.names("manifests"):
            number = int(stem) if re.fullmatch("[0-9]{6,18}", stem := name.partition("-")[0]) else -1
            if attempts := starts.get(number):
                last = attempts[max(attempts)].get("session")
                if type(last) is int and last in ended:
                    why = f"manifests/{name} is there and session {last} has ended in order"
                    self._expect_result(number, why)

    def _bests(self) -> None:
        """The records of the winners, and the files that they promise."""
        contents = {n: c for n, c in self._contents("", ".json").items() if re.fullmatch(r"best-[0-9]{4,9}\.json", n)}
        self._expect_series("best-{:04d}.json", [int(name[5:-5]) for name in contents])
        for path, content in contents.items():
            if (record := self._parse(path, content)) is None:
                continue
            try:
                fields = checked_fields(record, {"trial": (int,), "files": (list,)}, others=True)
                number = whole(fields["trial"], "trial")
                exported = [(number, reference) for reference in references(fields["files"])]
            except CorruptError as error:
                self._lose(path, Fate.CORRUPT, f"no record of a winner: {error}", ())
                continue
            self._found.exports += exported
            self._expect_result(number, f"{path} names it")

    def _partials(self, results: Container[int]) -> None:
        """What trials without a result have reached; the name of each record holds its digest."""
        for folder in self._files.names("resume"):
            if not re.fullmatch("[0-9]{6,18}", folder) or (number := int(folder)) in results:
                continue  # the result sweeps them
            for name in self._files.names(f"resume/{folder}"):
                path = f"resume/{folder}/{name}"
                if not (match := re.fullmatch(r"\d+-([0-9a-f]{64})\.json", name)):
                    continue
                if (content := self._content(path)) is None:
                    continue  # swept since
                if isinstance(content, bytes) and digest_of(content) != f"blake3:{match[1]}":
                    self._lose(path, Fate.CORRUPT, "other contents", (number,))
                elif (record := self._parse(path, content, (number,))) is not None:
                    try:
                        manifest = Manifest.from_bytes(json.dumps(record["manifest"]).encode())
                    except (CorruptError, KeyError) as error:
                        self._lose(path, Fate.CORRUPT, f"no partial checkpoint: {error!r}", (number,))
                        continue
                    self._found.partials += [(number, pack) for pack in manifest.packs]


_STAND_IN: Mapping[str, Any] = {
    **dict.fromkeys(("index", "job", "seed", "generation"), 0),
    **{"stage": "unknown", "policies": [], "created": None, "learned": []},
    "proposal": {
        **dict.fromkeys(("donors", "policies", "fidelity", "derivation")),
        **{"point": {}, "parents": [], "reason": ""},
    },
}
"""What stands for a proposal that is lost, so that its trial's result can be read all the same."""
