"""An executor that runs trials on paper, on real records: a test says which trial ends next, and how."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import uuid4

import fsspec

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point, point_key
from nas.core.policy import Policy, Stage
from nas.core.trial import DonorWeights, Proposal, Reason, State, Trial
from nas.executors.events import Action, Event, Finished, Reported, Started, StopKind, StopRequested, TrialLost
from nas.search.controller import ControllerSettings, SearchController
from nas.spaces.parameters.space import Int, ParameterSpace
from nas.storage.blobs import BlobStore
from nas.storage.checkpoints import publish_checkpoint
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.messages import Assignment, JobStart, ProxyRequest
from nas.tuners.base import Answer, Tuner

METRIC = Metric("accuracy")
SEARCH = Stage(name="search", policies=frozenset({Policy.SHARE_PARAMS}))
FINAL = Stage(name="final")
SPACE = ParameterSpace({"x": Int(0, 1_000_000)})


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How an attempt ends: by default COMPLETE, with weights and a score that follows from its point."""

    state: State = State.COMPLETE
    reason: Reason | None = None
    has_weights: bool = True
    is_lost: bool = False
    """Its worker dies."""
    commits: bool = False
    """Its worker dies when the result is durable already."""
    stops: bool = False
    """The session is asked to stop right after."""
    lost: tuple[int, ...] = ()
    """Donors whose weights it finds missing."""
    reports: tuple[float, ...] = ()
    """Accuracies that it reports first, one a step; it ends STOPPED if the controller says so."""


COMPLETE = End()
FAILED = End(state=State.FAILED, reason=Reason.EXCEPTION, has_weights=False)
LOST = End(is_lost=True)


class Pending:
    """An attempt that runs, and what it has reported."""

    def __init__(self, trial: Trial, donors: Sequence[DonorWeights], end: End) -> None:
        self.trial = trial
        self.donors = tuple(donors)
        self.end = end
        self.left = deque(enumerate(end.reports, 1))
        self.is_stopped = False

    def answer(self, stop: bool) -> None:
        """Receives the decision on a report."""
        self.is_stopped = self.is_stopped or stop


class ScriptedExecutor:
    """Writes start records, checkpoints and results as a worker would; the clock is virtual.

    Args:
        records: Of the search.
        slots: How many attempts run at a time; a second one on a slot is a bug of the controller.
        ends: How the attempts of a trial end, by trial number; COMPLETE where nothing is said.
        pick: The place, among the running attempts by trial number, of the one from which the next event comes.
        stop_after: Asks the session to stop after this many results.
        interrupted: What an interrupt makes of running trials: they end, they finish just then, or they hang.
        session: Its number, for the start records.
    """

    def __init__(
        self,
        records: Records,
        slots: int = 1,
        *,
        ends: Mapping[int, Sequence[End]] | None = None,
        pick: Callable[[Sequence[Trial]], int] = lambda running: 0,
        stop_after: int | None = None,
        interrupted: Literal["end", "finish", "hang"] = "end",
        session: int = 1,
    ) -> None:
        self.slots = slots
        self.submitted: list[Trial] = []
        self.donors: dict[int, list[int | str]] = {}
        self.n_slots: dict[int, int] = {}
        """For how many slots' threads each trial has room."""
        self.order: list[int] = []
        """The trials in the order of their results."""
        self._records = records
        self._ends = dict(ends or {})
        self._pick = pick
        self._stop_after = stop_after
        self._interrupted = interrupted
        self._is_hanging = False
        self._session = session
        self._running: dict[int, Pending] = {}
        self._posted: deque[Event] = deque()
        self._clock = 1_000.0 * session

    def now_s(self) -> float:
        return self._clock

    def submit(self, assignment: Assignment) -> None:
        trial, donors = assignment.trial, assignment.donors
        assert trial.state == State.RUNNING
        assert trial.slot in range(self.slots)
        assert trial.slot not in [other.trial.slot for other in self._running.values()]
        assert self._records.result(trial) is None
        where = {"session": self._session, "host": "here", "pid": 1, "time": self._clock}
        trial = replace(trial, started=self._clock)
        self._records.start(trial, where)
        self.submitted.append(trial)
        self.donors[trial.number] = [donor.donor for donor in donors]
        self.n_slots[trial.number] = assignment.n_slots
        n_before = sum(other.number == trial.number for other in self.submitted) - 1
        ends = self._ends.get(trial.number, ())
        self._running[trial.number] = Pending(trial, donors, ends[n_before] if n_before < len(ends) else COMPLETE)
        self._posted.append(Started(trial.number, trial.attempt, trial.slot or 0))

    def resume(self, job_start: JobStart) -> None:
        raise NotImplementedError

    def dismiss(self, job: int) -> None:
        raise NotImplementedError

    def stop(self, trial: Trial, kind: StopKind) -> None:
        assert kind == "interrupt"
        self._is_hanging = self._interrupted == "hang"
        if not self._is_hanging and (pending := self._running.pop(trial.number, None)) is not None:
            finishes = self._interrupted == "finish"
            self._posted.append(
                Finished(self._commit(pending)) if finishes else TrialLost(trial.job, trial.number, "interrupted")
            )

    def next_event(self, until_s: float | None) -> Event | None:
        self._clock += 1.0
        if self._posted:
            return self._posted.popleft()
        if self._stop_after is not None and len(self.order) >= self._stop_after:
            return StopRequested("the test says so")
        assert self._running or until_s is not None, "the controller waits, but nothing runs"
        if until_s is not None and (self._is_hanging or not self._running):
            self._clock = max(self._clock, until_s)
            return None
        numbers = sorted(self._running)
        number = numbers[self._pick([self._running[n].trial for n in numbers]) % len(numbers)]
        pending = self._running[number]
        if pending.left and not pending.is_stopped:
            step, value = pending.left.popleft()
            return Reported(number, step, {"accuracy": value}, pending.answer)
        del self._running[number]
        if pending.end.stops:
            self._posted.append(StopRequested("the test says so"))
        if pending.end.is_lost:
            if pending.end.commits:
                self._commit(pending)
            return TrialLost(pending.trial.job, pending.trial.number, "its worker was killed by SIGKILL")
        self.order.append(number)
        return Finished(self._commit(pending))

    def compute_proxies(self, request: ProxyRequest) -> None:
        raise NotImplementedError

    def call(self, action: Action, trial: Trial) -> Mapping[str, Any]:
        raise NotImplementedError

    def post(self, event: Event) -> None:
        self._posted.append(event)

    def close(self) -> None:
        self._running.clear()

    def _commit(self, pending: Pending) -> Trial:
        trial, end = pending.trial, pending.end
        n_reported = len(end.reports) - len(pending.left)
        curve = tuple((step, {"accuracy": value}) for step, value in enumerate(end.reports[:n_reported], 1))
        state, reason = (State.STOPPED, Reason.STOPPER) if pending.is_stopped else (end.state, end.reason)
        metrics = curve[-1][1] if pending.is_stopped else {"accuracy": score(trial.point)}
        checkpoint = None
        if end.has_weights:
            checkpoint = publish_checkpoint(self._records.files, f"{trial.number:06d}-{uuid4().hex[:8]}", None)
        return self._records.commit(
            replace(
                trial,
                state=state,
                reason=reason,
                metrics=metrics if state != State.FAILED else {},
                checkpoint=checkpoint,
                curve=curve,
                inheritance={**trial.inheritance, "lost": list(end.lost)} if end.lost else trial.inheritance,
                error="it broke" if state == State.FAILED else None,
                finished=self._clock,
            )
        )


