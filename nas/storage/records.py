"""The records of one search: immutable small files that together are its whole state."""

from __future__ import annotations

import gc
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from nas.core.errors import AlreadyPublishedError, ConfigurationError, CorruptError, StorageError
from nas.core.trial import Trial
from nas.core.validation import checked_int, checked_time, path_in_errors, short_repr
from nas.storage.blobs import BlobStore
from nas.storage.record_format import FORMAT, decode_record, encode_record, is_format_1
from nas.storage.record_size import ERROR_BYTES, fitted
from nas.storage.search_records import check_collection, check_header, check_test
from nas.storage.trial_log import earlier_log_path, log_path
from nas.storage.trial_records import checked_donor, trial_from_records

_NUMBER = re.compile("[0-9]{6,18}")
_START = re.compile(r"([0-9]{6,18})\.(start|left)-([0-9]{1,9})\.json")
_LEFT = re.compile(r"([0-9]{6,18})\.json")
_COLLECTION = re.compile(r"[0-9]{4,9}\.json")


@dataclass(frozen=True, slots=True)
class Starts:
    """What the start records of one trial tell.

    Attributes:
        last_attempt: The highest attempt that started.
        sessions: The session of each attempt, in their order.
        n_lost: Attempts that another one of the same session followed: their worker died, not the session. Not those
            whose worker had left by itself.
    """

    last_attempt: int
    sessions: tuple[int, ...]
    n_lost: int

    @classmethod
    def of(cls, sessions: Mapping[int, int], left: Set[int] = frozenset()) -> Starts:
        """From the session of each attempt, and the attempts whose worker had left by itself."""
        attempts = sorted(sessions)
        pairs = itertools.pairwise(attempts)
        n_lost = sum(sessions[one] == sessions[next_] and one not in left for one, next_ in pairs)
        return cls(attempts[-1], tuple(sessions[attempt] for attempt in attempts), n_lost)


