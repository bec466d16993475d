"""Verification of a search: every damaged file is found and named."""

from __future__ import annotations

import random
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nas.storage.maintenance.damage import Damage
from nas.storage.maintenance.tensor_ranges import RangeHasher, TensorRange
from nas.storage.maintenance.verification import RETRY_S, VerificationReport, verify_search
from nas.storage.manifest import Manifest
from nas.storage.open import open_root
from nas.storage.record_format import FORMAT
from nas.storage.records import Records
from nas.storage.resume_points import ResumePoints
from nas.storage.verified import digest_of
from tests.support.record_files import read_record, sealed, write_record
from tests.support.sample_searches import IDENTITY
from tests.support.stored_search import (
    BEST,
    RESUME_STATE,
    SESSION,
    TENSORS,
    finish,
    proposed,
    publish,
    write_stored_search,
)

PACKS = ("packs/000000-aa.safetensors", "packs/000001-aa.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "search"
    write_stored_search(folder, tmp_path_factory.mktemp("scratch"))
    return folder


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    """Returns the folder of a search that a test may damage."""
    return Path(shutil.copytree(whole, tmp_path / "search"))


def verified(place: Path, progress: Callable[[VerificationReport], None] = lambda report: None) -> VerificationReport:
    return verify_search(open_root(str(place), retry_s=RETRY_S), progress=progress, pause_s=0)


def found(place: Path) -> list[tuple[str, str, str, tuple[int, ...]]]:
    """Returns the damages without details."""
    return [(d.kind, d.path, d.state, d.trials) for d in verified(place).damages]


def only(place: Path) -> Damage:
    """Returns the only damage."""
    [damage] = verified(place).damages
    return damage


def flip(path: Path, at: int) -> None:
    """Flips one bit."""
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    path.write_bytes(data)


def edit(path: Path, change: Callable[[Any], object]) -> None:
    """Changes a record."""
    record = read_record(path)
    change(record)
    write_record(path, record)


def test_whole_search_is_whole(place: Path) -> None:
    """Nothing is damaged, every file is counted once, and nothing is written."""
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}

    report = verified(place)

    assert report.damages == []
    assert report.unfinished == ()
    counts = {kind: count.n_files for kind, count in report.counts.items()}
    assert counts == {"record": 20, "manifest": 4, "pack": 2, "file": 1, "resume": 0, "export": 2}
    on_disk = [path for path in place.rglob("*") if path.is_file()]
    assert sum(counts.values()) == len(on_disk)
    assert sum(count.n_bytes for count in report.counts.values()) == sum(path.stat().st_size for path in on_disk)
    assert before == {path: path.stat().st_mtime_ns for path in place.rglob("*")}


def test_flipped_bit_affects_the_users_of_that_tensor(place: Path) -> None:
    """A flipped bit in a shared tensor affects all children; in one that a child replaced, only the first trial."""
    manifest = Manifest.from_bytes((place / "manifests/000000-aa.json").read_bytes())
    flip(place / PACKS[0], manifest.tensors["body"].offset + 7)

    shared = only(place)

    assert (shared.path, shared.state, shared.trials) == (PACKS[0], "corrupt", (0, 1, 2))
    assert shared.detail == "1 of its 3 tensors: body"
    flip(place / PACKS[0], manifest.tensors["body"].offset + 7)
    flip(place / PACKS[0], manifest.tensors["head"].offset)
    replaced = only(place)
    assert (replaced.path, replaced.trials) == (PACKS[0], (0,))
    assert replaced.detail == "1 of its 3 tensors: head"


def test_flipped_bit_outside_of_tensors_affects_no_trial(place: Path) -> None:
    """A flipped bit in a pack's header is found, and affects no trial."""
    flip(place / PACKS[1], 20)

    damage = only(place)

    assert (damage.path, damage.state, damage.trials) == (PACKS[1], "corrupt", ())
    assert "outside of the tensors" in damage.detail


def test_lost_pack_affects_all_trials_that_use_it(place: Path) -> None:
    """A deleted, a truncated and a grown pack is lost for its trial and those that took tensors from it."""
    pack = place / PACKS[0]
    data = pack.read_bytes()

    for contents, state in ((data[:100], "corrupt"), (data + b"more", "corrupt")):
        pack.write_bytes(contents)
        damage = only(place)
        assert (damage.state, damage.trials) == (state, (0, 1, 2))
        assert damage.detail == f"{len(contents):,} of {len(data):,} bytes"
    pack.unlink()
    damage = only(place)
    assert (damage.state, damage.detail, damage.trials) == ("missing", "", (0, 1, 2))


