"""Contract of tuners."""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple
from uuid import uuid4

from nas.core.budget import Budget
from nas.core.checkpoint import Checkpoint
from nas.core.errors import ConfigurationError, HeirloomError, SearchInterruptedError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import is_json, point_key
from nas.core.policy import Policy, Stage
from nas.core.reference import Reference
from nas.core.spec import Spec
from nas.core.supernet import is_epoch
from nas.core.trial import Donor, Proposal, Reason, Trial
from nas.executors.events import Action, Event, Finished, StopKind, StopRequested, TrialLost
from nas.search.controller import ControllerSettings, SearchController
from nas.spaces.parameters.space import ParameterSpace
from nas.spaces.space import Space
from nas.storage.maintenance.gc.collector import CollectorSettings, GarbageCollector
from nas.storage.maintenance.gc.retention import Retention
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.trial_records import proposal_from_json
from nas.storage.verified import digest_of
from nas.testing.expectations import compare, expect, global_states, in_another_process, opposite, share
from nas.training.messages import Assignment, JobStart, ProxyRequest
from nas.tuners.base import STOP, WAIT, Answer, Tuner

_SEARCH = Stage(name="search", policies=frozenset({Policy.SHARE_PARAMS}))
_Ask = tuple[Lineage, int, int]


def check_tuner(tuner: Spec, space: Space, metrics: tuple[Metric, ...], *, n_trials: int = 24) -> None:
    """Checks that a tuner is a function of the lineage and proposes points of the space.

    * The same lineage, number and seed give the same answer. Another instance, other questions before (also about
      another search), another process and other states of the global random generators make no difference. It does not
      change these states.
    * Every point is in the space. Points and derivations are plain JSON data.
    * It continues although every fifth trial fails and some are stopped without a score. This is checked with 1, 7 and
      64 slots, and with maximized and minimized metrics.
    * In a space of one point it continues or raises a ConfigurationError.
    * If the search is stopped at any trial and resumed, it proposes the same trials.
    * ``may_inherit_from`` returns every donor that it proposes, and never a trial that it once left out. If all other
      weights are deleted, it proposes the same trials, and every trial gets the same donors.

    Args:
        tuner: Class and arguments.
        space: The space of its points.
        metrics: Names and directions; the scores are synthetic.
        n_trials: Number of trials of each search.

    The tuner gets synthetic ``parameters`` and ``flops`` as static metrics.
    """
    turned = tuple(replace(m, direction=opposite(m)) for m in metrics)
    others = _check_searches(tuner, space, turned, n_trials)
    searches = _check_searches(tuner, space, metrics, n_trials)
    _check_same_answers(tuner, space, metrics, searches[7].asks, others[7].asks)
    for slots in (1, 7):
        _check_resuming(tuner, space, metrics, slots, searches[slots])
        _check_garbage_collection(tuner, space, metrics, slots, searches[slots])
    try:
        _build(tuner, one_point := ParameterSpace({"only": 1}), metrics)
    except ConfigurationError:
        return
    _simulate_search(tuner, one_point, metrics, slots=2, n_trials=5)


def _check_searches(
    tuner: Spec, space: Space, metrics: tuple[Metric, ...], n_trials: int
) -> dict[int, _SimulatedSearch]:
    """Checks searches with 1, 64 and 7 slots, and returns them by slots."""
    searches: dict[int, _SimulatedSearch] = {}
    for slots in (1, 64, 7):
        search = _simulate_search(tuner, space, metrics, slots=slots, n_trials=max(n_trials, slots + 8))
        _check_answers(search.asks, space)
        _check_inheritance(tuner, space, metrics, search.asks)
        searches[slots] = search
    return searches


class _RecordingTuner(Tuner):
    """Passes every ask to a tuner and records it with the answer."""

    def __init__(self, tuner: Tuner) -> None:
        super().__init__(tuner.space, tuner.metrics, seed=tuner.seed)
        self.tuner = tuner
        self.asks: list[tuple[_Ask, Proposal | Answer]] = []

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        answer = self.tuner.ask(lineage, number, job)
        self.asks.append(((lineage, number, job), answer))
        return answer

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        return self.tuner.may_inherit_from(lineage)


