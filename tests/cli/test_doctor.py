"""``python -m flows.doctor``: one line for each finding, a remedy for each that did not pass, and the exit status."""

from __future__ import annotations

import importlib.metadata
import re
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.support.commands import ROOT, Done, everything, run


def doctor(here: Path, *arguments: str, **changes: str) -> Done:
    """Runs the command as a user does."""
    return run(here, *arguments, module="flows.doctor", **changes)


@pytest.mark.slow
def test_a_machine_that_runs_searches_passes(here: Path, api_url: str) -> None:
    """All checks pass here; status 0, and the root is as before."""
    done = doctor(here, PREFECT_API_URL=api_url)
    lines = done.out.splitlines()

    assert done.status == 0, done.out
    assert any(re.match("(passed|warning) +ports: ", line) for line in lines)  # 4200 may be taken here
    assert lines[0].startswith("passed   versions: Python 3.11.")
    assert f"Prefect {importlib.metadata.version('prefect')}" in lines[0]
    assert lines[1].startswith("passed   extras: installed: ")
    assert any(line.startswith("passed   cpu: ") for line in lines)
    assert f"passed   Prefect's server: answers at {api_url}" in lines
    assert "checks passed in " in done.out
    assert everything(here) == []


@pytest.mark.slow
def test_a_server_that_is_down_and_a_root_that_is_a_file_fail(here: Path) -> None:
    """Two things will not work: status 1, and the other checks are done as well."""
    (here / "file").touch()
    done = doctor(here, "storage.root=file/root", PREFECT_API_URL="http://127.0.0.1:9/api")
    failed = [line for line in done.out.splitlines() if line.startswith("failed")]

    assert done.status == 1
    assert failed[0].startswith("failed   Prefect's server: no Prefect server at http://127.0.0.1:9/api")
    assert "or unset PREFECT_API_URL" in failed[0]
    assert len(failed) == 2
    assert "file" in failed[1]
    assert done.out.splitlines()[-1].endswith(" 2 failed")


@pytest.mark.slow
def test_the_uis_port_may_be_taken(here: Path, api_url: str) -> None:
    """If another process has port 4200, the remedy is another port; status 0, since searches work."""
    with ExitStack() as stack:
        with suppress(OSError):  # taken by another process already
            stack.enter_context(socket.create_server(("127.0.0.1", 4200)))
        done = doctor(here, PREFECT_API_URL=api_url)
    lines = done.out.splitlines()

    [ports] = [n for n, line in enumerate(lines) if line.startswith("warning  ports: 4200, the port of the UI: ")]
    assert lines[ports + 1].strip() == "python -m flows.ui port=0 takes a free one"
    assert done.status == 0


@pytest.mark.slow
def test_a_library_of_another_version_fails(here: Path, tmp_path: Path, api_url: str) -> None:
    """A version outside the bounds is told with the bounds and the command that installs another one."""
    old = tmp_path / "old" / "rich-1.0.dist-info"
    old.mkdir(parents=True)
    (old / "METADATA").write_text("Metadata-Version: 2.1\nName: rich\nVersion: 1.0\n")
    done = doctor(here, PREFECT_API_URL=api_url, PYTHONPATH=f"{old.parent}:{ROOT}")
    lines = done.out.splitlines()

    assert done.status == 1, done.out
    number = lines.index("failed   library: rich 1.0: must be >=13.9.4")
    assert lines[number + 1].strip() == "pip install 'rich>=13.9.4'"


@pytest.mark.slow
def test_a_home_of_the_server_that_cannot_be_made_fails(here: Path) -> None:
    """The temporary server's folder is named with the remedy; status 1."""
    (here / "file").touch()
    done = doctor(here, HEIRLOOM_CACHE=str(here / "file"))

    assert done.status == 1
    assert f"can't start in {here}/file/prefect" in done.out
    assert "name another folder with HEIRLOOM_CACHE" in done.out


def test_a_mistake_is_one_line(here: Path) -> None:
    """A number that can't be is refused before any check; status 2."""
    done = doctor(here, "timeout_s=0")

    assert done.status == 2
    assert done.complaint.startswith("timeout_s=0: must be a number of seconds greater than 0")
