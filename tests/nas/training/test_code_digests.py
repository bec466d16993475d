"""Digests of the code of a class and of what it imports."""

from __future__ import annotations

import linecache
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from nas.core.spec import Spec
from nas.training.code_digests import changed_files, code_digests, imported_files
from tests.support.commands import environment

FILES = {
    "mine/__init__.py": "",
    "mine/model.py": "from .layers import conv\nfrom . import blocks\nimport torch, json\nfrom nas.core import trial\n",
    "mine/layers/__init__.py": "from mine.layers.conv import *\nfrom ..late import (\n    one,\n)\n",
    "mine/layers/conv.py": "conv = 1",
    "mine/blocks.py": "def build():\n    import lazily.used as other, absent.module, mine.native\n",
    "mine/native.so": "\0",  # a compiled extension
    "mine/late.py": "one = two = ]",  # does not compile, and is not run
    "mine/unused.py": "",
    "lazily/used.py": "from mine import model",  # a namespace package, and a circle
}
USED = sorted(name for name in FILES if name != "mine/unused.py")
BUILT = SimpleNamespace(code_files={})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Returns a folder on the import path that holds a package."""
    for name, source in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path


def digests() -> dict[str, str]:
    return code_digests(Spec("mine.model.Model"), BUILT)


def test_everything_imported_statically_counts_and_nothing_runs(folder: Path) -> None:
    """Packages, relative, late and starred imports count; Heirloom, Python and installed packages do not."""
    assert sorted(digests()) == USED
    assert not [name for name in sys.modules if name.partition(".")[0] in ("mine", "lazily")]


@pytest.mark.parametrize("name", USED)
def test_a_change_of_any_file_is_seen(folder: Path, name: str) -> None:
    """The digest of a changed file differs, and that of no other file."""
    before = digests()
    (folder / name).write_text(FILES[name] + "\n# changed")
    after = digests()

    assert [key for key in before if before[key] != after[key]] == [name]


def test_names_do_not_depend_on_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same code in another folder has the same names and digests."""
    before = digests()
    moved = folder.parent / "moved"
    folder.rename(moved)
    monkeypatch.setattr(sys, "path", [str(moved), *(path for path in sys.path if path != str(folder))])

    assert digests() == before


def test_a_script_imports_what_lies_beside_it(folder: Path) -> None:
    """``imported_files`` finds modules in the script's folder first."""
    (folder / "sub").mkdir()
    (folder / "sub" / "mine.py").write_text("")
    (folder / "sub" / "script.py").write_text("import mine")

    assert imported_files(folder / "sub" / "script.py") == {"mine.py": folder / "sub" / "mine.py"}
    assert imported_files(folder / "absent.py") == {}


def test_a_class_of_a_script_counts_without_the_rest_of_the_script(tmp_path: Path) -> None:
    """Of ``__main__`` only the class and the imports count, so the call that runs the search may change."""
    script = (
        "import helper\nfrom nas.core.spec import Spec\nfrom nas.training.code_digests import code_digests\n"
        "class Mine:\n    code_files = {{}}\n    x = {x}\n"
        "print(sorted(code_digests(Spec.of(Mine), Mine()).items())) # {call}\n"
    )
    (tmp_path / "helper.py").touch()
    printed = []
    for values in ({"x": 1, "call": 1}, {"x": 1, "call": 2}, {"x": 2, "call": 2}):
        (tmp_path / "script.py").write_text(script.format(**values))
        done = subprocess.run(
            [sys.executable, "script.py"], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
        )
        printed.append(done.stdout)

    assert printed[0] == printed[1] != printed[2]
    assert "'Mine'" in printed[0]
    assert "'helper.py'" in printed[0]


def test_a_class_of_a_notebook_counts_by_its_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed methods and properties of the class or of its base class are noticed, other cells are not."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)

    def digests_of(scale: int = 1, kind: int = 1, data: int = 1, lazy: int = 1, call: int = 1) -> dict[str, str]:
        base = "from functools import cached_property\n"
        base += f"class Base:\n    code_files = {{}}\n    def scaled(self, x): return {scale} * x\n"
        mine = f"class Mine(Base):\n    @staticmethod\n    def kind(): return {kind}\n"
        mine += f"    @property\n    def data(self): return {data}\n"
        mine += f"    @cached_property\n    def lazy(self): return {lazy}\n"
        for cell in (base, mine, f"call = {call}"):  # IPython keeps cells there
            monkeypatch.setitem(linecache.cache, cell, (len(cell), None, cell.splitlines(keepends=True), cell))
            exec(compile(cell, cell, "exec"), vars(main))
        return code_digests(Spec("__main__.Mine"), vars(main)["Mine"]())

    first = digests_of()
    assert digests_of(call=2) == first
    for name in ("scale", "kind", "data", "lazy"):
        assert changed_files(first, digests_of(**{name: 2})) == ["Mine, methods"]
