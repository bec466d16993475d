"""Simulated workers with a virtual clock: hours pass in an instant, on any number of slots.

``Problem.simulate`` gives the duration and the metrics of each trial. Start-up, straggling and loss of workers are
drawn from a seed, so a simulation is the same on every run.
"""

from __future__ import annotations

import copy
import heapq
import itertools
import math
import random
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.metric import not_finite, plain_metrics, whole_step
from nas.core.tracebacks import traceback_of
from nas.core.trial import Reason, Trial, training_cost
from nas.core.validation import check_bool, check_number, short_repr
from nas.executors.event_queue import POLL_S, EventQueue
from nas.executors.events import (
    Action,
    Event,
    Finished,
    JobLeftWorker,
    Reported,
    Started,
    StopKind,
    TrialLost,
    TrialRequested,
)
from nas.executors.pool import WorkerPool, compute_proxies
from nas.storage.records import Records
from nas.storage.search_records import MAX_HOURS
from nas.storage.sessions import spent_hours
from nas.training.messages import Assignment, JobStart, ProxyRequest
from nas.training.problem import Ability, Problem, Simulation
from nas.training.static_metrics import known_metrics, missing_metrics, read_static_metrics

_LATEST_S = 3600 * MAX_HOURS
"""The last moment of the virtual clock, since heartbeats hold no more hours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The behavior of simulated workers.

    Attributes:
        seed: The random seed of start-up, straggling and loss.
        start_up_s: Mean seconds that a worker needs before its first trial starts; exponentially distributed.
        straggling: Standard deviation of the logarithm of the factor by which an attempt's duration varies.
        loss_rate: Share of attempts whose worker is lost, at a random moment.
        call_s: Seconds of each test and each export.
        have_gpus: Whether each worker has a GPU, whose hours count.
    """

    seed: int = 0
    start_up_s: float = 0.0
    straggling: float = 0.0
    loss_rate: float = 0.0
    call_s: float = 0.0
    have_gpus: bool = False

    def __post_init__(self) -> None:
        for name in ("start_up_s", "straggling", "call_s"):
            check_number(f"runner.workers.{name}", getattr(self, name), 0)
        check_number("runner.workers.loss_rate", self.loss_rate, 0, 1)
        check_bool("runner.workers.have_gpus", self.have_gpus)


@dataclass(slots=True)
class _Attempt:
    """A running attempt: its start, its duration and its reports."""

    trial: Trial
    simulation: Simulation
    began_s: float
    seconds: float
    known_error: str = ""
    """Why metrics that are known before training are missing, or empty."""
    reported: list[tuple[int, Mapping[str, float]]] = field(default_factory=list)
    has_ended: bool = False


def check_simulated(problem: Problem) -> None:
    """Checks that a problem can be simulated.

    Raises:
        ConfigurationError: it has no ``simulate``.
    """
    if Ability.SIMULATE not in problem.abilities:
        raise ConfigurationError(
            f"runner=simulated: the problem must define `simulate`. {type(problem).__name__} has no `simulate`: define "
            "it, or use nas.problems.tabular.TabularProblem, which reads a table"
        )


