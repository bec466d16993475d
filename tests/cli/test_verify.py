"""``python -m flows.verify``: its table and status, and that it leaves a root unchanged."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from flows.cli.command import run_command
from flows.verify import verify
from nas.storage.open import open_root
from tests.support.commands import ROOT, everything, run
from tests.support.proxies import HttpProxy
from tests.support.servers import S3
from tests.support.stored_search import write_stored_search

PACK = "packs/000001-aa.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    write_stored_search(root / "stored", tmp_path_factory.mktemp("scratch"))
    return root


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    """Returns a root with one search, which a test may damage."""
    return Path(shutil.copytree(whole, tmp_path / "root"))


@pytest.fixture
def asked(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Returns status, output and errors of the command, run in this process."""

    def ask(*overrides: object) -> tuple[int, str, str]:
        status = run_command("verify", verify, [str(override) for override in overrides])
        return status, *capsys.readouterr()

    return ask


def rows(output: str) -> dict[str, list[str]]:
    """Returns the lines of a table by their first word."""
    return {line.split()[0]: line.split()[1:] for line in output.splitlines() if line.strip()}


def test_whole_search(root: Path, asked: Callable[..., tuple[int, str, str]]) -> None:
    """Exit 0, a row per kind, nothing on standard error, nothing written; name=last finds the newest search."""
    before = everything(root)

    status, output, error = asked(f"storage.root={root}", "name=last")

    assert (status, error) == (0, "")
    assert rows(output)["kind"] == ["read", "size", "damaged"]
    counts = {kind: rows(output)[kind][0] for kind in ("record", "manifest", "pack", "file", "resume", "export")}
    assert counts == {"record": "20", "manifest": "4", "pack": "2", "file": "1", "resume": "0", "export": "2"}
    assert "stored: no damage (29 files" in output
    assert everything(root) == before


