"""Initial points, and initial weights from a file or another search."""

from __future__ import annotations

import json
import shutil
import threading
import traceback
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError, StorageError
from nas.core.metric import Metric
from nas.core.policy import Policy
from nas.core.spec import Spec
from nas.core.trial import State
from nas.executors.events import Event, Notice
from nas.search.definition import Search
from nas.search.identity import claim_identity
from nas.search.imported_weights import import_weights
from nas.search.pipeline import SearchPipeline
from nas.search.search_init import SearchInit
from nas.search.session import run_session
from nas.spaces.parameters.space import Choice, Int, ParameterSpace
from nas.storage.open import open_root
from nas.storage.pack import write_pack
from nas.storage.records import Records
from nas.training.problem import Problem
from nas.training.trial_run import TrialRun
from tests.support.servers import SECRET

POINTS = [{"width": 3, "op": "b"}, {"width": 1, "op": "a"}]
WEIGHTS = {"weight": torch.full((2, 2), 7.0), "bias": torch.full((2,), 7.0)}


class FilledProblem(Problem):
    """Trains nothing: the score is the sum of a small layer after inheriting."""

    metrics = (Metric("sum"),)
    policies = frozenset({Policy.SHARE_PARAMS})
    space = ParameterSpace({"width": Int(1, 8), "op": Choice("a", "b", "c")})

    def train(self, run: TrialRun) -> Mapping[str, float]:
        layer = torch.nn.Linear(2, 2)
        for parameter in layer.parameters():
            torch.nn.init.constant_(parameter, run.point["width"] / 100)
        run.inherit(layer)
        run.save(layer)
        return {"sum": sum(float(parameter.detach().sum()) for parameter in layer.parameters())}

    def static_metrics(self, point: Mapping[str, Any]) -> Mapping[str, float]:
        return {"size": float(point["width"])}


def chain(name: str) -> torch.nn.Module:
    """Returns twelve equal layers with norms, each filled with its index."""
    layers: list[torch.nn.Module] = []
    for _ in range(12):
        layers += [torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)]
    for place, layer in enumerate(layers):
        for parameter in layer.parameters():
            torch.nn.init.constant_(parameter, place)
    return torch.nn.ModuleDict({name: torch.nn.Sequential(*layers)})


class RenamedProblem(Problem):
    """Trains nothing: the score is the number of parameters equal to the file's chain at their index."""

    metrics = (Metric("in_place"),)
    policies = frozenset({Policy.SHARE_PARAMS})
    space = ParameterSpace({"width": Int(1, 8)})

    def train(self, run: TrialRun) -> Mapping[str, float]:
        model, wanted = chain("body"), chain("body").parameters()
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, -1.0)
        run.inherit(model)
        run.save(model)
        return {"in_place": sum(map(torch.equal, model.parameters(), wanted))}


def search(tuner: str, init: SearchInit, **options: Any) -> Search:
    problem = Spec("tests.nas.search.test_search_init.FilledProblem")
    return Search(problem=problem, tuner=Spec(f"nas.tuners.{tuner}"), init=init, **options)


def write(path: Path, content: object) -> str:
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.parametrize(
    "tuner",
    [
        "random.RandomTuner",
        "evolution.EvolutionTuner",
        "grid.GridTuner",
        "anneal.AnnealTuner",
        "pbt.PbtTuner",
        "cmaes.CmaEsTuner",
        "nsga2.Nsga2Tuner",
        "reinforce.ReinforceTuner",
        "metis.MetisTuner",
        "network_morphism.NetworkMorphismTuner",
        "smac.SmacTuner",
    ],
)
def test_points_come_first_whatever_the_tuner(tuner: str, tmp_path: Path) -> None:
    """The file's points are the first trials, in order; then the tuner is asked; resuming changes nothing."""
    init = SearchInit.read(write(tmp_path / "points.json", POINTS), None)
    parts = [
        run_search(search(tuner, init), root=str(tmp_path / "root"), budget=Budget(trials=n), finalists=1)
        for n in (1, 7)
    ]
    whole = run_search(search(tuner, init), root=str(tmp_path / "whole"), budget=Budget(trials=7), finalists=1)

    found = [[trial.point for trial in one.lineage if trial.stage == "search"] for one in (parts[1], whole)]
    assert found[0] == found[1]
    assert found[0][:2] == POINTS
    assert len(found[0]) == 7


