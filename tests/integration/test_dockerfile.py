"""The Dockerfile, as far as a machine without Docker can follow it: its context, its RUN lines and its command."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support.commands import ROOT, environment, trials

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
TEXT = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
INSTRUCTIONS = [tuple(line.split(" ", 1)) for line in TEXT.splitlines()]
SMALL = ("budget.trials=1", "finalists=1", "runner=debug", "device=cpu", "threads=1", "name=mine")

CONTAINER = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


def copy_context(folder: Path) -> None:
    """Copies what .dockerignore lets through."""
    lines = (ROOT / ".dockerignore").read_text().split()
    assert (lines[0], lines[-1]) == ("*", "**/__pycache__")
    for name in (line.removeprefix("!") for line in lines[1:-1]):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, folder / name)


def of(word: str) -> list[str]:
    """Returns what follows the instructions of a kind."""
    return [rest for first, rest in INSTRUCTIONS if first == word]


@pytest.fixture
def python(tmp_path: Path) -> dict[str, str]:
    """Returns the variables of a new environment, where the packages of this one need not be downloaded."""
    venv.create(tmp_path / "venv", with_pip=True)
    [packages] = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    here = [entry for entry in sys.path if entry.endswith("site-packages")]
    (packages / "others.pth").write_text("\n".join(here))
    plain = {name: value for name, value in environment().items() if not name.startswith("PYTHON")}
    return plain | {"PATH": f"{tmp_path}/venv/bin:{plain['PATH']}", "PIP_NO_DEPS": "1"}


def test_image_runs_the_first_search(tmp_path: Path, python: dict[str, str]) -> None:
    """The context is enough for the RUN lines; then the command ends a search, as process 1 if we may make one."""
    source, work = tmp_path / "src", tmp_path / "work"
    source.mkdir(), work.mkdir()
    copy_context(source)
    for line in of("RUN"):
        subprocess.run(["bash", "-euc", re.sub(r"--mount=\S+ ", "", line)], cwd=source, env=python, check=True)
    shutil.rmtree(source)
    subprocess.run(["dask-scheduler", "--version"], env=python, check=True)
    [command] = map(json.loads, of("CMD"))
    assert (tmp_path / "venv" / "bin" / command[0]).exists()
    is_root = subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode == 0
    line = [*(CONTAINER if is_root else ()), *command, *SMALL]
    done = subprocess.run(line, cwd=work, env=python, capture_output=True, text=True, check=False)

    assert of("FROM") == ["python:3.11-slim"]
    assert of("COPY") == [". ."]
    assert done.returncode == 0, done.stderr
    assert "best: trial 1 (final)" in done.stdout
    assert [trial.state for trial in trials(work / "heirloom" / "mine")] == ["COMPLETE"] * 2
