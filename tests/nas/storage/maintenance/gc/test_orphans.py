"""Orphans: a file that no record names is deleted once no record can name it; records are never deleted."""

from __future__ import annotations

import pytest

from nas.core.trial import State
from nas.storage.blobs import BlobInfo
from nas.storage.maintenance.gc.orphans import find_orphans
from tests.support.stored_trials import trial

TRIALS = [
    trial(0),
    trial(1, weights_deleted=True),
    trial(2, state=State.WAITING, score=None),
    trial(3, state=State.RUNNING, score=None),
    trial(4, state=State.FAILED, score=None),
]
OLD, NEW, UNKNOWN = 10.0, 30.0, None


def goes(path: str, modified: float | None) -> bool:
    found = list(find_orphans([BlobInfo(path, 1, modified)], TRIALS, {"packs/000000-named.safetensors"}, before=20.0))
    assert all(one.reason and one.trial is None for one in found)
    return bool(found)


@pytest.mark.parametrize("age", [OLD, NEW, UNKNOWN])
@pytest.mark.parametrize(
    "path",
    [
        "packs/000000-aa.safetensors",
        "packs/000004-aa-1.safetensors",
        "manifests/000001-aa.json",
        "files/000000-aa/deep/er.bin",
        "resume/000004/pack.safetensors",
        "resume/000000/record.json",
    ],
)
def test_files_of_finished_trials_go_at_once(path: str, age: float | None) -> None:
    """A file that a finished trial's result does not name is deleted at once: the first result counts."""
    assert goes(path, age)


@pytest.mark.parametrize(
    "path",
    [
        "packs/000002-aa.safetensors",
        "packs/000099-aa.safetensors",
        "files/000002-aa/x",
        "packs/.tmp-0123",
        "files/000000-aa/.tmp-0123",
        "trials/.tmp-0123",
        ".tmp-0123",
        "best/000000-aa/model.safetensors",
        "check-0123456789abcdef",
    ],
)
def test_others_go_when_old(path: str) -> None:
    """Unfinished files, weights of unfinished trials and exports without a record go after the grace period."""
    assert goes(path, OLD)
    assert not goes(path, NEW)
    assert not goes(path, UNKNOWN)


@pytest.mark.parametrize(
    "path",
    [
        "packs/000000-named.safetensors",
        "packs/000003-aa.safetensors",
        "resume/000002/pack.safetensors",
        "resume/000003/record.json",
        "trials/000000.result.json",
        "trials/000002.start-1.json",
        "sessions/0001.json",
        "sessions/0001.beat",
        "gc/0001.json",
        "tests/000000.json",
        "logs/000001.log",
        "search.json",
        "best-0001.json",
        "notes.txt",
        "packs/mine.safetensors",
        "check-mine",
        "elsewhere/000000-aa.bin",
        "packs/000000-a\nb",
        "files/000000-aa/\udcff",
        "resume/000000/" + "x" * 256,
    ],
)
def test_these_never_go(path: str) -> None:
    """Named files, files of unfinished trials that still count, records, logs and the user's own files stay."""
    assert not goes(path, OLD)
