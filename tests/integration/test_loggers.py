"""Loggers: what TensorBoard, MLflow and W&B read back after a kill and several sessions.

``.ci/run`` installs their extras for these tests; elsewhere they are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from nas.api.results import Results
from nas.api.search import run_search
from nas.callbacks.base import Callback, SearchInfo, SearchOutcome
from nas.callbacks.callback_list import CallbackList
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.spec import Spec
from nas.core.supernet import UNTRAINED
from nas.core.trial import State, Trial, trial_name
from nas.search.definition import Search
from nas.spaces.parameters.numeric import Int
from nas.spaces.parameters.space import ParameterSpace
from nas.training.problem import Problem
from nas.training.trial_run import TrialRun
from tests.support.commands import TIMED, free_port, run
from tests.support.logged_search import run_logged
from tests.support.sample_searches import trial as sample_trial
from tests.support.servers import eventually, is_listening

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]  # of the trackers' own imports
ROOT = Path(__file__).parents[2]
STEPS = [1, 2, 3]
SHARED = sample_trial(1, score=0.9, policies=UNTRAINED, donor=0)
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True, scope="module")
def loggers_have_time() -> Iterator[None]:
    """Gives loggers more than the 30 s that they have at the end of a session."""
    defaults: Any = CallbackList.__init__.__kwdefaults__
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(defaults, "end_s", 240.0)
        yield


def run_sessions(folder: Path, logger: Spec) -> Results:
    """A session is killed in trial 1, the next runs without a logger, and two more with it."""
    command = [sys.executable, "-m", "tests.support.logged_search", str(folder), logger.target]
    command.append(json.dumps(logger.arguments))
    alone = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}  # no service of this process
    killed = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    run_logged(folder, n_trials=2)
    run_logged(folder, logger.build(), n_trials=4)
    return run_logged(folder, logger.build(), n_trials=5)


def run_callback(callback: Callback, trials: list[Trial], folder: Path, **outcome: Any) -> None:
    """Calls a callback as a search whose trials end in this order does."""
    lineage = Lineage.of(sorted(trials, key=lambda trial: trial.number))
    search: dict[str, Any] = {"name": "s", "url": str(folder), "id": "0", "session": 1, "stages": ("search",)}
    search |= {"metrics": (Metric("accuracy"),), "budget": Budget(trials=9), "lineage": Lineage.of([])}
    search["identity"] = {"problem": {"target": "p"}, "tuner": {"target": "t"}, "seed": 0}
    callback.on_search_start(SearchInfo(**search, log_dir=str(folder)))
    for ended in trials:
        callback.on_trial_end(ended)
    callback.on_search_end(SearchOutcome(**{"lineage": lineage, "winner": None, **outcome}))


@pytest.fixture(scope="module")
def tensorboard(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Results]:
    """The folder of a search's event files, and the search."""
    pytest.importorskip("tensorboard")
    folder = tmp_path_factory.mktemp("tensorboard")
    found = run_sessions(folder, Spec("nas.callbacks.tensorboard.TensorBoardCallback"))
    return folder / "runs" / "curves", found


