"""Checkpoints: published data is loaded, damage is named, false data is refused."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nas.core.checkpoint import Checkpoint, SavedFolder
from nas.core.errors import ConfigurationError, CorruptError, MissingError
from nas.core.reference import Reference
from nas.storage.blobs import BlobStore
from nas.storage.checkpoints import fetch_folder, load_manifest, publish_checkpoint, publish_tensors
from nas.storage.folders import publish_folder
from nas.storage.lazy_weights import StoredWeights
from nas.storage.manifest import Manifest
from nas.storage.open import open_root
from nas.storage.record_format import decode_record
from nas.storage.record_values import checked_exactly
from nas.storage.tensor_parts import TensorParts
from nas.storage.verified import digest_of
from tests.support.record_files import sealed

TENSORS = {"weight": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(7)}


@pytest.fixture
def files(tmp_path: Path) -> BlobStore:
    return open_root(str(tmp_path / "root"), retry_s=0)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "saved"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"onnx")
    (folder / "deep" / "er" / "ä b.txt").write_bytes(b"text")
    (folder / "empty").write_bytes(b"")
    return folder


@pytest.fixture
def checkpoint(files: BlobStore, saved: Path) -> Checkpoint:
    tensors = publish_tensors(files, "packs/000001-ab.safetensors", TENSORS)
    return publish_checkpoint(files, "000001-ab", tensors, publish_folder(files, "000001-ab", saved))


def test_tensors_come_back(files: BlobStore, checkpoint: Checkpoint) -> None:
    """StoredWeights returns the saved tensors."""
    found = StoredWeights(files, checkpoint).read_all()

    assert found.keys() == TENSORS.keys()
    assert all(torch.equal(found[name], TENSORS[name]) for name in TENSORS)


def test_folder_comes_back(files: BlobStore, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """fetch_folder writes the saved files in their folders."""
    fetch_folder(files, checkpoint, tmp_path / "fetched")

    found = {str(p.relative_to(tmp_path / "fetched")): p.read_bytes() for p in (tmp_path / "fetched").rglob("*.*")}
    assert found == {"model.onnx": b"onnx", "deep/er/ä b.txt": b"text"}
    assert (tmp_path / "fetched" / "empty").read_bytes() == b""


def test_own_bytes_counts_everything(files: BlobStore, checkpoint: Checkpoint, tmp_path: Path) -> None:
    """own_bytes is the checkpoint's size on disk."""
    on_disk = sum(path.stat().st_size for path in (tmp_path / "root").rglob("*") if path.is_file())

    assert checkpoint.own_bytes == on_disk


def test_json_round_trip(checkpoint: Checkpoint) -> None:
    """A checkpoint survives JSON, and its record holds neither root nor host."""
    text = json.dumps(checkpoint.to_json())

    assert checked_exactly(Checkpoint, json.loads(text)) == checkpoint
    assert "root" not in text
    assert socket.gethostname() not in text


def test_files_alone_are_a_checkpoint(files: BlobStore, saved: Path, tmp_path: Path) -> None:
    """A trial of another framework saves files only, without tensors to load."""
    checkpoint = publish_checkpoint(files, "000002-cd", None, publish_folder(files, "000002-cd", saved))

    assert StoredWeights(files, checkpoint).read_all() == {}
    assert checkpoint.saved is not None
    assert (checkpoint.saved.path, checkpoint.saved.n_files, checkpoint.saved.bytes) == ("files/000002-cd", 3, 8)


def test_manifest_may_name_packs_of_others(files: BlobStore, checkpoint: Checkpoint) -> None:
    """A child's manifest names the donor's pack for unchanged tensors, and needs no other manifest."""
    donor = load_manifest(files, checkpoint)
    child = {**TENSORS, "weight": torch.ones(2, 3)}
    published = publish_checkpoint(
        files, "000002-cd", publish_tensors(files, "packs/000002-cd.safetensors", child, [donor])
    )

    assert [pack.path for pack in published.packs] == ["packs/000002-cd.safetensors", "packs/000001-ab.safetensors"]
    assert published.own_bytes == published.manifest.bytes + published.packs[0].bytes
    files.delete(checkpoint.manifest.path)
    assert all(torch.equal(tensor, child[name]) for name, tensor in StoredWeights(files, published).read_all().items())


