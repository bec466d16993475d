"""The commands of the guides: every one is accepted, and those marked ``<!-- run ... -->`` run."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from flows.cli.command import run_command
from flows.cli.script import COMMANDS
from tests.support.commands import bash_blocks, connected

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MARKED = re.compile(
    r"^<!-- run(?: in (\S+)|: ([^>]+)| after: ([^>]+))? -->\n```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
COMMAND = re.compile(r"(?:python -m flows\.|(?<![\w/.])heirloom )(?!heirloom )([a-z]+)\b([^\n`|]*)")
WITH_HYDRA = {path.stem for path in (ROOT / "conf").glob("*.yaml")}
N_RUN = 15


@dataclass(frozen=True)
class Marked:
    """A marked block: its page and place, its lines, and the example, the files or the command that they need."""

    page: Path
    start: int
    example: str
    files: tuple[str, ...]
    before: str
    lines: str


def marked_blocks() -> list[Marked]:
    return [
        Marked(page, found.start(), found[1] or "", tuple((found[2] or "").split()), found[3] or "", found[4])
        for page in PAGES
        for found in MARKED.finditer(page.read_text())
    ]


def write_files(marked: Marked, folder: Path) -> None:
    """Writes the blocks before the marked one into the files that the mark names."""
    before = [found[2] for found in BLOCK.finditer(marked.page.read_text()[: marked.start])]
    for name, content in zip(marked.files, before[-len(marked.files) :], strict=True):
        (folder / name).write_text(content)


def shortened(lines: str) -> str:
    """Returns commands whose searches have eight trials, or 72 seconds, at most."""
    lines = re.sub(r"\bbudget\.hours=0\.\d+", "budget.hours=0.02", lines)
    return re.sub(r"\bbudget\.trials=(\d+)", lambda found: f"budget.trials={min(8, int(found[1]))}", lines)


def commands(page: Path) -> list[tuple[str, str]]:
    """Returns the name and the rest of the line of each command of Heirloom on a page."""
    return COMMAND.findall(re.sub(r"\\\n\s*", "", page.read_text()))


def accepted_commands(page: Path) -> list[tuple[str, list[str]]]:
    """Returns module and arguments of each command of a page that runs in any folder."""
    found = []
    for module, rest in commands(page):
        if module not in WITH_HYDRA:
            continue
        arguments = shlex.split(re.split("&&|;|-->|>", rest)[0], comments=True)
        is_pattern = any(re.search(r"\$\(|\.\.\.|^\[|^KEY|^-m$|--config-dir|=T$|\bPLAN\b", one) for one in arguments)
        if not is_pattern:
            found.append((module, arguments))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_exist(page: Path) -> None:
    """Every command in the documents is one of Heirloom's."""
    assert {name for name, _ in commands(page)} <= {*COMMANDS}


@cache
def composed(module: str, *arguments: str) -> tuple[int, str]:
    """Returns status and errors of a command that only composes its options; pages repeat commands."""
    errors = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(errors):
        status = run_command(module, lambda _: 0, [*arguments, "--cfg", "job"])
    return status, errors.getvalue()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_are_accepted(page: Path) -> None:
    """Every option of a command in the documents exists."""
    for module, arguments in accepted_commands(page):
        assert composed(module, *arguments) == (0, ""), (module, arguments)


def test_guides_have_marked_commands() -> None:
    """The marks are found, and those for files name blocks of their page."""
    marked = marked_blocks()

    assert len(marked) >= N_RUN
    assert all((ROOT / one.example).is_dir() for one in marked)


@pytest.mark.parametrize(
    ("guide", "example"), [("inheritance", "07_networks_that_grow"), ("migrating_from_rafiki", "05_rafiki_template")]
)
def test_first_commands_are_an_examples(guide: str, example: str) -> None:
    """Those without a mark are in an example's README, all of whose commands run in another test."""
    first = bash_blocks(ROOT / "docs" / "guides" / f"{guide}.md")[0].splitlines()
    run = "\n".join(bash_blocks(ROOT / "examples" / example / "README.md")).splitlines()

    assert {*first} <= {*run}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("marked", marked_blocks(), ids=lambda one: one.page.stem)
def test_marked_commands_run(marked: Marked, tmp_path: Path, api_url: str) -> None:
    """The marked commands of a guide end with status 0 and print something."""
    folder = tmp_path / "here"
    if marked.example:
        shutil.copytree(
            ROOT / marked.example, folder, ignore=shutil.ignore_patterns("__pycache__", "heirloom", "*.csv")
        )
    else:
        folder.mkdir()
    if marked.files:
        write_files(marked, folder)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "PYTHONPATH"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{marked.before}\n{shortened(marked.lines)}"],
        cwd=folder,
        env=variables | {"PATH": path, "PYTHONPATH": str(ROOT)} | connected(api_url),
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout
