"""Proxies of candidates: computed on workers, the same after any interruption."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import fsspec
import pytest

from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError, SearchFailedError
from nas.core.lineage import Lineage
from nas.core.policy import Stage
from nas.core.spec import Spec
from nas.core.trial import Proposal, State, Trial
from nas.executors.events import Event, Finished, Notice, Reported
from nas.executors.in_process_pool import InProcessPool
from nas.executors.local_executor import LocalExecutor
from nas.executors.pool import WorkerPool
from nas.executors.process_pool import ProcessPool
from nas.executors.simulated import SimulatedExecutor, Workers
from nas.problems.digits import DigitsProblem
from nas.search.controller import ControllerSettings, SearchController
from nas.search.definition import Search
from nas.search.search_init import SearchInit
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.messages import RuntimeSpec
from nas.training.proxies import ProxyScorer
from nas.training.proxy_scores import ProxyScores
from nas.training.trial_run import TrialRun
from nas.tuners.random import RandomTuner
from nas.tuners.screened import ScreenedTuner
from tests.support.commands import Command, records, run, trials, until
from tests.support.problems import ScoreProblem
from tests.support.proxy_problem import ProxyProblem

EVOLUTION = {"_target_": "nas.tuners.evolution.EvolutionTuner", "population_size": 3, "sample_size": 2}


@pytest.fixture(autouse=True)
def clean_memory() -> Iterator[None]:
    ProxyProblem.batches = []
    yield
    fsspec.filesystem("memory").store.clear()


def search(*proxies: str, n_candidates: int = 6, **more: Any) -> Search:
    """Returns a screened search of perceptrons; ``problem`` holds the problem's arguments."""
    options = {"proxies": list(proxies or ["naswot"]), "n_candidates": n_candidates} | more.pop("tuner", {})
    problem = Spec.of(more.pop("kind", ProxyProblem), **more.pop("problem", {}))
    return Search(problem=problem, tuner=Spec.of(ScreenedTuner, **options), **more)


def found(given: Search, n_trials: int, root: str | None = None) -> list[Trial]:
    """Returns the trials of the search stage after a session in this process."""
    summary = run_search(
        given, root=root or f"memory://{uuid4().hex}", name="it", budget=Budget(trials=n_trials), finalists=1
    )
    return [trial for trial in summary.lineage if trial.stage == "search"]


class Session:
    """A session on records, with slots of threads or processes, that keeps its events.

    Args:
        given: The search.
        root: The search's folder.
        kind: The pool: ``threads``, ``processes`` or ``simulated``.
        workers: The behavior of simulated workers.
    """

    def __init__(self, given: Search, root: str, *, kind: str = "threads", workers: Workers | None = None) -> None:
        self.prepared = given.build()
        self.records = Records(open_root(root))
        self.events: list[tuple[float, Event]] = []
        spec = RuntimeSpec(problem=given.problem, url=root, options={})
        pool: WorkerPool
        if kind == "processes":
            pool = ProcessPool(spec, given.slots)
        else:
            pool = InProcessPool(spec, self.records.files, self.prepared.problem)
        self.executor: Any = LocalExecutor(pool, given.slots)
        if kind == "simulated":
            self.executor = SimulatedExecutor(
                self.prepared.problem, self.records, slots=given.slots, pool=pool, workers=workers
            )

    def run(self, n_trials: int, *, seconds: float | None = None) -> list[Trial]:
        """Runs the search stage in the calling thread, for this time at most."""
        began_s = time.monotonic()
        hours = None if seconds is None else seconds / 3600
        recorded, starts = self.records.load()
        search = self.prepared.search
        controller = SearchController(
            self.records,
            self.executor,
            ControllerSettings(
                budget=Budget(trials=n_trials, hours=hours, at_deadline="stop"), deterministic=search.deterministic
            ),
            spent_hours=lambda: (time.monotonic() - began_s) / 3600,
            trials=recorded,
            starts=starts,
            tuner=self.prepared.tuner,
            space=self.prepared.problem.space,
            observe=lambda event: self.events.append((time.monotonic(), event)),
            scores=self.prepared.scores,
        )
        try:
            controller.search(Stage(name="search"))
        finally:
            self.executor.close()
        return controller.trials

    @property
    def notices(self) -> list[str]:
        return [event.text for _, event in self.events if isinstance(event, Notice)]


