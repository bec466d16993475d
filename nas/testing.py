"""Contract suites: what every tuner, problem and storage must keep; for Heirloom's own and for yours.

Each function returns where the contract holds, and raises AssertionError, in one line, where it does not. They need no
test framework: ``check_tuner(Spec.of(MyTuner), space, metrics)`` is a test by itself.

Some checks start another process: in a script, call them under ``if __name__ == "__main__":``.
"""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import pickle
import random
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from uuid import uuid4

from nas.attempt import BenchSpec
from nas.budget import Budget
from nas.errors import (
    AlreadyPublishedError,
    ConfigurationError,
    CorruptError,
    HeirloomError,
    MissingError,
    SearchInterruptedError,
)
from nas.executors.base import Action, Broke, Event, Finished, Lost, Reported, StopAsked
from nas.executors.local import LocalExecutor
from nas.executors.place import InProcessPlace
from nas.lineage import Lineage
from nas.loop import Loop, LoopSettings
from nas.metric import Metric, is_finite
from nas.policy import Policy, Stage
from nas.problems.base import Problem
from nas.run import DonorWeights
from nas.spaces.base import Point, Space, is_json, point_key
from nas.spaces.parameter import ParameterSpace
from nas.spec import Spec
from nas.store.checkpoint import Checkpoint, publish_checkpoint, publish_tensors
from nas.store.files import Buffer, Files, Reference, Span, open_root
from nas.store.records import Records
from nas.store.reference import digest_of
from nas.store.retention import Retention
from nas.sweeper import Scope, Sweeper
from nas.trial import Donor, Proposal, Reason, State, Trial
from nas.tuners.base import STOP, WAIT, Answer, Tuner

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_SEARCH = Stage(name="search", policies=frozenset({Policy.SHARE_PARAMS}))
_Ask = tuple[Lineage, int, int]


# ---- tuners


def check_tuner(tuner: Spec, space: Space, metrics: tuple[Metric, ...], *, n_trials: int = 24) -> None:
    """Checks that a tuner is a function of the lineage, and proposes points of the space, come what may.

    * The same lineage, number and seed give the same answer: from another instance, whatever it was asked before, from
      another process, and whatever state the global random generators are in, which it leaves alone.
    * Every point lies in the space, and is plain JSON data, as is every derivation.
    * It goes on at 1, 7 and 64 slots while every fifth trial fails, with metrics maximised and minimised, and in a
      space of one point (or refuses that one with a ConfigurationError).
    * Stopped at any trial and resumed, it proposes what it would have.
    * ``may_inherit_from`` holds every parent and donor that it proposes, and never gives again what it once left out: a
      search in which all other weights are swept proposes the same, and every trial gets the same donors.

    Args:
        tuner: Its class and arguments.
        space: Where it proposes.
        metrics: By name and direction; the scores are made up.
        n_trials: Of each search.
    """
    for chosen in (tuple(replace(m, direction=_other(m)) for m in metrics), metrics):
        for slots in (1, 64, 7):
            asks = _search_on_paper(tuner, space, chosen, slots=slots, n_trials=max(n_trials, slots + 8)).asks
            _check_answers(asks, space)
            _check_inheritance(tuner, space, chosen, asks)
    _check_same_answers(tuner, space, metrics, asks)
    for slots in (1, 7):
        _check_resuming(tuner, space, metrics, slots, n_trials)
        _check_sweeping(tuner, space, metrics, slots, n_trials)
    try:
        tuner.build(one_point := ParameterSpace({"only": 1}), metrics, seed=0)
    except ConfigurationError:
        return
    _search_on_paper(tuner, one_point, metrics, slots=2, n_trials=5)


def _other(metric: Metric) -> Literal["maximize", "minimize"]:
    return "minimize" if metric.direction == "maximize" else "maximize"


class _Listening(Tuner):
    """Passes every ask to a tuner, and keeps what it was asked and answered."""

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


