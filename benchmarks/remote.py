"""What a checkpoint costs in S3 and over sftp, as ratios to other clients that move the same bytes to the same server.

    python benchmarks/remote.py             # servers on this machine: about 2 minutes on two cores

A checkpoint of 50 MB in 200 tensors is published (digests, pack, manifest) and restored, verified, into a model that
is there already. boto3 puts and gets the same two objects, each with one call, as bytes; paramiko the same two files by
its ``putfo`` and ``getfo``. They hash nothing, and paramiko neither syncs nor renames. The S3 server is moto; the sftp
server OpenSSH's where it is installed (Debian: openssh-server), else asyncssh's. Calls take turns; each figure is
the median of the rounds' ratios.

The last row is the memory that a process needs, beyond a model of 500 MB, to publish it to S3.
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
    """Another client of the same server."""

    def put(self, name: str, data: bytes) -> object:
        """Sends an object or a file."""

    def get(self, name: str) -> bytes:
        """Gets it."""


class Boto3:
    """Amazon's own client; one request each, as it does by itself up to 8 MB and is told to here."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def put(self, name: str, data: bytes) -> object:
        """One request."""
        return self._client.put_object(Bucket="bucket", Key=f"peer/{name}", Body=data)

    def get(self, name: str) -> bytes:
        """One request."""
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
        """Returns a file, pipelined."""
        return self._sftp.putfo(io.BytesIO(data), f"{self._folder}/{name}")

    def get(self, name: str) -> bytes:
        """Returns a file, prefetched."""
        data = io.BytesIO()
        self._sftp.getfo(f"{self._folder}/{name}", data)
        return data.getvalue()


class Bench:
    """One server: Heirloom's root there, and the other client."""

    def __init__(self, files: BlobStore, peer: Peer) -> None:
        self.files = files
        self.peer = peer
        self.published: list[Checkpoint] = []

    def publish(self, model: torch.nn.Module) -> Checkpoint:
        """Returns a checkpoint: digests, pack, manifest."""
        stem = f"{len(self.published):06d}-bench"
        saved = publish_tensors(self.files, f"packs/{stem}.safetensors", model.state_dict())
        self.published.append(publish_checkpoint(self.files, stem, saved))
        return self.published[-1]

    def sweep(self) -> None:
        """Deletes all checkpoints but the first: moto keeps them in memory."""
        for checkpoint in self.published[1:]:
            for reference in (checkpoint.manifest, *checkpoint.packs):
                self.files.delete(reference.path)

    def measure(self, what: str, other: str, n_rounds: int) -> None:
        """Prints two rows."""
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
        found = turns(calls, self.sweep, n_rounds)
        pairs = zip(model.state_dict().values(), restored.state_dict().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
        for verb, ours, theirs in (("publish", "publish", "peer put"), ("restore", "restore", "peer get")):
            note = f"{milliseconds(found, ours)} to {milliseconds(found, theirs)}"
            row(f"{what}: {verb} 50 MB / {other}", ratio(found, ours, theirs), "1.3", note)


@contextmanager
def sftp(folder: Path) -> Iterator[tuple[Bench, str]]:
    """An sftp server, whichever is here, and its name."""
    with ExitStack() as stack:
        try:
            port, options = stack.enter_context(openssh_server(folder))
            name, user, login = "OpenSSH", "root", {"username": "root", "key_filename": str(folder / "user")}
        except FileNotFoundError:
            port, options = stack.enter_context(sftp_server()), {"password": SECRET}
            name, user, login = "asyncssh", "me", {"username": "me", "password": SECRET}
        files = open_root(f"sftp://{user}@127.0.0.1:{port}{folder}/root", options)
        files.check_writable()
        yield Bench(files, Paramiko(port, folder, **login)), name


def memory(endpoint: str) -> None:
    """The row about memory: the peak of a process of its own."""
    code = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from store import MB, Network
from remote import Bench, open_root
files = open_root("s3://bucket/memory", {{"key": {KEY_ID!r}, "secret": {SECRET!r}, "endpoint_url": {endpoint!r}}})
bench = Bench(files, None)
bench.publish(Network(MB))  # all code is loaded
model = Network(500 * MB)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
bench.publish(model)
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
        Bench(server.root("s3://bucket/ours", retry_s=60), Boto3(server.client)).measure(
            "s3 (moto)", "boto3's puts and gets", options.rounds
        )
        memory(server.endpoint)
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder, sftp(Path(folder)) as (bench, name):
        bench.measure(f"sftp ({name})", "paramiko's putfo and getfo", options.rounds)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
