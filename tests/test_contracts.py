"""Contracts of all tuners, stoppers, problems and storages of conf/, found by their yaml files."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from omegaconf import OmegaConf

from flows.cli.trusted_code import repeated_words
from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.policy import Policy
from nas.core.spec import Spec
from nas.core.supernet import is_epoch
from nas.core.trial import Proposal, Trial
from nas.search.definition import Search
from nas.spaces.parameters.space import Choice, Float, Int, ParameterSpace
from nas.spaces.supernet import SupernetSpace
from nas.spaces.transformer import TransformerSpace
from nas.stoppers.base import Stopper
from nas.testing import (
    check_blob_store,
    check_problem,
    check_stopper,
    check_tuner,
    problems,
    stoppers,
    tuners,
)
from nas.training.trial_run import TrialRun
from nas.tuners.base import WAIT, Answer, Tuner
from nas.tuners.evolution import EvolutionTuner
from nas.tuners.random import RandomTuner
from tests.support.image_files import write_cifar10, write_fashion_mnist
from tests.support.problems import ExportProblem, PlainProblem, ScoreProblem, SizeProblem, network
from tests.support.rafiki_data import TEMPLATES, table_files
from tests.support.servers import S3, SECRET
from tests.support.squad_file import write_squad
from tests.support.supernet_problem import SupernetProblem

ROOT = Path(__file__).parents[1]
DATA = (ROOT / os.environ.get("HEIRLOOM_DATA", "../shared/data")).resolve()
METRICS = (Metric("accuracy"), Metric("latency_ms", "minimize"))
SPACE = ParameterSpace(
    {
        "depth": Int(1, 3),
        "width": Choice(8, 16, 32),
        "second": Choice(1, 3, 5, when={"depth": [2, 3]}),
        "rate": Float(1e-3, 1e-1, log=True),
        "head": {"kind": Choice("linear", "mlp"), "bias": True},
    }
)
TRANSFORMERS = TransformerSpace((1, 3), parameters={"rate": Float(1e-3, 1e-1, log=True)})
SMALL = ParameterSpace({"a": Choice(1, 2), "b": Choice("x", "y")})


def choices(group: str) -> dict[str, dict[str, Any]]:
    """Returns the yaml files of a folder of conf/ by name, without the one for a user's own class."""
    found = {}
    for path in sorted((ROOT / "conf" / group).glob("*.yaml")):
        if path.stem != "custom":
            content = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
            assert isinstance(content, dict)
            found[path.stem] = {str(key): value for key, value in content.items() if key != "defaults"}
    return found


def spec(content: Mapping[str, Any], **changes: Any) -> Spec:
    return Spec.from_config({**content, **changes})


TUNERS, STOPPERS, PROBLEMS, STORAGES = (choices(group) for group in ("tuner", "stopper", "problem", "storage"))
TABLES = {"nasbench201": "nasbench201_cifar10.parquet", "nasbench_macro": "nasbench_macro.parquet"}
LONG = [pytest.mark.slow, pytest.mark.timeout(1800)]
ONE_SHOT = ("darts", "darts_pt", "drnas", "enas", "gdas", "rsps", "spos", "supernet")
MODELS = ("auto", "enas", "gp", "metis", "network_morphism", "smac", "tpe")
SLOW_TUNERS = [pytest.param(name, marks=LONG) if name in MODELS else name for name in TUNERS]
FEW_MODELS = {
    "enas": {"paths_per_epoch": 2},
    "gp": {"options": {"n_startup_trials": 16}},
    "metis": {"n_initial_points": 14, "n_candidates": 50},
    "network_morphism": {"n_initial_points": 14, "n_candidates": 16},
    "smac": {"n_initial_points": 16},
}

TRAINED = ("cells", "cifar10", "digits", "fashion_mnist", "language", "rafiki", "squad")
SLOW = [pytest.param(name, marks=pytest.mark.slow) if name in TRAINED else name for name in PROBLEMS]


