"""Roots in object stores: whole objects, real refusals, and messages that keep secrets."""

from __future__ import annotations

import importlib.util
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from nas.errors import AlreadyPublishedError, ConfigurationError, MissingError, StoreError
from nas.store.files import Files, open_root

SECRET = "hunter2-hunter2"


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


@pytest.fixture
def plain(tmp_path: Path) -> Files:
    fsspec.register_implementation("plain", PlainFileSystem, clobber=True)
    return open_root(f"plain://{tmp_path}/root", patience_s=0)


@pytest.fixture
def s3() -> Iterator[str]:
    pytest.importorskip("s3fs", reason="S3 needs s3fs")
    server = pytest.importorskip("moto.server", reason="S3 is tested on moto").ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def s3_root(endpoint: str, bucket: str = "bucket") -> Files:
    options = {"key": "heirloom", "secret": SECRET, "endpoint_url": endpoint}
    return open_root(f"s3://{bucket}/searches", options, patience_s=0)


def test_ordinary_file_system_keeps_the_contract(plain: Files, tmp_path: Path) -> None:
    """Where fsspec knows folders, they are made as needed, and taken names are refused."""
    plain.check_writable()
    reference = plain.publish("trials/1.json", [b"1"], exclusive=True)

    with pytest.raises(AlreadyPublishedError):
        plain.publish("trials/1.json", [b"2"], exclusive=True)
    assert plain.read(reference) == b"1"
    assert plain.read_all("trials", ".json") == {"1.json": b"1"}
    assert plain.names() == ["trials"]
    assert (tmp_path / "root/trials/1.json").read_bytes() == b"1"
    plain.delete("trials/1.json")
    assert plain.read_if_present("trials/1.json") is None