class TestTensorBoard:
    @staticmethod
    def read(folder: Path) -> Any:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        accumulator = EventAccumulator(str(folder))
        accumulator.Reload()
        return accumulator

    def test_curves_are_those_of_the_records(self, tensorboard: tuple[Path, Results]) -> None:
        """Each trial has each of its reports once, also the one whose first attempt was killed, and its result."""
        folder, found = tensorboard
        assert len(found.lineage) == 7  # five, and two finalists
        for trial in found.lineage:
            events = self.read(folder / trial_name(trial.number))
            curve = [(event.step, event.value) for event in events.Scalars("score")]
            assert curve == [(step, pytest.approx(metrics["score"])) for step, metrics in trial.curve]
            assert [e.value for e in events.Scalars("result/score")] == [pytest.approx(trial.metrics["score"])]
            if trial.inherited_share is not None:
                assert [e.value for e in events.Scalars("result/inherited")] == [trial.inherited_share]

    def test_parameters_have_parent_and_donor(self, tensorboard: tuple[Path, Results]) -> None:
        """The tab HPARAMS has parent, donor, generation and the point."""
        from tensorboard.plugins.hparams import metadata

        folder, found = tensorboard
        data = self.read(folder / "trial-0001").summary_metadata
        plugin = data["_hparams_/session_start_info"].plugin_data.content
        fields = metadata.parse_session_start_info_plugin_data(plugin).hparams
        trial = found.lineage[1]
        assert (fields["parent"].string_value, fields["donor"].string_value) == ("0", str(trial.donor))
        assert (fields["point.x"].number_value, fields["generation"].number_value) == (60, 1)

    def test_tests_with_shared_weights_are_apart(self, tmp_path: Path) -> None:
        """Their scores are no points among those of trained networks."""
        pytest.importorskip("tensorboard")
        tests = {number: {"metrics": {"accuracy": number / 4}} for number in (1, 2)}
        logger = Spec("nas.callbacks.tensorboard.TensorBoardCallback").build()
        run_callback(logger, [SHARED, sample_trial(2, score=0.8)], tmp_path, tests=tests)
        events = self.read(tmp_path / "search")

        assert [(e.step, e.value) for e in events.Scalars("test/accuracy")] == [(2, 0.5)]
        assert [(e.step, e.value) for e in events.Scalars("test_with_shared_weights/accuracy")] == [(1, 0.25)]

    def test_interrupted_session_keeps_the_tests(self, tmp_path: Path) -> None:
        """Test scores outlast an interrupted session; a later one, or another search, replaces them."""
        pytest.importorskip("tensorboard")
        logger = Spec("nas.callbacks.tensorboard.TensorBoardCallback")

        def tested(**outcome: Any) -> list[tuple[int, float]]:
            run_callback(logger.build(), [sample_trial(n, score=0.8) for n in (1, 2)], tmp_path, **outcome)
            events = self.read(tmp_path / "search")
            tags = events.Tags()["scalars"]
            return [(e.step, e.value) for e in events.Scalars("test/accuracy")] if "test/accuracy" in tags else []

        assert tested(tests={1: {"metrics": {"accuracy": 0.5}}}) == [(1, 0.5)]
        assert tested(error="Ctrl-C") == [(1, 0.5)]
        assert tested(tests={2: {"metrics": {"accuracy": 0.25}}}) == [(2, 0.25)]
        (tmp_path / ".search_id").write_text("another")
        assert tested(error="Ctrl-C") == []

    def test_search_has_one_curve(self, tensorboard: tuple[Path, Results]) -> None:
        """The search's folder has the best score and the inherited share once for each trial."""
        folder, found = tensorboard
        events = self.read(folder / "search")
        searched = [trial.number for trial in found.lineage if trial.stage == "search"]
        assert len(events.Scalars("best_score/search")) == len(searched)
        assert max(e.value for e in events.Scalars("best_score/search")) == pytest.approx(0.9)
        assert {e.step for e in events.Scalars("test/score")} == found.tests.keys()

    def test_result_that_was_not_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A result that was begun and not completed is no result: the next session writes it."""
        summary = pytest.importorskip("torch.utils.tensorboard.summary")
        logger = Spec("nas.callbacks.tensorboard.TensorBoardCallback")
        with monkeypatch.context() as broken:
            broken.setattr(summary, "hparams", lambda *given: 1 / 0)  # the file is open
            run_logged(tmp_path, logger.build(), n_trials=1)
        folder = tmp_path / "runs" / "curves" / "trial-0000"
        assert not list(folder.glob("*.result"))
        run_logged(tmp_path, logger.build(), n_trials=2)

        assert [event.value for event in self.read(folder).Scalars("result/score")] == [pytest.approx(0.3)]
        assert not list(folder.glob("*.partial"))

    def test_best_so_far_is_in_order_of_the_ends(self, tmp_path: Path) -> None:
        """The best score so far never falls, in whatever order trials end, and is that of trials that can win."""
        pytest.importorskip("tensorboard")
        callback = Spec("nas.callbacks.tensorboard.TensorBoardCallback").build()
        trials = [sample_trial(n, score=score) for n, score in ((2, 0.5), (0, 0.7), (1, 0.6))]
        trials[1:1] = [sample_trial(3, score=0.9, state=State.STOPPED), sample_trial(4, score=0.9, outdated=True)]
        run_callback(callback, trials, tmp_path)

        curve = sorted((e.step, e.value) for e in self.read(tmp_path / "search").Scalars("best_accuracy/search"))
        assert curve == [(1, 0.5), (4, pytest.approx(0.7)), (5, pytest.approx(0.7))]

    def test_another_search_of_the_name(self, tmp_path: Path) -> None:
        """A search in another root with the same name and log_dir replaces what the first wrote, and only that."""
        pytest.importorskip("tensorboard")
        logger = Spec("nas.callbacks.tensorboard.TensorBoardCallback")
        run_logged(tmp_path, logger.build(), n_trials=3)
        folder = tmp_path / "runs" / "curves"
        own = folder / "trial-0002" / "events.out.tfevents.own"
        own.touch()
        shutil.move(tmp_path / "root", tmp_path / "elsewhere")
        run_logged(tmp_path, logger.build(), n_trials=1)

        written = {path.parent.name for path in folder.glob("trial-*/*.result")}
        assert written == {trial_name(0), trial_name(1)}  # one, and its finalist
        assert own.exists()

    def test_running_search_of_the_name(self, tmp_path: Path) -> None:
        """A search is refused while another of its name writes to the folder, and its event files stay."""
        pytest.importorskip("tensorboard")

        class Second(Callback):
            def on_trial_end(self, trial: Trial) -> None:
                with pytest.raises(ConfigurationError) as refused:
                    run_logged(tmp_path / "elsewhere", logger.build(), n_trials=1, log_dir=tmp_path / "runs")
                errors.append(str(refused.value))

        errors: list[str] = []
        logger = Spec("nas.callbacks.tensorboard.TensorBoardCallback")
        run_logged(tmp_path, logger.build(), Second(), n_trials=2)

        assert len(errors) == 3
        folder = tmp_path / "runs"
        assert set(errors) == {
            f"log_dir={folder}: must be one that no other search named curves writes to now. "
            "Choose another log_dir, or another name."
        }
        assert len(list(folder.glob("curves/trial-*/*.result"))) == 3
        run_logged(tmp_path / "elsewhere", logger.build(), n_trials=1, log_dir=folder)  # the first has ended
        assert len(list(folder.glob("curves/trial-*/*.result"))) == 2

    def test_guide(self, tmp_path: Path) -> None:
        """The command of the guide writes a folder for each trial, by workers of their own."""
        pytest.importorskip("tensorboard")
        page = (ROOT / "docs" / "guides" / "loggers.md").read_text()
        line = page.partition("```bash\n")[2].partition("\n")[0]
        done = run(tmp_path, line=line, timeout_s=280)

        assert done.status == 0, done.err
        assert "callback" not in done.err
        folders = sorted((tmp_path / "runs" / "logged").glob("trial-*"))
        assert [folder.name for folder in folders] == [trial_name(number) for number in range(6)]
        assert all(self.read(folder).Scalars("result/accuracy") for folder in folders)


@pytest.fixture
def mlflow_server(tmp_path: Path) -> Iterator[str]:
    """The address of an MLflow server on this machine."""
    pytest.importorskip("mlflow")
    port = free_port()
    store, folder = f"sqlite:///{tmp_path}/mlflow.db", str(tmp_path / "artifacts")
    options = ["--host=127.0.0.1", f"--port={port}", "--workers=1", f"--backend-store-uri={store}"]
    command = [sys.executable, "-m", "mlflow", "server", *options, f"--artifacts-destination={folder}"]
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        assert eventually(lambda: is_listening(port), 120), (tmp_path / "server.log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


class ForeignProblem(Problem):
    """Metrics and parameters whose names MLflow does not allow, and one that looks like a replacement."""

    metrics = (Metric("精"), Metric("速"), Metric("a:b"), Metric("a_b"), Metric("au003ab"), Metric("重" * 100))
    space = ParameterSpace({"宽": Int(1, 8), "深": Int(11, 18)})

    def train(self, run: TrialRun) -> dict[str, float]:
        """Returns a number of its own for each metric."""
        return {metric.name: float(place) for place, metric in enumerate(self.metrics)}


class TestMlflow:
    def test_names_stay_apart(self, tmp_path: Path) -> None:
        """Each metric and parameter has a name of its own, whatever characters it has."""
        mlflow = pytest.importorskip("mlflow")
        uri = f"sqlite:///{tmp_path}/mlflow.db"
        logger = Spec("nas.callbacks.mlflow.MlflowCallback", {"tracking_uri": uri}).build()
        search = Search(problem=Spec.of(ForeignProblem), tuner=Spec("nas.tuners.random.RandomTuner"))
        run_search(search, root=str(tmp_path), name="x", budget=1, callbacks=[logger], log_dir=str(tmp_path / "runs"))
        tool = mlflow.MlflowClient(uri)
        runs = tool.search_runs([tool.get_experiment_by_name("heirloom").experiment_id])
        data = next(run.data for run in runs if run.info.run_name == trial_name(0))

        assert [data.metrics[name] for name in ("u7cbe", "u901f", "au003ab", "a_b")] == [0, 1, 2, 3]
        assert sorted(value for name, value in data.metrics.items() if name != "duration_s") == [0, 1, 2, 3, 4, 5]
        assert int(data.params["point.u5bbd"]) < 10 < int(data.params["point.u6df1"])

    def test_server_that_does_not_answer(self, tmp_path: Path) -> None:
        """An unreachable server is one line and status 2, before a trial runs."""
        pytest.importorskip("mlflow")
        done = run(tmp_path, *TIMED, "runner=debug", "logger=mlflow", "logger.mlflow.tracking_uri=http://127.0.0.1:1")

        assert done.status == 2
        assert "logger.mlflow.tracking_uri=http://127.0.0.1:1: must be a server that can be reached" in done.err
        assert not list(tmp_path.glob("heirloom/*/trials/*"))

    def test_runs_are_nested_and_single(self, tmp_path: Path) -> None:
        """All sessions share one run of the search, which ends FINISHED; each trial has one nested run."""
        mlflow = pytest.importorskip("mlflow")
        uri = f"sqlite:///{tmp_path}/mlflow.db"
        found = run_sessions(tmp_path, Spec("nas.callbacks.mlflow.MlflowCallback", {"tracking_uri": uri}))
        tool = mlflow.MlflowClient(uri)
        runs = tool.search_runs([tool.get_experiment_by_name("heirloom").experiment_id])
        parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
        nested = {int(run.data.tags["heirloom.trial"]): run for run in runs if run not in parents}
        assert len(parents) == 1
        assert (parents[0].info.run_name, parents[0].info.status) == ("curves", "FINISHED")
        assert found.winner is not None
        assert parents[0].data.tags["heirloom.winner"] == str(found.winner.number)
        assert len(runs) == 1 + len(found.lineage)
        assert {run.data.tags["mlflow.parentRunId"] for run in nested.values()} == {parents[0].info.run_id}
        for trial in found.lineage:
            nested_run = nested[trial.number]
            history = tool.get_metric_history(nested_run.info.run_id, "score")
            assert [(m.step, m.value) for m in history] == [(s, pytest.approx(v["score"])) for s, v in trial.curve]
            assert (nested_run.info.status, nested_run.info.run_name) == ("FINISHED", trial_name(trial.number))
            assert nested_run.data.params["donor"] == ("none" if trial.donor is None else str(trial.donor))
            assert nested_run.data.params["parent"] == (",".join(map(str, trial.parents)) or "none")
            assert nested_run.data.metrics.get("inherited") == trial.inherited_share
            assert nested_run.data.metrics["result.score"] == pytest.approx(trial.metrics["score"])
            if trial.number in found.tests:
                assert nested_run.data.metrics["test.score"] == found.tests[trial.number]["metrics"]["score"]

    def test_winner_with_a_shared_score_is_marked(self, tmp_path: Path) -> None:
        """The search's run says whether shared weights gave the winner's score, also after a later session."""
        mlflow = pytest.importorskip("mlflow")
        uri = f"sqlite:///{tmp_path}/mlflow.db"
        logger = Spec("nas.callbacks.mlflow.MlflowCallback", {"tracking_uri": uri}).build()
        tool, found = mlflow.MlflowClient(uri), []
        for winner in (SHARED, sample_trial(2, score=0.9)):
            run_callback(logger, [winner], tmp_path, winner=winner)
            [parent] = tool.search_runs(
                [tool.get_experiment_by_name("heirloom").experiment_id], "tags.`heirloom.winner` != ''"
            )
            found.append((parent.data.tags["heirloom.winner"], parent.data.tags["shared_score"]))

        assert found == [("1", "true"), ("2", "false")]

    def test_new_search_in_the_same_folder(self, mlflow_server: str, tmp_path: Path, capfd: Capture) -> None:
        """It gets a run of its own on a server, and the runs of the deleted search stay; nothing is printed.

        A quote in the folder's name is fine.
        """
        mlflow = pytest.importorskip("mlflow")
        uri, folder = mlflow_server, tmp_path / "o'neil"
        logger = Spec("nas.callbacks.mlflow.MlflowCallback", {"tracking_uri": uri})
        run_logged(folder, logger.build(), n_trials=1)
        run_logged(folder, logger.build(), n_trials=2)
        tool = mlflow.MlflowClient(uri)
        experiment = tool.get_experiment_by_name("heirloom").experiment_id
        earlier = {run.info.run_id for run in tool.search_runs([experiment])}
        shutil.rmtree(folder)
        run_logged(folder, logger.build(), n_trials=1)

        assert uri not in capfd.readouterr().out
        runs = tool.search_runs([experiment])
        assert earlier < {run.info.run_id for run in runs}
        parents = [run.info.run_id for run in runs if "mlflow.parentRunId" not in run.data.tags]
        assert len(parents) == 2
        assert len(earlier.intersection(parents)) == 1

    def test_server_that_fails_for_a_finalist(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The finalist's run is written at the end of the session, with its test, and the search's run ends."""
        mlflow = pytest.importorskip("mlflow")
        uri = f"sqlite:///{tmp_path}/mlflow.db"
        create, failures = mlflow.MlflowClient.create_run, []

        def create_run(client: Any, *given: Any, run_name: str, **more: Any) -> Any:
            if run_name == trial_name(1) and len(failures) < 2:  # at its start and at its end
                failures.append(run_name)
                raise OSError("the server restarts")
            return create(client, *given, run_name=run_name, **more)

        monkeypatch.setattr(mlflow.MlflowClient, "create_run", create_run)
        found = run_logged(
            tmp_path, Spec("nas.callbacks.mlflow.MlflowCallback", {"tracking_uri": uri}).build(), n_trials=1
        )
        tool = mlflow.MlflowClient(uri)
        runs = tool.search_runs([tool.get_experiment_by_name("heirloom").experiment_id])
        by_name = {run.info.run_name: run for run in runs}

        assert len(failures) == 2
        assert {run.info.status for run in runs} == {"FINISHED"}
        assert by_name.keys() == {"curves", trial_name(0), trial_name(1)}
        finalist = by_name[trial_name(1)].data.metrics
        assert finalist["test.score"] == found.tests[1]["metrics"]["score"]
        assert finalist["score"] == pytest.approx(found.lineage[1].metrics["score"])