class WaitingProblem(ProxyProblem):
    """Each ``example_batch`` takes until the controller has handled what a test waits for."""

    has_come: ClassVar[Callable[[float], bool]]
    """Whether it has, for a batch that began at this time."""

    def wait(self) -> None:
        began_s = time.monotonic()
        until(lambda: type(self).has_come(began_s), 60, what="the events")


class ReportingProblem(WaitingProblem):
    """The same, and trials report until the second batch is over."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        while len(ProxyProblem.batches) < 2:
            time.sleep(0.01)
            run.report(len(run.curve) + 1, score=0.0)
        return {"score": 0.0}


def decisions(found: list[Trial]) -> list[Any]:
    return [(t.number, t.point, t.parents, t.proposal.proxies, t.learned) for t in found]


def test_the_candidate_that_workers_rank_first_is_trained() -> None:
    """It has the best naswot of the inner tuner's points, with initial weights by seed and number."""
    trials = found(search(seed=4), 3)

    for trial in trials:
        candidates = _candidates(trials, trial.number, seed=4)
        request = _request(candidates, trial.number, seed=4)
        scorer = ProxyScorer(ProxyProblem(), ["naswot"], seed=request.seed, device="cpu")
        values = {point["width"]: scorer.score(point)["naswot"] for point in candidates}

        assert trial.proposal.proxies == {"naswot": max(values.values())}
        assert trial.point["width"] == max(values, key=lambda width: values[width])
        assert trial.static_metrics["naswot"] == trial.proposal.proxies["naswot"]


def _candidates(trials: list[Trial], number: int, *, seed: int = 0) -> list[Any]:
    """Returns the points that the inner random tuner gives for a proposal: new ones, each once."""
    inner = RandomTuner(ProxyProblem.space, ProxyProblem().metrics, seed=seed)
    points = [trial.point for trial in trials[:number]]
    for inner.n_refused in range(6):
        answer = inner.ask(Lineage.of([]).refusing(points.__contains__), number, number)
        assert isinstance(answer, Proposal)
        points.append(answer.point)
    return points[number:]


def _request(points: list[Any], number: int, *, seed: int) -> Any:
    scores = ProxyScores(["naswot"], seed=seed)
    scores.need(["naswot"])
    assert scores.find(points, number) is None
    return scores.take_request(number)


def test_several_proxies_and_static_metrics_are_ranked_together() -> None:
    """The sum of the ranks by snip, from a worker, and by live FLOPs, which grow with the width, decides."""
    trials = found(search("snip", "live_flops", seed=1), 3)

    for trial in trials:
        candidates = _candidates(trials, trial.number, seed=1)
        request = _request(candidates, trial.number, seed=1)
        scorer = ProxyScorer(ProxyProblem(), ["snip"], seed=request.seed, device="cpu")
        by_snip = sorted(candidates, key=lambda point: scorer.score(point)["snip"])
        by_width = sorted(candidates, key=lambda point: point["width"])
        sums = [by_snip.index(point) + by_width.index(point) for point in candidates]

        assert trial.point == candidates[sums.index(max(sums))]


def test_the_controller_goes_on_while_a_worker_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread computes nothing, and it handles the reports of the other slot's trial meanwhile."""
    session = Session(search(kind=ReportingProblem, slots=2), f"memory://{uuid4().hex}")

    def reports_s() -> list[float]:
        return [at_s for at_s, event in session.events if isinstance(event, Reported)]

    def has_come(began_s: float) -> bool:
        """Returns whether there were five reports, or there is no trial yet."""
        return not ProxyProblem.batches or sum(at_s > began_s for at_s in reports_s()) >= 5

    monkeypatch.setattr(WaitingProblem, "has_come", has_come, raising=False)
    session.run(2)
    during = [sum(began_s < at_s < ended_s for at_s in reports_s()) for _, began_s, ended_s in ProxyProblem.batches]

    assert threading.get_ident() not in [thread for thread, _, _ in ProxyProblem.batches]
    assert len(during) == 2
    assert max(during) >= 5