@pytest.mark.slow
def test_a_busy_server_is_no_damage(
    root: Path, s3: S3, asked: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that answers SlowDown for seconds is asked again, and nothing counts as damaged."""
    far = s3.root(url := f"s3://bucket/{uuid4().hex}")
    for path in filter(Path.is_file, root.rglob("*")):
        far.publish(str(path.relative_to(root)), [path.read_bytes()])
    with HttpProxy(s3.endpoint) as proxy:
        for name, value in (s3.environment() | {"AWS_ENDPOINT_URL": proxy.endpoint}).items():
            monkeypatch.setenv(name, value)
        proxy.fail(503, method="GET", path=PACK, times=6)
        status, output, error = asked("storage=s3", f"storage.root={url}", "name=stored")

    assert (status, error) == (0, "")
    assert "stored: no damage" in output
    assert sum(seen.startswith("GET") and PACK in seen for seen in proxy.seen) == 7


def test_broken_search(root: Path, asked: Callable[..., tuple[int, str, str]]) -> None:
    """Exit 1, a row per damaged file with the damage and the affected trials, then the consequences."""
    data = bytearray((root / "stored" / PACK).read_bytes())
    data[-1] ^= 1
    (root / "stored" / PACK).write_bytes(data)
    (root / "stored/trials/000002.result.json").unlink()
    (root / "stored/trials/000003.proposal.json").write_text("{")

    status, output, error = asked(f"storage.root={root}", "name=stored")

    assert (status, error) == (1, "")
    lines = [" ".join(line.split()) for line in output.splitlines()]
    assert f"pack {PACK} corrupt: 1 of its 1 tensors: head 1" in lines
    assert [
        line
        for line in lines
        if line.startswith("record trials/000002.result.json missing: expected because the tuner")
    ]
    assert (
        "record trials/000003.proposal.json corrupt: it has no digest: it is cut off, or not a record of format 2 3"
        in lines
    )
    assert [line for line in lines if line.startswith("stored: 3 files damaged (27 files")]
    assert "Trials with damaged weights or files, which children can't fully inherit: 1." in lines
    assert "A trial without a result runs again when the search continues." in lines
    assert [line for line in lines if line.startswith("The search can't continue until these records are restored")]


@pytest.mark.slow
def test_search_whose_own_record_is_lost(root: Path, asked: Callable[..., tuple[int, str, str]]) -> None:
    """A search without search.json, or with a corrupt one, is still verified by its name."""
    (root / "stored/search.json").write_text("{")
    corrupt = asked(f"storage.root={root}", "name=stored")
    (root / "stored/search.json").unlink()
    missing = asked(f"storage.root={root}", "name=stored")

    assert (corrupt[0], missing[0]) == (1, 1)
    assert "corrupt: it has no digest" in corrupt[1]
    assert "missing: expected because every search has one" in missing[1]


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (("name=other",), "no search other among 1 under"),
        (("name=a/b",), "name='a/b': must be"),
        (("name=stored", "second=/mnt"), "can't be combined with second or machines"),
        (("name=stored", "machines=2"), "can't be combined with second or machines"),
        (("second=/mnt", "machines=2"), "can't be combined with machines=2"),
        (("machines=3",), "machines=3: must be 1 or 2"),
        (("machines=two",), "machines='two': must be 1 or 2"),
        (("machines=2", "wait_s=0"), "wait_s=0: must be"),
        (("wait_s=long",), "wait_s='long': must be"),
        (("nme=stored",), "unknown key nme; did you mean name?"),
        (("storage.root=nope://x",), "nope://x: unknown protocol"),
        (("storage=memory", "name=stored"), "exists in the searching process only"),
    ],
)
def test_mistakes(
    whole: Path, asked: Callable[..., tuple[int, str, str]], overrides: tuple[str, ...], complaint: str
) -> None:
    """A user's mistake is one line on standard error, and status 2."""
    root = () if any(text.startswith("storage") for text in overrides) else (f"storage.root={whole}",)

    status, output, error = asked(*root, *overrides)

    assert (status, output) == (2, "")
    assert error.startswith("heirloom: ")
    assert error.count("\n") == 1
    assert complaint in error


def test_good_root(tmp_path: Path, asked: Callable[..., tuple[int, str, str]]) -> None:
    """Exit 0, the mount and a row per check with milliseconds; a new root is removed again."""
    status, output, error = asked(f"storage.root={tmp_path}/new/root")

    assert (status, error) == (0, "")
    assert f"storage.root  {tmp_path}/new/root" in output
    assert "mount" in output
    assert output.partition("hard link")[2].split()[0] == "passed"
    header = next(line for line in output.splitlines() if line.startswith("check"))
    assert header.split() == ["check", "status", "ms", "p50", "ms", "p99", "observed"]
    assert everything(tmp_path) == []


@pytest.mark.slow
def test_root_with_searches_is_unchanged(root: Path, asked: Callable[..., tuple[int, str, str]]) -> None:
    """The check changes no file of a root in use, also through a second path."""
    before = everything(root)

    status, output, _ = asked(f"storage.root={root}", f"second={root}")

    assert status == 0, output
    assert "files of the other host are read" in output
    assert "warning: the mounts have separate caches" in output
    assert everything(root) == before


def test_bad_root(tmp_path: Path, asked: Callable[..., tuple[int, str, str]]) -> None:
    """Exit 1 if a check fails, with a hint below the table."""
    (tmp_path / "file").write_text("no folder")

    status, output, error = asked(f"storage.root={tmp_path}/file")

    assert (status, error) == (1, "")
    assert "1 check: 1 failed" in output
    assert "failed: files can be written" in output
    assert "choose another storage.root" in output


def test_memory_is_one_process_only(asked: Callable[..., tuple[int, str, str]]) -> None:
    """memory:// passes, with a warning."""
    status, output, _ = asked(f"storage.root=memory://{uuid4().hex}")

    assert status == 0
    assert "warning: other processes see the files (memory://: this process only)" in output


@pytest.mark.slow
def test_several_roots(tmp_path: Path, asked: Callable[..., tuple[int, str, str]]) -> None:
    """A multirun checks several roots, and ends with the worst status."""
    (tmp_path / "file").write_text("no folder")

    status, output, _ = asked("-m", f"storage.root=memory://{uuid4().hex},{tmp_path}/file")

    assert status == 1
    assert output.count("storage.root  ") == 2
    assert output.count("failed: ") == 1


@pytest.mark.slow
def test_two_processes_check_a_root_together(tmp_path: Path) -> None:
    """machines=2 on both sides: both exit 0 and show what they saw of each other; nothing is left."""
    root = tmp_path / "root"
    root.mkdir()
    places = [tmp_path / name for name in ("here", "there")]
    for place in places:
        place.mkdir()
    arguments = (f"storage.root={root}", "machines=2", "wait_s=60")
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda place: run(place, *arguments, module="flows.verify"), places))

    for done in ended:
        assert done.status == 0, done
        assert "records of the other host are seen" in done.out
        assert "start the same command on the other machine now" in done.err
    assert everything(root) == []


@pytest.mark.slow
def test_missing_second_machine_times_out(here: Path) -> None:
    """machines=2 without a second one: one line, status 1, nothing left."""
    done = run(here, "storage.root=root", "machines=2", "wait_s=1", module="flows.verify")

    assert done.status == 1
    assert "no other machine came within 1 s" in done.err
    assert everything(here) == []


def test_commands_of_the_documents_are_valid(asked: Callable[..., tuple[int, str, str]]) -> None:
    """Every flows.verify command in docs/guides/nfs.md and the README has existing keys."""
    documents = [ROOT / "docs" / "guides" / "nfs.md", ROOT / "README.md"]
    text = "\n".join(document.read_text() for document in documents)
    commands = set(re.findall(r"python -m flows\.verify ([^`\n]+)", text))

    assert len(commands) >= 4
    for command in commands:
        status, output, error = asked(*command.split(), "--cfg", "job")
        assert (status, error) == (0, ""), command
        assert "machines:" in output


@pytest.mark.slow
def test_secrets_are_not_shown(tmp_path: Path, asked: Callable[..., tuple[int, str, str]]) -> None:
    """Neither a password in a URL nor storage options are printed, whatever fails."""
    pytest.importorskip("paramiko")
    url = "sftp://user:hunter2-secret@127.0.0.1:1/root"

    status, output, error = asked(f"storage.root={url}", "storage.options.password=hunter3-secret")

    assert status != 0
    assert "hunter" not in output + error


def test_stored_search_can_be_read(whole: Path) -> None:
    """Heirloom loads the stored search of these tests."""
    from nas.storage.records import Records

    trials, _ = Records(open_root(f"{whole}/stored")).load()

    assert [str(trial.state) for trial in trials] == ["COMPLETE"] * 4 + ["FAILED", "WAITING"]
