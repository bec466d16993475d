"""The examples run as documented, from a checkout."""

from __future__ import annotations

import os
import random
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from nas import Budget, Search, Spec, epoch_of, run_search
from nas.storage.open import open_root
from nas.storage.records import Records
from tests.support.commands import bash_blocks, connected
from tests.support.image_files import write_cifar10
from tests.support.squad_file import write_squad

ROOT = Path(__file__).parents[2]
BRING = ROOT / "examples" / "02_bring_your_problem"
WINNER = ROOT / "examples" / "06_use_the_winner"
RAFIKI = ROOT / "examples" / "05_rafiki_template"
SMALL = ROOT / "examples" / "08_small_then_large"
SUPERNET = ROOT / "examples" / "10_your_own_supernet"
ELASTIC = ROOT / "examples" / "11_elastic_language_model"
GA_SQUAD = ROOT / "examples" / "13_ga_squad"


def environment(**changes: str) -> dict[str, str]:
    dropped = ("PREFECT", "PYTHONPATH", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)} | changes


def test_a_problem_takes_at_most_forty_lines() -> None:
    """The file that the README shows is short."""
    assert len((BRING / "my_problem.py").read_text().splitlines()) <= 40


def test_the_readme_says_both_bash_blocks() -> None:
    """The README shows one command with a dotted path, and one with the user's yaml files."""
    assert bash_blocks(BRING / "README.md") == [
        "python -m flows.search +tuner=evolution problem._target_=my_problem.MyProblem problem.width=64",
        "python -m flows.search --config-dir my_conf problem=my_problem +tuner=my_tuner",
    ]


def test_the_problem_and_the_tuner_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tuner's children inherit weights, and the best beats guessing the more frequent class."""
    monkeypatch.syspath_prepend(BRING)
    search = Search(problem=Spec("my_problem.MyProblem"), tuner=Spec("my_tuner.MyTuner", {"n_random": 2}))
    found = run_search(search, root="memory://examples", budget=Budget(trials=4), finalists=1)
    children = [trial for trial in found.lineage if trial.stage == "search" and trial.parents]

    assert [trial.error for trial in found.lineage] == [None] * 5
    assert len(children) == 2
    assert all(child.inherited > 0.5 for child in children)
    assert found.winner.metrics["accuracy"] > 0.8
    assert found.tests[found.winner.number]["metrics"]["accuracy"] > 0.8


class OnGpu(torch.nn.Module):
    """A network that ``run.restore`` has moved to a GPU, where no data are."""

    def __init__(self, network: torch.nn.Module) -> None:
        super().__init__()
        self.network = network

    def cpu(self) -> torch.nn.Module:
        return self.network

    def forward(self, *inputs: object, **more: object) -> None:
        raise RuntimeError("Expected all tensors to be on the same device")


@pytest.mark.parametrize(
    ("folder", "target"),
    [
        ("02_bring_your_problem", "my_problem.MyProblem"),
        ("07_networks_that_grow", "growing.GrowingDigits"),
        pytest.param("12_hugging_face_and_timm", "gpt.Gpt", marks=pytest.mark.slow),
    ],
)
def test_finals_on_a_gpu_are_tested(folder: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples with data on the CPU take the network back that ``run.restore`` moves to the GPU."""
    monkeypatch.syspath_prepend(ROOT / "examples" / folder)
    problem = Spec(target).build()
    run = SimpleNamespace(point=problem.space.sample(random.Random(0)), restore=OnGpu)

    assert problem.test(run).keys() == {problem.metrics[0].name}


@pytest.mark.slow
def test_the_first_search_prints_its_winner(tmp_path: Path) -> None:
    """The example runs in any folder, and prints the winner, its ancestors and its export's path."""
    script = ROOT / "examples" / "01_first_search.py"
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=environment(), capture_output=True, text=True)
    lines = [line for line in script.read_text().splitlines() if line and not line.startswith(('"', "from", "import"))]

    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(lines) < 10
    assert re.search(r"^winner: \d+ \{'accuracy': 0\.9", done.stdout)
    export = re.search(r"^export: (.+)$", done.stdout, re.MULTILINE)
    assert export is not None
    assert (Path(export[1]) / "program.pt2").is_file()