def test_store_that_lets_names_be_replaced_is_refused(plain: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store on which a second writer wins is found out by check_writable."""
    monkeypatch.setattr(PlainFileSystem, "exists", lambda *args: False)

    with pytest.raises(ConfigurationError, match="second writer"):
        plain.check_writable()


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
    ("url", "package"), [("s3://bucket/x", "s3fs"), ("gs://bucket/x", "gcsfs"), ("sftp://host/x", "paramiko")]
)
def test_missing_driver_names_its_package(url: str, package: str) -> None:
    """A root whose driver is not installed names the package to install."""
    if importlib.util.find_spec(package):
        pytest.skip(f"{package} is installed")

    with pytest.raises(ConfigurationError, match=f"pip install {package}"):
        open_root(url)


def test_messages_keep_secrets() -> None:
    """No option and no password of the URL is in a message or in the URL for display; the line is one line."""
    fsspec.register_implementation("broken", BrokenFileSystem, clobber=True)
    files = open_root(f"broken://me:{SECRET}@host/root", {"nested": {"token": [SECRET]}, "key": "akey"}, patience_s=0)

    assert files.url == "broken://me:***@host/root"
    with pytest.raises(StoreError) as caught:
        files.publish("a", [b"1"])
    assert "PermissionError: no entry with" in str(caught.value)
    with pytest.raises(ConfigurationError) as refused:
        files.check_writable()
    for message in (str(caught.value), str(refused.value)):
        assert SECRET not in message
        assert "akey" not in message
        assert "\n" not in message


def test_option_that_the_driver_refuses_is_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that the file system does not take is ConfigurationError without its value."""
    fsspec.register_implementation("plain", PlainFileSystem, clobber=True)

    def refuse(self: object, *args: object, **options: object) -> None:
        raise TypeError(f"unexpected {options}")

    monkeypatch.setattr(PlainFileSystem, "__init__", refuse)
    with pytest.raises(ConfigurationError, match=r"storage\.options") as caught:
        open_root("plain:///x", {"password": SECRET})
    assert SECRET not in str(caught.value)


@pytest.mark.filterwarnings("default")
def test_s3_keeps_the_contract(s3: str) -> None:
    """On S3 (moto), names are exclusive, listings fresh, references verified, and workers get the same root."""
    import s3fs

    s3fs.S3FileSystem(key="heirloom", secret=SECRET, endpoint_url=s3).mkdir("bucket")
    files, other = s3_root(s3), pickle.loads(pickle.dumps(s3_root(s3)))
    files.check_writable()

    assert other.names("trials") == []
    reference = files.publish("trials/1.json", [b"1"], exclusive=True)
    assert other.names("trials") == ["1.json"]
    with pytest.raises(AlreadyPublishedError):
        other.publish("trials/1.json", [b"2"], exclusive=True)
    assert other.read(reference) == b"1"
    assert other.read_all("trials", ".json") == {"1.json": b"1"}
    files.replace("beat", b"1")
    files.replace("beat", b"22")
    assert other.read_if_present("beat") == b"22"
    assert other.read_if_present("nothing") is None
    files.delete("trials/1.json")
    files.delete("trials/1.json")
    with pytest.raises(MissingError):
        other.read(reference)
    assert files.below("one").sibling("two").url == "s3://bucket/searches/two"


@pytest.mark.filterwarnings("default")
def test_bucket_is_not_made_by_mistake(s3: str) -> None:
    """A bucket that does not exist is refused, not created."""
    with pytest.raises(ConfigurationError, match=r"s3://misspelt/searches.*no such bucket") as caught:
        s3_root(s3, "misspelt").check_writable()
    assert SECRET not in str(caught.value)


SFTP_SERVER = """
import asyncio, asyncssh, sys

class Server(asyncssh.SSHServer):
    def begin_auth(self, username): return True
    def password_auth_supported(self): return True
    def validate_password(self, username, password): return password == sys.argv[1]

async def serve():
    keys = [asyncssh.generate_private_key("ssh-ed25519")]
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=keys, sftp_factory=True)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.sleep(300)

asyncio.run(serve())
"""


@pytest.fixture
def sftp_port() -> Iterator[int]:
    pytest.importorskip("paramiko", reason="sftp needs paramiko")
    pytest.importorskip("asyncssh", reason="sftp is tested on asyncssh's server")
    with subprocess.Popen([sys.executable, "-c", SFTP_SERVER, SECRET], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield int(server.stdout.readline())
        server.kill()


@pytest.mark.filterwarnings("default")
def test_sftp_keeps_the_contract(sftp_port: int, tmp_path: Path) -> None:
    """Over sftp, names are exclusive and whole, folders are made, and a megabyte does not take a second."""
    root = open_root(f"sftp://me@127.0.0.1:{sftp_port}{tmp_path}/a/b", {"password": SECRET}, patience_s=0)
    root.check_writable()

    reference = root.publish("trials/1.json", [b"1"], exclusive=True)
    with pytest.raises(AlreadyPublishedError):
        root.publish("trials/1.json", [b"2"], exclusive=True)
    assert root.read(reference) == b"1"
    assert root.read_all("trials", ".json") == {"1.json": b"1"}
    began_s = time.monotonic()
    pack = root.publish("packs/a", [bytes(1_000_000)])
    assert root.read(pack) == bytes(1_000_000)
    assert time.monotonic() - began_s < 1
    root.replace("beat", b"1")
    root.replace("beat", b"22")
    assert root.read_if_present("beat") == b"22"
    root.delete("beat")
    root.delete("beat")
    assert root.names() == ["packs", "trials"]
    with pytest.raises(StoreError) as caught:
        open_root(f"sftp://me@127.0.0.1:{sftp_port}{tmp_path}", {"password": f"not-{SECRET}"})
    assert SECRET not in str(caught.value)


def assert_walked(root: Files, other: Files) -> None:
    """A root is walked, swept and listed beside others, from a machine whose listings are of now."""
    before = time.time()
    assert other.walk() == []
    for name in ("trials/1.json", "files/000001-aa/deep/notes", "search.json"):
        root.publish(name, [name.encode()])
    root.below("inner").publish("a", [b"a"])
    found = {stored.path: stored for stored in other.walk()}
    sizes = {path: stored.bytes for path, stored in found.items()}
    assert sizes == {"files/000001-aa/deep/notes": 26, "inner/a": 1, "search.json": 11, "trials/1.json": 13}
    assert all(abs((stored.modified or 0.0) - before) < 60 for stored in found.values())
    assert other.below("inner").siblings() == ["files", "search.json", "trials"]
    other.delete("files/000001-aa/deep/notes")
    other.delete("trials/.tmp-0123")
    assert [stored.path for stored in root.walk()] == ["inner/a", "search.json", "trials/1.json"]


@pytest.mark.filterwarnings("default")
def test_s3_is_walked(s3: str) -> None:
    """On S3 (moto) a walk tells sizes and times, and sees what another process did."""
    import s3fs

    s3fs.S3FileSystem(key="heirloom", secret=SECRET, endpoint_url=s3).mkdir("walked")
    assert_walked(s3_root(s3, "walked"), s3_root(s3, "walked"))


@pytest.mark.filterwarnings("default")
def test_sftp_is_walked(sftp_port: int, tmp_path: Path) -> None:
    """The same over sftp, where an unfinished file can be seen and deleted."""
    roots = [
        open_root(f"sftp://me@127.0.0.1:{sftp_port}{tmp_path}/a", {"password": SECRET}, patience_s=0) for _ in range(2)
    ]
    assert_walked(*roots)
    (tmp_path / "a/trials/.tmp-0123").write_bytes(b"half")
    assert [stored.path for stored in roots[1].walk() if "tmp" in stored.path] == ["trials/.tmp-0123"]
    roots[1].delete("trials/.tmp-0123")

    assert not (tmp_path / "a/trials/.tmp-0123").exists()
