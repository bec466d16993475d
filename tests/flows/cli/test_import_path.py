"""The order of the import path, and the commands that a program prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli.import_path import ROOT, order_import_path
from flows.cli.program import command, this_command


@pytest.mark.parametrize("name", ["nas/__init__.py", "flows.py"])
def test_folders_that_hide_heirloom_go_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The working folder and folders with a package ``nas`` or ``flows`` are searched last, others as before."""
    here, hiding, plain = (tmp_path / folder for folder in ("here", "hiding", "plain"))
    for folder in (here, (hiding / name).parent, plain / "nas"):  # `plain/nas` is no package
        folder.mkdir(parents=True)
    (hiding / name).touch()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", ["", str(hiding), str(plain), str(here)])
    order_import_path()
    once = sys.path.copy()
    order_import_path()

    assert once == [str(plain), ROOT, str(here), str(hiding)]
    assert sys.path == once


def test_heirlooms_own_folder_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a checkout the working folder contains Heirloom itself."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [ROOT, "/elsewhere"])
    order_import_path()

    assert sys.path == [ROOT, "/elsewhere"]


def test_entries_that_are_no_real_paths_keep_their_text(tmp_path: Path) -> None:
    """Names of import hooks, as of editable installs, and links are kept, for workers too."""
    for folder in ("installed", "editable/room", "linked"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "installed" / "__editable__.room.pth").write_text("import room_finder; room_finder.install()\n")
    (tmp_path / "installed" / "room_finder.py").write_text(ROOM_FINDER.format(source=str(tmp_path / "editable")))
    (tmp_path / "editable" / "room" / "inside.py").touch()
    (tmp_path / "link").symlink_to(tmp_path / "linked")
    (tmp_path / "linked" / "beside.py").touch()
    program = PROGRAM.format(folder=str(tmp_path / "installed"), link=str(tmp_path / "link"))
    run = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run.stderr == ""
    assert run.stdout == f"{tmp_path}/editable/room/inside.py {tmp_path}/link/beside.py\n" * 2


@pytest.mark.parametrize(
    ("module", "started", "report", "this"),
    [
        ("flows.search", ["{python}", "-m", "flows.search"], "python -m flows.report", "python -m flows.search"),
        (
            "flows.search",
            ["/odd/python3", "-u", "-m", "flows.search"],
            "{exe} -m flows.report",
            "{exe} -m flows.search",
        ),
        (None, ["{python}", "{bin}/heirloom", "search"], "heirloom report", "heirloom search"),
        (None, ["/odd/python3", "/odd/heirloom", "search"], "/odd/heirloom report", "/odd/heirloom search"),
        (
            "heirloom",
            ["{python}", "-m", "heirloom", "search"],
            "python -m heirloom report",
            "python -m heirloom search",
        ),
    ],
)
def test_printed_commands_repeat_the_call(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str | None,
    started: list[str],
    report: str,
    this: str,
) -> None:
    """A program that the shell finds is printed by its name, another one by its path."""
    for name in ("python", "heirloom"):
        (tmp_path / name).touch(0o755)
    words = [word.format(python=tmp_path / "python", bin=tmp_path) for word in started]
    is_odd = words[0].startswith("/odd")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", words[0])
    given = ["+tuner=random", "storage.options.key=secret", "problem.data_options={a: secret}"]
    monkeypatch.setattr(sys, "orig_argv", [*words, *given])
    program = words[1] if module is None else f"/somewhere/{module.rpartition('.')[2]}.py"
    monkeypatch.setattr(sys, "argv", [program, *given])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None if module is None else SpecOf(module))

    shown = "/odd/python3" if is_odd else "python"
    assert command("report") == report.format(exe=shown)
    assert this_command().startswith(
        f"{this.format(exe=shown)} +tuner=random 'storage.options.key=***' 'problem.data_options=***'"
    )


ROOM_FINDER = """
import sys
from importlib.machinery import ModuleSpec

HOOK = "__editable__.room-1.0.finder.__path_hook__"

class Finder:
    @staticmethod
    def find_spec(fullname, path=None, target=None):
        if fullname != "room":
            return None
        spec = ModuleSpec("room", None, is_package=True)  # a namespace package: its path is computed from sys.path
        spec.submodule_search_locations = [{source!r} + "/room"]
        return spec

def hook(path):
    if path != HOOK:
        raise ImportError
    return Finder

def install():
    sys.path_hooks.append(hook)
    sys.path.append(HOOK)
"""
"""What setuptools installs for an editable namespace package, in short."""
PROGRAM = """
import site, subprocess, sys
site.addsitedir({folder!r})
sys.path.insert(0, {link!r})
from flows.cli.import_path import order_import_path
from multiprocessing import spawn

order_import_path()

show = "import room.inside, beside; print(room.inside.__file__, beside.__file__)"
exec(show)
path = spawn.get_preparation_data("worker")["sys_path"]
sys.stdout.flush()
again = f"import site, sys; site.addsitedir({folder!r}); sys.path[:] = {{path!r}}; {{show}}"
subprocess.run([sys.executable, "-c", again], check=True)
"""
"""Imports both modules after Heirloom, then again with the path that a worker gets."""


class SpecOf:
    """A module's spec, of which only the name is read."""

    def __init__(self, name: str) -> None:
        self.name = name