@pytest.mark.slow
def test_rafiki_templates_run_unchanged(tmp_path: Path, api_url: str) -> None:
    """The README's commands make data, search with each template, list the searches and predict."""
    data, search, multirun, report, shared, tried = told_by_commands(RAFIKI, tmp_path / "here", **connected(api_url))

    assert data == ""
    assert re.search(r"^search rafiki-auto-[0-9a-f]{8}-Net: 10 trials \(10 COMPLETE\)$", search, re.MULTILINE)
    swept = re.findall(r"-(\w+)-problem\.file-\w+\.py: (\d+) trials", multirun)
    assert swept == [("Linear", "4"), ("Net", "6")]
    assert report.count("rafiki-auto-") == 3
    assert re.search(r"^search rafiki-enas-[0-9a-f]{8}-Shared: 14 trials \(14 COMPLETE\)$", shared, re.MULTILINE)
    assert re.search(r"^predictions: \[\[0\.", tried, re.MULTILINE)


@pytest.mark.slow
def test_large_networks_start_from_small_ones(tmp_path: Path, api_url: str) -> None:
    """Another search's best point is the first trial, with all weights of its file."""
    file = write_cifar10(tmp_path / "random.npz")
    small, large = told_by_commands(SMALL, tmp_path / "here", CIFAR10=str(file), **connected(api_url))

    for name, printed in (("small", small), ("large", large)):
        assert re.search(rf"^search {name}: 4 trials \(4 COMPLETE\)$", printed, re.MULTILINE), printed
    lineage = Records(open_root(str(tmp_path / "here" / "heirloom" / "large"))).load()[0]
    assert lineage[0].inherited == 1.0
    assert str(lineage[0].donor).startswith("weights-")


def test_a_supernet_takes_at_most_forty_lines() -> None:
    """The example has at most 40 lines of code."""
    assert sum(map(bool, (SUPERNET / "my_supernet.py").read_text().splitlines())) <= 40


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_supernet_finds_a_subnet(tmp_path: Path, api_url: str) -> None:
    """Epochs improve shared weights, subnets inherit all of them, and finals train from scratch."""
    (told,) = told_by_commands(SUPERNET, tmp_path / "here", **connected(api_url))
    lineage = Records(open_root(str(tmp_path / "here" / "heirloom" / "mine"))).load()[0]
    trials = [trial for trial in lineage if trial.stage == "search"]
    epochs = [trial for trial in trials if epoch_of(trial.point) is not None]
    subnets = [trial for trial in trials if epoch_of(trial.point) is None]
    finals = [trial for trial in lineage if trial.stage == "final"]

    assert "export returned" not in told
    assert len(epochs) in (5, 6, 7, 8)
    assert len(subnets) == 40 - len(epochs)
    assert all(trial.inherited == 1.0 for trial in [*epochs[1:], *subnets])
    assert epochs[-1].metrics["accuracy"] > epochs[0].metrics["accuracy"]
    assert max(trial.metrics["accuracy"] for trial in subnets) > 0.9
    assert [trial.inherited for trial in finals] == [0.0, 0.0]
    assert all(trial.metrics["accuracy"] > 0.95 for trial in finals)
    (folder,) = re.findall(r"^export: (.*)$", told, re.MULTILINE)
    x, y = (torch.tensor(part[2::3]) for part in load_digits(return_X_y=True))
    outputs = torch.export.load(f"{folder}/program.pt2").module()(x.float().view(-1, 1, 8, 8) / 16)
    loss = re.search(r"^test: loss (\S+),", told, re.MULTILINE)
    assert loss is not None
    assert float(loss[1]) == pytest.approx(cross_entropy(outputs, y).item(), abs=1e-4)