def test_manifest_of_a_deleted_pack_is_not_published(files: BlobStore) -> None:
    """A collection may have taken the pack for that of a crashed trial, whose worker goes on."""
    tensors = publish_tensors(files, "packs/000002-cd.safetensors", TENSORS)
    files.delete("packs/000002-cd.safetensors")

    with pytest.raises(MissingError, match=r"packs/000002-cd\.safetensors"):
        publish_checkpoint(files, "000002-cd", tensors)
    assert not files.names("manifests")


def without(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda data: data.pop(key)


@pytest.mark.parametrize(
    "change",
    [
        without("manifest"),
        without("search"),
        lambda data: data.update(extra=1),
        lambda data: data.update(manifest=None),
        lambda data: data.update(packs={}),
        lambda data: data.update(saved=["a"]),
        lambda data: data["saved"].update(n_files=0),
        lambda data: data["saved"].update(path="packs/000001-ab"),
        lambda data: data.update(search=1),
        lambda data: data["packs"][0].update(path="/etc/passwd"),
        lambda data: data["packs"][0].update(bytes="1"),
        lambda data: data["packs"].append(data["packs"][0]),
    ],
)
def test_record_that_is_no_checkpoint_is_corrupt(checkpoint: Checkpoint, change: Callable[[Any], object]) -> None:
    """A missing or unknown key, a wrong type, an outside path and a doubled file are CorruptError."""
    data = json.loads(json.dumps(checkpoint.to_json()))
    change(data)

    with pytest.raises(CorruptError):
        checked_exactly(Checkpoint, data)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(format=3),
        lambda data: data.update(format=True),
        without("tensors"),
        lambda data: data.update(extra=1),
        lambda data: data.update(tensors=[]),
        lambda data: data.update(packs=[]),
        lambda data: data.update(files=[]),
        lambda data: data["files"].pop(),
        lambda data: data["files"][0].update(path="files/000002-cd/model.onnx"),
        lambda data: data["tensors"]["weight"].update(pack="packs/other"),
        lambda data: data["tensors"]["weight"].update(shape="23"),
        lambda data: data["tensors"]["weight"].update(shape=[2, 3.0]),
        lambda data: data["tensors"]["weight"].update(offset=None),
        lambda data: data["tensors"]["weight"].pop("digest"),
        lambda data: data["packs"][0].update(path="../../x"),
        lambda data: data["packs"][0].update(bytes=10**9),
    ],
)
def test_invalid_manifest_is_named(files: BlobStore, checkpoint: Checkpoint, change: Callable[[Any], object]) -> None:
    """A manifest with wrong keys, types, names or sizes is CorruptError with its path, even if its digest is right."""
    data = decode_record(files.read(checkpoint.manifest))
    change(data)

    with pytest.raises(CorruptError, match=r"manifests/liar\.json"):
        StoredWeights(files, with_manifest(files, checkpoint, sealed(data))).read_all()


PARTS = TensorParts(1, ((2, 1), (1, 1)))