class TestWandb:
    def test_new_search_in_the_same_folder(self, tmp_path: Path) -> None:
        """The offline runs of a deleted search stay, and a new one's have other ids."""
        pytest.importorskip("wandb")
        logger = Spec("nas.callbacks.wandb.WandbCallback", {"mode": "offline"})
        for _ in range(2):
            shutil.rmtree(tmp_path / "root", ignore_errors=True)
            run_logged(tmp_path, logger.build(), n_trials=1)
        files = list((tmp_path / "runs" / "curves" / "wandb").glob("offline-run-*/run-*.wandb"))

        assert len({file.name for file in files}) == len(files) == 6  # one, its finalist and the result

    def test_offline_runs_are_those_of_the_records(self, tmp_path: Path) -> None:
        """Each trial has one offline run with its reports once, and the search one with winner and tests."""
        pytest.importorskip("wandb")
        found = run_sessions(tmp_path, Spec("nas.callbacks.wandb.WandbCallback", {"mode": "offline"}))

        runs = {}
        for file in sorted((tmp_path / "runs" / "curves" / "wandb").glob("offline-run-*/run-*.wandb")):
            run_file = read_wandb(file)
            assert run_file["group"] == "curves"
            assert run_file["name"] not in runs
            runs[run_file["name"]] = run_file
        result = runs.pop("curves")
        assert result["job_type"] == "result"
        tests = {int(row["trial"]): row["test.score"] for row in result["history"]}
        assert tests == {number: test["metrics"]["score"] for number, test in found.tests.items()}
        assert found.winner is not None
        expected = {"winner": found.winner.number, "winner.score": pytest.approx(found.winner.metrics["score"])}
        assert result["summary"].items() >= {**expected, "test.score": tests[found.winner.number]}.items()
        assert len(runs) == len(found.lineage)
        for trial in found.lineage:
            stored = runs[trial_name(trial.number)]
            curve = [(int(row["step"]), float(row["score"])) for row in stored["history"]]
            assert curve == [(step, pytest.approx(metrics["score"])) for step, metrics in trial.curve]
            assert stored["config"]["donor"] == ("none" if trial.donor is None else str(trial.donor))
            assert stored["config"]["point.x"] == trial.point["x"]
            assert stored["summary"].get("inherited") == trial.inherited_share
            assert stored["job_type"] == trial.stage

    def test_winner_with_a_shared_score_is_marked(self, tmp_path: Path) -> None:
        """The result says that shared weights gave the winner's score."""
        pytest.importorskip("wandb")
        logger = Spec("nas.callbacks.wandb.WandbCallback", {"mode": "offline"}).build()
        run_callback(logger, [SHARED], tmp_path, winner=SHARED)
        [file] = tmp_path.glob("wandb/offline-run-*-result/*.wandb")

        assert read_wandb(file)["summary"].items() >= {"winner.accuracy": 0.9, "shared_score": "true"}.items()

    def test_tests_with_shared_weights_are_marked(self, tmp_path: Path) -> None:
        """Each row of a test says if shared weights gave the score; the summary is about the winner alone."""
        pytest.importorskip("wandb")
        final = sample_trial(2, score=0.8)
        tests = {number: {"metrics": {"accuracy": 0.5}} for number in (1, 2)}
        logger = Spec("nas.callbacks.wandb.WandbCallback", {"mode": "offline"}).build()
        run_callback(logger, [SHARED, final], tmp_path, winner=final, tests=tests)
        [file] = tmp_path.glob("wandb/offline-run-*-result/*.wandb")
        found = read_wandb(file)

        assert [(row["trial"], row.get("shared_score")) for row in found["history"]] == [(1, "true"), (2, None)]
        assert "shared_score" not in found["summary"]

    def test_interrupted_session(self, tmp_path: Path) -> None:
        """It has no test scores, and leaves the result of an earlier session as it is."""
        pytest.importorskip("wandb")
        winner = sample_trial(0, score=0.9)
        logger = Spec("nas.callbacks.wandb.WandbCallback", {"mode": "offline"}).build()
        run_callback(logger, [winner], tmp_path, winner=winner, tests={0: {"metrics": {"accuracy": 0.5}}})
        [file] = tmp_path.glob("wandb/offline-run-*-result/*.wandb")
        run_callback(logger, [], tmp_path, winner=winner, error="interrupted")

        assert list(tmp_path.glob("wandb/offline-run-*-result/*.wandb")) == [file]
        [row] = read_wandb(file)["history"]
        assert (row["trial"], row["test.accuracy"]) == (0, 0.5)

    @pytest.mark.parametrize("place", ["settings", "netrc", None])
    def test_login_at_another_server(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str | None) -> None:
        """The server and the key that ``wandb login`` has stored are found; without a key no session starts."""
        wandb = pytest.importorskip("wandb")
        wandb.teardown()  # so that W&B reads its settings again
        for name in [*filter(lambda name: name.startswith("WANDB_"), os.environ), "NETRC"]:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("no_proxy", "*")
        monkeypatch.chdir(tmp_path)
        settings = tmp_path / ".config" / "wandb" / "settings"
        settings.parent.mkdir(parents=True)
        key = "0" * 40
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = f"127.0.0.1:{server.getsockname()[1]}"
            own_key = f"api_key = {key}\n" if place == "settings" else ""
            settings.write_text(f"[default]\nbase_url = http://{address}\n{own_key}")
            if place == "netrc":
                (tmp_path / ".netrc").write_text(f"machine {address} login user password {key}\n")
            logger = Spec("nas.callbacks.wandb.WandbCallback", {"mode": "online"}).build()
            refused = pytest.raises(ConfigurationError, match=r"needs a key\. Run `wandb login`, or choose")
            with refused if place is None else nullcontext():
                run_callback(logger, [], tmp_path)
        wandb.teardown()


