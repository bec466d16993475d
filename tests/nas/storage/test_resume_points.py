"""Resume points: the newest undamaged one is found, two are kept, damaged ones are logged."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nas.core.errors import StorageError
from nas.storage.open import open_root
from nas.storage.record_format import decode_record, seal
from nas.storage.resume_points import ResumePoints


class Drawer:
    """The resume points of trial 42 under a root, and their files."""

    def __init__(self, root: Path) -> None:
        self.folder = root / "resume" / "000042"
        self.files = open_root(str(root), retry_s=0)

    def open(self) -> ResumePoints:
        """As a new attempt opens them."""
        return ResumePoints(self.files, 42)

    def publish(self, *steps: int) -> None:
        for step in steps:
            self.open().publish({"step": step}, {"weight": torch.full((3,), float(step)), "bias": torch.ones(2)})

    def newest(self) -> int | None:
        """The step of the newest that is whole, whose weights must be those of that step."""
        found = self.open().newest()
        if found is None:
            return None
        state, tensors = found
        assert tensors["weight"].tolist() == [state["step"]] * 3
        return int(state["step"])

    def names(self) -> list[str]:
        """The files by number and kind: ``1.json``."""
        return sorted(f"{int(path.name[:6])}{path.suffix}" for path in self.folder.iterdir())

    def path(self, name: str) -> Path:
        number, kind = name.split(".")
        (found,) = self.folder.glob(f"{int(number):06d}-*.{kind}")
        return found


@pytest.fixture
def drawer(tmp_path: Path) -> Drawer:
    return Drawer(tmp_path)


def test_the_newest_is_found(drawer: Drawer) -> None:
    """Without any there is none; else the one that was published last, with its tensors."""
    assert drawer.newest() is None
    drawer.publish(5)
    assert drawer.newest() == 5
    drawer.publish(2)
    assert drawer.newest() == 2


def test_trials_have_folders_of_their_own(drawer: Drawer) -> None:
    """What one trial has reached is nothing to another."""
    drawer.publish(5)

    assert ResumePoints(drawer.files, 4).newest() is None


def test_the_last_two_are_kept(drawer: Drawer) -> None:
    """Each save deletes all but the one before it, packs too."""
    drawer.publish(1)
    assert drawer.names() == ["1.json", "1.safetensors"]
    drawer.publish(2)
    assert drawer.names() == ["1.json", "1.safetensors", "2.json", "2.safetensors"]
    drawer.publish(3, 4, 5)
    assert drawer.names() == ["4.json", "4.safetensors", "5.json", "5.safetensors"]


def test_one_tensor_of_two_names_is_stored_once(drawer: Drawer) -> None:
    """Equal tensors share bytes in the pack, and have memory of their own when they are read."""
    weight = torch.ones(10_000)
    drawer.open().publish({}, {"online": weight, "average": weight.clone()})

    found = drawer.open().newest()
    assert found is not None
    assert drawer.path("1.safetensors").stat().st_size < 41_000
    assert found[1]["online"].data_ptr() != found[1]["average"].data_ptr()


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(bytes(data))


DAMAGES = {
    "torn pack": lambda drawer: tear(drawer.path("2.safetensors")),
    "one flipped bit in the pack": lambda drawer: flip(drawer.path("2.safetensors")),
    "empty pack": lambda drawer: drawer.path("2.safetensors").write_bytes(b""),
    "no pack": lambda drawer: drawer.path("2.safetensors").unlink(),
    "torn record": lambda drawer: tear(drawer.path("2.json")),
    "one flipped bit in the record": lambda drawer: flip(drawer.path("2.json")),
    "empty record": lambda drawer: drawer.path("2.json").write_bytes(b""),
    "another's record": lambda drawer: drawer.path("2.json").write_bytes(drawer.path("1.json").read_bytes()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_falls_back(drawer: Drawer, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    """If the newest is torn, changed or missing, the one before it is used, and the log names the file."""
    drawer.publish(1, 2)
    DAMAGES[damage](drawer)

    assert drawer.newest() == 1
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "resume/000042/000002-" in record.getMessage()


def forge(drawer: Drawer, record: object) -> None:
    """Publishes a forged record with the right digest."""
    if isinstance(record, dict):
        record["number"] = 9
    data = record if isinstance(record, bytes) else json.dumps(record).encode()
    drawer.files.publish("resume/000042/000009-0123abcd.json", [seal(data)])


FORGED: dict[str, Any] = {
    "future format": {"format": 3},
    "no object": [],
    "no JSON": b"\x80\x04pickle",
    "deep": b"[" * 100_000,
    "no manifest": {"manifest": {"format": 2}},
    "a pack elsewhere": {"packs": [{"path": "../packs/x", "bytes": 1, "digest": "blake3:" + "0" * 64}]},
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_foreign_newest_falls_back(drawer: Drawer, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """An invalid record is skipped with a warning, and no memory is allocated for it."""
    drawer.publish(1)
    record = FORGED[kind]
    if isinstance(record, dict):
        whole = decode_record(drawer.path("1.json").read_bytes())
        for key, value in record.items():
            (whole if key in whole else whole["manifest"])[key] = value
        record = whole
    forge(drawer, record)

    assert drawer.newest() == 1
    assert len(caplog.records) == 1


def test_a_manifest_beyond_its_pack_falls_back(drawer: Drawer, caplog: pytest.LogCaptureFixture) -> None:
    """A tensor that its pack can't hold is refused before memory is taken for it."""
    drawer.publish(1)
    record = decode_record(drawer.path("1.json").read_bytes())
    record["manifest"]["tensors"]["weight"] |= {"bytes": 4 << 60, "shape": [1 << 60]}
    forge(drawer, record)

    assert drawer.newest() == 1
    assert "can't be a float32 of shape" in caplog.text