@pytest.mark.parametrize("inner", [None, EVOLUTION])
def test_a_resumed_search_makes_the_same_proposals(tmp_path: Path, inner: Any) -> None:
    """Sessions of one or two trials propose what one session of five does, with equal proxies."""
    given = search("naswot", "jacov", tuner={"inner": inner})
    whole = found(given, 5)
    for n_trials in (1, 3, 5):
        parts = found(given, n_trials, str(tmp_path))

    assert decisions(parts) == decisions(whole)


def test_an_interrupted_request_is_computed_again(tmp_path: Path) -> None:
    """A session that ends during a computation loses nothing, and the next one gets equal values."""
    root = str(tmp_path / "search")
    broken = Session(search(problem={"error": "no disk"}), root)
    with pytest.raises(SearchFailedError):
        broken.run(2)
    resumed = Session(search(), root).run(2)

    assert decisions(resumed) == decisions(found(search(), 2))


@pytest.mark.slow
def test_a_computation_ends_with_the_hours(tmp_path: Path) -> None:
    """A batch that never comes is ended with its process, and nothing was proposed."""
    session = Session(search(problem={"seconds": 1000.0}), str(tmp_path / "search"), kind="processes")

    assert session.run(3, seconds=3.0) == []
    assert session.notices == []


def test_deterministic_searches_do_not_depend_on_durations() -> None:
    """With two slots the decisions are the same, whatever the trials take."""
    given = search("naswot", tuner={"inner": EVOLUTION}, deterministic=True, slots=2)
    tables = []
    for seed in range(3):
        session = Session(
            given, f"memory://{uuid4().hex}", kind="simulated", workers=Workers(seed=seed, straggling=2.0)
        )
        tables.append(decisions(session.run(8)))

    assert tables[0] == tables[1] == tables[2]
    assert any(parents for _, _, parents, _, _ in tables[0])


@pytest.mark.slow
def test_deterministic_searches_on_processes(tmp_path: Path) -> None:
    """The decisions on two worker processes are those of the simulation, with slow proxies and trials."""
    options: dict[str, Any] = {"tuner": {"inner": EVOLUTION}, "deterministic": True, "slots": 2}
    slow = search("naswot", problem={"seconds": 0.05, "n_reports": 20}, **options)
    real = Session(slow, str(tmp_path / "search"), kind="processes").run(8)

    assert decisions(real) == decisions(Session(search("naswot", **options), "memory://it", kind="simulated").run(8))


def test_the_tuner_is_asked_again_with_the_same_lineage(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that arrives during the computation is first shown to the next proposal."""
    session = Session(search(kind=WaitingProblem, tuner={"inner": EVOLUTION}, slots=2), f"memory://{uuid4().hex}")

    def has_come(began_s: float) -> bool:
        """Returns whether all trials that were proposed before the batch have finished."""
        return sum(isinstance(event, Finished) for _, event in session.events) == len(ProxyProblem.batches)

    monkeypatch.setattr(WaitingProblem, "has_come", has_come, raising=False)
    trials = session.run(4)

    assert [trial.learned for trial in trials] == [(), (), (0,), (1,)]


def test_a_simulated_search_computes_proxies() -> None:
    """They take no time on the virtual clock, and none on the controller's thread."""
    simulated = Session(search(), f"memory://{uuid4().hex}", kind="simulated").run(3)

    assert decisions(simulated) == decisions(found(search(), 3))
    assert [trial.finished for trial in simulated] == [60.0, 120.0, 180.0]
    assert threading.get_ident() not in [thread for thread, _, _ in ProxyProblem.batches]


def test_an_error_of_the_batch_ends_the_search() -> None:
    """It would be the same for every candidate: the message has the problem's own words."""
    with pytest.raises(SearchFailedError, match=r"proxies of the candidates for trial 0: .*no disk"):
        found(search(problem={"error": "no disk"}), 1)


def test_networks_without_activations_are_reported() -> None:
    """naswot is NaN for all of them: the first candidate is trained, and a notice names the proxy."""
    session = Session(search(problem={"activation": False}), f"memory://{uuid4().hex}")
    [trial] = session.run(1)

    assert trial.point == _candidates([], 0)[0]
    assert trial.proposal.proxies == {}
    assert session.notices == ["proxies: naswot is not finite for any candidate for trial 0, and ranks none"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"kind": ScoreProblem}, "tuner.proxies=naswot: must be .* Define `build` and `example_batch` in the problem"),
        (
            {"tuner": {"proxies": ["zico"]}},
            "tuner.proxies=zico: must be .* Choose one of flops, jacov, live_flops, naswot",
        ),
        ({"trials_per_job": 2}, "job.trials_per_job: must be 1 for proxies that workers compute"),
    ],
)
def test_what_can_not_be_is_refused_at_once(options: dict[str, Any], error: str) -> None:
    """The message is one line, and names the methods that the problem lacks."""
    with pytest.raises(ConfigurationError, match=error) as caught:
        search(**options).build()

    assert "\n" not in str(caught.value)