class _SimulatedExecutor:
    """Simulates trials; their order, scores, suggestions and failures depend only on numbers and points."""

    def __init__(
        self, records: Records, space: Space, slots: int, metrics: Sequence[Metric], stop_after: int | None
    ) -> None:
        self.slots = slots
        self._space = space
        self.donors: dict[int, list[Donor]] = {}
        self._records = records
        self._metrics = metrics
        self._n_left = stop_after
        self._running: list[Trial] = []
        self._posted: list[Event] = []
        self._clock = 0.0

    def now_s(self) -> float:
        return self._clock

    def submit(self, assignment: Assignment) -> None:
        self._running.append(trial := assignment.trial)
        self.donors[trial.number] = [donor.donor for donor in assignment.donors]

    def resume(self, job_start: JobStart) -> None:
        raise NotImplementedError

    def dismiss(self, job: int) -> None:
        raise NotImplementedError

    def stop(self, subject: Trial | ProxyRequest, kind: StopKind) -> None:
        assert isinstance(subject, Trial)
        self._running = [other for other in self._running if other.number != subject.number]
        self._posted.append(TrialLost(subject.job, subject.number, "interrupted"))

    def next_event(self, until_s: float | None) -> Event | None:
        self._clock += 1.0
        if self._posted:
            return self._posted.pop(0)
        if self._n_left == 0:
            return StopRequested("stopped by the check")
        trial = min(self._running, key=lambda t: share("next", t.number))
        self._running.remove(trial)
        if self._n_left is not None:
            self._n_left -= 1
        result = replace(trial, started=self._clock - 1.0).finish(self._clock, cost={"seconds": 1.0})
        if trial.number % 5 == 3:
            return Finished(self._records.commit(result.fail(Reason.EXCEPTION, "made to fail by the check")))
        scores = {metric.name: share(metric.name, point_key(trial.point)) for metric in self._metrics}
        result = result.complete(scores)
        if is_epoch(trial):
            result = replace(result, suggested=(self._space.sample(random.Random(trial.number)),))
        if trial.number % 11 == 6:
            result = result.stop(Reason.STOPPER, [(1, {"another": 0.5})])
        if trial.number % 7 != 2:  # the others have no weights
            paper = Reference(f"manifests/{trial.number:06d}-paper.json", 0, digest_of(b""))
            result = replace(result, checkpoint=Checkpoint(manifest=paper, packs=()))
        return Finished(self._records.commit(result))

    def compute_proxies(self, request: ProxyRequest) -> None:
        raise NotImplementedError

    def call(self, action: Action, trial: Trial) -> Mapping[str, Any]:
        raise NotImplementedError

    def post(self, event: Event) -> None:
        self._posted.append(event)

    def close(self) -> None:
        pass


class _SimulatedSearch(NamedTuple):
    """The budget of trials, asks with their answers, the trials, and the donors of each trial."""

    n_trials: int
    asks: list[tuple[_Ask, Proposal | Answer]]
    trials: list[Trial]
    donors: dict[int, list[Donor]]


def _simulate_search(
    tuner: Spec,
    space: Space,
    metrics: tuple[Metric, ...],
    *,
    slots: int,
    n_trials: int,
    records: Records | None = None,
    stop_after: int | None = None,
    collects: bool = False,
) -> _SimulatedSearch:
    """Simulates a search, new or resumed on the records.

    Args:
        tuner: Class and arguments.
        space: The space of its points.
        metrics: Names and directions.
        slots: Number of trials at a time.
        n_trials: Budget of trials.
        records: Records to resume on; new ones by default.
        stop_after: Number of results after which the search is stopped.
        collects: Whether unneeded weights are deleted at every result.
    """
    records = records or _fresh_records()
    recording = _RecordingTuner(_build(tuner, space, metrics))
    trials, starts = records.load()
    settings = ControllerSettings(budget=Budget(trials=n_trials), max_failures=n_trials + 1)
    executor = _SimulatedExecutor(records, space, slots, metrics, stop_after)
    collector_settings = CollectorSettings(
        metrics=metrics, finalists=lambda trials: (), other_searches=lambda: (), uses_ancestors=True, slots=slots
    )
    collector = GarbageCollector(records, Retention(max_gb=1e-9), collector_settings) if collects else None
    controller = SearchController(
        records, executor, settings, trials=trials, starts=starts, tuner=recording, space=space, collector=collector
    )
    try:
        controller.search(_SEARCH)
    except SearchInterruptedError:
        pass
    except HeirloomError as error:
        text = str(error).replace(type(recording).__name__, tuner.target)
        raise AssertionError(f"{tuner.target} at {slots} slots: {text}") from error
    return _SimulatedSearch(n_trials, recording.asks, controller.trials, executor.donors)


def _build(tuner: Spec, space: Space, metrics: tuple[Metric, ...]) -> Tuner:
    built: Tuner = tuner.build(space, metrics, seed=11)
    built.use_static_metrics(lambda point: {"parameters": share(point_key(point)), "flops": share(point_key(point), 1)})
    return built