def test_unreadable_pack_says_why(place: Path) -> None:
    """An unreadable file is reported with the system's message, and hides no other damage."""
    (place / PACKS[0]).unlink()
    (place / PACKS[0]).mkdir()
    (place / "manifests/000003-aa.json").unlink()

    assert found(place) == [
        ("manifest", "manifests/000003-aa.json", "missing", (3,)),
        ("pack", PACKS[0], "unreadable", (0, 1, 2)),
    ]
    assert verified(place).damages[1].detail == "Is a directory"


def test_damaged_manifest_is_its_trials(place: Path) -> None:
    """A manifest with a flipped bit is corrupt; the packs that it names are still hashed."""
    flip(place / "manifests/000001-aa.json", 30)
    flip(place / PACKS[1], -1)

    assert found(place) == [
        ("manifest", "manifests/000001-aa.json", "corrupt", (1,)),
        ("pack", PACKS[1], "corrupt", (1, 2)),
    ]


def test_invalid_manifest_is_corrupt(place: Path, tmp_path: Path) -> None:
    """A manifest with the right digest is corrupt if a tensor exceeds its pack or overlaps another."""
    records = Records(open_root(str(place)))
    whole = Manifest.from_bytes((place / "manifests/000000-aa.json").read_bytes())

    for number, offset in ((6, 10**9), (7, whole.tensors["stem"].offset + 4)):
        tensors: Any = whole.to_json()
        tensors["tensors"]["head"]["offset"] = offset
        reference = records.files.publish(f"manifests/{number:06d}-aa.json", [sealed(tensors)])
        result = read_record(place / "trials/000000.result.json")
        trial = proposed(records, number)
        finish(records, trial, None)
        path = place / f"trials/{number:06d}.result.json"
        edit(
            path, lambda r, ref=reference, c=result["checkpoint"]: r.update(checkpoint={**c, "manifest": ref.to_json()})
        )  # type: ignore[misc]
    assert found(place) == [
        ("manifest", "manifests/000006-aa.json", "corrupt", (6,)),
        ("manifest", "manifests/000007-aa.json", "corrupt", (7,)),
    ]


def test_saved_files_and_exports_are_read(place: Path) -> None:
    """Damage to a saved file and to the winner's export is found, each with its trial."""
    flip(place / "files/000003-aa/model/weights.bin", 500)
    (place / "best/000002-aa/model.safetensors").unlink()

    report = verified(place)

    assert found(place) == [
        ("file", "files/000003-aa/model/weights.bin", "corrupt", (3,)),
        ("export", "best/000002-aa/model.safetensors", "missing", (2,)),
    ]
    assert report.damages[0].detail == "wrong contents"
    assert report.affected == (3,)


def test_unfinished_children_are_named(place: Path) -> None:
    """Unfinished trials that need damaged weights are named, and no others."""
    (place / PACKS[1]).unlink()

    report = verified(place)

    assert report.affected == (1, 2)
    assert report.unfinished == (5,)


@pytest.mark.parametrize(
    ("path", "trials", "why"),
    [
        ("search.json", (), "every search has one"),
        ("sessions/0001.json", (), "attempt 1 of trial 0 ran in it"),
        ("trials/000003.proposal.json", (3,), "trial 5 exists"),
        ("trials/000005.proposal.json", (), ""),
        ("trials/000001.start-1.json", (1,), "the trial's result is from this attempt"),
        ("trials/000004.result.json", (4,), "the tuner knew it when it proposed trial 5"),
        ("trials/000002.result.json", (2,), "the tuner knew it"),
        ("trials/000003.result.json", (3,), "manifests/000003-aa.json exists and session 1 ended normally"),
    ],
)
def test_lost_record_is_missed(place: Path, path: str, trials: tuple[int, ...], why: str) -> None:
    """A deleted record is reported if another one shows that it existed; the last proposal leaves no trace."""
    (place / path).unlink()

    if not why:
        assert found(place) == []
        return
    damage = only(place)
    assert (damage.kind, damage.path, damage.state, damage.trials) == ("record", path, "missing", trials)
    assert why in damage.detail


