"""Foreign files in a shared folder: pipes, devices, links, huge files and odd names."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from nas.core.errors import ConfigurationError, CorruptError, StorageError
from nas.core.reference import Reference
from nas.core.trial import Proposal, Trial
from nas.core.validation import MAX_RECORD_BYTES
from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from nas.storage.record_format import MAX_BYTES
from nas.storage.record_values import checked_exactly
from nas.storage.records import Records
from nas.storage.verified import digest_of
from tests.support.hostile_search import ROOT

RECORD = "trials/000000.proposal.json"


@pytest.fixture
def files(tmp_path: Path) -> BlobStore:
    files = open_root(str(tmp_path / "root" / "search"), retry_s=0)
    Records(files).propose(Trial(number=0, index=0, proposal=Proposal(point={"x": 1})))
    return files


def put_pipe(place: Path) -> None:
    os.mkfifo(place)


def put_endless_device(place: Path) -> None:
    place.symlink_to("/dev/zero")


def put_giant(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk


def put_folder(place: Path) -> None:
    place.mkdir()


def put_circle(place: Path) -> None:
    place.symlink_to(place.name)


@pytest.mark.parametrize("put", [put_pipe, put_endless_device, put_giant, put_folder, put_circle])
def test_special_files_are_refused_at_once(files: BlobStore, put: Callable[[Path], None]) -> None:
    """A pipe, an endless device, a terabyte, a folder and a link to itself are named without waiting or memory."""
    place = Path(str(files.local_path(RECORD)))
    place.unlink()
    put(place)
    reference = Reference(RECORD, 1, digest_of(b"1"))
    tracemalloc.start()

    for read in (
        lambda: files.read_if_present(RECORD),
        lambda: Records(files).load(),
        lambda: files.read(reference),
        lambda: files.check_contents(reference),
    ):
        with pytest.raises(StorageError, match="trials"):
            read()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 16_000_000


def test_records_too_large_to_read_are_not_written(files: BlobStore) -> None:
    """A record that would be too large to read is refused; the error names its size."""
    with pytest.raises(
        StorageError, match=rf"trials/1\.json can't be written: \d+ bytes; a record has at most {MAX_BYTES}"
    ):
        Records(files).publish("trials/1.json", {"curve": "x" * MAX_RECORD_BYTES})
    assert files.names("trials") == ["000000.proposal.json"]


def test_a_log_does_not_follow_a_link(files: BlobStore, tmp_path: Path) -> None:
    """A link in a log's place does not overwrite another file of the user."""
    mine = tmp_path / "authorized_keys"
    mine.write_text("mine")
    logs = tmp_path / "root" / "search" / "logs"
    logs.mkdir()
    (logs / "000000.log").symlink_to(mine)

    with pytest.raises(StorageError, match=r"logs/000000\.log: Too many levels of symbolic links"):
        files.replace("logs/000000.log", b"what the trial printed", durable=False)
    assert mine.read_text() == "mine"


def test_heartbeats_and_records_do_not_follow_links(files: BlobStore, tmp_path: Path) -> None:
    """A heartbeat replaces the link itself, and a link makes a record's name taken."""
    mine = tmp_path / "authorized_keys"
    mine.write_text("mine")
    for name in ("0001.beat", "0001.json"):
        (tmp_path / "root" / "search" / name).symlink_to(mine)

    files.replace("0001.beat", b"{}")
    with pytest.raises(StorageError, match="published already"):
        files.publish("0001.json", [b"{}"], exclusive=True)
    assert mine.read_text() == "mine"
    assert files.read_if_present("0001.beat") == b"{}"


@pytest.mark.parametrize(
    "name",
    [
        "._000000.result.json",
        "000000.result.json.swp",
        "0.result.json",
        "00000000.result.json",
        "\u0660\u0660\u0660\u0660\u0660\u0661.result.json",
        "-00001.result.json",
        "0x0000.result.json",
        "000000 (copy).result.json",
        "000001.start-x.json",
        "a\udcffb.result.json",
    ],
)
def test_foreign_names_are_ignored(files: BlobStore, name: str) -> None:
    """Copies, editors' leftovers and other systems' files are ignored, whatever they contain."""
    (Path(str(files.local_path("trials"))) / name).write_text("not a record")

    trials, starts = Records(files).load()
    assert [trial.number for trial in trials] == [0]
    assert starts == {}


def test_results_without_proposals_are_named(files: BlobStore) -> None:
    """A result with an absurd number is a CorruptError that names the gap, not a loop of a billion steps."""
    result = Trial(number=10**17, index=0, proposal=Proposal(point={})).result_record()
    Records(files).publish(f"trials/{10**17}.result.json", result)

    with pytest.raises(CorruptError, match=r"trials/100000000000000000\.proposal\.json is missing"):
        Records(files).load()


@pytest.mark.parametrize("path", ["a\nb", "a\x1b[2Jb", "a\x7f", "a" * 256, "ä" * 128, "/".join(["a" * 250] * 5)])
def test_unusable_names_are_refused(files: BlobStore, path: str) -> None:
    """Control characters, names over 255 bytes and paths over 1,024 are refused before anything is written."""
    with pytest.raises(ConfigurationError, match="path"):
        files.publish(path, [b"1"])
    with pytest.raises(CorruptError, match="path"):
        checked_exactly(Reference, {"path": path, "bytes": 1, "digest": digest_of(b"1")})


LIMITED = """
import json, resource, sys
from pathlib import Path
from tests.support.hostile_search import HostileSearch
from tests.faults.test_hostile_records import assert_refused, changed, lies

search = HostileSearch(Path(sys.argv[1]))
search.refusals()
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 256_000_000,) * 2)
n = 0
for kind in ("checkpoint", "manifest"):
    for what, where, value in lies(kind):
        assert_refused(search, kind, what, json.dumps(changed(search.original(kind), where, value)).encode())
        n += 1
print(n)
"""


@pytest.mark.slow
def test_false_sizes_allocate_no_memory(tmp_path: Path) -> None:
    """With 256 MB of memory left, all false sizes in manifests and checkpoints are refused."""
    command = [sys.executable, "-c", LIMITED, tmp_path]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 100