class Records:
    """Reads and writes the records of one search; every write is durable before it returns."""

    def __init__(self, files: BlobStore) -> None:
        self.files = files
        self._deleted_by: dict[str, frozenset[int]] = {}  # by record name; a record never changes

    def publish(self, path: str, record: Mapping[str, Any]) -> None:
        """Writes a record under a name that is taken once and for all.

        Raises:
            AlreadyPublishedError: the name is taken.
            StorageError: the record can't be encoded, or the store failed.
        """
        try:
            data = encode_record(record)
        except ValueError as error:
            raise StorageError(f"{path} can't be written: {error}") from error
        self.files.publish(path, [data], exclusive=True)

    def read(self, path: str) -> dict[str, Any] | None:
        """Returns the record of this name, or None where there is none yet."""
        data = self.files.read_if_present(path)
        if data is None:
            return None
        with path_in_errors(self.place(path)):
            return decode_record(data)

    def header(self) -> dict[str, Any] | None:
        """Returns what ``search.json`` says, or None if there is no search.

        Raises:
            ConfigurationError: a Heirloom that uses another record format wrote it.
            CorruptError: it can't be read.
        """
        if (data := self.files.read_if_present("search.json")) is None:
            return None
        with path_in_errors(self.place("search.json")):
            record = {"format": 1} if is_format_1(data) else decode_record(data)
            found = checked_int(record.get("format"), "format")
            if found == FORMAT:
                check_header(record)
                return record
        raise ConfigurationError(
            f"the search in {self.files.url} has format {found}; this Heirloom reads format {FORMAT}. Use the "
            "Heirloom that began the search, or begin a new one with name=..."
        )

    def place(self, path: str) -> str:
        """Where the record lies, for errors."""
        return f"{self.files.url}/{path}"

    def propose(self, trial: Trial) -> None:
        """Makes a proposal durable."""
        self.publish(_proposal_path(trial.number), trial.proposal_record())

    def start(self, trial: Trial, where: Mapping[str, Any]) -> None:
        """Makes durable that an attempt starts, where, and with whose weights."""
        what = {
            "trial": trial.number,
            "attempt": trial.attempt,
            "slot": trial.slot,
            "resolved_donor": trial.resolved_donor,
        }
        self.publish(_start_path(trial.number, trial.attempt), {**what, **where})

    def spare(self, trial: Trial, why: str) -> None:
        """Makes durable that an attempt's worker left by itself; only the name of the record is ever read."""
        with suppress(AlreadyPublishedError):
            what = {"trial": trial.number, "attempt": trial.attempt, "why": why[-ERROR_BYTES:]}
            self.publish(f"trials/{trial.number:06d}.left-{trial.attempt}.json", what)

    def commit(self, trial: Trial) -> Trial:
        """Makes a result durable, as far as there is room, and gives the one that counts: the first."""
        trial = fitted(trial)
        try:
            self.publish(_result_path(trial.number), trial.result_record())
        except AlreadyPublishedError:
            first = self.result(trial)
            if first is None:
                raise
            return first
        return trial

    def leave(self, job: int, *, n_trials: int, error: str | None) -> None:
        """Makes durable that a job has ended by itself; only the name of the record is ever read."""
        what = {"job": job, "n_trials": n_trials, "error": error and error[-ERROR_BYTES:]}
        with suppress(AlreadyPublishedError):
            self.publish(f"jobs/{job:06d}.json", what)

    def left_jobs(self) -> set[int]:
        """Returns the jobs that have ended by themselves."""
        found = map(_LEFT.fullmatch, self.files.names("jobs"))
        return {int(name[1]) for name in found if name is not None}

    def result(self, trial: Trial) -> Trial | None:
        """Returns the finished trial of this proposal, or None where it has no result yet."""
        return self._finished(trial.proposal_record(), trial.number)

    def finished_trial(self, number: int) -> Trial | None:
        """Returns the trial of this number where it has finished, from the records alone."""
        proposal = self.read(_proposal_path(number))
        return None if proposal is None else self._finished(proposal, number)

    def _finished(self, proposal: Mapping[str, Any], number: int) -> Trial | None:
        result = self.read(_result_path(number))
        return (
            None
            if result is None
            else self._trial(number, proposal, result, weights_deleted=number in self.weights_deleted())
        )

    def proposed(self, number: int) -> Trial | None:
        """Returns the trial of this number as it was proposed, or None where it has not been."""
        proposal = self.read(_proposal_path(number))
        return None if proposal is None else self._trial(number, proposal)

    def unfinished(self) -> list[Trial]:
        """Returns the trials without a result, WAITING; of the others only the names are read.

        Raises:
            CorruptError: a record can't be read.
        """
        names = self.files.names("trials")
        finished = {name.partition(".")[0] for name in names if name.endswith(".result.json")}
        stems = [name.removesuffix(".proposal.json") for name in names if name.endswith(".proposal.json")]
        numbers = [number for stem in stems if stem not in finished and (number := _number_in(stem)) >= 0]
        return [trial for number in numbers if (trial := self.proposed(number)) is not None]

    def _trial(
        self,
        number: int,
        proposal: Mapping[str, Any],
        result: Mapping[str, Any] | None = None,
        *,
        weights_deleted: bool = False,
    ) -> Trial:
        return trial_from_records(
            proposal, result, number=number, weights_deleted=weights_deleted, folder=self.place("trials")
        )

    def load(self) -> tuple[list[Trial], dict[int, Starts]]:
        """Returns all trials by number, those without a result WAITING, and the attempts of these.

        Right also while others propose and commit: a result that is seen has its proposal, and numbers have no gaps.

        Raises:
            CorruptError: a record can't be read, or numbers are missing, or records do not agree.
        """
        with _no_collection():
            results = self._read_all(".result.json")  # first: each one's proposal was there before it
            proposals = self._read_all(".proposal.json")
            if lacking := sorted(set(results) - set(proposals)):
                raise self._lacks(lacking[0])
            weights_deleted = self.weights_deleted()
            trials: list[Trial] = []
            while (number := len(trials)) < len(proposals):
                if number not in proposals:  # unless a listing missed it that was taken while it came
                    if (late := self.read(_proposal_path(number))) is None:
                        raise self._lacks(number)
                    proposals[number] = late
                trials.append(
                    self._trial(
                        number, proposals[number], results.get(number), weights_deleted=number in weights_deleted
                    )
                )
            self._check_agreement(trials)
        return trials, self._starts({t.number for t in trials if not t.is_finished})

    def _starts(self, unfinished: Set[int]) -> dict[int, Starts]:
        """What the start records of these trials tell, where they have any."""
        sessions: dict[int, dict[int, int]] = {}
        left: dict[int, set[int]] = {}
        for name in self.files.names("trials") if unfinished else ():
            if (found := _START.fullmatch(name)) and (number := int(found[1])) in unfinished:
                attempt = int(found[3])
                if found[2] == "left":
                    left.setdefault(number, set()).add(attempt)
                elif (start := self.read_start(number, attempt)) is not None:
                    sessions.setdefault(number, {})[attempt] = start["session"]
        return {number: Starts.of(attempts, left.get(number, set())) for number, attempts in sessions.items()}

    def _check_agreement(self, trials: Sequence[Trial]) -> None:
        """Makes sure that each trial builds on, and has learned of, earlier ones only.

        Raises:
            CorruptError: one does not; its proposal is named.
        """
        for trial in trials:
            donors = [donor for donor in trial.proposal.weight_donors if isinstance(donor, int)]
            if max((*trial.parents, *donors, *trial.learned), default=-1) >= trial.number:
                raise CorruptError(
                    f"{self.place(_proposal_path(trial.number))} can't be read: parents {short_repr(trial.parents)}, "
                    f"donors {short_repr(donors)} and learned {short_repr(trial.learned)} must be earlier trials"
                )

    def read_start(self, number: int, attempt: int) -> dict[str, Any] | None:
        """What was made durable when this attempt of the trial started, or None."""
        path = _start_path(number, attempt)
        record = self.read(path)
        if record is not None:
            with path_in_errors(self.place(path)):
                if (record.get("trial"), record.get("attempt")) != (number, attempt):
                    raise CorruptError("it is the record of another attempt")
                checked_int(record.get("session"), "session")
                if record.get("slot") is not None:
                    checked_int(record["slot"], "slot")
                checked_donor(record.get("resolved_donor"), "resolved_donor")
                checked_time(record.get("time"), "time")
        return record

    def _read_all(self, suffix: str) -> dict[int, dict[str, Any]]:
        """Returns the records of one kind by trial; what has another name than ours is left out."""
        found = self.files.read_folder("trials", suffix)
        paths = {_number_in(name.removesuffix(suffix)): name for name in found}
        records: dict[int, dict[str, Any]] = {}
        for number, name in paths.items():
            if number >= 0:
                with path_in_errors(self.place(f"trials/{name}")):
                    records[number] = decode_record(found[name])
        return records

    def _lacks(self, number: int) -> CorruptError:
        return CorruptError(f"the proposal of trial {number} is missing in {self.files.url}/trials")

    def publish_collection(self, record: Mapping[str, Any]) -> int:
        """Records that the weights of ``record["trials"]`` are deleted. Returns the record's number.

        Raises:
            AlreadyPublishedError: another process collects.
        """
        numbers = [int(name.removesuffix(".json")) for name in self._collection_names()]
        number = max(numbers, default=0) + 1
        self.publish(f"gc/{number:04d}.json", {"gc": number, **record})
        return number

    def weights_deleted(self) -> frozenset[int]:
        """Returns the trials with deleted weights, from the records of all garbage collections."""
        for name in self._collection_names():
            if name not in self._deleted_by:
                record = self.read(f"gc/{name}") or {}
                with path_in_errors(self.place(f"gc/{name}")):
                    self._deleted_by[name] = check_collection(record)
        return frozenset[int]().union(*self._deleted_by.values())

    def _collection_names(self) -> list[str]:
        return [name for name in self.files.names("gc") if _COLLECTION.fullmatch(name)]

    def tests(self) -> dict[int, dict[str, Any]]:
        """Returns the finalists' test records by trial."""
        found = self.files.read_folder("tests", ".json")
        tests: dict[int, dict[str, Any]] = {}
        for name, data in found.items():
            number, place = _number_in(name.removesuffix(".json")), self.place(f"tests/{name}")
            if number >= 0:
                with path_in_errors(place):
                    tests[number] = decode_record(data)
                    check_test(tests[number], number)
        return tests

    def log(self, number: int) -> str:
        """Returns the log of a trial's last attempt: the last 1 MB of its output, error and logging."""
        return self._text(log_path(number)) or ""

    def other_logs(self, trial: Trial) -> dict[str, str]:
        """Its other logs by name: earlier attempts, extra results, what it did not inherit, its test, its export."""
        names = self.files.names("logs")  # not as many as the record says: that may be any number
        there = (re.fullmatch(rf"{trial.number:06d}-([1-9][0-9]{{0,8}})\.log", name) for name in names)
        attempts = sorted(int(found[1]) for found in there if found)
        paths = {f"attempt {n}": earlier_log_path(trial.number, n) for n in attempts if n < trial.attempt}
        paths |= {
            action: log_path(trial.number, action) for action in ("extra_results", "inheritance", "test", "export")
        }
        return {what: text for what, path in paths.items() if (text := self._text(path)) is not None}

    def _text(self, path: str) -> str | None:
        data = self.files.read_if_present(path)
        return None if data is None else data.decode(errors="replace")


def _number_in(digits: str) -> int:
    """Returns the number, or -1 where the text is none that we write."""
    number = int(digits) if _NUMBER.fullmatch(digits) else -1
    return number if f"{number:06d}" == digits else -1


def _proposal_path(number: int) -> str:
    return f"trials/{number:06d}.proposal.json"


def _start_path(number: int, attempt: int) -> str:
    return f"trials/{number:06d}.start-{attempt}.json"


def _result_path(number: int) -> str:
    return f"trials/{number:06d}.result.json"


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keeps Python from looking for cycles meanwhile: records are trees, and looking nearly doubles the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
