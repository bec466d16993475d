"""The code of an NNI experiment, compared between two sessions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from uuid import uuid4

import pytest

from nas.compat.nni.code_folder import files_under
from nas.compat.nni.config import read_experiment
from nas.compat.nni.search_definition import nni_search
from nas.core.errors import ConfigurationError
from nas.search.identity import claim_identity
from nas.search.lease import SearchLease
from nas.search.session_code import session_code
from nas.storage.open import open_root
from nas.storage.records import Records

CONFIG = """
trialConcurrency: {concurrency}
searchSpacePath: space.json
tuner: {{codeDir: ., classFileName: own_tuner.py, className: Own}}
trial: {{command: bash run.sh main.py, codeDir: code, gpuNum: 0}}
logDir: {log}
"""
FILES = {
    "code/main.py": "import lib.layers",
    "code/run.sh": "python $1",
    "code/lib/layers.py": "",
    "own_tuner.py": "import beside",
    "beside.py": "",
    "space.json": json.dumps({"x": {"_type": "choice", "_value": [1, 2]}}),
}
CODE = ["beside.py", "code/lib/layers.py", "code/main.py", "code/run.sh", "own_tuner.py"]


class Root:
    """A root in memory with one search, whose sessions run no trial."""

    def __init__(self) -> None:
        self.files = open_root(f"memory://nni/{uuid4().hex}")

    def session(self, folder: Path, *, is_finished: bool = False) -> str:
        """Starts and ends a session of the experiment in a folder; returns the search's name."""
        name, search = nni_search(read_experiment(folder / "config.yml"))
        prepared = search.build()
        records = Records(self.files.subfolder(name))
        claim_identity(records, prepared)
        SearchLease(records, code=session_code(records, prepared, is_finished=is_finished)).close()
        return name


def write(folder: Path, concurrency: int = 1) -> Path:
    for name, text in {**FILES, "config.yml": CONFIG.format(concurrency=concurrency, log=folder / "out")}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def root() -> Root:
    return Root()


@pytest.mark.parametrize("name", CODE)
@pytest.mark.parametrize("is_finished", [False, True])
def test_another_folder_is_refused(root: Root, tmp_path: Path, name: str, is_finished: bool) -> None:
    """A second folder with an equal configuration and other code is refused, and ``name=`` is the remedy."""
    root.session(write(tmp_path / "first"))
    shown = name.removeprefix("code/")
    second = write(tmp_path / "second")
    (second / name).write_text(FILES[name] + "\n# other")

    if is_finished and not name.startswith("code/"):  # only the tuner differs: the trials are the same
        root.session(second, is_finished=True)
        return
    with pytest.raises(
        ConfigurationError, match=rf"other code: {shown} changed since session 1\. Choose another name="
    ):
        root.session(second, is_finished=is_finished)


def test_what_trials_write_does_not_count(root: Root, tmp_path: Path) -> None:
    """New files count in no later session; a session's record still names those of the beginning."""
    folder = write(tmp_path / "first")
    name = root.session(folder)
    for n_session in (2, 3):
        (folder / "code" / "generated.py").write_text(f"{n_session}")
        root.session(folder)
    shutil.copytree(folder, tmp_path / "moved")
    root.session(write(tmp_path / "moved", concurrency=3))

    found = Records(root.files.subfolder(name)).newest_code_session() or {}
    assert found["session"] == 4
    assert sorted(found["code"]["problem"]) == ["lib/layers.py", "main.py", "run.sh"]
    assert sorted(found["code"]["tuner"]) == ["beside.py", "own_tuner.py"]


def test_code_lies_in_plain_folders(tmp_path: Path) -> None:
    """Virtual environments, hidden folders and the output of trials are left out."""
    for name in (
        "a.py",
        "b/c.py",
        ".git/d.py",
        "__pycache__/e.py",
        "env/pyvenv.cfg",
        "env/lib/f.py",
        "out/x/g.py",
        "h.txt",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    found = files_under(tmp_path, "python a.py --list ./h.txt 'unclosed", without=str(tmp_path / "out"))
    assert sorted(found) == ["a.py", "b/c.py"]
    found = files_under(tmp_path, f"python a.py ./h.txt {'x' * 300}", without="")
    assert sorted(found) == [
        "a.py",
        "b/c.py",
        "h.txt",
        "out/x/g.py",
    ]
