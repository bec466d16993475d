"""The two hosts of a check: how they find each other, and their messages.

Messages are small files of the root, each under a new name. A host looks for a message before it exists: a cache that
keeps "no such file" delays it most in this case.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from typing import Any

from nas.core.errors import AlreadyPublishedError, StorageError
from nas.core.names import CHECKS
from nas.core.validation import path_in_errors
from nas.storage.blobs import BlobStore
from nas.storage.maintenance.backend_checks.check import N_TRIES
from nas.storage.maintenance.backend_checks.folder import remove_files
from nas.storage.record_format import decode_record, encode_record

TIMEOUT_S = 90.0
"""Seconds to wait for a message: more than ``files.read`` may take on the other host."""
_BYE_TIMEOUT_S = 10.0
_MAX_WAIT_S = 0.05
"""Maximum seconds between two looks for a message."""
_HEARTBEAT_S = 0.25
_FOLDERS = ("messages-a", "messages-b", "published-a", "published-b", "race", "beats", "")


class Peer:
    """One of the two hosts of a check.

    Args:
        files: The folder of the check, as this host sees it.
        name: ``a`` or ``b``.
        timeout_s: Seconds to wait for a message.
        n_tries: Maximum number of tries of each check; the same on both hosts.
    """

    def __init__(self, files: BlobStore, name: str, *, timeout_s: float = TIMEOUT_S, n_tries: int = N_TRIES) -> None:
        self.files = files
        self.name = name
        self.other = "b" if name == "a" else "a"
        self.timeout_s = timeout_s
        self.n_tries = n_tries
        self.n_changes = 0
        """Number of changes to the other host's folder that made its messages visible."""

    def send(self, topic: str, **data: Any) -> None:
        """Publishes a message under a topic that was never used."""
        self.files.publish(f"messages-{self.name}/{topic}", [encode_record(data)])

    def poll(self, topic: str) -> dict[str, Any] | None:
        """Returns the other host's message, or None if it is not visible yet."""
        data = self.files.read_if_present(f"messages-{self.other}/{topic}")
        if data is None:
            return None
        with path_in_errors(topic):
            return decode_record(data)

    def receive(self, topic: str, timeout_s: float | None = None) -> dict[str, Any]:
        """Waits for the other host's message and returns it.

        Raises:
            StorageError: it did not arrive in time, or the other host has failed.
        """
        timeout_s = timeout_s or self.timeout_s
        deadline, wait_s, n_polls = time.monotonic() + timeout_s, 0.0005, 0
        while (message := self.poll(topic)) is None:
            n_polls += 1
            if n_polls % 5 == 0:  # as in nas.storage.nfs_caches: a listing shows what opening the folder did not
                self.files.names(f"messages-{self.other}")
                if (failure := self.poll("failed")) is not None:
                    raise StorageError(f"the other host failed: {failure['reason']}")
            if n_polls % 25 == 0:
                self._change_folder(f"{topic}-{n_polls}")
            if time.monotonic() > deadline:
                raise StorageError(f"no message from the other host within {timeout_s:g} s")
            time.sleep(wait_s)
            wait_s = min(wait_s * 1.2, _MAX_WAIT_S)
        return message

    def _change_folder(self, name: str) -> None:
        """Adds a file to the other host's folder, so that this client's cache notices a change.

        NFSv3 clients compare timestamps of the server, which have ticks of up to 10 ms before Linux 6.13. A client that
        lists a folder between two changes within one tick misses the second change until a third one follows.
        """
        self.files.publish(f"messages-{self.other}/change-{name}", [])
        self.n_changes += 1

    def send_failure(self, reason: str) -> None:
        """Tells the other host not to wait, if possible."""
        with suppress(StorageError):
            self.send("failed", reason=reason)

    def exchange(self, topic: str, **data: Any) -> dict[str, Any]:
        """Sends a message and returns the other host's message of the same topic."""
        self.send(topic, **data)
        return self.receive(topic)

    def close(self) -> None:
        """Ends the check; ``a`` waits for ``b``, then removes all files."""
        with suppress(StorageError):  # all results are known already
            self.send("bye")
            if self.name == "a":
                self.receive("bye", min(_BYE_TIMEOUT_S, self.timeout_s))
        if self.name == "a":
            remove_files(self.files, _FOLDERS)


def find_peer(root: BlobStore, *, wait_s: float) -> Peer:
    """Returns this host's peer object once another host runs the same command on the root.

    Each host creates a meeting and replaces its heartbeat. A host that sees a newer heartbeat in a meeting whose name
    sorts before its own joins it as ``b``. The host of the joined meeting is ``a``.

    Raises:
        StorageError: no host came within ``wait_s``.
    """
    meetings = root.subfolder(CHECKS)
    own = f"meeting-{secrets.token_hex(8)}"
    deadline, n_beats, is_joined = time.monotonic() + wait_s, 0, False
    first_seen: dict[str, bytes] = {}
    try:
        while time.monotonic() < deadline:
            n_beats += 1
            meetings.replace(f"{own}/beat", b"%d" % n_beats)
            time.sleep(_HEARTBEAT_S)
            if meetings.read_if_present(f"{own}/guest") is not None:
                is_joined = True
                return Peer(meetings.subfolder(own), "a")
            for other in (name for name in meetings.names() if name.startswith("meeting-") and name < own):
                beat = meetings.read_if_present(f"{other}/beat")
                is_alive = beat is not None and first_seen.setdefault(other, beat) != beat
                if is_alive and _join(meetings, other):
                    return Peer(meetings.subfolder(other), "b")
    finally:
        if not is_joined:
            remove_files(meetings.subfolder(own))
    raise StorageError(
        f"no other machine came within {wait_s:g} s. Start the same command there in this time. If it did run there, "
        f"its storage.root is not the folder {root.url} of this machine, or one of the clients shows old contents."
    )


def _join(meetings: BlobStore, other: str) -> bool:
    try:
        meetings.publish(f"{other}/guest", [b"b"], exclusive=True)
    except AlreadyPublishedError:
        return False
    return True