class SimulatedExecutor(EventQueue):
    """Simulates attempts. Their results are recorded like real ones.

    Args:
        problem: Gives the duration and the metrics of each trial.
        records: Stores the results.
        slots: How many workers there are.
        workers: The behavior of the workers.
        pool: Tests, exports and computes proxies, in this process.
        session: The number of the session.
        has_stopper: Whether each report waits for the stopper's decision.
        jobs_request_trials: Whether a job requests another trial when one has ended. A simulated job does it at once.

    Raises:
        ConfigurationError: the problem has no ``simulate``.
    """

    def __init__(
        self,
        problem: Problem,
        records: Records,
        *,
        slots: int = 1,
        workers: Workers | None = None,
        pool: WorkerPool | None = None,
        session: int = 0,
        has_stopper: bool = False,
        jobs_request_trials: bool = False,
    ) -> None:
        check_simulated(problem)
        super().__init__()
        self.slots = slots
        self._problem = problem
        self._records = records
        self._workers = workers or Workers()
        self._pool = pool
        self._session = session
        self._has_stopper = has_stopper
        self._jobs_request_trials = jobs_request_trials
        self._is_last: dict[int, bool] = {}
        self._clock_s = 3600 * spent_hours(records)
        self._due: list[tuple[float, int, Callable[[], Event | None]]] = []
        self._order = itertools.count()
        self._running: dict[int, _Attempt] = {}
        self._warm: set[int] = set()

    def now_s(self) -> float:
        """Returns the seconds of the virtual clock, which starts at the hours of earlier sessions."""
        return self._clock_s

    def submit(self, assignment: Assignment) -> None:
        """Starts the attempt now, on the virtual clock. Donors' weights are not read."""
        trial = assignment.trial
        if self._jobs_request_trials:
            self._is_last[trial.number] = assignment.is_last
        slot = trial.slot or 0
        rng = random.Random(f"{self._workers.seed}/{trial.number}/{trial.attempt}")
        began_s = self._clock_s
        if slot not in self._warm and self._workers.start_up_s:
            began_s += rng.expovariate(1 / self._workers.start_up_s)
            began_s = min(began_s, _LATEST_S)
        self._warm.add(slot)
        known, known_error = read_static_metrics(self._problem, trial)
        trial = replace(trial, started=began_s, static_metrics=known)
        self._records.start(trial, {"session": self._session, "host": "simulated", "pid": 0, "time": began_s})
        try:
            simulation = _checked(self._problem.simulate(_copy_of(trial)))
            seconds = simulation.seconds * math.exp(rng.gauss(0.0, self._workers.straggling))
            last_share = max((share for share, _, _ in simulation.curve), default=1.0)
            check_number("simulate: seconds", seconds * max(1.0, last_share), 0, _LATEST_S - began_s)
        except Exception as error:
            failed = trial.fail(Reason.EXCEPTION, traceback_of(error)).finish(began_s)
            self._running[trial.number] = attempt = _Attempt(trial, Simulation(0.0, {}), began_s, 0.0)
            self._at(began_s, lambda: self._end(attempt, failed))
            return
        self._running[trial.number] = attempt = _Attempt(trial, simulation, began_s, seconds, known_error)
        self._at(began_s, lambda: Started(trial.number, trial.attempt, slot))
        if rng.random() < self._workers.loss_rate:
            self._at(began_s + rng.random() * seconds, lambda: self._lose(attempt, "the simulated worker was lost"))
        self._next(attempt)

    def resume(self, job_start: JobStart) -> None:
        """Posts the job's request for a trial at once."""
        self._at(self._clock_s, lambda: TrialRequested(job_start.job))

    def dismiss(self, job: int) -> None:
        """Ends the job at once."""
        self._at(self._clock_s, lambda: JobLeftWorker(job))

    def stop(self, subject: Trial | ProxyRequest, kind: StopKind) -> None:
        """Ends a running attempt now."""
        if isinstance(subject, ProxyRequest) or (attempt := self._running.get(subject.number)) is None:
            return
        if kind == "interrupt":
            self._at(self._clock_s, lambda: self._lose(attempt, "interrupted"))
        else:
            self._at(self._clock_s, lambda: self._end_early(attempt, Reason.DEADLINE))

    def next_event(self, until_s: float | None) -> Event | None:
        """Returns the next event, or None at ``until_s``. The clock jumps to its time."""
        while True:
            if (posted := super().next_event(until_s=self._clock_s)) is not None:
                return posted
            if not self._due or (until_s is not None and self._due[0][0] > until_s):
                if until_s is None:
                    raise AssertionError("the controller waits for an event, but nothing runs")
                self._clock_s = max(self._clock_s, until_s)
                return None
            time_s, _, occur = heapq.heappop(self._due)
            self._clock_s = max(self._clock_s, time_s)
            if (event := occur()) is not None:
                return event

    def compute_proxies(self, request: ProxyRequest) -> None:
        """Computes on a thread of this process, in no time on the virtual clock."""
        if self._pool is None:
            raise AssertionError("a simulated executor without a pool computes no proxies")
        future: Future[Event] = Future()
        answer = partial(_answer, future, self._pool, request)
        threading.Thread(target=answer, name="heirloom-proxies", daemon=True).start()
        self._at(self._clock_s, lambda: self._wait(future))

    def call(self, action: Action, trial: Trial) -> Mapping[str, Any]:
        """Tests or exports in this process."""
        self.raise_if_stop_requested()
        if self._pool is None:
            raise AssertionError("a simulated executor without a pool runs no finals")
        answer = self._pool.call(action, trial)
        self._clock_s = min(self._clock_s + self._workers.call_s, _LATEST_S)
        return answer

    def close(self) -> None:
        """Closes the pool."""
        if self._pool is not None:
            self._pool.close()

    def _wait(self, future: Future[Event]) -> Event | None:
        """Returns the answer, or a requested stop; the clock stands still."""
        while not wait([future], timeout=POLL_S).done:
            if (posted := super().next_event(until_s=self._clock_s)) is not None:
                self._at(self._clock_s, lambda: self._wait(future))
                return posted
        return future.result()

    def _at(self, time_s: float, occur: Callable[[], Event | None]) -> None:
        heapq.heappush(self._due, (time_s, next(self._order), occur))

    def _next(self, attempt: _Attempt) -> None:
        """Schedules the attempt's next report, or its end."""
        curve = attempt.simulation.curve
        if len(attempt.reported) < len(curve):
            share = curve[len(attempt.reported)][0]
            self._at(attempt.began_s + share * attempt.seconds, lambda: self._report(attempt))
        else:
            self._at(attempt.began_s + attempt.seconds, lambda: self._end(attempt, self._complete(attempt)))

    def _report(self, attempt: _Attempt) -> Event | None:
        if attempt.has_ended:
            return None
        _, step, metrics = attempt.simulation.curve[len(attempt.reported)]
        if bad := not_finite(metrics):  # as in TrialRun.report
            error = f"step {step} reported {', '.join(f'{name}={metrics[name]}' for name in bad)}"
            return self._end(attempt, attempt.trial.fail(Reason.NOT_FINITE, error))
        attempt.reported.append((step, metrics))

        def answer(stop: bool) -> None:
            if stop:
                self._at(self._clock_s, lambda: self._end_early(attempt, Reason.STOPPER))
            else:
                self._next(attempt)

        if not self._has_stopper:
            self._next(attempt)
        return Reported(attempt.trial.number, step, dict(metrics), answer if self._has_stopper else None)

    def _complete(self, attempt: _Attempt) -> Trial:
        simulated = attempt.simulation.metrics
        metrics = {**known_metrics(self._problem, attempt.trial), **simulated}
        if missing := missing_metrics(self._problem, attempt.trial, metrics):
            error = f"simulate returned {simulated!r:.800}, without {', '.join(missing)}"
            if attempt.known_error:
                error += f"; before that: {attempt.known_error}"
            return attempt.trial.fail(Reason.NO_METRIC, f"{error}. Return them from simulate, or declare other metrics")
        if bad := not_finite(metrics):
            error = f"simulate returned {', '.join(f'{name}={metrics[name]}' for name in bad)}"
            return attempt.trial.fail(Reason.NOT_FINITE, error)
        return attempt.trial.complete(metrics)

    def _end_early(self, attempt: _Attempt, reason: Reason) -> Event | None:
        known = known_metrics(self._problem, attempt.trial)
        return self._end(attempt, attempt.trial.stop(reason, attempt.reported, known))

    def _end(self, attempt: _Attempt, trial: Trial) -> Event | None:
        if attempt.has_ended:
            return None
        self._remove(attempt)
        job = attempt.trial.job
        if self._jobs_request_trials:
            is_last = self._is_last.pop(attempt.trial.number)
            self._at(self._clock_s, lambda: JobLeftWorker(job) if is_last else TrialRequested(job))
        began_s = min(attempt.began_s, self._clock_s)  # it may be stopped while its worker starts up
        seconds = self._clock_s - began_s
        cost = {**training_cost(seconds, float(self._workers.have_gpus)), **attempt.simulation.shares}
        trial = replace(trial, started=began_s).finish(self._clock_s, cost=cost, curve=attempt.reported)
        return Finished(self._records.commit(trial))

    def _lose(self, attempt: _Attempt, why: str) -> Event | None:
        if attempt.has_ended:
            return None
        self._remove(attempt)
        self._warm.discard(attempt.trial.slot or 0)
        return TrialLost(attempt.trial.job, attempt.trial.number, why)

    def _remove(self, attempt: _Attempt) -> None:
        attempt.has_ended = True
        del self._running[attempt.trial.number]


