"""The records of one search: immutable small files that together are its whole state."""

from __future__ import annotations

import gc
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from nas.errors import AlreadyPublishedError, CorruptError
from nas.result import fitted
from nas.store.files import Files
from nas.store.trial_log import earlier_log_path, log_path
from nas.trial import Trial, trial_from_records


@dataclass(frozen=True, slots=True)
class Starts:
    """What the start records of one trial tell.

    Attributes:
        last_attempt: The highest attempt that started.
        sessions: The session of each attempt, in their order.
    """

    last_attempt: int
    sessions: tuple[int, ...]

    @classmethod
    def of(cls, sessions: Mapping[int, int]) -> Starts:
        """From the session of each attempt."""
        return cls(max(sessions), tuple(sessions[attempt] for attempt in sorted(sessions)))

    @property
    def n_lost(self) -> int:
        """Attempts that another one of the same session followed: their worker died, not the session."""
        return sum(a == b for a, b in itertools.pairwise(self.sessions))


def to_bytes(record: Mapping[str, Any]) -> bytes:
    """A record as the bytes of its file.

    Raises:
        ValueError: a value is no JSON, or not finite.
    """
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(errors="backslashreplace")  # half a character, as in undecodable file names: JSON's own escape


def from_bytes(data: bytes, path: str) -> dict[str, Any]:
    """The record in a file's bytes.

    Raises:
        CorruptError: the bytes are no JSON object.
    """
    try:
        record = json.loads(data)
    except ValueError as error:
        raise CorruptError(f"{path} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise CorruptError(f"{path} must hold a JSON object")
    return record


class Records:
    """Reads and writes the records of one search; every write is durable before it returns."""

    def __init__(self, files: Files) -> None:
        self.files = files
        self._swept_by: dict[str, frozenset[int]] = {}  # by the name of the record, which never changes

    def publish(self, path: str, record: Mapping[str, Any]) -> None:
        """Writes a record under a name that is taken once and for all.

        Raises:
            AlreadyPublishedError: the name is taken.
        """
        self.files.publish(path, [to_bytes(record)], exclusive=True)

    def read(self, path: str) -> dict[str, Any] | None:
        """The record of this name, or None where there is none yet."""
        data = self.files.read_if_present(path)
        return None if data is None else from_bytes(data, path)

    def propose(self, trial: Trial) -> None:
        """Makes a proposal durable."""
        self.publish(_proposal_path(trial.number), trial.proposal_record())

    def start(self, trial: Trial, where: Mapping[str, Any]) -> None:
        """Makes durable that an attempt starts, where, and with whose weights."""
        what = {"trial": trial.number, "attempt": trial.attempt, "slot": trial.slot, "offered": trial.offered}
        self.publish(f"trials/{trial.number:06d}.start-{trial.attempt}.json", {**what, **where})

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

    def result(self, trial: Trial) -> Trial | None:
        """The finished trial of this proposal, or None where it has no result yet."""
        return self._finished(trial.proposal_record(), trial.number)

    def finished_trial(self, number: int) -> Trial | None:
        """The trial of this number where it has finished, from the records alone."""
        proposal = self.read(_proposal_path(number))
        return None if proposal is None else self._finished(proposal, number)

    def _finished(self, proposal: Mapping[str, Any], number: int) -> Trial | None:
        result = self.read(_result_path(number))
        return None if result is None else trial_from_records(proposal, result, swept=number in self.swept())

    def proposed(self, number: int) -> Trial | None:
        """The trial of this number as it was proposed, or None where it has not been."""
        proposal = self.read(_proposal_path(number))
        return None if proposal is None else trial_from_records(proposal)

    def unfinished(self) -> list[Trial]:
        """The trials without a result, WAITING; of the others only the names are read.

        Raises:
            CorruptError: a record can't be read.
        """
        names = self.files.names("trials")
        finished = {name.partition(".")[0] for name in names if name.endswith(".result.json")}
        stems = [name.partition(".")[0] for name in names if name.endswith(".proposal.json")]
        found = [self.read(f"trials/{stem}.proposal.json") for stem in stems if stem not in finished]
        return [trial_from_records(proposal) for proposal in found if proposal is not None]

    def load(self) -> tuple[list[Trial], dict[int, Starts]]:
        """All trials by number, those without a result WAITING, and the attempts of these.

        Right also while others propose and commit: a result that is seen has its proposal, and numbers have no gaps.

        Raises:
            CorruptError: a record can't be read, or numbers are missing.
        """
        with _no_collection():
            results = self._read_all(".result.json")  # first: each one's proposal was there before it
            proposals = self._read_all(".proposal.json")
            if lacking := sorted(set(results) - set(proposals)):
                raise self._lacks(lacking[0])
            swept = self.swept()
            trials: list[Trial] = []
            while (number := len(trials)) < len(proposals):
                if number not in proposals:  # unless a listing missed it that was taken while it came
                    if (late := self.read(_proposal_path(number))) is None:
                        raise self._lacks(number)
                    proposals[number] = late
                trials.append(trial_from_records(proposals[number], results.get(number), swept=number in swept))
        return trials, self._starts({t.number for t in trials if not t.is_finished})

    def _starts(self, unfinished: Set[int]) -> dict[int, Starts]:
        """What the start records of these trials tell, where they have any."""
        sessions: dict[int, dict[int, int]] = {}
        for name in self.files.names("trials") if unfinished else ():
            number_text, _, kind = name.partition(".")
            if kind.startswith("start-") and int(number_text) in unfinished and (found := self.read(f"trials/{name}")):
                sessions.setdefault(int(number_text), {})[int(found["attempt"])] = int(found["session"])
        return {number: Starts.of(attempts) for number, attempts in sessions.items()}

    def _read_all(self, suffix: str) -> dict[int, dict[str, Any]]:
        found = self.files.read_all("trials", suffix)
        return {int(name.partition(".")[0]): from_bytes(data, f"trials/{name}") for name, data in found.items()}

    def _lacks(self, number: int) -> CorruptError:
        return CorruptError(f"the proposal of trial {number} is missing in {self.files.url}/trials")

    def sweep(self, record: Mapping[str, Any]) -> int:
        """Makes durable that the trials in ``record["trials"]`` lose their weights; gives the record's number.

        Raises:
            AlreadyPublishedError: somebody else sweeps.
        """
        numbers = [int(name.removesuffix(".json")) for name in self._sweeps()]
        number = max(numbers, default=0) + 1
        self.publish(f"gc/{number:04d}.json", {"gc": number, **record})
        return number

    def swept(self) -> frozenset[int]:
        """The trials that have lost their weights, by all records of sweeps."""
        for name in self._sweeps():
            if name not in self._swept_by:
                record = self.read(f"gc/{name}") or {}
                try:
                    self._swept_by[name] = frozenset(int(number) for number in record["trials"])
                except (KeyError, TypeError, ValueError) as error:
                    raise CorruptError(f"gc/{name} in {self.files.url} can't be read: {error!r}") from error
        return frozenset[int]().union(*self._swept_by.values())

    def _sweeps(self) -> list[str]:
        return [name for name in self.files.names("gc") if re.fullmatch(r"\d+\.json", name)]

    def tests(self) -> dict[int, dict[str, Any]]:
        """The finalists' test records by trial."""
        found = self.files.read_all("tests", ".json")
        return {int(name[:6]): from_bytes(data, f"tests/{name}") for name, data in found.items()}

    def log(self, number: int) -> str:
        """The log of a trial's last attempt: the last 1 MB of its output, error and logging."""
        return self._text(log_path(number)) or ""

    def other_logs(self, trial: Trial) -> dict[str, str]:
        """What there is of its other logs, by name: earlier attempts, what it did not inherit, its test, its export."""
        paths = {f"attempt {n}": earlier_log_path(trial.number, n) for n in range(1, trial.attempt)}
        paths |= {action: log_path(trial.number, action) for action in ("inheritance", "test", "export")}
        return {what: text for what, path in paths.items() if (text := self._text(path)) is not None}

    def _text(self, path: str) -> str | None:
        data = self.files.read_if_present(path)
        return None if data is None else data.decode(errors="replace")


def _result_path(number: int) -> str:
    return f"trials/{number:06d}.result.json"


def _proposal_path(number: int) -> str:
    return f"trials/{number:06d}.proposal.json"


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
