"""Records of one search: small immutable files that hold its whole state."""

from __future__ import annotations

import gc
import itertools
import re
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from nas.core.errors import AlreadyPublishedError, ConfigurationError, CorruptError, StorageError
from nas.core.tracebacks import recorded_error
from nas.core.trial import Trial
from nas.core.validation import path_in_errors, short_repr
from nas.storage.blobs import BlobStore
from nas.storage.lineage_checks import lineage_faults
from nas.storage.record_format import FORMAT, decode_record, encode_record, is_format_1
from nas.storage.record_size import ERROR_BYTES, shorten
from nas.storage.search_records import check_collection, check_header, check_session, check_test, code_id
from nas.storage.trial_log import earlier_log_path, log_path
from nas.storage.trial_records import check_proposal, check_start, trial_from_records

_NUMBER = re.compile("[0-9]{6,18}")
_START = re.compile(r"([0-9]{6,18})\.(start|left)-([0-9]{1,9})\.json")
_TEST = re.compile(r"([0-9]{6,18})(?:-([0-9]{1,9}))?\.json")
_JOB_END = re.compile(r"([0-9]{6,18})\.json")
SESSION_NAME = re.compile(r"[0-9]{4,9}\.json")
_COLLECTION = re.compile(r"[0-9]{4,9}\.json")


@dataclass(frozen=True, slots=True)
class StartedAttempts:
    """Started attempts of one trial.

    Attributes:
        last_attempt: Number of the last attempt that started.
        sessions: Session of each attempt, in order of attempts.
        n_lost: Attempts that were followed by another one in the same session. Their worker ended, but the session did
            not. Attempts whose worker left by itself do not count.
    """

    last_attempt: int
    sessions: tuple[int, ...]
    n_lost: int

    @classmethod
    def of(cls, sessions: Mapping[int, int], left: Set[int] = frozenset()) -> StartedAttempts:
        """Returns the attempts, from their sessions and the attempts whose worker left by itself."""
        attempts = sorted(sessions)
        pairs = itertools.pairwise(attempts)
        n_lost = sum(sessions[one] == sessions[next_] and one not in left for one, next_ in pairs)
        return cls(attempts[-1], tuple(sessions[attempt] for attempt in attempts), n_lost)