def _checked(returned: object) -> Simulation:
    """Returns what ``simulate`` returned, with plain numbers.

    Raises:
        TypeError: it is no Simulation, or a value is no number.
        ConfigurationError: its seconds or a share are negative or not finite, or a step is no whole number.
    """
    if not isinstance(returned, Simulation):
        raise TypeError(f"simulate returned {short_repr(returned)}: must return Simulation(seconds, metrics)")
    amounts = plain_metrics({**returned.shares, "seconds": returned.seconds})
    for name, amount in amounts.items():
        check_number(f"simulate: {name}", amount, 0)
    curve = tuple(
        (check_number("simulate: share", float(share), 0), whole_step("simulate: step", step), plain_metrics(metrics))
        for share, step, metrics in returned.curve
    )
    metrics = plain_metrics(returned.metrics) if isinstance(returned.metrics, Mapping) else {}
    return Simulation(amounts.pop("seconds"), metrics, curve, amounts)


def _copy_of(trial: Trial) -> Trial:
    """Returns the trial with a point of its own, which the problem's code may change."""
    return replace(trial, proposal=replace(trial.proposal, point=copy.deepcopy(trial.point)))


def _answer(future: Future[Event], pool: WorkerPool, request: ProxyRequest) -> None:
    """Computes proxies and puts the event that tells of it into the future."""
    future.set_result(compute_proxies(pool, request))