class _PaperExecutor:
    """Runs trials on paper: which one ends next, its scores, and whether it fails follow from numbers and points."""

    def __init__(self, records: Records, slots: int, metrics: Sequence[Metric], stop_after: int | None) -> None:
        self.slots = slots
        self.donors: dict[int, list[Donor]] = {}
        self._records = records
        self._metrics = metrics
        self._n_left = stop_after
        self._running: list[Trial] = []
        self._posted: list[Event] = []
        self._clock = 0.0

    def now_s(self) -> float:
        return self._clock

    def submit(self, trial: Trial, donors: Sequence[DonorWeights]) -> None:
        self._running.append(trial)
        self.donors[trial.number] = [donor.donor for donor in donors]

    def stop(self, trial: Trial, why: Literal["stop", "interrupt"]) -> None:
        self._running = [other for other in self._running if other.number != trial.number]
        self._posted.append(Lost(trial.job, "interrupted"))

    def next_event(self, until_s: float | None) -> Event | None:
        self._clock += 1.0
        if self._posted:
            return self._posted.pop(0)
        if self._n_left == 0:
            return StopAsked("as the check wants")
        trial = min(self._running, key=lambda t: _share("next", t.number))
        self._running.remove(trial)
        if self._n_left is not None:
            self._n_left -= 1
        result = replace(trial, started=self._clock - 1.0, finished=self._clock, cost={"seconds": 1.0})
        if trial.number % 5 == 3:
            failed = replace(result, state=State.FAILED, reason=Reason.EXCEPTION, error="as the check wants")
            return Finished(self._records.commit(failed))
        scores = {metric.name: _share(metric.name, point_key(trial.point)) for metric in self._metrics}
        result = replace(result, state=State.COMPLETE, metrics=scores)
        if trial.number % 7 != 2:  # the others end without weights
            paper = Reference(f"manifests/{trial.number:06d}-paper.json", 0, digest_of(b""))
            result = replace(result, checkpoint=Checkpoint(manifest=paper, packs=(), files=()))
        return Finished(self._records.commit(result))

    def call(self, action: Action, trial: Trial) -> Mapping[str, Any]:
        raise NotImplementedError

    def post(self, event: Event) -> None:
        self._posted.append(event)

    def close(self) -> None:
        pass