class Records:
    """Reads and writes the records of one search. Every write is durable before it returns.

    Attributes:
        files: The search's folder.
        private: Names that replace texts in errors (``nas.core.redaction.private_texts``).
    """

    def __init__(self, files: BlobStore) -> None:
        self.files = files
        self.private: Mapping[str, str] = {}
        self._stages: tuple[str, ...] | None = None
        self._deleted_by: dict[str, frozenset[int]] = {}  # by record name; a record never changes

    def publish(self, path: str, record: Mapping[str, Any]) -> None:
        """Writes a record under a new name; it never changes.

        Raises:
            AlreadyPublishedError: the name exists.
            StorageError: the record can't be encoded, or the storage failed.
        """
        try:
            data = encode_record(record)
        except ValueError as error:
            raise StorageError(f"{path} can't be written: {error}") from error
        self.files.publish(path, [data], exclusive=True)

    def error_text(self, text: str) -> str:
        """Returns the text of an error as records hold it."""
        return recorded_error(text, self.private)

    def read(self, path: str) -> dict[str, Any] | None:
        """Returns the record, or None if it does not exist."""
        data = self.files.read_if_present(path)
        if data is None:
            return None
        with path_in_errors(self.url_of(path)):
            return decode_record(data)

    def header(self) -> dict[str, Any] | None:
        """Returns the content of ``search.json``, or None if there is no search.

        Raises:
            ConfigurationError: it has another record format.
            CorruptError: it can't be read.
        """
        if (data := self.files.read_if_present("search.json")) is None:
            return None
        with path_in_errors(self.url_of("search.json")):
            record = {"format": 1} if is_format_1(data) else decode_record(data)
            if type(found := record.get("format")) is not int:
                raise CorruptError(f"format must not be {short_repr(found)}")
            if found == FORMAT:
                check_header(record)
                return record
        raise ConfigurationError(
            f"the search in {self.files.url} has format {found}; this Heirloom reads format {FORMAT}. Use the "
            "Heirloom that began the search, or begin a new one with name=..."
        )

    def url_of(self, path: str) -> str:
        """Returns the full path of a record, for errors."""
        return f"{self.files.url}/{path}"

    def propose(self, trial: Trial) -> None:
        """Publishes the proposal of a trial.

        Raises:
            ConfigurationError: readers would not accept the record.
        """
        try:
            data = encode_record(trial.proposal_record())
            check_proposal(decode_record(data))
        except (CorruptError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"trial {trial.number} can't be recorded: {error}. Correct the proposal: {short_repr(trial.proposal)}"
            ) from error
        self.files.publish(_proposal_path(trial.number), [data], exclusive=True)

    def start(self, trial: Trial, where: Mapping[str, Any]) -> None:
        """Publishes the start of an attempt, with its session and host in ``where``."""
        record = {
            "trial": trial.number,
            "attempt": trial.attempt,
            "slot": trial.slot,
            "resolved_donor": trial.resolved_donor,
            **where,
        }
        self.publish(_start_path(trial.number, trial.attempt), record)

    def publish_worker_exit(self, trial: Trial, reason: str) -> None:
        """Publishes that the worker of an attempt left by itself, so the attempt is not lost."""
        record = {"trial": trial.number, "attempt": trial.attempt, "why": self.error_text(reason)[-ERROR_BYTES:]}
        with suppress(AlreadyPublishedError):
            self.publish(f"trials/{trial.number:06d}.left-{trial.attempt}.json", record)

    def commit(self, trial: Trial) -> Trial:
        """Publishes a result, cut to the limits. Returns the trial's first result, which counts."""
        error = None if trial.error is None else self.error_text(trial.error)
        inheritance = dict(trial.inheritance)
        if "warnings" in inheritance:
            inheritance["warnings"] = [self.error_text(text) for text in inheritance["warnings"]]
        trial = shorten(replace(trial, error=error, inheritance=inheritance))
        try:
            self.publish(_result_path(trial.number), trial.result_record())
        except AlreadyPublishedError:
            first = self.result(trial)
            if first is None:
                raise
            return first
        return trial

    def publish_job_end(self, job: int, *, n_trials: int, error: str | None) -> None:
        """Publishes that a job ended by itself."""
        text = error and self.error_text(error)[-ERROR_BYTES:]
        record = {"job": job, "n_trials": n_trials, "error": text}
        with suppress(AlreadyPublishedError):
            self.publish(f"jobs/{job:06d}.json", record)

    def ended_jobs(self) -> set[int]:
        """Returns the jobs that ended by themselves."""
        matches = map(_JOB_END.fullmatch, self.files.names("jobs"))
        return {int(match[1]) for match in matches if match is not None}

    def result(self, trial: Trial) -> Trial | None:
        """Returns the finished trial of this proposal, or None if it has no result."""
        return self._finished(trial.proposal_record(), trial.number)

    def finished_trial(self, number: int) -> Trial | None:
        """Returns the trial of this number, or None if it has not finished."""
        proposal = self.read(_proposal_path(number))
        return None if proposal is None else self._finished(proposal, number)

    def _finished(self, proposal: Mapping[str, Any], number: int) -> Trial | None:
        result = self.read(_result_path(number))
        if result is None:
            return None
        return self._trial(number, proposal, result, weights_deleted=number in self.weights_deleted())

    def proposed(self, number: int) -> Trial | None:
        """Returns the trial of this number as proposed, or None if there is none."""
        proposal = self.read(_proposal_path(number))
        return None if proposal is None else self._trial(number, proposal)

    def unfinished(self) -> list[Trial]:
        """Returns the trials without a result, in state WAITING; reads only names of others.

        Raises:
            CorruptError: a record can't be read.
        """
        names = self.files.names("trials")
        finished = {name.partition(".")[0] for name in names if name.endswith(".result.json")}
        proposed = {name.removesuffix(".proposal.json") for name in names if name.endswith(".proposal.json")}
        numbers = map(_number_in, sorted(proposed - finished))
        trials = (self.proposed(number) for number in numbers if number >= 0)
        return [trial for trial in trials if trial is not None]

    def _trial(
        self,
        number: int,
        proposal: Mapping[str, Any],
        result: Mapping[str, Any] | None = None,
        *,
        weights_deleted: bool = False,
    ) -> Trial:
        return trial_from_records(
            proposal, result, number=number, weights_deleted=weights_deleted, folder=self.url_of("trials")
        )

    def load(self) -> tuple[list[Trial], dict[int, StartedAttempts]]:
        """Returns all trials by number, and the attempts of those without a result.

        Trials without a result are WAITING. The answer is consistent while other processes propose and commit: each
        result has its proposal, and numbers have no gaps.

        Raises:
            CorruptError: a record can't be read, a proposal is missing, or records contradict each other.
        """
        with _gc_paused():
            results = self._read_all(".result.json")  # before the proposals, so that each result has one
            proposals = self._read_all(".proposal.json")
            if missing := sorted(set(results) - set(proposals)):
                raise self._missing_proposal(missing[0])
            weights_deleted = self.weights_deleted()
            trials: list[Trial] = []
            while (number := len(trials)) < len(proposals):
                if number not in proposals:  # it may have been published during the listing
                    if (late := self.read(_proposal_path(number))) is None:
                        raise self._missing_proposal(number)
                    proposals[number] = late
                proposal, result = proposals[number], results.get(number)
                trials.append(self._trial(number, proposal, result, weights_deleted=number in weights_deleted))
            for fault in lineage_faults(trials, self._stage_names()):
                raise fault.error(self.files.url)
            if any(trial.code is not None for trial in trials):
                code = (self.newest_code_session() or {"code": {}})["code"]
                trials = mark_outdated(trials, code_id(code.get("problem", {})))
        return trials, self._starts({t.number for t in trials if not t.is_finished})

    def _stage_names(self) -> tuple[str, ...] | None:
        """Returns the names of the plan's stages, or None if there is no ``search.json``."""
        if self._stages is None and (header := self.header()) is not None:
            self._stages = tuple(stage["name"] for stage in header["identity"]["policy"])
        return self._stages

    def newest_code_session(self) -> dict[str, Any] | None:
        """Returns the record of the newest session that ran trials, with its code, or None."""
        names = [name for name in self.files.names("sessions") if SESSION_NAME.fullmatch(name)]
        for name in sorted(names, key=lambda name: int(name.removesuffix(".json")), reverse=True):
            record = self.read(f"sessions/{name}") or {}
            with path_in_errors(self.url_of(f"sessions/{name}")):
                check_session(record)
            if "code" in record:
                return record
        return None

    def _starts(self, unfinished: Set[int]) -> dict[int, StartedAttempts]:
        """Returns the attempts of these trials, for trials that have started."""
        sessions: dict[int, dict[int, int]] = {}
        left: dict[int, set[int]] = {}
        for name in self.files.names("trials") if unfinished else ():
            if (found := _START.fullmatch(name)) and (number := int(found[1])) in unfinished:
                attempt = int(found[3])
                if found[2] == "left":
                    left.setdefault(number, set()).add(attempt)
                elif (start := self.read_start(number, attempt)) is not None:
                    sessions.setdefault(number, {})[attempt] = start["session"]
        return {number: StartedAttempts.of(attempts, left.get(number, set())) for number, attempts in sessions.items()}

    def read_start(self, number: int, attempt: int) -> dict[str, Any] | None:
        """Returns the start record of an attempt, or None if it did not start."""
        path = _start_path(number, attempt)
        record = self.read(path)
        if record is not None:
            with path_in_errors(self.url_of(path)):
                check_start(record, number, attempt)
        return record

    def _read_all(self, suffix: str) -> dict[int, dict[str, Any]]:
        """Returns the records with this suffix by trial number. Files with other names are ignored."""
        records: dict[int, dict[str, Any]] = {}
        for name, data in self.files.read_folder("trials", suffix).items():
            if (number := _number_in(name.removesuffix(suffix))) >= 0:
                with path_in_errors(self.url_of(f"trials/{name}")):
                    records[number] = decode_record(data)
        return records

    def _missing_proposal(self, number: int) -> CorruptError:
        return CorruptError(f"{self.url_of(_proposal_path(number))} is missing. Restore it from a backup")

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
                with path_in_errors(self.url_of(f"gc/{name}")):
                    self._deleted_by[name] = check_collection(record)
        return frozenset[int]().union(*self._deleted_by.values())

    def _collection_names(self) -> list[str]:
        return [name for name in self.files.names("gc") if _COLLECTION.fullmatch(name)]

    def publish_test(self, record: Mapping[str, Any]) -> None:
        """Publishes the test record of a finalist, beside earlier ones of failed tests."""
        number = record["trial"]
        if "error" in record:
            record = {**record, "error": self.error_text(record["error"])}
        matches = filter(None, map(_TEST.fullmatch, self.files.names("tests")))
        last = max((int(match[2] or 1) for match in matches if int(match[1]) == number), default=0)
        self.publish(f"tests/{number:06d}{f'-{last + 1}' if last else ''}.json", record)

    def tests(self) -> dict[int, dict[str, Any]]:
        """Returns the newest test record of each finalist, by trial."""
        found: dict[tuple[int, int], dict[str, Any]] = {}
        for name, data in self.files.read_folder("tests", ".json").items():
            match = _TEST.fullmatch(name)
            if match is not None and (number := _number_in(match[1])) >= 0:
                with path_in_errors(self.url_of(f"tests/{name}")):
                    record = decode_record(data)
                    check_test(record, number)
                found[number, int(match[2] or 1)] = record
        return {number: found[number, n] for number, n in sorted(found)}

    def log(self, number: int) -> str:
        """Returns the log of a trial's last attempt, up to 1 MB."""
        return self._text(log_path(number)) or ""

    def other_logs(self, trial: Trial) -> dict[str, str]:
        """Returns the other logs of a trial by name, such as ``attempt 1`` and ``test``."""
        pattern = rf"{trial.number:06d}-([1-9][0-9]{{0,8}})\.log"  # listed, as a hostile record may say any attempt
        matches = (re.fullmatch(pattern, name) for name in self.files.names("logs"))
        attempts = sorted(int(match[1]) for match in matches if match)
        paths = {f"attempt {n}": earlier_log_path(trial.number, n) for n in attempts if n < trial.attempt}
        for action in ("extra_results", "inheritance", "test", "export"):
            paths[action] = log_path(trial.number, action)
        texts = {name: self._text(path) for name, path in paths.items()}
        return {name: text for name, text in texts.items() if text is not None}

    def _text(self, path: str) -> str | None:
        data = self.files.read_if_present(path)
        return None if data is None else data.decode(errors="replace")


def mark_outdated(trials: list[Trial], newest: str | None) -> list[Trial]:
    """Returns the trials, marked if they ran other code than the newest (None: unknown)."""
    if newest is None:
        return trials
    is_old = [trial.code not in (None, newest) for trial in trials]
    return [t if t.outdated == old else replace(t, outdated=old) for t, old in zip(trials, is_old, strict=True)]


def _number_in(digits: str) -> int:
    """Returns the number, or -1 if Heirloom does not write numbers this way."""
    number = int(digits) if _NUMBER.fullmatch(digits) else -1
    return number if f"{number:06d}" == digits else -1


def _proposal_path(number: int) -> str:
    return f"trials/{number:06d}.proposal.json"


def _start_path(number: int, attempt: int) -> str:
    return f"trials/{number:06d}.start-{attempt}.json"


def _result_path(number: int) -> str:
    return f"trials/{number:06d}.result.json"


@contextmanager
def _gc_paused() -> Iterator[None]:
    """Pauses garbage collection by Python, which nearly doubles the time of loading records."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