def test_parts_come_back(files: BlobStore) -> None:
    """The heads of tensors come back; those of a tensor that is not saved, or of another shape, are left out."""
    parts = {"weight": PARTS, "other": PARTS, "steps": PARTS}
    tensors = publish_tensors(files, "packs/000001-ab.safetensors", TENSORS, parts=parts)

    assert StoredWeights(files, publish_checkpoint(files, "000001-ab", tensors)).parts == {"weight": PARTS}


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(parts=[]),
        lambda data: data.update(parts=None),
        lambda data: data["parts"].update(other={"dim": 0, "sizes": [[1]]}),
        lambda data: data["parts"].update(steps={"dim": 0, "sizes": [[1]]}),
        lambda data: data["parts"].update(weight=[0, [[2]]]),
        lambda data: data["parts"]["weight"].update(extra=1),
        lambda data: data["parts"]["weight"].update(dim=2),
        lambda data: data["parts"]["weight"].update(dim=-1),
        lambda data: data["parts"]["weight"].update(dim=True),
        lambda data: data["parts"]["weight"].update(sizes=[]),
        lambda data: data["parts"]["weight"].update(sizes=[[]]),
        lambda data: data["parts"]["weight"].update(sizes=[3]),
        lambda data: data["parts"]["weight"].update(sizes=[[2]]),
        lambda data: data["parts"]["weight"].update(sizes=[[3.0]]),
        lambda data: data["parts"]["weight"].update(sizes=[[True], [2]]),
        lambda data: data["parts"]["weight"].update(sizes=[[-1, -3]]),
        lambda data: data["parts"]["weight"].update(sizes=[[3], [0]]),
        lambda data: data["parts"]["weight"].update(sizes=[[3], [10**30]]),
        lambda data: data["parts"]["weight"].update(sizes=[[3, *[1] * 8]]),
        lambda data: data["parts"]["weight"].update(sizes=[[1]] * 65),
    ],
)
def test_false_parts_are_corrupt(files: BlobStore, change: Callable[[Any], object]) -> None:
    """Parts of wrong types or of tensors that can't have them are CorruptError with the manifest's path."""
    tensors = publish_tensors(files, "packs/000001-ab.safetensors", TENSORS, parts={"weight": PARTS})
    checkpoint = publish_checkpoint(files, "000001-ab", tensors)
    data = decode_record(files.read(checkpoint.manifest))
    change(data)

    with pytest.raises(CorruptError, match=r"manifests/liar\.json"):
        load_manifest(files, with_manifest(files, checkpoint, sealed(data)))


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b"null", b"[" * 100_000])
def test_manifest_that_is_no_json_is_named(files: BlobStore, checkpoint: Checkpoint, data: bytes) -> None:
    """A manifest that is no JSON object is CorruptError with its path."""
    with pytest.raises(CorruptError, match=r"manifests/liar\.json"):
        StoredWeights(files, with_manifest(files, checkpoint, data)).read_all()


def with_manifest(files: BlobStore, checkpoint: Checkpoint, data: bytes) -> Checkpoint:
    reference = files.publish("manifests/liar.json", [data])
    return Checkpoint(manifest=reference, packs=checkpoint.packs, saved=checkpoint.saved)