def _fresh_records() -> Records:
    return Records(open_root(f"memory://contract-{uuid4().hex}", retry_s=0))


def _check_answers(asks: Sequence[tuple[_Ask, Proposal | Answer]], space: Space) -> None:
    for (_, number, _), answer in asks:
        if isinstance(answer, Proposal):
            space.validate(answer.point)
            plain = (answer.point, answer.derivation)
            expect(all(map(is_json, plain)), f"proposal {number} is not plain JSON data: {plain}")
            expect(proposal_from_json(json.loads(json.dumps(answer.to_json()))) == answer, f"{answer} is not JSON")
        else:
            expect(answer in (WAIT, STOP), f"ask {number} was answered {answer!r}")


def _check_same_answers(
    tuner: Spec,
    space: Space,
    metrics: tuple[Metric, ...],
    asks: Sequence[tuple[_Ask, Proposal | Answer]],
    others: Sequence[tuple[_Ask, Proposal | Answer]],
) -> None:
    questions, answers = [ask for ask, _ in asks], [_as_text(answer) for _, answer in asks]
    random.seed(1)
    before = global_states()
    _, *backwards = _answers(tuner, space, metrics, [others[-1][0], *questions[::-1]])
    expect(global_states() == before, f"{tuner.target} draws from a global random generator")
    compare(answers, backwards[::-1], f"{tuner.target} asked in another order")
    random.seed(2)
    elsewhere = in_another_process(_answers, tuner, space, metrics, questions)
    compare(answers, elsewhere, f"{tuner.target} in another process")


def _answers(tuner: Spec, space: Space, metrics: tuple[Metric, ...], questions: Sequence[_Ask]) -> list[str]:
    """Returns the answers of a new instance to these asks."""
    built = _build(tuner, space, metrics)
    return [_as_text(built.ask(*question)) for question in questions]


def _as_text(answer: Proposal | Answer) -> str:
    return point_key(answer.to_json()) if isinstance(answer, Proposal) else str(answer)


def _check_inheritance(
    tuner: Spec, space: Space, metrics: tuple[Metric, ...], asks: Sequence[tuple[_Ask, Proposal | Answer]]
) -> None:
    built = _build(tuner, space, metrics)
    left_out: set[int] = set()
    for (lineage, number, _), answer in asks:
        given = set(built.may_inherit_from(lineage))
        again = sorted(given & left_out)
        expect(not again, f"{tuner.target}.may_inherit_from gives {again} at ask {number}, which it had left out")
        left_out |= {trial.number for trial in lineage.finished} - given
        if isinstance(answer, Proposal):
            named = {donor for donor in answer.weight_donors if isinstance(donor, int)}
            names = f"{tuner.target} names {sorted(named - given)} at ask {number}, which may_inherit_from leaves out"
            expect(named <= given, names)


def _check_garbage_collection(
    tuner: Spec, space: Space, metrics: tuple[Metric, ...], slots: int, calm: _SimulatedSearch
) -> None:
    weights_deleted = _simulate_search(tuner, space, metrics, slots=slots, n_trials=calm.n_trials, collects=True)
    where = f"{tuner.target} at {slots} slots, with weights deleted that may_inherit_from leaves out,"
    compare(_proposed(calm.trials), _proposed(weights_deleted.trials), where)
    for number, donors in calm.donors.items():
        found = weights_deleted.donors[number]
        expect(found == donors, f"{where} gives trial {number} the weights of {found}, not of {donors}")


def _proposed(trials: Sequence[Trial]) -> list[str]:
    return [f"{_as_text(trial.proposal)} after {trial.learned}" for trial in trials]


def _check_resuming(
    tuner: Spec, space: Space, metrics: tuple[Metric, ...], slots: int, search: _SimulatedSearch
) -> None:
    uninterrupted, n_trials = search.trials, search.n_trials
    for stop_after in (0, 1, n_trials // 2, n_trials - 1):
        records = _fresh_records()
        for n_results in (stop_after, None):
            trials = _simulate_search(
                tuner, space, metrics, slots=slots, n_trials=n_trials, records=records, stop_after=n_results
            ).trials
        where = f"{tuner.target} at {slots} slots, resumed after {stop_after} results,"
        expect(len(trials) == len(uninterrupted), f"{where} proposes {len(trials)} trials, not {len(uninterrupted)}")
        compare(_proposed(uninterrupted), _proposed(trials), where)