TUNERS = {
    "random": Spec("nas.tuners.random.RandomTuner"),
    "evolution": Spec.from_config(EVOLUTION),
    "pbt": Spec("nas.tuners.pbt.PbtTuner", {"population_size": 4}),
    "grid": Spec("nas.tuners.grid.GridTuner", {"resolution": 64}),
    "batch": Spec("nas.tuners.batch.BatchTuner", {"points": [{"width": w} for n in range(1, 9) for w in (20 + n, n)]}),
}


@pytest.mark.parametrize("name", TUNERS)
def test_constraints_may_limit_proxies(name: str, tmp_path: Path) -> None:
    """Each trial's value is within the limit, and unlimited searches exceed it. Resumed ones propose the same."""
    free = found(Search(problem=Spec.of(ProxyProblem), tuner=Spec.of(ScreenedTuner, proxies=["synflow"])), 4)
    given = Search(problem=Spec.of(ProxyProblem), tuner=TUNERS[name], constraints={"synflow": 2.0, "parameters": 200})
    limited = found(given, 8)
    for n_trials in (2, 8):
        resumed = found(given, n_trials, str(tmp_path))

    assert all(trial.static_metrics["synflow"] > 2.0 for trial in free)
    assert all(trial.static_metrics["synflow"] <= 2.0 for trial in limited)
    assert all(trial.static_metrics["parameters"] <= 200 for trial in limited)
    assert len({trial.point["width"] for trial in limited}) > 3
    assert name not in ("grid", "batch") or len({trial.point["width"] for trial in limited}) == len(limited)
    assert decisions(resumed) == decisions(limited)


def test_limits_and_ranks_go_together() -> None:
    """Of candidates by naswot, each trained one satisfies the limit of synflow; a given point comes first."""
    given = search("naswot", constraints={"synflow": 2.5}, init=SearchInit(points=({"width": 5},)))
    trials = found(given, 4)

    assert trials[0].point == {"width": 5}
    assert all(trial.proposal.proxies.keys() == {"naswot", "synflow"} for trial in trials[1:])
    assert all(trial.proposal.proxies["synflow"] <= 2.5 for trial in trials[1:])


def test_an_impossible_limit_is_explained() -> None:
    """The error names the limit and the smallest value found."""
    given = Search(
        problem=Spec.of(ProxyProblem), tuner=Spec("nas.tuners.random.RandomTuner"), constraints={"synflow": 0.01}
    )
    with pytest.raises(SearchFailedError, match=r"constraints.synflow=0.01 is violated by .* the smallest value is"):
        found(given, 1)


