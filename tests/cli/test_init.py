"""``python -m flows.init DIR``: a project that runs as it is; tests/integration/test_wheel.py searches in one."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flows.init import PROJECT, project_files
from tests.support.commands import ROOT, everything, run

FILES = ["README.md", "conf/problem/my_problem.yaml", "my_problem.py"]


def test_a_project_is_written(here: Path) -> None:
    """The files are those of the template, and the next commands name folder and problem."""
    done = run(here, "my demo", module="flows.init")

    assert done.status == 0, done.err
    assert project_files() == FILES
    assert {name: (here / "my demo" / name).read_bytes() for name in FILES} == {
        name: (PROJECT / name).read_bytes() for name in FILES
    }
    assert done.out.splitlines() == [
        *(f"my demo/{name}" for name in FILES),
        "next:",
        "  cd 'my demo'",
        "  python -m flows.search +tuner=evolution problem=my_problem",
    ]


@pytest.mark.parametrize(
    ("given", "folder"), [("~/my demo", "my demo"), ("~nobody_here/x", "~nobody_here/x"), ("-x", "-x")]
)
def test_a_shell_can_run_the_next_command(here: Path, given: str, folder: str) -> None:
    """The printed cd enters the folder, also one below ~ or an unknown user, or one that begins with a hyphen."""
    done = run(here, "--", given, module="flows.init", HOME=str(here))
    [line] = [line for line in done.out.splitlines() if "cd " in line]
    entered = subprocess.run(["sh", "-c", f"{line} && pwd"], cwd=here, capture_output=True, text=True, check=True)

    assert entered.stdout.strip() == str(here.resolve() / folder)


@pytest.mark.slow
def test_the_working_folder_may_be_the_project(here: Path) -> None:
    """DIR may be the empty working folder; then no cd is needed."""
    done = run(here, ".", module="flows.init")

    assert done.status == 0
    assert "cd" not in done.out
    assert (here / "my_problem.py").exists()


@pytest.mark.parametrize("is_file", [pytest.param(True, marks=pytest.mark.slow), False])
def test_nothing_is_overwritten(here: Path, is_file: bool) -> None:
    """A folder with a file in it, and a file of that name, stay as they are; status 2."""
    path = here / "demo" if is_file else here / "demo" / "mine.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    before = everything(here)
    done = run(here, "demo", module="flows.init")

    assert done.status == 2
    assert done.complaint.startswith("DIR=demo: must be a new or an empty folder")
    assert everything(here) == before


def test_a_missing_folder_is_one_line(here: Path) -> None:
    """Without DIR the line says how to write the command; status 2."""
    done = run(here, module="flows.init")

    assert done.status == 2
    assert done.complaint == "the following arguments are required: DIR. Write python -m flows.init DIR"


def test_the_problem_is_the_readmes() -> None:
    """The template's problem is the one that README and tutorial show."""
    example = ROOT / "examples" / "02_bring_your_problem" / "my_problem.py"

    assert (PROJECT / "my_problem.py").read_text() == example.read_text()


@pytest.mark.slow
def test_choices_in_conf_are_found(here: Path) -> None:
    """Choices in the working folder's conf need no --config-dir, and do not replace Heirloom's; others are ignored."""
    (here / "conf" / "tuner").mkdir(parents=True)
    (here / "conf" / "tuner" / "mine.yaml").write_text("_target_: mine.Mine\n")
    (here / "conf" / "tuner" / "random.yaml").write_text("_target_: mine.Random\n")
    (here / "other" / "tuner").mkdir(parents=True)
    (here / "other" / "tuner" / "theirs.yaml").write_text("_target_: theirs.Theirs\n")
    mine = run(here, "tuner=mine", "--cfg", "job")
    theirs = run(here, "tuner=random", "--cfg", "job")
    named = run(here, "tuner=mine", "--cfg", "job", "--config-dir", "other")

    assert "_target_: mine.Mine" in mine.out
    assert "_target_: nas.tuners.random.RandomTuner" in theirs.out
    assert named.status == 2
    assert named.complaint.startswith("unknown tuner mine: choose")
    assert "theirs" in named.complaint