def test_result_that_its_children_show_is_missed(place: Path) -> None:
    """A result is missing if a child has run, or a test or the winner's record names it."""
    edit(place / "trials/000001.proposal.json", lambda record: record.update(learned=[]))
    edit(place / "trials/000005.proposal.json", lambda record: record.update(learned=[]))
    shutil.rmtree(place / "manifests")
    for number in (0, 2, 4):
        (place / f"trials/{number:06d}.result.json").unlink()

    missed = {d.path: d.detail for d in verified(place).damages if d.kind == "record"}

    assert missed == {
        "trials/000000.result.json": "expected because its child, trial 1, has run",
        "trials/000002.result.json": "expected because tests/000002.json exists",
    }
    (place / "tests/000002.json").unlink()
    assert "expected because best-0001.json names it" in [d.detail for d in verified(place).damages]


def test_killed_session_loses_no_result(place: Path) -> None:
    """A manifest without a result is no damage if its session was killed."""
    (place / "trials/000003.result.json").unlink()
    edit(place / "sessions/0001.beat", lambda record: record.update(ended=False))

    assert found(place) == []


@pytest.mark.parametrize(
    "contents",
    [b"", b"{", b"[]", b"\xff\xfe{}", b"[" * 100_000, b"{}", sealed({}), sealed({"trial": 1}), None],
    ids=["empty", "cut", "no_object", "no_text", "deep", "no_digest", "nothing", "little", "other"],
)
def test_record_that_is_none_is_corrupt(place: Path, contents: bytes | None) -> None:
    """A result that is cut, no JSON, lacks keys or is another trial's is corrupt, and hides no other damage."""
    path = place / "trials/000001.result.json"
    path.write_bytes((place / "trials/000002.result.json").read_bytes() if contents is None else contents)
    (place / "manifests/000000-aa.json").unlink()

    assert found(place) == [
        ("record", "trials/000001.result.json", "corrupt", (1,)),
        ("manifest", "manifests/000000-aa.json", "missing", (0,)),
    ]


def test_lost_proposal_hides_no_weights(place: Path) -> None:
    """The checkpoint of a trial whose proposal is lost is verified by its result."""
    (place / "trials/000001.proposal.json").write_bytes(b"{}")
    (place / PACKS[1]).unlink()

    assert found(place) == [
        ("record", "trials/000001.proposal.json", "corrupt", (1,)),
        ("pack", PACKS[1], "missing", (1, 2)),
    ]


def test_series_of_records_have_no_gaps(place: Path) -> None:
    """Sessions, winners and gc records are numbered from 1, so that a gap is a missing record."""
    last = {"sessions/0003.json": SESSION, "best-0003.json": {**BEST, "number": 3}, "gc/0002.json": {"trials": {}}}
    for name, record in last.items():
        (place / name).parent.mkdir(exist_ok=True)
        write_record(place / name, record)

    assert [path for _, path, _, _ in found(place)] == ["best-0002.json", "gc/0001.json", "sessions/0002.json"]


def test_records_of_another_shape_are_corrupt(place: Path) -> None:
    """A record of valid JSON but another shape is corrupt: search, winner, gc, result."""
    write_record(place / "search.json", {"format": FORMAT})
    edit(place / "best-0001.json", lambda record: record.update(files=[{"path": "../up", "bytes": 1, "digest": ""}]))
    Records(open_root(str(place))).publish("gc/0001.json", {"trials": None})
    edit(place / "trials/000000.result.json", lambda record: record["checkpoint"].pop("manifest"))

    paths = ["best-0001.json", "gc/0001.json", "search.json", "trials/000000.result.json"]
    assert [(path, fate) for _, path, fate, _ in found(place)] == [(path, "corrupt") for path in paths]


def test_deleted_weights_are_no_damage(place: Path) -> None:
    """Files of deleted weights may be missing, but not a pack that another trial uses."""
    Records(open_root(str(place))).publish("gc/0001.json", {"gc": 1, "trials": {"1": "", "3": ""}})
    for path in ("manifests/000001-aa.json", "manifests/000003-aa.json", "files/000003-aa/model/weights.bin"):
        (place / path).unlink()

    assert found(place) == []
    (place / PACKS[1]).unlink()
    assert found(place) == [("pack", PACKS[1], "missing", (2,))]


