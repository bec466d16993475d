"""Two sides of one root, which speak to each other through nothing but that root, and how two machines find each other.

A message is a small file under a name of its own. A side looks for the next one again and again, also before it is
there, which is how a cache that keeps "no such file" would hide it for longest.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from typing import Any

from nas.core.errors import AlreadyPublishedError, StorageError
from nas.storage.blobs import BlobStore
from nas.storage.maintenance.guarantees import CHECKS, N_TRIES, clear
from nas.storage.records import from_bytes, to_bytes

FOLDERS = ("", "mail-a", "mail-b", "given-a", "given-b", "race", "beats")
"""What two sides leave in the folder in which they met."""
LIMIT_S = 90.0
"""How long a message is waited for: longer than ``files.read`` may take at the other side."""
_LONG_S = 0.05
"""Between two looks at most; the first ones follow each other at once."""
_BEAT_S = 0.25
_LAST_WORD_S = 10.0


class Side:
    """One of the two.

    Args:
        files: The folder in which they met, as this side sees it.
        name: ``a`` or ``b``.
        limit_s: How long a message is waited for.
        n_tries: How often a promise is tried; the same on both sides.
    """

    def __init__(self, files: BlobStore, name: str, *, limit_s: float = LIMIT_S, n_tries: int = N_TRIES) -> None:
        self.files = files
        self.n_tries = n_tries
        self.name = name
        self.other = "b" if name == "a" else "a"
        self.limit_s = limit_s
        self.n_stirred = 0

    def say(self, topic: str, **data: Any) -> None:
        """Leaves a message, under a topic that was never used."""
        self.files.publish(f"mail-{self.name}/{topic}", [to_bytes(data)])

    def heard(self, topic: str) -> dict[str, Any] | None:
        """Returns the other side's message, if it can be seen now."""
        data = self.files.read_if_present(f"mail-{self.other}/{topic}")
        return None if data is None else from_bytes(data, topic)

    def hear(self, topic: str, limit_s: float | None = None) -> dict[str, Any]:
        """Waits for the other side's message.

        Raises:
            StorageError: it did not come in time, or the other side has failed.
        """
        limit_s = limit_s or self.limit_s
        until, wait_s, n_looks = time.monotonic() + limit_s, 0.0005, 0
        while (message := self.heard(topic)) is None:
            n_looks += 1
            if n_looks % 5 == 0:  # as for records: a listing shows what opening the folder did not (see posix._list)
                self.files.names(f"mail-{self.other}")
                if (failed := self.heard("failed")) is not None:
                    raise StorageError(f"the other side failed: {failed['why']}")
            if n_looks % 25 == 0:
                self._stir(f"{topic}-{n_looks}")
            if time.monotonic() > until:
                raise StorageError(f"nothing was heard of the other side for {limit_s:g} s")
            time.sleep(wait_s)
            wait_s = min(wait_s * 1.2, _LONG_S)
        return message

    def _stir(self, name: str) -> None:
        """Changes the other side's folder, so that no client can believe that it has not changed.

        Over NFSv3 a client that listed a folder between two changes within one tick of the server's clock (up to 10 ms
        before Linux 6.13) does not see the second one until a third comes, however long it looks.
        """
        self.files.publish(f"mail-{self.other}/stirred-{name}", [])
        self.n_stirred += 1

    def fail(self, why: str) -> None:
        """Tells the other side not to wait, if that can still be told."""
        with suppress(StorageError):
            self.say("failed", why=why)

    def exchange(self, topic: str, **data: Any) -> dict[str, Any]:
        """Says something, and gives what the other side says on the same topic."""
        self.say(topic, **data)
        return self.hear(topic)

    def leave(self) -> None:
        """Parts; ``a`` goes last and removes everything."""
        with suppress(StorageError):  # all that had to be said is said
            self.say("bye")
            if self.name == "a":
                self.hear("bye", min(_LAST_WORD_S, self.limit_s))
        if self.name == "a":
            clear(self.files, FOLDERS)


def meet(root: BlobStore, *, wait_s: float) -> Side:
    """Returns the side that this process takes, once another one has begun the same on the same root.

    Each opens a meeting and keeps it alive. Whoever sees another that is alive, and comes before its own in order of
    name, joins it as ``b``; whoever is joined is ``a``.

    Raises:
        StorageError: nobody came within ``wait_s``.
    """
    meetings = root.below(CHECKS)
    own = f"meeting-{secrets.token_hex(8)}"
    until, n_beats, is_host = time.monotonic() + wait_s, 0, False
    beats: dict[str, bytes] = {}
    try:
        while time.monotonic() < until:
            n_beats += 1
            meetings.replace(f"{own}/beat", b"%d" % n_beats)
            time.sleep(_BEAT_S)
            if meetings.read_if_present(f"{own}/guest") is not None:
                is_host = True
                return Side(meetings.below(own), "a")
            for other in (name for name in meetings.names() if name.startswith("meeting-") and name < own):
                beat = meetings.read_if_present(f"{other}/beat")
                lives = beat is not None and beats.setdefault(other, beat) != beat
                if lives and _joins(meetings, other):
                    return Side(meetings.below(other), "b")
    finally:
        if not is_host:
            clear(meetings.below(own))
    raise StorageError(
        f"no other machine came within {wait_s:g} s: start the same command there in this time. If it did run there, "
        f"its storage.root is another folder than {root.url} here, or one of the clients shows nothing new"
    )


def _joins(meetings: BlobStore, other: str) -> bool:
    try:
        meetings.publish(f"{other}/guest", [b"b"], exclusive=True)
    except AlreadyPublishedError:
        return False
    return True
