"""``kill -9`` of a publishing process: committed trials are there, and no file is read in part."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from nas.core.errors import StorageError
from nas.core.trial import Trial
from nas.storage.blobs import BlobStore
from nas.storage.checkpoints import load_manifest
from nas.storage.lazy_weights import StoredWeights
from nas.storage.open import open_root
from nas.storage.records import Records
from tests.support.faulty_disk import FaultyDisk
from tests.support.killed_writer import N_TENSORS, tensors_of, write_trials

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns the files that each trial saves beside its tensors."""
    folder = tmp_path / "saved"
    folder.mkdir()
    (folder / "notes.txt").write_text("notes " * 1000)
    return folder


def check_int(files: BlobStore, trial: Trial) -> None:
    """Checks that the trial's saved data can be read and is correct."""
    assert trial.checkpoint is not None
    for saved in load_manifest(files, trial.checkpoint).files:
        files.check_contents(saved)
    found = StoredWeights(files, trial.checkpoint).read_all()
    assert len(found) == N_TENSORS
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors_of(trial.number).items())


def check_store(files: BlobStore, committed: list[int], newest: int = 10**6) -> None:
    """Checks that all committed trials are there, and that the newest ones are whole."""
    trials, _ = Records(files).load()
    finished = {trial.number: trial for trial in trials if trial.is_finished}
    assert set(committed) <= finished.keys()
    for trial in list(finished.values())[-newest:]:
        check_int(files, trial)


class Reader(threading.Thread):
    """Reads the newest trials repeatedly, as driver and report do, while writers are killed."""

    def __init__(self, files: BlobStore) -> None:
        super().__init__()
        self.files = files
        self.n_read = 0
        self.failures: list[str] = []
        self.done = threading.Event()

    def run(self) -> None:
        while not self.done.is_set():
            try:
                trials, _ = Records(self.files).load()
                finished = [trial for trial in trials if trial.is_finished]
                for trial in finished[-3:]:
                    check_int(self.files, trial)
                self.n_read += len(finished[-3:])
            except (StorageError, AssertionError) as error:
                self.failures.append(repr(error))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_hundred_kills_lose_and_tear_nothing(tmp_path: Path, folder: Path) -> None:
    """After 200 kills at random moments each committed trial is whole, and none is damaged.

    Another process reads all the while.
    """
    seed = int(os.environ.get("HEIRLOOM_KILL_SEED") or time.time())
    print(f"HEIRLOOM_KILL_SEED={seed}")
    files = open_root(str(tmp_path / "root"), retry_s=0)
    reader = Reader(files)
    reader.start()
    command = [sys.executable, "-m", "tests.support.killed_writer", files.url, folder, "200", str(seed)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    finally:
        reader.done.set()
        reader.join()

    assert done.returncode == 0, done.stderr[-2000:]
    committed = json.loads(done.stdout)
    check_store(files, committed)
    assert committed == list(range(len(committed)))
    assert len(committed) > 50
    assert reader.failures == []
    assert reader.n_read > 20
    packs = {pack.path for trial in Records(files).load()[0] if trial.checkpoint for pack in trial.checkpoint.packs}
    assert list((tmp_path / "root").rglob(".tmp-*")), "no kill fell into the writing of a file"
    assert len(files.names("packs")) > len(packs), "no kill fell between a pack and its result"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_kill_at_every_call_tears_nothing(tmp_path: Path, folder: Path) -> None:
    """After a kill before any file system call, the next writer can continue."""
    try:
        disk = FaultyDisk(tmp_path)
    except OSError as error:
        pytest.skip(str(error))
    try:
        torch.set_num_threads(1)
        files = open_root(str(disk.behind / "root"), retry_s=0)
        committed: list[int] = []
        for skip in range(150):  # some three trials
            committed += kill_writer(disk, folder, len(committed), skip)
            check_store(files, committed, newest=2)
        check_store(files, committed)
        assert committed == list(range(len(committed)))
        assert len(committed) > 50
    finally:
        disk.close()


def kill_writer(disk: FaultyDisk, folder: Path, number: int, skip: int) -> list[int]:
    """Returns the trials that a writer committed before it was killed at that call."""
    said, saying = os.pipe()
    with disk.killing(skip):
        writer = os.fork()
        if not writer:
            os.close(said)
            write_trials(str(disk.place / "root"), number, str(folder), saying)
        os.close(saying)
        _, status = os.waitpid(writer, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    with os.fdopen(said, "rb") as told:
        return [int(line) for line in told.read().split()]