def test_proxies_may_be_objectives() -> None:
    """A worker computes them before training, with initial weights by the trial's seed."""
    given = Search(
        problem=Spec.of(ProxyProblem, objectives=("naswot", "live_flops")), tuner=Spec("nas.tuners.random.RandomTuner")
    )
    for trial in found(given, 2):
        scorer = ProxyScorer(ProxyProblem(), ["naswot"], seed=trial.seed, device="cpu")

        assert trial.metrics["naswot"] == scorer.score(trial.point)["naswot"]
        assert trial.metrics["live_flops"] == 2 * (3 + 2) * trial.point["width"]


def test_images_have_all_proxies() -> None:
    """The bundled digits give a batch of training data, and finite values for every proxy."""
    problem = DigitsProblem(objectives=["accuracy", "naswot", "live_flops"])
    pixels, labels = problem.example_batch()
    point = problem.space.sample(RandomTuner(problem.space, problem.metrics).rng(0))
    values = ProxyScorer(problem, sorted(problem.proxies), seed=0, device="cpu").score(point)

    assert (pixels.shape, labels.shape) == ((64, 1, 8, 8), (64,))
    assert problem.proxies == {"naswot", "jacov", "snip", "synflow"} == values.keys()
    assert all(abs(value) < 1e9 for value in values.values())


@pytest.mark.slow
@pytest.mark.parametrize("n_exits", [1, 9])
def test_a_lost_worker_costs_no_trial(tmp_path: Path, n_exits: int) -> None:
    """A request is sent again after the loss of its worker; after two losses the first candidate is trained."""
    (tmp_path / "exits").mkdir()
    given = search(problem={"folder": str(tmp_path / "exits"), "n_exits": n_exits})
    session = Session(given, str(tmp_path / "search"), kind="processes")
    [trial] = session.run(1)

    assert (trial.state, trial.attempt) == (State.COMPLETE, 1)
    if n_exits == 1:
        assert decisions([trial]) == decisions(found(search(), 1))
        assert session.notices == []
    else:
        assert trial.point == _candidates([], 0)[0]
        assert "its worker ended with exit status 3" in session.notices[0]


SCREENED = ("+tuner=screened", "tuner.inner=evolution", "tuner.n_candidates=6", "tuner.proxies=[naswot,live_flops]")
SHORT = ("problem._target_=proxy_problem.ProxyProblem", "budget.trials=4", "finalists=1")


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["dask", "ray"])
def test_every_cluster_proposes_the_same(here: Path, api_url: str, runner: str) -> None:
    """Candidates are scored where trials run, by the same seeds."""
    done = run(here, *SCREENED, *SHORT, f"runner={runner}", "slots=1", "name=it", PREFECT_API_URL=api_url)
    given = search("naswot", "live_flops", tuner={"inner": {"_target_": "nas.tuners.evolution.EvolutionTuner"}})

    assert done.status == 0, done.err
    in_stage = [trial for trial in trials(here / "heirloom" / "it") if trial.stage == "search"]
    assert [trial.point for trial in in_stage] == [trial.point for trial in found(given, 4)]
    assert all(trial.proposal.proxies for trial in in_stage)


@pytest.mark.slow
def test_kills_leave_no_trace(here: Path, api_url: str) -> None:
    """A driver killed while candidates are scored, at two moments, ends with an uninterrupted search's table."""
    slow = (*SCREENED, *SHORT, "+problem.seconds=0.5", "deterministic=true", "slots=2", "runner=processes")
    for kill in range(2):
        with Command(here, *slow, "name=torn", forked=True, PREFECT_API_URL=api_url) as command:
            folder = here / "heirloom" / "torn" / "trials"
            until(lambda: len(list(folder.glob("*.proposal.json"))) > kill, what="a proposal")  # noqa: B023
            time.sleep(0.25)
            command.kill(to_group=kill % 2 == 0)
    last = run(here, *slow, "name=torn", forked=True, PREFECT_API_URL=api_url)
    calm = run(here, *slow, "name=calm", PREFECT_API_URL=api_url)

    assert last.status == calm.status == 0, last.err
    assert decisions(trials(here / "heirloom" / "torn")) == decisions(trials(here / "heirloom" / "calm"))
    assert records(here / "heirloom" / "torn").tests() == records(here / "heirloom" / "calm").tests()