def test_all_damaged_is_none(drawer: Drawer, caplog: pytest.LogCaptureFixture) -> None:
    """If all are damaged the answer is None, and each is logged."""
    drawer.publish(1, 2)
    tear(drawer.path("1.safetensors"))
    tear(drawer.path("2.json"))

    assert drawer.newest() is None
    assert len(caplog.records) == 2


def test_a_damaged_one_is_no_fallback(drawer: Drawer) -> None:
    """A damaged one is deleted by the next save, which keeps the last undamaged one."""
    drawer.publish(1, 2)
    tear(drawer.path("2.safetensors"))
    attempt = drawer.open()
    assert attempt.newest() is not None

    attempt.publish({"step": 3}, {"weight": torch.full((3,), 3.0)})

    assert drawer.names() == ["1.json", "1.safetensors", "3.json", "3.safetensors"]
    tear(drawer.path("3.safetensors"))
    assert drawer.newest() == 1


def test_a_pack_without_a_record_is_skipped(drawer: Drawer) -> None:
    """A pack without a record is skipped, its number is not used again, and a later save deletes it."""
    drawer.publish(1)
    orphan = drawer.folder / "000002-0123abcd.safetensors"
    orphan.write_bytes(b"half")

    assert drawer.newest() == 1
    drawer.publish(3)
    assert drawer.newest() == 3
    assert orphan.exists()
    drawer.publish(4)
    assert not orphan.exists()
    assert drawer.names() == ["3.json", "3.safetensors", "4.json", "4.safetensors"]


def test_foreign_files_are_passed_over(drawer: Drawer) -> None:
    """Files with other names change nothing."""
    drawer.publish(1)
    for name in ("notes.txt", "000009.json", ".tmp-0123", "x-0123abcd.safetensors"):
        (drawer.folder / name).write_text("{}")

    assert drawer.newest() == 1
    drawer.publish(2)
    assert drawer.newest() == 2


def test_delete_leaves_nothing(drawer: Drawer) -> None:
    """``delete`` deletes all files of a trial; a second call does nothing."""
    drawer.publish(1, 2)
    (drawer.folder / "000003-0123abcd.safetensors").write_bytes(b"half")
    for _ in range(2):
        drawer.open().delete()

        assert not drawer.folder.exists()
    assert drawer.newest() is None


PUBLISH_AND_DIE = """
import os, signal, sys

from nas.storage.open import open_root

def parts():
    yield bytes(100_000)
    os.kill(os.getpid(), signal.SIGKILL)

open_root(sys.argv[1]).publish("resume/000042/000003-0123abcd.safetensors", parts())
"""


def test_delete_removes_unfinished_files(drawer: Drawer) -> None:
    """``kill -9`` during a save leaves an unfinished file, which is deleted with the others."""
    drawer.publish(1, 2)
    died = subprocess.run([sys.executable, "-c", PUBLISH_AND_DIE, drawer.files.url], check=False)
    assert died.returncode == -signal.SIGKILL
    assert len(list(drawer.folder.glob(".tmp-*"))) == 1

    assert drawer.newest() == 2
    drawer.open().delete()
    assert not drawer.folder.exists()


def test_two_attempts_at_once_do_not_collide(drawer: Drawer) -> None:
    """An attempt that outlived its driver and the one that replaced it publish side by side; the newest is whole."""
    one, other = drawer.open(), drawer.open()
    for step in range(6):
        attempt = (one, other)[step % 2]
        attempt.publish({"step": step}, {"weight": torch.full((3,), float(step))})

        assert drawer.newest() == step


def test_a_store_that_fails_is_no_damage(drawer: Drawer) -> None:
    """A record that can't be opened is a StorageError; the trial does not start again from scratch."""
    drawer.publish(1)
    name = drawer.path("1.json").name
    drawer.path("1.json").unlink()
    (drawer.folder / name).symlink_to(name)  # in a circle: ELOOP

    with pytest.raises(StorageError, match="can't read"):
        drawer.newest()