def test_first_trials_inherit_from_a_file(tmp_path: Path) -> None:
    """Trials without a donor inherit the file's tensors, which are stored as a trial; children inherit from parents."""
    save_file(WEIGHTS, tmp_path / "w.safetensors")
    init = SearchInit.read(None, str(tmp_path / "w.safetensors"))
    wanted = search("evolution.EvolutionTuner", init)
    found = run_search(wanted, root=str(tmp_path / "root"), budget=Budget(trials=10), finalists=1)
    again = run_search(wanted, root=str(tmp_path / "root"), budget=Budget(trials=11), finalists=1)

    trials = [trial for trial in again.lineage if trial.stage == "search"]
    assert [trial.state for trial in trials] == [State.COMPLETE] * 11
    assert {trial.metrics["sum"] for trial in trials} == {42.0}
    firsts = [trial for trial in trials if not trial.parents]
    assert len(firsts) == 5
    assert {trial.donor for trial in firsts} == {init.weights}
    assert {trial.donor for trial in trials[5:]} <= {trial.number for trial in trials}
    assert len(found.lineage) == 10
    assert sorted(path.name.partition("-")[0] for path in (tmp_path / "root").iterdir()) == ["filled", "weights"]


def test_searches_that_start_at_once_share_an_import(tmp_path: Path) -> None:
    """One of them imports the file, and the others wait for it."""
    save_file(WEIGHTS, tmp_path / "w.safetensors")
    init = SearchInit.read(None, str(tmp_path / "w.safetensors"))
    begin = threading.Barrier(3)

    def searched(seed: int) -> set[object]:
        begin.wait()
        wanted = search("random.RandomTuner", init, seed=seed)
        found = run_search(wanted, root=str(tmp_path / "root"), budget=Budget(trials=1), finalists=1)
        return {trial.donor for trial in found.lineage if trial.stage == "search"}

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(searched, range(3))) == [{init.weights}] * 3


def test_renamed_chains_of_a_file_keep_their_order(tmp_path: Path) -> None:
    """Each renamed layer of a chain inherits from the file's layer at its index."""
    save_file(chain("blocks").state_dict(), tmp_path / "w.safetensors")
    init = SearchInit.read(None, str(tmp_path / "w.safetensors"))
    problem = Spec("tests.nas.search.test_search_init.RenamedProblem")
    wanted = Search(problem=problem, tuner=Spec("nas.tuners.random.RandomTuner"), init=init)
    found = run_search(wanted, root=str(tmp_path / "root"), budget=Budget(trials=1), finalists=1)

    assert found.lineage[0].metrics == {"in_place": 48.0}
    manifest = next((tmp_path / "root").glob("weights-*/manifests/*.json"))
    names = list(json.loads(manifest.read_text())["tensors"])
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    assert layers == [f"blocks.{place}" for place in range(24)]
    assert names[:7] == [
        *("blocks.0.bias", "blocks.0.weight", "blocks.1.bias", "blocks.1.num_batches_tracked"),
        *("blocks.1.running_mean", "blocks.1.running_var", "blocks.1.weight"),
    ]


def test_equal_tensors_of_a_file_keep_their_names(tmp_path: Path) -> None:
    """An export has each of them under its name; of other files, ``init.weights`` finds the names in the metadata."""
    problem = Spec("tests.nas.search.test_search_init.RenamedProblem")
    plain = Search(problem=problem, tuner=Spec("nas.tuners.random.RandomTuner"))
    first = run_search(plain, root=str(tmp_path / "root"), budget=1, finalists=1)
    assert first.export is not None
    exported = f"{first.url}/{first.export['export']}/model.safetensors"
    write_pack(open_root(str(tmp_path)), "shared.safetensors", load_file(exported))
    assert load_file(exported).keys() == chain("body").state_dict().keys()
    assert len(load_file(tmp_path / "shared.safetensors")) < 48

    for file in (exported, str(tmp_path / "shared.safetensors")):
        init = SearchInit.read(None, file)
        found = run_search(replace(plain, init=init), root=str(tmp_path / "root"), budget=1, finalists=1)
        assert found.lineage[0].donor == init.weights
        assert found.lineage[0].inheritance["n_new"] == 0


def test_first_trials_inherit_from_another_search(tmp_path: Path) -> None:
    """``search:trial`` names a trial of another search under the same root."""
    root = str(tmp_path)
    first = run_search(search("random.RandomTuner", SearchInit()), root=root, name="old", budget=Budget(trials=2))
    wanted = search("random.RandomTuner", SearchInit.read(None, "old:1"))
    found = run_search(wanted, root=root, name="new", budget=Budget(trials=2))

    assert {t.metrics["sum"] for t in found.lineage if t.stage == "search"} == {first.lineage[1].metrics["sum"]}
    assert {t.donor for t in found.lineage if t.stage == "search"} == {"old:1"}


