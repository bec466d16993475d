"""The sdist, the wheel that is built from it, and searches outside the checkout with that wheel alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.support.commands import ROOT, bash_blocks, environment, trials

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BRING = ROOT / "examples" / "02_bring_your_problem"
WINNER = ROOT / "examples" / "06_use_the_winner"
SOURCES = ("nas", "flows", "conf")
FILES = (
    *("heirloom.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"),
    *("CHANGELOG.md", "CITATION.cff", "constraints.txt"),
)
SMALL = "budget.trials=2 finalists=1 runner=debug device=cpu threads=1 policy=search_only"
PREDICT = """
import json, sys
from importlib.abc import MetaPathFinder

class Refusal(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("nas", "flows", "conf"):
            raise ImportError(name)

sys.meta_path.insert(0, Refusal())
import torch
from sklearn.datasets import load_breast_cancer

program = torch.export.load(sys.argv[1]).module()
inputs = torch.tensor(load_breast_cancer().data[:64], dtype=torch.float32)
outputs = {n: program(inputs[:n]) for n in (1, 7, 64)}
for n, output in outputs.items():
    torch.testing.assert_close(output, outputs[64][:n], rtol=1e-4, atol=1e-4)
print(json.dumps({"shapes": [list(o.shape) for o in outputs.values()], "dtype": str(outputs[64].dtype)}))
"""
BUILD = "import sys; from setuptools import build_meta; getattr(build_meta, sys.argv[1])(sys.argv[2])"


def build(source: Path, what: str, out: Path) -> Path:
    """Builds a sdist or a wheel as installers do, but with the setuptools that is installed here."""
    subprocess.run([sys.executable, "-c", BUILD, f"build_{what}", str(out)], cwd=source, check=True)
    [made] = out.glob("*.tar.gz" if what == "sdist" else "*.whl")
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the sdist of a copy of the sources."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("sdist")
    for name in SOURCES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, source / name)
    (source / "tests").mkdir()
    (source / "tests" / "test_mine.py").touch()  # setuptools would add it
    return build(source, "sdist", out)


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the wheel, built from the sdist alone."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    [unpacked] = folder.iterdir()
    return build(unpacked, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def variables(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns the variables of a new environment with the wheel, and this environment's packages besides."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv")
    [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "venv" / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    (packages / "others.pth").write_text("\n".join(entry for entry in sys.path if entry.endswith("site-packages")))
    plain = {name: value for name, value in environment().items() if not name.startswith("PYTHON")}
    return plain | {"PATH": f"{folder}/venv/bin:{plain['PATH']}", "HOME": str(folder)}


def shell(line: str, folder: Path, variables: dict[str, str]) -> str:
    """Runs a line for a shell. Returns its standard output."""
    done = subprocess.run(
        ["bash", "-euc", line], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_sdist_has_what_it_needs(sdist: Path) -> None:
    """Sources, constraints, license and changelog are in it; no test is."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert set(FILES) <= names
    assert {"flows/project/my_problem.py", "conf/search.yaml", "nas/py.typed"} <= names
    assert [name for name in names if name.startswith("tests")] == []


def test_the_wheel_holds_the_configuration(wheel: Path) -> None:
    """The wheel has every yaml of conf/ and the page's parts, but no tests and examples."""
    names = set(zipfile.ZipFile(wheel).namelist())
    data = {path for package in SOURCES for path in (ROOT / package).rglob("*") if path.is_file()}
    wanted = {str(path.relative_to(ROOT)) for path in data if path.suffix not in (".pyc", "")}

    assert wanted <= names
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {*SOURCES, "heirloom.py"}


def test_the_wheel_searches_in_an_empty_folder(here: Path, variables: dict[str, str]) -> None:
    """The README's line makes a project and searches; then report and export work, all from the wheel."""
    [line] = re.findall(r"<!-- project command -->\n```bash\n(.*?)\n```", (ROOT / "README.md").read_text())
    shell(f"{line} {SMALL}", here, variables)
    demo = here / "demo"
    where = shell("python -c 'import nas, flows, conf; print(nas.__file__, flows.__file__)'", here, variables)
    shell("heirloom report name=last format=html && heirloom export name=last out=winner", demo, variables)
    [search] = (demo / "heirloom").iterdir()

    assert str(ROOT) not in where
    assert where.count("site-packages") == 2
    assert [trial.state for trial in trials(search)] == ["COMPLETE"] * 2
    assert (demo / f"{search.name}.html").stat().st_size > 10_000
    assert {"program.pt2", "model.safetensors", "architecture.json"} <= set(os.listdir(demo / "winner"))


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a copy of the folder of a user's problem."""
    folder = tmp_path_factory.mktemp("user") / "mine"
    return Path(shutil.copytree(BRING, folder, ignore=shutil.ignore_patterns("__pycache__", "heirloom")))


@pytest.mark.parametrize("number", [0, 1], ids=["dotted-path", "config-dir"])
def test_the_readmes_commands_search(mine: Path, variables: dict[str, str], number: int) -> None:
    """Outside the checkout, the command evolves the user's problem in worker processes and exports a winner."""
    told = shell(bash_blocks(mine / "README.md")[number] + " budget.trials=9", mine, variables)
    name = re.search(r"^search (my-\S+): 11 trials \(11 COMPLETE\)$", told, re.MULTILINE)

    assert name is not None, told
    assert name[1].startswith(("my-evolution-", "my-my-")[number])
    folder = mine / "heirloom" / name[1]
    identity = json.loads((folder / "search.json").read_text())["identity"]
    assert identity["problem"] == {"target": "my_problem.MyProblem", "arguments": {"width": 64}}
    assert re.search(r"^inherited: \d+ trials took", told, re.MULTILINE)
    pids = {json.loads(path.read_text())["pid"] for path in (folder / "trials").glob("*.start-1.json")}
    session = json.loads((folder / "sessions" / "0001.json").read_text())
    assert session["pid"] not in pids

    if number:  # its winner is of the same class
        return
    best = json.loads((folder / "best-0001.json").read_text())
    program = folder / best["export"] / "program.pt2"
    predicted = subprocess.run(
        [sys.executable, "-I", "-c", PREDICT, program], cwd=mine.parent, capture_output=True, text=True
    )
    assert predicted.returncode == 0, predicted.stderr
    assert json.loads(predicted.stdout) == {"shapes": [[1, 2], [7, 2], [64, 2]], "dtype": "torch.float32"}

    said = [
        subprocess.run(
            [sys.executable, "-I", WINNER / program, folder / best["export"]],
            cwd=mine.parent, capture_output=True, text=True, check=True,
        ).stdout
        for program in ("program.py", "onnx_model.py", "weights.py")
    ]  # fmt: skip
    assert re.fullmatch(r"(-?\d+\.\d{3} -?\d+\.\d{3}\n){5}", said[0])
    for other in said[1:]:
        assert [float(x) for x in other.split()] == pytest.approx([float(x) for x in said[0].split()], abs=0.0021)
