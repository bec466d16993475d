"""The sdist, the wheel that is built from it, and a search in an empty folder with that wheel alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

from tests.support.commands import ROOT, environment, trials

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SOURCES = ("nas", "flows", "conf")
FILES = (
    *("heirloom.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"),
    *("CHANGELOG.md", "CITATION.cff", "constraints.txt"),
)
SMALL = "budget.trials=2 finalists=1 runner=debug device=cpu threads=1 policy=search_only"
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
def variables(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns the variables of a new environment with the wheel, and this environment's packages besides."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [unpacked] = (folder / "unpacked").iterdir()
    wheel = build(unpacked, "wheel", folder)
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
