"""Roots wherever fsspec reaches: whole objects, real refusals, and messages that keep secrets."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from nas.core.errors import AlreadyPublishedError, ConfigurationError, StorageError
from nas.core.spec import Spec
from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from nas.training.messages import RuntimeSpec
from tests.support.problems import PlainProblem

SECRET = "hunter2-hunter2"
REPOSITORY = Path(__file__).parents[4]


class PlainFileSystem(LocalFileSystem):  # type: ignore[misc]
    """A file system of fsspec's ordinary kind: folders, no exclusive create, and a listing cache."""

    protocol = "plain"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("plain://").rstrip("/")


class BrokenFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Refuses every write, and says more in its error than it should."""

    protocol = "broken"

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.options = options

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(str(path).replace("broken://", "memory://")))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        raise PermissionError(f"no entry\nwith {self.options}")


class VanishingFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Refuses taken names, like Google's and Azure's; another process deletes an object before it is looked at."""

    protocol = "vanishing"
    async_impl = True

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(str(path).replace("vanishing://", "memory://")))

    def exists(self, path: str, **kwargs: Any) -> bool:
        return self._strip_protocol(path) in self.store

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        self.rm_file(path)
        return dict(super().info(path, **kwargs))


@pytest.fixture
def plain(tmp_path: Path) -> BlobStore:
    fsspec.register_implementation("plain", PlainFileSystem, clobber=True)
    return open_root(f"plain://{tmp_path}/root", retry_s=0)


def test_ordinary_file_system_keeps_the_contract(plain: BlobStore, tmp_path: Path) -> None:
    """Where fsspec knows folders, they are made as needed, and taken names are refused."""
    plain.check_writable()
    reference = plain.publish("trials/1.json", [b"1"], exclusive=True)

    with pytest.raises(AlreadyPublishedError):
        plain.publish("trials/1.json", [b"2"], exclusive=True)
    assert plain.read(reference) == b"1"
    assert plain.read_folder("trials", ".json") == {"1.json": b"1"}
    assert plain.names() == ["trials"]
    assert (tmp_path / "root/trials/1.json").read_bytes() == b"1"
    plain.delete("trials/1.json")
    assert plain.read_if_present("trials/1.json") is None


def test_store_that_lets_names_be_replaced_is_refused(plain: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store on which a second writer wins is found out by check_writable."""
    monkeypatch.setattr(PlainFileSystem, "exists", lambda *args: False)

    with pytest.raises(ConfigurationError, match="second writer"):
        plain.check_writable()


def test_object_that_vanishes_was_taken() -> None:
    """A taken name whose object is deleted at the same moment is refused as taken."""
    fsspec.register_implementation("vanishing", VanishingFileSystem, clobber=True)
    files = open_root(f"vanishing://{uuid4().hex}", retry_s=0)
    files.publish("trials/1.json", [b"1"], exclusive=True)

    with pytest.raises(AlreadyPublishedError):
        files.publish("trials/1.json", [b"2"], exclusive=True)
    assert files.names("trials") == []


def test_other_roots_leave_the_log_of_gcsfs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root that is not Google's does not silence gcsfs, which a user's own code may use."""
    log = logging.getLogger("gcsfs")
    monkeypatch.setattr(log, "level", logging.WARNING)

    open_root(f"memory://{uuid4().hex}")
    assert log.level == logging.WARNING


def test_memory_is_one_store_for_all_threads() -> None:
    """Readers in many threads get whole objects while others write."""
    url = f"memory://{uuid4().hex}"
    references = [open_root(url).publish(f"packs/{n}", [bytes([n]) * 100_000]) for n in range(8)]
    wrong: list[object] = []

    def read() -> None:
        files = open_root(url)
        for n in range(50):
            if files.read(references[n % 8]) != bytes([n % 8]) * 100_000:
                wrong.append(n)
            files.publish(f"packs/{uuid4().hex}", [b"x"])

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_unknown_protocol_lists_the_known() -> None:
    """A protocol that fsspec does not know is refused with those that it knows."""
    with pytest.raises(ConfigurationError, match=r"nope://x.*unknown protocol.*memory.*s3.*sftp"):
        open_root("nope://x")


@pytest.mark.parametrize(
    ("url", "package"),
    [("s3://b/x", "boto3"), ("gs://b/x", "gcsfs"), ("az://b/x", "adlfs"), ("sftp://host/x", "asyncssh")],
)
def test_missing_driver_names_its_package(url: str, package: str) -> None:
    """A root whose driver is not installed names the package to install."""
    script = (
        "import sys; sys.modules[sys.argv[2]] = None; from nas.storage.open import open_root; open_root(sys.argv[1])"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, url, package], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )

    assert f"ConfigurationError: storage root {url} needs the package {package}: pip install {package}" in done.stderr