@pytest.mark.slow
def test_sizes_of_a_transformer_by_one_training(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Subnets inherit all weights of the supernet and keep the limit; the final exports as a program."""
    monkeypatch.syspath_prepend(ELASTIC)
    tuner = {"n_epochs": 1, "warm_up_epochs": 1, "inner": {"population_size": 4, "sample_size": 2}}
    search = Search(
        problem=Spec("elastic_language.ElasticLanguage"),
        tuner=Spec("nas.tuners.supernet.SposTuner", tuner),
        constraints={"parameters": 30_000},
    )
    found = run_search(search, root=str(tmp_path), budget=Budget(trials=5), finalists=1)
    epoch, *subnets, final = found.lineage

    assert [trial.error for trial in found.lineage] == [None] * 6
    assert [trial.inherited for trial in subnets] == [1.0] * 4
    assert epoch.metrics["loss"] < 3.5
    assert min(trial.metrics["loss"] for trial in subnets) < 3.5
    assert final.metrics["loss"] < min(trial.metrics["loss"] for trial in subnets)
    assert found.tests[final.number]["metrics"]["loss"] < 3
    program = torch.export.load(f"{found.url}/{found.export['export']}/program.pt2").module()
    assert program(torch.zeros(2, 32, dtype=torch.int64)).shape == (2, 32, 128)


def test_ga_squads_tuner_survives_failed_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tuner proposes new graphs without parents if trials fail, instead of a tournament of none."""
    monkeypatch.syspath_prepend(ROOT / "nas" / "compat" / "nni" / "sdk")
    monkeypatch.syspath_prepend(GA_SQUAD)
    tuner = runpy.run_path(str(GA_SQUAD / "customer_tuner.py"))["CustomerTuner"]("maximize", "weights", 2, 6, 2)
    asked = [tuner.generate_parameters(number) for number in range(5)]

    assert [one["restore_dir"] for one in asked] == [None] * 5
    assert len({one["save_dir"] for one in asked}) == 5


def test_ga_squads_graphs_have_the_configured_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With NNI's limits of 3 to 6, as in the configuration and by default, all graphs have so many layers."""
    monkeypatch.syspath_prepend(ROOT / "nas" / "compat" / "nni" / "sdk")
    monkeypatch.syspath_prepend(GA_SQUAD)
    arguments = yaml.safe_load((GA_SQUAD / "config.yml").read_text())["tuner"]["classArgs"]
    create = runpy.run_path(str(GA_SQUAD / "customer_tuner.py"))["CustomerTuner"]
    for tuner in (create(**arguments), create("maximize", "weights")):
        sizes = []
        for number in range(100):
            asked = tuner.generate_parameters(number)
            tuner.receive_trial_result(number, asked, number % 7)
            sizes.append(len(asked["graph"]["layers"]))

        assert (arguments["graph_min_layer"], {*sizes}) == (3, {3, 4, 5, 6})


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ga_squad_runs_under_nni(tmp_path: Path) -> None:
    """NNI's tuner gets its results, a child restores its parent's layers, and the lineage shows the family."""
    here = tmp_path / "here"
    shutil.copytree(GA_SQUAD, here, ignore=shutil.ignore_patterns("__pycache__"))
    write_squad(here / "squad.json")
    config = (here / "config.yml").read_text()
    for name, value in (("maxTrialNum", 4), ("population_size", 3), ("trialConcurrency", 1)):
        config = re.sub(rf"{name}: \d+", f"{name}: {value}", config)
    (here / "config.yml").write_text(config)
    (command,) = bash_blocks(GA_SQUAD / "README.md")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*command.split(), "runner=debug"],
        cwd=here, env=environment(PATH=path, PYTHONPATH=str(ROOT)), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

    (search,) = (here / "heirloom").iterdir()
    trials = Records(open_root(str(search))).load()[0]
    assert [trial.state for trial in trials] == ["COMPLETE"] * 4
    assert [bool(trial.parents) for trial in trials] == [False, False, False, True]
    child, parent = trials[3], trials[int(trials[3].parents[0])]
    assert child.point["restore_dir"] == parent.point["save_dir"]
    assert {"passage", "question"} <= {*child.point["shared_id"]}


def told_by_commands(example: Path, here: Path, **variables: str) -> list[str]:
    """Returns the output of each block of commands of a README, in a copy of the example's folder."""
    made = ("__pycache__", "heirloom", "*.csv", "points.json", "winner.txt", "*.safetensors")
    shutil.copytree(example, here, ignore=shutil.ignore_patterns(*made))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    told = []
    for block in bash_blocks(example / "README.md"):
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block],
            cwd=here, env=environment(PATH=path, PYTHONPATH=str(ROOT), **variables), capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        told.append(done.stdout)
    return told