def test_init_is_part_of_the_identity(tmp_path: Path) -> None:
    """Other points or weights make another search; the path of the file does not."""
    save_file(WEIGHTS, tmp_path / "a.safetensors")
    save_file(WEIGHTS, tmp_path / "b.safetensors")
    save_file({"weight": WEIGHTS["weight"]}, tmp_path / "c.safetensors")
    given = [(None, None), (write(tmp_path / "p.json", POINTS), None), (write(tmp_path / "q.json", POINTS[:1]), None)]
    given += [(None, str(tmp_path / f"{name}.safetensors")) for name in "abc"]
    digests = [search("random.RandomTuner", SearchInit.read(*one)).build().digest for one in given]

    assert digests[3] == digests[4]
    assert len(set(digests)) == 5


@pytest.mark.parametrize(
    ("points", "weights", "message"),
    [
        ([], None, "must be a JSON list of points"),
        ({"width": 1}, None, "must be a JSON list of points"),
        ([{"width": 99, "op": "a"}], None, r"init.points\[0\] is not in the space: .*width"),
        ([POINTS[1], {"width": 3, "op": "a"}], None, r"init.points\[1\] violates constraints.size=2 \(3\)"),
        ("nowhere.json", None, r"^init.points=nowhere.json: can't be read .*. Give .* trial as NAME:42\.$"),
        (None, "nowhere.safetensors", r"init.weights=nowhere.safetensors: can't be read .*NAME:42"),
    ],
)
def test_invalid_init_is_refused(points: object, weights: str | None, message: str, tmp_path: Path) -> None:
    """An unreadable file, one of another kind, and an invalid point are named before anything runs."""
    file = points if points is None or isinstance(points, str) else write(tmp_path / "points.json", points)

    with pytest.raises(ConfigurationError, match=message):
        search("random.RandomTuner", SearchInit.read(file, weights), constraints={"size": 2.0}).build()


def test_points_in_too_many_lists(tmp_path: Path) -> None:
    """A file of endlessly nested lists is refused like any other invalid file."""
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(ConfigurationError, match=r"init.points=.*deep.json: must be a JSON list of points"):
        SearchInit.read(str(tmp_path / "deep.json"), None)


def test_file_without_tensors_is_refused(tmp_path: Path) -> None:
    """A file that is no safetensors, is cut, or has no tensors is refused before anything runs."""
    save_file({}, tmp_path / "empty.bin")
    save_file(WEIGHTS, tmp_path / "torn.bin")
    (tmp_path / "torn.bin").write_bytes((tmp_path / "torn.bin").read_bytes()[:-1])
    (tmp_path / "w.bin").write_bytes(b"nothing of the kind")

    for name, message in (("w", "must be a file of"), ("torn", "must be a file of"), ("empty", "holds no tensors")):
        with pytest.raises(ConfigurationError, match=rf"init.weights=.*{name}.bin: {message}"):
            SearchInit.read(None, str(tmp_path / f"{name}.bin"))


def test_file_missing_at_the_start_is_named(tmp_path: Path) -> None:
    """If the file can't be published, the search ends before its first trial, each time until it is there."""
    save_file(WEIGHTS, tmp_path / "w.safetensors")
    init = SearchInit.read(None, str(tmp_path / "w.safetensors"))
    (tmp_path / "w.safetensors").rename(tmp_path / "away")

    for _ in range(2):
        with pytest.raises(StorageError, match=r"init.weights=.*w.safetensors: can't be read \(FileNotFoundError"):
            run_search(search("random.RandomTuner", init), root=str(tmp_path / "root"), budget=Budget(trials=2))
    (tmp_path / "away").rename(tmp_path / "w.safetensors")
    found = run_search(search("random.RandomTuner", init), root=str(tmp_path / "root"), budget=Budget(trials=2))
    assert {trial.donor for trial in found.lineage if trial.stage == "search"} == {init.weights}


def test_missing_trial_is_refused(tmp_path: Path) -> None:
    """Another search's trial without weights is named before the first trial."""
    for weights in ("nowhere:1", "old:9"):
        run_search(search("random.RandomTuner", SearchInit()), root=str(tmp_path), name="old", budget=Budget(trials=1))
        with pytest.raises(ConfigurationError, match=rf"init.weights={weights}: no such trial with weights"):
            run_search(search("random.RandomTuner", SearchInit.read(None, weights)), root=str(tmp_path))