class TestPublishFolder:
    def test_names_are_kept_below_the_stem(self, files: BlobStore, checkpoint: Checkpoint) -> None:
        """Every file of the folder is published under files/<stem>/ and its own path."""
        assert {reference.path for reference in load_manifest(files, checkpoint).files} == {
            "files/000001-ab/deep/er/ä b.txt",
            "files/000001-ab/empty",
            "files/000001-ab/model.onnx",
        }

    def test_record_does_not_grow_with_the_files(self, files: BlobStore, tmp_path: Path) -> None:
        """The record of a hundred files is as long as that of one, and all of them come back."""
        (tmp_path / "many").mkdir()
        for number in range(100):
            (tmp_path / "many" / f"{number}.txt").write_text(f"{number}")
        checkpoint = publish_checkpoint(files, "s", None, publish_folder(files, "s", tmp_path / "many"))
        fetch_folder(files, checkpoint, tmp_path / "fetched")

        assert len(json.dumps(checkpoint.to_json())) < 500
        assert len(list((tmp_path / "fetched").iterdir())) == 100
        assert (tmp_path / "fetched" / "99.txt").read_text() == "99"

    def test_links_within_are_followed(self, files: BlobStore, saved: Path) -> None:
        """A link within the folder is published as the file or folder that it points to."""
        (saved / "latest").symlink_to("model.onnx")
        (saved / "also").symlink_to("deep")

        found = {reference.path: reference for reference in publish_folder(files, "s", saved)}
        assert files.read(found["files/s/latest"]) == b"onnx"
        assert files.read(found["files/s/also/er/ä b.txt"]) == b"text"

    @pytest.mark.parametrize("kind", ["file", "folder", "circle", "broken", "pipe", "socket", "temporary", "not-utf8"])
    def test_unsupported_files_are_refused(self, files: BlobStore, saved: Path, tmp_path: Path, kind: str) -> None:
        """A link out of the folder, a loop, a pipe, a socket and a bad name are refused before publishing."""
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "secret").write_bytes(b"secret")
        bad = saved / "zzz"
        match kind:
            case "file":
                bad.symlink_to(tmp_path / "outside" / "secret")
            case "folder":
                bad.symlink_to("../outside")
            case "circle":
                bad.symlink_to(".")
            case "broken":
                bad.symlink_to("nothing")
            case "pipe":
                os.mkfifo(bad)
            case "socket":
                short = os.path.relpath(bad)
                with socket.socket(socket.AF_UNIX) as server:
                    server.bind(short if len(short) < 100 else str(bad))
            case "temporary":
                (saved / ".tmp-1").write_bytes(b"")
            case "not-utf8":
                Path(os.fsdecode(os.fsencode(saved) + b"/\xff")).write_bytes(b"")

        with pytest.raises(ConfigurationError):
            publish_folder(files, "s", saved)
        assert files.names("files") == []

    def test_empty_folder_is_nothing(self, files: BlobStore, tmp_path: Path) -> None:
        """A folder without files publishes nothing."""
        (tmp_path / "saved" / "below").mkdir(parents=True)

        assert publish_folder(files, "s", tmp_path / "saved") == ()


class TestFetchFolder:
    @pytest.mark.parametrize(
        "paths",
        [
            ["packs/000001-ab/x"],
            ["files/x"],
            ["files/s/x", "files/t/x"],
            ["files/s/x", "files/s/x/y"],
        ],
    )
    def test_hostile_names_are_refused_before_writing(self, files: BlobStore, tmp_path: Path, paths: list[str]) -> None:
        """A name outside files/, a name given twice, and a file that is also a folder are CorruptError."""
        good = files.publish("files/s/a", [b"good"])
        saved = (good, *(Reference(path, 3, digest_of(b"bad")) for path in paths))
        manifest = Manifest(tensors={}, packs=(), files=saved)
        reference = files.publish("manifests/s.json", [manifest.to_bytes()])
        folder = SavedFolder(path="files/s", n_files=len(saved), bytes=4 + 3 * len(paths), on_disk=4096 * len(saved))
        checkpoint = Checkpoint(manifest=reference, packs=(), saved=folder)

        with pytest.raises(CorruptError, match=r"two files|is not in files/s/"):
            fetch_folder(files, checkpoint, tmp_path / "fetched")
        assert not (tmp_path / "fetched").exists()

    def test_folder_that_is_not_empty_is_refused(self, files: BlobStore, checkpoint: Checkpoint, saved: Path) -> None:
        """A target folder that is not empty (a link, for example) is refused."""
        with pytest.raises(ConfigurationError, match="must be empty"):
            fetch_folder(files, checkpoint, saved)

    def test_damaged_file_is_not_written(self, files: BlobStore, checkpoint: Checkpoint, tmp_path: Path) -> None:
        """A file with wrong bytes is CorruptError and is not written."""
        damaged = load_manifest(files, checkpoint).files[-1]
        (tmp_path / "root" / damaged.path).write_bytes(b"xxxx")

        with pytest.raises(CorruptError, match=damaged.path):
            fetch_folder(files, checkpoint, tmp_path / "fetched")
        assert not (tmp_path / "fetched" / "model.onnx").exists()