@pytest.fixture(scope="module", autouse=True)
def another_process() -> Iterator[None]:
    """Lets all checks ask one other process, since each start takes half a second."""
    with (
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
        pytest.MonkeyPatch.context() as patch,
    ):
        for module in (tuners, stoppers, problems):
            patch.setattr(module, "in_another_process", lambda *call: pool.submit(*call).result())
        yield


def test_everything_is_found() -> None:
    """The folders of conf/ have at least the documented choices."""
    assert TUNERS.keys() >= {"random", "evolution"}
    assert STOPPERS.keys() >= {"median", "asha", "curve", "patience"}
    assert PROBLEMS.keys() >= {"digits", "fashion_mnist"}
    assert STORAGES.keys() >= {"local", "memory", "nfs", "s3", "sftp"}


@pytest.mark.parametrize(("space", "n_trials"), [(SPACE, 24), (SMALL, 16)], ids=["mixed", "four points"])
@pytest.mark.parametrize("name", SLOW_TUNERS)
def test_tuner(name: str, space: ParameterSpace, n_trials: int) -> None:
    """The tuner is a function of the lineage, for any slots, with failures, and after a resume."""
    changes: dict[str, Any] = dict(FEW_MODELS.get(name, {}))
    if name == "batch":
        rng = random.Random(0)
        changes["points"] = [space.sample(rng) for _ in range(80)]

    own = SupernetSpace(space) if name in ONE_SHOT else TRANSFORMERS if name == "autogrow" else space
    check_tuner(spec(TUNERS[name], **changes), own, METRICS, n_trials=24 if name in MODELS else n_trials)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in TUNERS if name not in ("autogrow", "batch")])
def test_tuner_under_a_constraint(name: str) -> None:
    """With any tuner, no trial exceeds the limit, and the search has its number of trials."""
    proxies = {"proxies": ["size"]} if name == "screened" else {}
    epochs = {"n_epochs": 20} if "n_epochs" in TUNERS[name] else {}
    tuner = spec(TUNERS[name], **FEW_MODELS.get(name, {}), **proxies, **epochs)
    problem, limit = (Spec.of(SizeProblem), 8) if name not in ONE_SHOT else (Spec.of(SupernetProblem, suggests=2), 2)
    search = Search(problem=problem, tuner=tuner, constraints={"size": limit})
    found = run_search(search, root=f"memory://constraint-{name}", budget=Budget(trials=24))

    searched = [trial for trial in found.lineage if trial.stage == "search"]
    assert len(searched) == 24
    assert max(trial.static_metrics["size"] for trial in searched if not is_epoch(trial)) <= limit


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("evolution", {"crossover": 0.7}),
    ("evolution", {"replacement": "worst", "crossover": 0.3}),
    ("evolution", {"replacement": "loser", "sample_size": 2}),
    ("evolution", {"donor": "best_donor", "crossover": 0.3}),
    ("pbt", {"synchronous": True}),
    ("pbt", {"perturbed": ["rate"], "resample": 0}),
    ("reinforce", {"donor": "nearest"}),
    ("reinforce", {"donor": "best"}),
    ("reinforce", {"donor": "best_donor"}),
    ("screened", {"inner": TUNERS["evolution"], "proxies": ["flops", "parameters"]}),
    ("darts", {"n_epochs": 3, "order": 2, "max_skips": None, "max_nones": 0}),
    ("supernet", {"inner": TUNERS["evolution"], "warm_up_epochs": 1, "subnets_per_epoch": 2}),
    ("supernet", {"inner": TUNERS["reinforce"], "warm_up_epochs": 1, "subnets_per_epoch": 3, "n_rescored": 0}),
]


@pytest.mark.parametrize(("name", "changes"), OPTIONS, ids=[f"{name}-{changes}" for name, changes in OPTIONS])
def test_tuner_with_options(name: str, changes: dict[str, Any]) -> None:
    """Tuners with other options keep the contract; weights that a tuner may name are never deleted."""
    space = SupernetSpace(SPACE) if name in ONE_SHOT else SPACE
    check_tuner(spec(TUNERS[name], **changes), space, METRICS, n_trials=16)