def score(point: Point) -> float:
    """An accuracy that follows from the point."""
    return int(point["x"]) % 997 / 997


class EchoTuner(Tuner):
    """Answers what it sees: a point and a parent that follow from all of the lineage; any difference shows."""

    def __init__(self) -> None:
        super().__init__(SPACE, (METRIC,))

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        index_of = {trial.number: trial.index for trial in lineage}
        finished = [(t.index, t.state, point_key(dict(t.metrics)), len(t.curve)) for t in lineage.finished]
        pending = sorted((t.index, [index_of[p] for p in t.parents]) for t in lineage.pending)
        rng = random.Random(f"{self.seed}/{number}/{finished}/{pending}")
        parents = tuple(rng.sample(sorted(index_of), 1)) if index_of and rng.random() < 0.7 else ()
        return Proposal(point={"x": rng.randrange(1_000_000)}, parents=parents)


class ListTuner(Tuner):
    """Answers from a list: a proposal, an answer, or the parents of a proposal; STOP at its end."""

    def __init__(self, *answers: Proposal | Answer | tuple[int, ...] | object) -> None:
        super().__init__(SPACE, (METRIC,))
        self.answers = answers
        self.seen: list[Lineage] = []
        self.n_asks = 0

    def ask(self, lineage: Lineage, number: int, job: int) -> Any:
        self.n_asks += 1
        self.seen.append(lineage)
        if self.n_asks > len(self.answers):
            return Answer.STOP
        answer = self.answers[self.n_asks - 1]
        return Proposal(point={"x": number}, parents=answer) if isinstance(answer, tuple) else answer


def fresh_records() -> Records:
    """The records of a new search, in memory."""
    return Records(open_root(f"memory://scripted/{uuid4().hex}", retry_s=0))


def forget_all_records() -> None:
    """Empties the memory: every listing there walks through all that was ever stored."""
    store = fsspec.filesystem("memory").store
    for path in [path for path in store if path.startswith("/scripted/")]:
        del store[path]


def paths_in_order(files: BlobStore) -> list[str]:
    """Every file of a search in memory, in the order in which they were published."""
    place = f"/{files.url.removeprefix('memory://')}/"
    store = fsspec.filesystem("memory").store
    return [path.removeprefix(place) for path in store if path.startswith(place)]


def prefixes(records: Records) -> Iterator[Records]:
    """Copies of the records, cut after each file: all that a ``kill -9`` may leave."""
    for n_files in range(len(paths_in_order(records.files)) + 1):
        yield cut_after(records, n_files)


def cut_after(records: Records, n_files: int) -> Records:
    """A copy of the records' first files."""
    copy = fresh_records()
    for path in paths_in_order(records.files)[:n_files]:
        copy.files.publish(path, [records.files.read_if_present(path) or b""])
    return copy


def make_controller(
    records: Records,
    executor: ScriptedExecutor,
    tuner: Tuner | None,
    *,
    settings: ControllerSettings | None = None,
    **more: Any,
) -> SearchController:
    """A loop on all that the records hold, as a session begins."""
    trials, starts = records.load()
    chosen = settings or ControllerSettings()
    return SearchController(records, executor, chosen, trials=trials, starts=starts, tuner=tuner, space=SPACE, **more)


def asked(trials: Sequence[Trial], stage: str = "search") -> list[tuple[object, ...]]:
    """What was proposed and what the tuner knew, by index, so that trials of other stages in between don't matter."""
    in_stage = [trial for trial in trials if trial.stage == stage]
    index_of = {trial.number: trial.index for trial in in_stage}
    return [
        (
            trial.index,
            trial.point,
            tuple(index_of[parent] for parent in trial.parents),
            tuple(index_of[number] for number in trial.learned),
            trial.seed,
            trial.generation,
        )
        for trial in in_stage
    ]
