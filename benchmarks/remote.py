"""Cost of a checkpoint in S3 and over sftp, as ratios to other clients.

    $ python benchmarks/remote.py             # servers on this machine: about 2 minutes on two cores

A checkpoint of 50 MB in 200 tensors is published (digests, pack, manifest), then restored and verified into an existing
model. The clients boto3 and paramiko transfer the same bytes. The first puts and gets the two objects with one call
each, the second uses ``putfo`` and ``getfo``. Neither computes hashes, and paramiko neither syncs nor renames.

The S3 server is moto. The sftp server is OpenSSH's if it is installed (Debian: openssh-server), else asyncssh's. The
calls alternate, and each figure is the median of the rounds' ratios. The last row is the memory needed to publish a
model of 500 MB to S3, without the model's own.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
from store import MB, Network, milliseconds, ratio, row, turns

from nas.core.checkpoint import Checkpoint
from nas.storage.blobs import BlobStore
from nas.storage.checkpoints import publish_checkpoint, publish_tensors
from nas.storage.lazy_weights import StoredWeights
from nas.storage.open import open_root

sys.path.append(str(Path(__file__).parents[1]))
from tests.support.servers import KEY_ID, SECRET, openssh_server, s3_server, sftp_server

SIZE = 50 * MB


class Peer(Protocol):
    """Another client of the same server, for comparison."""

    def put(self, name: str, data: bytes) -> object:
        """Writes an object or a file."""

    def get(self, name: str) -> bytes:
        """Returns the content of an object or a file."""


class Boto3:
    """Amazon's client, with one request for each object."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, name: str, data: bytes) -> object:
        """Writes an object in one request."""
        return self._client.put_object(Bucket="bucket", Key=f"peer/{name}", Body=data)

    def get(self, name: str) -> bytes:
        """Returns an object, read in one request."""
        return bytes(self._client.get_object(Bucket="bucket", Key=f"peer/{name}")["Body"].read())


class Paramiko:
    """The client that fsspec's own ``sftp://`` uses, with pipelining and prefetch."""

    def __init__(self, port: int, folder: Path, **login: Any) -> None:
        import paramiko

        ssh = paramiko.SSHClient()
        ssh.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        ssh.connect("127.0.0.1", port=port, **login)
        self._sftp = ssh.open_sftp()
        self._ssh = ssh
        self._folder = folder

    def put(self, name: str, data: bytes) -> object:
        """Writes a file, pipelined."""
        return self._sftp.putfo(io.BytesIO(data), f"{self._folder}/{name}")

    def get(self, name: str) -> bytes:
        """Returns the content of a file, prefetched."""
        data = io.BytesIO()
        self._sftp.getfo(f"{self._folder}/{name}", data)
        return data.getvalue()


class Server:
    """One server, with a root of Heirloom and another client."""

    def __init__(self, files: BlobStore, peer: Peer) -> None:
        self.files = files
        self.peer = peer
        self.published: list[Checkpoint] = []

    def publish(self, model: torch.nn.Module) -> Checkpoint:
        """Publishes a checkpoint: digests, pack, manifest."""
        stem = f"{len(self.published):06d}-benchmark"
        saved = publish_tensors(self.files, f"packs/{stem}.safetensors", model.state_dict())
        self.published.append(publish_checkpoint(self.files, stem, saved))
        return self.published[-1]

    def delete_checkpoints(self) -> None:
        """Deletes all checkpoints but the first, since moto keeps them in memory."""
        for checkpoint in self.published[1:]:
            for reference in (checkpoint.manifest, *checkpoint.packs):
                self.files.delete(reference.path)

    def measure(self, what: str, other: str, n_rounds: int) -> None:
        """Prints the rows of publish and restore."""
        model, restored = Network(SIZE), Network(SIZE)
        checkpoint = self.publish(model)
        objects = {
            reference.path.replace("/", "-"): self.files.read(reference)
            for reference in (*checkpoint.packs, checkpoint.manifest)
        }

        def put() -> None:
            for name, data in objects.items():
                self.peer.put(name, bytes(data))

        def get() -> None:
            assert sum(len(self.peer.get(name)) for name in objects) >= SIZE

        calls: dict[str, Callable[[], object]] = {
            "peer put": put,
            "publish": lambda: self.publish(model),
            "peer get": get,
            "restore": lambda: StoredWeights(self.files, checkpoint).read_into(restored.state_dict()),
        }
        found = turns(calls, self.delete_checkpoints, n_rounds)
        pairs = zip(model.state_dict().values(), restored.state_dict().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
        for verb, ours, theirs in (("publish", "publish", "peer put"), ("restore", "restore", "peer get")):
            note = f"{milliseconds(found, ours)} to {milliseconds(found, theirs)}"
            row(f"{what}: {verb} 50 MB / {other}", ratio(found, ours, theirs), "1.3", note)


@contextmanager
def sftp(folder: Path) -> Iterator[tuple[Server, str]]:
    """Starts an sftp server. Yields it with its name."""
    with ExitStack() as stack:
        try:
            port, options = stack.enter_context(openssh_server(folder))
            name, user, login = "OpenSSH", "root", {"username": "root", "key_filename": str(folder / "user")}
        except FileNotFoundError:
            port, options = stack.enter_context(sftp_server()), {"password": SECRET}
            name, user, login = "asyncssh", "me", {"username": "me", "password": SECRET}
        files = open_root(f"sftp://{user}@127.0.0.1:{port}{folder}/root", options)
        files.check_writable()
        yield Server(files, Paramiko(port, folder, **login)), name


def memory(endpoint: str) -> None:
    """Prints the peak memory of a process that publishes 500 MB, without the model's."""
    code = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from store import MB, Network
from remote import Server, open_root
files = open_root("s3://bucket/memory", {{"key": {KEY_ID!r}, "secret": {SECRET!r}, "endpoint_url": {endpoint!r}}})
server = Server(files, None)
server.publish(Network(MB))  # loads all code
model = Network(500 * MB)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
server.publish(model)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    extra = int(done.stderr.split()[-1]) / 1024
    print(f"| s3: publish 500 MB: memory beyond the model's own | {extra:.0f} MB | 500 MB | |", flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    print("| what | ratio | target | medians |\n| --- | --- | --- | --- |")
    with s3_server() as server:
        Server(server.root("s3://bucket/ours", retry_s=60), Boto3(server.client)).measure(
            "s3 (moto)", "boto3's puts and gets", options.rounds
        )
        memory(server.endpoint)
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder, sftp(Path(folder)) as (sftp_root, name):
        sftp_root.measure(f"sftp ({name})", "paramiko's putfo and getfo", options.rounds)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