@pytest.mark.parametrize("name", ONE_SHOT)
def test_one_shot_names(name: str) -> None:
    """Default names have the name of the yaml. Without an inner tuner of the user's, later commands repeat nothing."""
    tuner = spec(TUNERS[name])

    assert tuner.name == name
    assert repeated_words("tuner", tuner) == []


ARGUMENTS = [
    (group, name, key)
    for group, found in (("tuner", TUNERS), ("stopper", STOPPERS))
    for name, content in found.items()
    for key, default in content.items()
    if isinstance(default, bool | int | float)
]


@pytest.mark.parametrize(("group", "name", "key"), ARGUMENTS)
def test_wrong_arguments_are_named_by_their_option(group: str, name: str, key: str) -> None:
    """A line about a number or switch begins with the key that a user writes."""
    content = (TUNERS if group == "tuner" else STOPPERS)[name]
    space = SupernetSpace(SPACE) if name in ONE_SHOT else TRANSFORMERS if name == "autogrow" else SPACE
    given = (space, METRICS) if group == "tuner" else (METRICS,)

    with pytest.raises(ConfigurationError, match=rf"^{group}\.{key}='many': must be "):
        spec(content, **{key: "many"}).build(*given)


@pytest.mark.parametrize("name", STOPPERS)
def test_stopper(name: str) -> None:
    """The stopper is a function of its input, never ends the best, and ends hopeless trials."""
    check_stopper(spec(STOPPERS[name]), METRICS)


def test_hyperband() -> None:
    """asha with brackets and a last step keeps the contract."""
    check_stopper(spec(STOPPERS["asha"], brackets=3, max_steps=27, reduction=2), METRICS)


@pytest.mark.parametrize("name", SLOW)
def test_problem(name: str, tmp_path: Path) -> None:
    """The problem trains, follows its policies, and passes on weights to the bit."""
    content = PROBLEMS[name]
    changes: dict[str, Any] = {}
    if name == "cifar10":
        changes = {"data_file": str(write_cifar10(tmp_path / "random.npz")), "n_epochs": 2, "max_flops": 20_000_000}
    if name == "fashion_mnist":
        write_fashion_mnist(tmp_path)
        changes = {"data_root": str(tmp_path), "space": "blocks"}
    if name in TABLES:
        if not (table := DATA / TABLES[name]).is_file():
            pytest.skip(f"no table for {name} at {table}; set HEIRLOOM_DATA to the folder that holds it")
        changes["table"] = str(table)
    if name == "language":
        changes = {"epoch_steps": 5, "n_epochs": 5, "n_layers": [1, 2]}
    if name == "rafiki":
        changes = table_files(tmp_path) | {"file": str(TEMPLATES / "net.py"), "class_name": "Net"}
    if name == "squad":
        file = str(write_squad(tmp_path / "squad.json"))
        changes |= {"data_file": file, "test_file": file, "n_epochs": 2, "width": 16}
    if name == "tabular":
        (tmp_path / "t.csv").write_text("a,b,score\n1,1,0.5\n1,2,0.25\n2,1,0\n2,2,1\n")
        changes |= {"table": str(tmp_path / "t.csv"), "parameters": ["a", "b"], "metrics": {"score": {}}}

    check_problem(spec(content, **changes))


