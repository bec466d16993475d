"""The console script, own packages that are called like Heirloom's, and Hydra's change of folder."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

import nas
from flows.cli.script import COMMANDS
from tests.support.commands import ROOT, environment, run, trials

pytestmark = pytest.mark.slow

PROBLEM = """
import flows, nas, helper
from nas import Float, Metric, ParameterSpace, Problem

class Mine(Problem):
    metrics = (Metric("score"),)
    def __init__(self, data):
        self.data = open(data).read()
        self.space = ParameterSpace({"rate": Float(0.1, 1.0)})
    def train(self, run):
        assert open(self.data).read() == helper.TEXT
        return {"score": run.point["rate"]}
"""
SEARCH = (
    *("+tuner=random", "problem._target_=mine.Mine", "problem.data=names.txt", "budget.trials=2", "storage.root=out"),
    *("device=cpu", "slots=2", "name=s"),
)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Returns a folder with the script ``heirloom``, as installers write it."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        module, function = tomllib.load(file)["project"]["scripts"]["heirloom"].split(":")
    path = tmp_path / "bin" / "heirloom"
    path.parent.mkdir()
    path.write_text(
        f"#!{sys.executable}\nimport sys\nfrom {module} import {function}\n"
        f"if __name__ == '__main__':\n    sys.exit({function}())\n"
    )
    path.chmod(0o755)
    return path.parent


@pytest.fixture
def folder(here: Path) -> Path:
    """Returns a working folder with a problem, a module beside it and data."""
    (here / "mine.py").write_text(PROBLEM)
    (here / "helper.py").write_text("TEXT = 'here'")
    (here / "names.txt").write_text("data.txt")
    (here / "data.txt").write_text("here")
    return here


def add_packages(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise RuntimeError('the wrong package')")


def test_own_packages_hide_nothing_from_the_script(folder: Path, script: Path, api_url: str) -> None:
    """Own packages nas, flows and conf, in the working folder and PYTHONPATH, hide nothing, in workers neither.

    The commands that it prints work as well.
    """
    add_packages(folder, "nas", "flows", "conf")
    paths = environment()
    changes = {"PATH": f"{script}:{paths['PATH']}", "PYTHONPATH": f"{folder}:{paths['PYTHONPATH']}"}
    done = run(folder, line=f"heirloom search {' '.join(SEARCH)}", PREFECT_API_URL=api_url, **changes)
    printed = re.findall(r"^  (heirloom report .* trial=\d+)$", done.out, re.MULTILINE)
    shown = run(folder, line=printed[0], **changes)

    assert done.status == 0, done.err
    assert len(trials(folder / "out" / "s")) == 2
    assert shown.status == 0, shown.err
    assert "COMPLETE" in shown.out


def test_python_m_works_beside_an_own_nas_and_hydra_changes_no_folder(folder: Path, api_url: str) -> None:
    """``python -m flows.search`` finds our ``nas``; with ``hydra.job.chdir=true`` relative paths hold as before."""
    add_packages(folder, "nas")
    done = run(folder, *SEARCH, "hydra.job.chdir=true", "hydra.run.dir=sub", PREFECT_API_URL=api_url)
    printed = re.findall(r"^  (python -m flows\.report .* trial=\d+)$", done.out, re.MULTILINE)
    shown = run(folder, line=printed[0])

    assert done.status == 0, done.err
    assert len(trials(folder / "out" / "s")) == 2
    assert shown.status == 0, shown.err
    assert "COMPLETE" in shown.out


def test_the_script_lists_its_commands(here: Path, script: Path) -> None:
    """Each command is a module with a ``main``, and has help; an unknown one costs one line."""
    changes = {"PATH": f"{script}:{environment()['PATH']}"}
    usage = run(here, line="heirloom", **changes)
    page = run(here, line="heirloom gc --help", **changes)
    unknown = run(here, line="heirloom serach", **changes)

    assert usage.status == page.status == 0
    assert re.findall(r"^  (\w+)  +\w", usage.out, re.MULTILINE) == list(COMMANDS)
    assert all(callable(importlib.import_module(f"flows.{name}").main) for name in COMMANDS)
    assert page.out.startswith("usage: heirloom gc [GROUP=CHOICE ...]")
    assert run(here, line="heirloom --version", **changes).out == f"heirloom {nas.__version__}\n"
    assert unknown.status == 2
    assert unknown.complaint.startswith("unknown command 'serach': must be one of search, report,")
    assert unknown.complaint.endswith("; did you mean search?")


COMPLETE = """
eval "$(heirloom --shell-completion install=bash)"
for COMP_LINE in "$@"; do
    COMP_WORDS=($COMP_LINE) COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMP_POINT=${#COMP_LINE} COMPREPLY=()
    hydra_bash_completion
    echo "${COMPREPLY[@]}"
done
"""
"""Completes lines as bash does when the tabulator key is pressed."""


def test_bash_completes_commands_choices_and_keys(here: Path, script: Path) -> None:
    """Hydra's script completes the command's name, groups with and without +, own choices, and keys of a tuner."""
    (here / "conf" / "problem").mkdir(parents=True)
    (here / "conf" / "problem" / "digital.yaml").write_text("_target_: mine.Mine\n")
    (here / "complete.sh").write_text(COMPLETE)
    expected = {
        "heirloom sea": "search",
        "heirloom search +tuner=evo": "+tuner=evolution",
        "heirloom search tuner=evo": "tuner=evolution",
        "heirloom search +tuner=evolution tuner.popu": "tuner.population_size=",
        "heirloom search problem=digi": "problem=digital problem=digits",
        "heirloom report form": "format=",
        "heirloom search [": "",
        "heirloom init d": "",
        "heirloom serach x": "",
    }
    lines = " ".join(f"'{line}'" for line in expected)
    done = run(here, line=f"bash complete.sh {lines}", PATH=f"{script}:{environment()['PATH']}")

    assert done.err == ""
    assert dict(zip(expected, done.out.split("\n"), strict=False)) == expected


def test_an_unknown_shell_is_one_line(here: Path, script: Path) -> None:
    """The shells are listed; status 2."""
    done = run(here, line="heirloom -sc install=tcsh", PATH=f"{script}:{environment()['PATH']}")

    assert done.status == 2
    assert done.complaint == "--shell-completion install=tcsh: must be install=SHELL, with one of bash, zsh, fish"