def test_messages_keep_secrets() -> None:
    """No option and no password of the URL is in a message or in the URL for display; the line is one line."""
    fsspec.register_implementation("broken", BrokenFileSystem, clobber=True)
    files = open_root(f"broken://me:{SECRET}@host/root", {"nested": {"token": [SECRET]}, "key": "akey"}, retry_s=0)

    assert files.url == "broken://me:***@host/root"
    with pytest.raises(StorageError) as caught:
        files.publish("a", [b"1"])
    assert "PermissionError: no entry with" in str(caught.value)
    with pytest.raises(ConfigurationError) as refused:
        files.check_writable()
    for message in (str(caught.value), str(refused.value)):
        assert SECRET not in message
        assert "akey" not in message
        assert "\n" not in message


@pytest.mark.parametrize("is_variable", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        f"AccountName=name;AccountKey={SECRET};EndpointSuffix=core.windows.net",
        f"accountname=name;accountkey={SECRET}",
        f"BlobEndpoint=https://host/;SharedAccessSignature={SECRET}",
        f"BLOBENDPOINT=https://host/;SHAREDACCESSSIGNATURE=sv=2024&sig={SECRET}&se=2027",
        f"blobendpoint=https://host/?sv=2024&sig={SECRET.replace('-', '%2D')};AccountName=name",
    ],
)
def test_key_in_a_connection_string_is_a_secret(monkeypatch: pytest.MonkeyPatch, text: str, is_variable: bool) -> None:
    """A message shows no key and no signature of Azure's connection string, in an option or a variable."""
    fsspec.register_implementation("broken", BrokenFileSystem, clobber=True)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text if is_variable else "")
    files = open_root("broken://root", {} if is_variable else {"connection_string": text}, retry_s=0)
    monkeypatch.setattr(BrokenFileSystem, "cat_ranges", lambda *args, **kwargs: 1 / int(f"0{SECRET}"))

    with pytest.raises(StorageError, match=r"invalid literal.*\*\*\*") as caught:
        files.read_if_present("a")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_what_travels_to_workers_is_shown_without_secrets() -> None:
    """The order that a worker gets, printed by whomever, has neither the root's password nor its options."""
    spec = RuntimeSpec(problem=Spec.of(PlainProblem), url=f"sftp://me:{SECRET}@host/x", options={"secret": SECRET})

    assert SECRET not in repr(spec)


def test_option_that_the_driver_refuses_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that the file system does not take is ConfigurationError without its value."""
    fsspec.register_implementation("plain", PlainFileSystem, clobber=True)

    def refuse(self: object, *args: object, **options: object) -> None:
        raise TypeError(f"unexpected {options}")

    monkeypatch.setattr(PlainFileSystem, "__init__", refuse)
    with pytest.raises(ConfigurationError, match=r"storage\.options") as caught:
        open_root("plain:///x", {"password": SECRET})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        f"s3://KEY:ab/{SECRET}@bucket/prefix",
        f"sftp://me:ab/{SECRET}@127.0.0.1/x",
        f"sftp://me:ab#{SECRET}@127.0.0.1:9/x",
        f"sftp://me:ab?{SECRET}@127.0.0.1:9/x",
        f"az://container/folder?sv=2024&sig={SECRET}%3D",
        f"gs://bucket/folder?token={SECRET}",
        f"sftp://me:{SECRET}@127.0.0.1/x?y",
    ],
)
def test_credentials_that_can_not_be_masked_are_refused(url: str) -> None:
    """A password with a slash and the like, and any query, are refused without a trace of them."""
    with pytest.raises(ConfigurationError, match=r"^storage.root=\S+\*\*\*: must not have") as caught:
        open_root(url)

    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url", ["memory://a/b@c", "memory://a:1/b@c", "memory://me@a:1/b@c", "memory://me:a%2Fb@h/c@d"]
)
def test_an_at_sign_in_a_path_is_no_password(url: str) -> None:
    """A path may hold an @, also after a port."""
    assert open_root(url).url == url.replace("a%2Fb", "***")