@pytest.mark.parametrize("name", sorted(STORAGES.keys() - {"s3", "sftp"}))
def test_storage(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage's files are atomic, exclusive on request, and verified."""
    root = str(STORAGES[name]["root"])
    if name == "nfs" and not Path(root).is_dir():
        pytest.skip(f"no NFS at {root}; set HEIRLOOM_ROOT to a folder on one")
    monkeypatch.chdir(tmp_path)

    check_blob_store(root, STORAGES[name]["options"])


@pytest.mark.slow
def test_s3_storage(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same holds in S3, with credentials and endpoint in the environment, as conf/storage/s3.yaml needs."""
    for variable, value in s3.environment().items():
        monkeypatch.setenv(variable, value)

    check_blob_store(f"s3://bucket/{uuid4().hex}", STORAGES["s3"]["options"])


@pytest.mark.slow
def test_sftp_storage(sftp_port: int, tmp_path: Path) -> None:
    """The same holds over sftp."""
    check_blob_store(f"sftp://me@127.0.0.1:{sftp_port}{tmp_path}", STORAGES["sftp"]["options"] | {"password": SECRET})


class Remembering(RandomTuner):
    """Answers by the number of asks, so that resuming changes its answers."""

    n_asks = 0

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        self.n_asks += 1
        return super().ask(lineage, self.n_asks, job)


class Global(RandomTuner):
    """Draws from Python's global generator."""

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        return Proposal(point=self.space.sample(random.Random(random.random())))


class Outside(RandomTuner):
    """Proposes an invalid point."""

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        return Proposal(point={"unknown": 1})


class Blocking(RandomTuner):
    """Waits for more results than its slots can give at once."""

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        return super().ask(lineage, number, job) if number < 3 else WAIT


class Hashing(RandomTuner):
    """Draws by Python's hash of text, which differs between processes."""

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        return Proposal(point=self.space.sample(random.Random(hash(f"{number}"))))


class Forgetful(EvolutionTuner):
    """Names parents that may_inherit_from does not list."""

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        return ()


class Reviving(RandomTuner):
    """Leaves out a trial, and names it again later."""

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        return [0] if len(lineage) % 2 else []


class Peeking(EvolutionTuner):
    """Uses the number of trials with deleted weights."""

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        n_weights_deleted = sum(trial.weights_deleted for trial in lineage)
        return super().ask(lineage, number + n_weights_deleted, job)


class TestBrokenTuners:
    @pytest.mark.parametrize(
        ("tuner", "line"),
        [
            (Remembering, "asked in another order gives another answer"),
            (Global, "draws from a global random generator"),
            (Outside, "the point is not in the space: unknown"),
            (Blocking, "answers WAIT at proposal 3, but no trial is running"),
            (Hashing, "in another process gives another answer"),
            (Forgetful, r"names \[\d+\] at ask \d+, which may_inherit_from leaves out"),
            (Reviving, r"may_inherit_from gives \[0\] at ask \d+, which it had left out"),
            (Peeking, "with weights deleted that may_inherit_from leaves out, gives another answer"),
        ],
    )
    def test_broken_tuner_is_found(self, tuner: type[Tuner], line: str) -> None:
        """A tuner that breaks its contract is reported with the reason."""
        with pytest.raises(AssertionError, match=line):
            check_tuner(Spec.of(tuner), SPACE, METRICS)

    def test_tuner_may_refuse_a_space(self) -> None:
        """A tuner may refuse a space of one point."""

        check_tuner(Spec.of(Choosy), SPACE, METRICS, n_trials=10)


class Choosy(EvolutionTuner):
    def __init__(self, space: Any, metrics: tuple[Metric, ...], *, seed: int = 0) -> None:
        super().__init__(space, metrics, seed=seed)
        if space.n_points == 1:
            raise ConfigurationError("the space needs two points")


class Counting(Stopper):
    """Decides by the number of asks."""

    n_asks = 0

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        self.n_asks += 1
        return self.n_asks > 10 and is_poor(self, trial)


class Rolling(Stopper):
    """Draws from Python's global generator."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        return random.random() < 0 or is_poor(self, trial)


class Salted(Stopper):
    """Decides by Python's hash of text, which differs between processes."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        return is_poor(self, trial) and hash(f"{trial.number}") % 2 == 0


class Directionless(Stopper):
    """Treats greater values as better for any metric."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        return trial.curve[-1][1].get("accuracy", 1.0) < 0.1


class Merciless(Stopper):
    """Ends each trial at its fifth report."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        return len(trial.curve) == 5


class Ambitious(Stopper):
    """Ends each trial that is not far better than the best."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        best = lineage.best(self.metrics[0])
        return bool(best) and len(trial.curve) == 2


class Lenient(Stopper):
    """Ends no trial."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        return False


class Trusting(Stopper):
    """Assumes that each report has the metric."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        return self.metrics[0].rank(trial.curve[-1][1]["accuracy"]) < -1


class Vague(Stopper):
    """Returns a value that is only truthy."""

    def should_stop(self, lineage: Lineage, trial: Trial) -> bool:
        return None  # type: ignore[return-value]


def is_poor(stopper: Stopper, trial: Trial) -> bool:
    """Returns whether the last report is below a tenth."""
    metric, reported = stopper.metrics[0], trial.curve[-1][1]
    return metric.name in reported and metric.rank(reported[metric.name]) < 0.1


class TestBrokenStoppers:
    @pytest.mark.parametrize(
        ("stopper", "line"),
        [
            (Counting, "asked in another order gives another answer"),
            (Rolling, "draws from a global random generator"),
            (Salted, "in another process gives another answer"),
            (Directionless, "with each metric negated gives another answer"),
            (Merciless, "stops the only trial, although it improves, at its report 5"),
            (Ambitious, "stops a trial that is better than all others, although it improves, at its report 2"),
            (Lenient, "stops none of 8 trials that do not improve and are far worse"),
            (Trusting, r"at report 2 of trial 9 raised KeyError: 'accuracy'"),
            (Vague, "answered None instead of a bool"),
        ],
    )
    def test_broken_stopper_is_found(self, stopper: type[Stopper], line: str) -> None:
        """A stopper that breaks its contract is reported with the reason."""
        with pytest.raises(AssertionError, match=line):
            check_stopper(Spec.of(stopper), METRICS)


class Dice(ExportProblem):
    """Scores by an unseeded generator."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        super().train(run)
        return {"score": random.SystemRandom().random()}


class Stopwatch(PlainProblem):
    """Measures before training."""

    metrics = (*PlainProblem.metrics, Metric("latency_s", "minimize"))

    def measure(self, point: Point, device: str) -> Mapping[str, float]:
        return {"latency_s": time.perf_counter()}


class LateStopwatch(Stopwatch):
    """Measures in training, too."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        return {**super().train(run), "latency_s": time.perf_counter()}


class NoInheritance(ExportProblem):
    """Declares SHARE_PARAMS, but starts from scratch."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        run.save(network())
        return {"score": 0.5}


class TrainsAnyway(ExportProblem):
    """Declares SKIP_TRAIN and changes the weights."""

    policies = frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN})

    def train(self, run: TrialRun) -> Mapping[str, float]:
        model = network()
        run.inherit(model)
        model.get_submodule("0").bias.data += 1
        run.save(model)
        return {"score": 0.5}