def test_resume_points_of_unfinished_trials_are_read(place: Path) -> None:
    """Resume points of unfinished trials are verified, record and pack; those of finished ones are garbage."""
    files = open_root(str(place))
    for number in (1, 5):
        ResumePoints(files, number).publish(RESUME_STATE, {"stem": TENSORS["stem"]})
    assert verified(place).counts["resume"].n_files == 1
    assert found(place) == []
    [record] = (place / "resume/000005").glob("*.json")
    [pack] = (place / "resume/000005").glob("*.safetensors")
    for path in (place / "resume/000001").iterdir():
        path.unlink()

    flip(pack, -1)
    assert found(place) == [("resume", str(pack.relative_to(place)), "corrupt", (5,))]
    assert verified(place).affected == ()
    flip(record, 5)
    assert found(place) == [("record", str(record.relative_to(place)), "corrupt", (5,))]


def test_file_that_appears_late_is_no_damage(place: Path) -> None:
    """A file that is whole in the second pass is not reported, since a cache may show it late."""
    pack = place / PACKS[0]
    data = pack.read_bytes()
    pack.unlink()

    report = verified(place, progress=lambda report: pack.write_bytes(data) and None)

    assert report.damages == []


def test_weights_deleted_meanwhile_are_no_damage(place: Path) -> None:
    """Weights that are deleted during the verification are no damage."""
    records = Records(open_root(str(place)))
    (place / "files/000003-aa/model/weights.bin").unlink()

    def delete(_: VerificationReport) -> None:
        if records.read("gc/0001.json") is None:
            records.publish("gc/0001.json", {"gc": 1, "trials": {"3": "keep=best:1"}})

    assert verified(place, progress=delete).damages == []


def test_every_file_is_missed(place: Path) -> None:
    """Each file but heartbeats and the last record of a kind, deleted one at a time, is missed by name."""
    paths = [p for p in sorted(place.rglob("*")) if p.is_file() and p.suffix != ".beat"]
    edit(place / "trials/000005.proposal.json", lambda record: record.update(learned=[2, 3, 4]))

    for path in paths:
        name, data = str(path.relative_to(place)), path.read_bytes()
        if name in ("tests/000002.json", "best-0001.json", "trials/000005.proposal.json"):
            continue  # the last of their kind: nothing else tells of them
        path.unlink()
        assert name in [damage.path for damage in verified(place).damages], name
        path.write_bytes(data)


def test_memory_is_little(tmp_path: Path) -> None:
    """A pack of 64 MB in one tensor is hashed as a whole and by its tensor in a few MB."""
    files = open_root(str(tmp_path / "search"))
    records = Records(files)
    metrics = [{"name": "accuracy", "direction": "maximize"}]
    records.publish("search.json", {"format": FORMAT, "identity": IDENTITY, "metrics": metrics})
    finish(records, proposed(records, 0), publish(files, 0, {"large": torch.ones(16 << 20), **TENSORS}))
    records.publish("sessions/0001.json", SESSION)
    flip(tmp_path / "search" / PACKS[0], -(40 << 20))
    tracemalloc.start()
    try:
        damages = verified(tmp_path / "search").damages
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert [damage.detail for damage in damages] == ["1 of its 4 tensors: large"]
    assert peak < 8 << 20


@given(st.data())
def test_ranges_are_hashed_block_by_block(data: st.DataObject) -> None:
    """Whatever the blocks, exactly the ranges with wrong or missing bytes are mismatches."""
    size = data.draw(st.integers(0, 200))
    contents = random.Random(size).randbytes(size)
    spans = data.draw(st.lists(st.tuples(st.integers(0, 220), st.integers(0, 60), st.booleans()), max_size=8))
    ranges, wrong = set(), set()
    for offset, length, lies in spans:
        inside = contents[offset : offset + length]
        tensor = TensorRange(offset, length, digest_of(inside + b"!" if lies else inside))
        ranges.add(tensor)
        if lies or offset + length > size:
            wrong.add(tensor)
    hasher = RangeHasher(ranges)

    at = 0
    while at < size:
        step = data.draw(st.integers(1, 64))
        hasher.update(memoryview(contents)[at : at + step])
        at += step

    assert hasher.mismatches() == wrong