class TakenProblem(FilledProblem):
    """Loads all tensors itself, so that the inherited share is unknown."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        return {"sum": float(sum(tensor.sum() for tensor in run.inherit_tensors().values()))}


class LateProblem(FilledProblem):
    """Fails in trial 0, before it inherits."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        if run.number == 0:
            raise RuntimeError("as told")
        return super().train(run)


OTHER = {"stem.conv": torch.ones(3, 3)}


class LazyProblem(FilledProblem):
    """Inherits before its layers have sizes, and exports what can't be exported."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        run.inherit(torch.nn.LazyLinear(run.point["width"]))
        run.save(torch.nn.Linear(2, 2))
        return {"sum": 1.0}

    def export(self, run: TrialRun) -> Any:
        return {"network": run.restore(torch.nn.Linear(2, 2))}


def test_warnings_are_told_once(tmp_path: Path) -> None:
    """Warnings about the problem's code are notices: of export before the first trial, others after the first one."""
    prepared = replace(search("random.RandomTuner", SearchInit()), problem=Spec.of(LazyProblem)).build()
    records = Records(open_root(str(tmp_path)).subfolder("search"))
    claim_identity(records, prepared)
    events: list[Event] = []

    run_session(SearchPipeline(prepared, records, Budget(trials=3)), observe=events.append)

    assert [event.text for event in events if isinstance(event, Notice)] == [
        "export returned dict: must return the network and an example batch. Write `return network, (x[:2],)`",
        "trial 0: run.inherit: lazy layers (the network) have no sizes and inherit nothing. "
        "Run one batch through the network before run.inherit.",
    ]
    kinds = [type(event).__name__ for event in events]
    assert kinds.index("Notice") < kinds.index("Finished")
    assert kinds[kinds.index("Finished") + 1] == "Notice"


@pytest.mark.parametrize(
    ("kind", "tensors", "first"),
    [
        (FilledProblem, OTHER, 0),
        (FilledProblem, WEIGHTS, None),
        (TakenProblem, OTHER, None),
        (LateProblem, OTHER, 1),
    ],
)
def test_weights_that_do_not_fit_are_reported(
    kind: type[Problem], tensors: dict[str, torch.Tensor], first: int | None, tmp_path: Path
) -> None:
    """A message names the file and the reason, once per session."""
    save_file(tensors, tmp_path / "w.safetensors")
    init = SearchInit.read(None, str(tmp_path / "w.safetensors"))
    prepared = replace(search("random.RandomTuner", init), problem=Spec.of(kind)).build()
    records = Records(open_root(str(tmp_path / "root")).subfolder("search"))
    claim_identity(records, prepared)
    import_weights(records, init)
    events: list[Event] = []

    run_session(SearchPipeline(prepared, records, Budget(trials=3)), observe=events.append)

    texts = [event.text for event in events if isinstance(event, Notice)]

    assert [text for text in texts if "saved no weights" not in text] == (first is not None) * [
        f"init.weights ({init.file}): trial {first} inherited no parameter (weight: no donor has this "
        "name). Check that they are weights of the same kind of network"
    ]


def test_weights_that_are_gone_are_reported(tmp_path: Path) -> None:
    """A search that goes on without its initial weights says so once."""
    root = str(tmp_path)
    run_search(search("random.RandomTuner", SearchInit()), root=root, name="old", budget=1)
    prepared = search("random.RandomTuner", SearchInit.read(None, "old:0")).build()
    records = Records(open_root(root).subfolder("new"))
    claim_identity(records, prepared)
    import_weights(records, prepared.search.init)
    shutil.rmtree(tmp_path / "old")
    events: list[Event] = []

    run_session(SearchPipeline(prepared, records, Budget(trials=3)), observe=events.append)

    assert [event.text for event in events if isinstance(event, Notice) and "init" in event.text] == [
        "init.weights (old:0): the weights are gone, so trial 0 trained from scratch. Restore them from a backup, or "
        "begin a search under another name"
    ]


@pytest.mark.parametrize("kind", ["points", "weights"])
def test_no_error_shows_the_password_of_a_url(kind: str) -> None:
    """Neither the line nor the traceback of an error shows it."""
    with pytest.raises(ConfigurationError, match=rf"init.{kind}=memory://me:\*\*\*@host/x: .*be read") as caught:
        SearchInit.read(**{"points": None, "weights": None, kind: f"memory://me:{SECRET}@host/x"})

    assert SECRET not in "".join(traceback.format_exception(caught.value))