def _share(*parts: object) -> float:
    """A number in [0, 1) that follows from the parts, in every process."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=6).digest()
    return int.from_bytes(digest) / 2**48


class _OnPaper(NamedTuple):
    """What was asked and answered, the trials, and whose weights each was given."""

    asks: list[tuple[_Ask, Proposal | Answer]]
    trials: list[Trial]
    donors: dict[int, list[Donor]]


def _search_on_paper(
    tuner: Spec,
    space: Space,
    metrics: tuple[Metric, ...],
    *,
    slots: int,
    n_trials: int,
    records: Records | None = None,
    stop_after: int | None = None,
    sweeps: bool = False,
) -> _OnPaper:
    """A search, begun or resumed on the records.

    Args:
        tuner: See ``check_tuner``, as the next ones.
        space: Where it proposes.
        metrics: By name and direction.
        slots: Trials at a time.
        n_trials: The budget.
        records: New ones by default.
        stop_after: Results after which it is stopped.
        sweeps: Whether weights that are not needed are swept at every result.
    """
    records = records or _fresh_records()
    listening = _Listening(tuner.build(space, metrics, seed=11))
    trials, starts = records.load()
    settings = LoopSettings(budget=Budget(trials=n_trials), max_failures=n_trials + 1)
    executor = _PaperExecutor(records, slots, metrics, stop_after)
    scope = Scope(metric=metrics[0], finalists=lambda trials: (), borrowed=lambda: (), stands_in=True, slots=slots)
    sweeper = Sweeper(records, Retention(max_gb=1e-9), scope) if sweeps else None
    loop = Loop(
        records, executor, settings, trials=trials, starts=starts, tuner=listening, space=space, sweeper=sweeper
    )
    try:
        loop.search(_SEARCH)
    except SearchInterruptedError:
        pass
    except HeirloomError as error:
        text = str(error).replace(type(listening).__name__, tuner.target)
        raise AssertionError(f"{tuner.target} at {slots} slots: {text}") from error
    return _OnPaper(listening.asks, loop.trials, executor.donors)


def _fresh_records() -> Records:
    return Records(open_root(f"memory://contract-{uuid4().hex}", patience_s=0))


def _check_answers(asks: Sequence[tuple[_Ask, Proposal | Answer]], space: Space) -> None:
    for (_, number, _), answer in asks:
        if isinstance(answer, Proposal):
            space.validate(answer.point)
            plain = (answer.point, answer.derivation)
            _expect(all(map(is_json, plain)), f"proposal {number} is no plain JSON data: {plain}")
            _expect(Proposal.from_json(json.loads(json.dumps(answer.to_json()))) == answer, f"{answer} is not JSON")
        else:
            _expect(answer in (WAIT, STOP), f"ask {number} was answered {answer!r}")


def _check_same_answers(
    tuner: Spec, space: Space, metrics: tuple[Metric, ...], asks: Sequence[tuple[_Ask, Proposal | Answer]]
) -> None:
    questions, answers = [ask for ask, _ in asks], [_as_text(answer) for _, answer in asks]
    random.seed(1)
    before = _global_states()
    backwards = _answers(tuner, space, metrics, questions[::-1])[::-1]
    _expect(_global_states() == before, f"{tuner.target} draws from a global random generator")
    _compare(answers, backwards, f"{tuner.target} asked in another order")
    random.seed(2)
    elsewhere = _in_another_process(_answers, tuner, space, metrics, questions)
    _compare(answers, elsewhere, f"{tuner.target} in another process")


def _answers(tuner: Spec, space: Space, metrics: tuple[Metric, ...], questions: Sequence[_Ask]) -> list[str]:
    """What one new instance answers to these asks, one after the other."""
    built: Tuner = tuner.build(space, metrics, seed=11)
    return [_as_text(built.ask(*question)) for question in questions]


def _as_text(answer: Proposal | Answer) -> str:
    return point_key(answer.to_json()) if isinstance(answer, Proposal) else str(answer)


def _compare(expected: Sequence[str], found: Sequence[str], where: str) -> None:
    for place, (one, other) in enumerate(zip(expected, found, strict=True)):
        _expect(one == other, f"{where} gives another answer to ask {place}: {one} became {other}")


def _global_states() -> list[object]:
    states: list[object] = [random.getstate()]
    if (numpy := sys.modules.get("numpy")) is not None:
        states.append(str(numpy.random.get_state()))
    if (torch := sys.modules.get("torch")) is not None:
        states.append(torch.get_rng_state().tolist())
    return states


def _check_inheritance(
    tuner: Spec, space: Space, metrics: tuple[Metric, ...], asks: Sequence[tuple[_Ask, Proposal | Answer]]
) -> None:
    built: Tuner = tuner.build(space, metrics, seed=11)
    left_out: set[int] = set()
    for (lineage, number, _), answer in asks:
        given = set(built.may_inherit_from(lineage))
        again = sorted(given & left_out)
        _expect(not again, f"{tuner.target}.may_inherit_from gives {again} at ask {number}, which it had left out")
        left_out |= {trial.number for trial in lineage.finished} - given
        if isinstance(answer, Proposal):
            named = {source for source in (*answer.parents, *answer.weight_donors) if isinstance(source, int)}
            names = f"{tuner.target} names {sorted(named - given)} at ask {number}, which may_inherit_from leaves out"
            _expect(named <= given, names)


def _check_sweeping(tuner: Spec, space: Space, metrics: tuple[Metric, ...], slots: int, n_trials: int) -> None:
    calm = _search_on_paper(tuner, space, metrics, slots=slots, n_trials=n_trials)
    swept = _search_on_paper(tuner, space, metrics, slots=slots, n_trials=n_trials, sweeps=True)
    where = f"{tuner.target} at {slots} slots, with weights swept that may_inherit_from leaves out,"
    _compare(_proposed(calm.trials), _proposed(swept.trials), where)
    for number, donors in calm.donors.items():
        found = swept.donors[number]
        _expect(found == donors, f"{where} gives trial {number} the weights of {found}, not of {donors}")


def _proposed(trials: Sequence[Trial]) -> list[str]:
    return [f"{_as_text(trial.proposal)} after {trial.learned}" for trial in trials]


def _check_resuming(tuner: Spec, space: Space, metrics: tuple[Metric, ...], slots: int, n_trials: int) -> None:
    undisturbed = _search_on_paper(tuner, space, metrics, slots=slots, n_trials=n_trials).trials
    for stop_after in (0, 1, n_trials // 2, n_trials - 1):
        records = _fresh_records()
        for n_results in (stop_after, None):
            trials = _search_on_paper(
                tuner, space, metrics, slots=slots, n_trials=n_trials, records=records, stop_after=n_results
            ).trials
        where = f"{tuner.target} at {slots} slots, resumed after {stop_after} results,"
        _expect(len(trials) == len(undisturbed), f"{where} proposes {len(trials)} trials, not {len(undisturbed)}")
        _compare(_proposed(undisturbed), _proposed(trials), where)


# ---- problems


def check_problem(problem: Spec) -> None:
    """Checks that a problem trains on the debug runner, honours its policies, and hands its weights on to the bit.

    * It can be built here and in another process, where its space draws the same points.
    * A trial with the cheap policies that it declares is COMPLETE with every metric finite; and again, with the same
      seed, with the same metrics and weights.
    * A trial that is told to stop at its first report is STOPPED.
    * SHARE_PARAMS: a child of the same point inherits all of its parent's parameters. SKIP_TRAIN: and publishes them
      unchanged. EARLY_STOP: without it there are more reports. (DOWNSCALE and QUICK_EVAL can't be seen from outside.)
    * The checkpoint survives a round trip through a storage; ``test`` and ``export``, where defined, work on it.

    Args:
        problem: Its class and arguments, such that a trial with all of its cheap policies takes seconds.
    """
    built: Problem = problem.build()
    _expect(isinstance(built, Problem), f"{problem.target} must be a subclass of nas.Problem")
    point = built.space.sample(random.Random(5))
    built.space.validate(point)
    elsewhere = _in_another_process(_sample, pickle.loads(pickle.dumps(problem)))
    _expect(elsewhere == point_key([built.space.describe(), point]), "another process has another space")
    with _Trainer(problem, built) as trainer:
        cheap = built.policies - {Policy.SKIP_TRAIN}
        first, again = (trainer.train(point, cheap) for _ in range(2))
        for trial in (first, again):
            _expect(trial.state == State.COMPLETE, f"{problem.target} failed on {point}: {trial.reason}: {trial.error}")
        _expect(first.metrics == again.metrics, f"the same seed scored {first.metrics}, and then {again.metrics}")
        _expect(all(m.name in first.metrics for m in built.metrics), f"not every metric is in {first.metrics}")
        _expect(trainer.state_of(first) == trainer.state_of(again), "the same seed saved other weights")
        if first.curve:
            stopped = trainer.train(point, cheap, max_reports=1)
            _expect(stopped.state == State.STOPPED, f"told to stop at its first report, it is {stopped.state}")
        _check_policies(trainer, built, first)
        _check_checkpoint(trainer, first)
        for action in ("test", "export"):
            if built.has(action):
                trainer.check_action(action, first)


def _sample(problem: Spec) -> str:
    space = problem.build().space
    return point_key([space.describe(), space.sample(random.Random(5))])


class _Trainer:
    """Trains one trial after the other on the debug executor, in memory, with one torch thread."""

    def __init__(self, problem: Spec, built: Problem) -> None:
        import torch

        self._n_threads = torch.get_num_threads()
        self.files = open_root(f"memory://contract-{uuid4().hex}", patience_s=0)
        spec = BenchSpec(problem=problem, url=self.files.url, options={}, asks_stopper=True)
        self._executor = LocalExecutor(InProcessPlace(spec, self.files, built))
        self._records = Records(self.files)
        self._n_trials = 0

    def __enter__(self) -> _Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        import torch

        self._executor.close()
        torch.set_num_threads(self._n_threads)

    def train(
        self,
        point: Point,
        policies: frozenset[Policy],
        *,
        parent: Trial | None = None,
        max_reports: float = math.inf,
    ) -> Trial:
        """The finished trial; told to stop at its ``max_reports``-th report."""
        number, self._n_trials = self._n_trials, self._n_trials + 1
        trial = Trial(
            number=number,
            index=number,
            proposal=Proposal(point=point, parents=() if parent is None else (parent.number,)),
            job=number,
            policies=policies,
            seed=7,
            state=State.RUNNING,
            slot=0,
            attempt=1,
        )
        self._records.propose(trial)
        donors = []
        if parent is not None and parent.checkpoint is not None:
            donors = [DonorWeights(parent.number, parent.checkpoint)]
        self._executor.submit(trial, donors)
        n_reports = 0
        while True:
            match self._executor.next_event(None):
                case Reported(answer=answer):
                    n_reports += 1
                    if answer is not None:
                        answer(n_reports >= max_reports)
                case Finished(trial=finished):
                    return finished
                case Broke(error=error):
                    raise error

    def state_of(self, trial: Trial) -> list[tuple[object, ...]]:
        """Every bit that the trial has published."""
        if trial.checkpoint is None:
            return []
        from nas.store.weights import StoredWeights

        tensors = StoredWeights(self.files, trial.checkpoint).read_all()
        found: list[tuple[object, ...]] = [(n, str(t.dtype), t.shape, _bytes_of(t)) for n, t in tensors.items()]
        names = [reference.path.split("/", 2)[2] for reference in trial.checkpoint.files]
        return sorted(found + [(n, r.digest) for n, r in zip(names, trial.checkpoint.files, strict=True)])

    def check_action(self, action: Literal["test", "export"], trial: Trial) -> None:
        """Tests or exports the trial."""
        answer = self._executor.call(action, trial)
        if action == "test":
            _expect(all(map(is_finite, answer.values())), f"test returned {answer}")
        else:
            _expect(not answer["missing"], f"the export lacks {answer['missing']}")


def _bytes_of(tensor: torch.Tensor) -> bytes:
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def _check_policies(trainer: _Trainer, built: Problem, parent: Trial) -> None:
    policies = parent.policies
    if Policy.SHARE_PARAMS in built.policies:
        _expect(parent.checkpoint is not None, "it declares SHARE_PARAMS, and a trial published no weights")
        more = {Policy.SKIP_TRAIN} & built.policies
        child = trainer.train(parent.point, policies | more, parent=parent)
        _expect(child.state == State.COMPLETE, f"a child failed: {child.reason}: {child.error}")
        files_only = parent.checkpoint is not None and not parent.checkpoint.packs
        if not files_only:
            _expect(child.inherited == 1.0, f"a child of the same point inherited {child.inherited} of its parameters")
        if more:
            same = trainer.state_of(child) == trainer.state_of(parent)
            _expect(same, "with SKIP_TRAIN a child published other weights than it inherited")
    if Policy.EARLY_STOP in built.policies and parent.curve:
        longer = trainer.train(parent.point, policies - {Policy.EARLY_STOP}, max_reports=len(parent.curve) + 1)
        n_reports = len(parent.curve)
        _expect(len(longer.curve) > n_reports, f"there are {n_reports} reports with EARLY_STOP, and no more without")


def _check_checkpoint(trainer: _Trainer, trial: Trial) -> None:
    if trial.checkpoint is None or not trial.checkpoint.packs:
        return
    from nas.store.weights import StoredWeights

    tensors = StoredWeights(trainer.files, trial.checkpoint).read_all()
    other = open_root(f"memory://contract-{uuid4().hex}", patience_s=0)
    copy = publish_checkpoint(other, "copy", publish_tensors(other, "packs/copy", tensors))
    found = StoredWeights(other, Checkpoint.from_json(json.loads(json.dumps(copy.to_json())))).read_all()
    same = found.keys() == tensors.keys() and all(_bytes_of(found[n]) == _bytes_of(tensors[n]) for n in tensors)
    _expect(same, "the checkpoint came back from a storage with other bits")


# ---- storages


def check_files(url: str, options: Mapping[str, object] | None = None) -> None:
    """Checks that a storage keeps its promises: what is published is whole, exclusive where asked, and verified.

    Works in a folder of its own below the root, which it removes again where it can.

    Args:
        url: The root.
        options: What fsspec needs to open it.

    Raises:
        AssertionError: a promise is broken.
        ConfigurationError: the storage can't be used at all.
        StoreError: the storage fails.
    """
    files = open_root(url, options, patience_s=0.2).below(f"contract-{uuid4().hex[:12]}")
    try:
        files.check_writable()
        for check in (_check_whole, _check_exclusive, _check_verified, _check_records, _check_paths):
            check(files)
        if not files.in_process:
            _check_elsewhere(files)
    finally:
        if (folder := files.local_path("x")) is not None:
            shutil.rmtree(folder.removesuffix("/x"), ignore_errors=True)


def _check_whole(files: Files) -> None:
    data = random.Random(3).randbytes(3_000_001)
    chunks: list[Buffer] = [data[:5], bytearray(data[5:9]), memoryview(data)[9:]]
    reference = files.publish("packs/whole", iter(chunks))
    _expect(reference.bytes == len(data) and files.read(reference) == data, "what was published did not come back")
    buffer = bytearray(len(data))
    parts = [(2_000_000, 3_000_001), (0, 4), (4, 4), (10, 1_000_000)]
    spans = [Span(begin, digest_of(data[begin:end]), memoryview(buffer)[begin:end]) for begin, end in parts]
    files.read_spans(reference, spans)
    same = all(buffer[begin:end] == data[begin:end] for begin, end in parts)
    _expect(same, "parts of what was published did not come back into memory of the caller's")
    files.check_size(reference)
    files.check_contents(reference)

    def failing() -> Iterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    _expect_raises(ZeroDivisionError, lambda: files.publish("packs/half", failing()))
    _expect(files.names("packs") == ["whole"], f"a failed write left {files.names('packs')}")


def _check_exclusive(files: Files) -> None:
    files.publish("trials/one", [b"first"], exclusive=True)
    _expect_raises(AlreadyPublishedError, lambda: files.publish("trials/one", [b"second"], exclusive=True))
    _expect(files.read_if_present("trials/one") == b"first", "a second writer replaced an exclusive file")

    def write(number: int) -> bool:
        try:
            files.publish("trials/many", [b"%d" % number], exclusive=True)
        except AlreadyPublishedError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = [number for number, has_won in enumerate(pool.map(write, range(8))) if has_won]
    found = files.read_if_present("trials/many")
    _expect(len(won) == 1 and found == b"%d" % won[0], f"of eight writers at once {won} won, and {found!r} is there")


def _check_verified(files: Files) -> None:
    reference = files.publish("packs/verified", [b"as it was"])
    files.replace(reference.path, b"as it is!")
    _expect_raises(CorruptError, lambda: files.read(reference))
    _expect_raises(CorruptError, lambda: files.check_contents(reference))
    good, bad = Span(0, digest_of(b"as it "), _memory(6)), Span(6, digest_of(b"was"), _memory(3))
    files.read_spans(reference, [good])
    _expect_raises(CorruptError, lambda: files.read_spans(reference, [good, bad]))
    files.replace(reference.path, b"short")
    for read in (files.read, files.check_size, files.check_contents, lambda r: files.read_spans(r, [good])):
        _expect_raises(CorruptError, partial(read, reference))
    files.delete(reference.path)
    files.delete(reference.path)
    for read in (files.read, files.check_size, files.check_contents, lambda r: files.read_spans(r, [good])):
        _expect_raises(MissingError, partial(read, reference))


def _memory(size: int) -> memoryview:
    return memoryview(bytearray(size))


def _check_records(files: Files) -> None:
    _expect(files.read_if_present("nowhere/at/all") is None, "a file that is not there was read")
    _expect(not files.names("nowhere") and not files.read_all("nowhere", ""), "a folder that is not there has files")
    for name in ("b.json", "a.json", "a.log"):
        files.publish(f"records/{name}", [name.encode()], exclusive=True)
    files.put("records/a.log", b"a longer log")
    files.put("records/a.log", b"a log")
    _expect(files.names("records") == ["a.json", "a.log", "b.json"], f"names are {files.names('records')}")
    found = files.read_all("records", ".json")
    _expect(found == {"a.json": b"a.json", "b.json": b"b.json"}, f"read_all gave {found}")
    _expect(files.read_if_present("records/a.log") == b"a log", "put left more than the last bytes")
    files.put("records/folder/inner", b"deep")
    found_sizes = {stored.path: stored.bytes for stored in files.walk() if stored.path.startswith("records/")}
    expected = {"records/a.json": 6, "records/a.log": 5, "records/b.json": 6, "records/folder/inner": 4}
    _expect(found_sizes == expected, f"walk gave {found_sizes}")
    files.delete("records/folder/inner")
    _expect(files.names("records") == ["a.json", "a.log", "b.json"], f"delete left {files.names('records')}")
    _expect("records" in files.below("x").siblings(), f"siblings are {files.below('x').siblings()}")
    _expect(files.below("records").read_if_present("a.json") == b"a.json", "below() has other files")
    _expect(files.below("x").sibling("records").read_if_present("a.json") == b"a.json", "sibling() has other files")


def _check_paths(files: Files) -> None:
    for path in ("../up", "/root", "a//b", "", "a/./b", ".tmp-x"):
        _expect_raises(ConfigurationError, lambda path=path: files.publish(path, [b""]))  # type: ignore[misc]


def _check_elsewhere(files: Files) -> None:
    reference = files.publish("packs/elsewhere", [b"for another process"])
    found = _in_another_process(_read, files, reference)
    _expect(found == b"for another process", f"another process read {found!r}")


def _read(files: Files, reference: Reference) -> bytes:
    return files.read(reference)


# ---- helpers of all


def _in_another_process(function: Callable[..., T], *arguments: object) -> T:
    """What the function gives in a new process, to which everything was pickled."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def _expect(holds: bool, line: str) -> None:
    if not holds:
        raise AssertionError(line)


def _expect_raises(kind: type[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected, and nothing was raised")