def log_records(data: bytes) -> Iterator[bytes]:
    """Yields the records of a LevelDB log, which W&B's package writes and has no reader for.

    A block of 32 kB holds chunks: checksum (4 bytes), length (2), type (1: whole, 2 to 4: first, middle, last), bytes.
    """
    place, whole = 7, b""  # after the header ":W&B", magic and version
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
        _, length, kind = struct.unpack_from("<IHB", data, place)
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""


def read_wandb(file: Path) -> dict[str, Any]:
    """Returns the content of an offline run, by W&B's own messages.

    W&B's process writes the end of the file after ``finish`` has returned.
    """
    from wandb.proto import wandb_internal_pb2

    def records() -> list[Any]:
        return [wandb_internal_pb2.Record.FromString(data) for data in log_records(file.read_bytes())]

    assert eventually(lambda: any(record.HasField("exit") for record in records()))
    run: dict[str, Any] = {"history": [], "config": {}, "summary": {}}
    for record in records():
        match record.WhichOneof("record_type"):
            case "run":
                run |= {"name": record.run.display_name, "group": record.run.run_group}
                run |= {"job_type": record.run.job_type}
                run["config"] |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
            case "history":
                row = {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
                run["history"].append(row)
            case "config":
                run["config"] |= {i.key: json.loads(i.value_json) for i in record.config.update}
            case "summary":
                run["summary"] |= {
                    i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.summary.update
                }
    return run