class NeverShort(ExportProblem):
    """Declares EARLY_STOP, but trains in full."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        run.report(1, score=0.5)
        return super().train(run)


class Deaf(ExportProblem):
    """Continues after a stop."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        super().train(run)
        run.curve.append((1, {"score": 0.5}))
        return {"score": 0.5}


class TestProblems:
    @pytest.mark.parametrize("problem", [pytest.param(ExportProblem, marks=pytest.mark.slow), PlainProblem, Stopwatch])
    def test_sound_problem_passes(self, problem: type[PlainProblem]) -> None:
        """A correct problem passes, with all methods or with train alone."""
        check_problem(Spec.of(problem))

    @pytest.mark.parametrize(
        ("problem", "line"),
        [
            (Dice, "the same seed gave metrics"),
            (LateStopwatch, "the same seed gave metrics"),
            (NoInheritance, "a child of the same point inherited None"),
            (TrainsAnyway, "changed the weights that it inherited"),
            (NeverShort, "there are 1 reports with EARLY_STOP, but no more without it"),
            (Deaf, "told to stop at its first report is COMPLETE, not STOPPED"),
        ],
    )
    def test_broken_problem_is_found(self, problem: type[ScoreProblem], line: str) -> None:
        """A problem that breaks its contract is reported with the reason."""
        with pytest.raises(AssertionError, match=line):
            check_problem(Spec.of(problem))

    def test_failing_problem_tells_its_error(self) -> None:
        """If training fails, the check shows the traceback."""
        with pytest.raises(AssertionError, match="RuntimeError: no score for"):
            check_problem(Spec.of(ScoreProblem, search=[None] * 100))
