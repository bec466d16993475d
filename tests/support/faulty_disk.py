"""A disk that fails as it is told: a FUSE file system that passes everything on to a folder, or refuses it.

Run as a program it serves the file system; ``FaultyDisk`` starts that program and tells it, by a file, what fails.
The errors come from the kernel, at the call at which a real disk or server raises them.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any


class FaultyDisk:
    """A mounted disk, ``place``, whose files lie in ``behind``.

    Args:
        folder: An empty folder, for both and for what is told.

    Raises:
        OSError: there is no FUSE here; the line says what it needs.
    """

    def __init__(self, folder: Path) -> None:
        self.place, self.behind = folder / "disk", folder / "behind"
        self._orders, self._counts = folder / "orders.json", folder / "counts.json"
        self.place.mkdir()
        self.behind.mkdir()
        self._orders.write_text("{}")
        command = [sys.executable, __file__, self.behind, self.place, self._orders, self._counts]
        self._log = (folder / "log").open("wb")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        until_s = time.monotonic() + 60
        while not os.path.ismount(self.place):
            if self._process.poll() is not None or time.monotonic() > until_s:
                self.close()
                why = (folder / "log").read_text().strip().splitlines()[-1:]
                raise OSError(f"no FUSE here, which needs mfusepy, libfuse and /dev/fuse: {why}")
            time.sleep(0.01)

    def close(self) -> None:
        """Unmounts it."""
        subprocess.run(["umount", "--lazy", self.place], capture_output=True, check=False)
        self._process.kill()
        self._process.wait()
        self._log.close()

    def failing(
        self, call: str, error: int, *, after: bool = False, skip: int = 0, times: int = 10**9
    ) -> AbstractContextManager[None]:
        """Meanwhile a call fails.

        Args:
            call: ``create``, ``open``, ``read``, ``write``, ``fsync``, ``close``, ``rename``, ``link``, ``unlink``,
                ``mkdir``, ``fsyncdir`` or ``list``.
            error: An ``errno``.
            after: The call does its work first: its reply is lost.
            skip: How many calls go well before.
            times: How many fail.
        """
        return self._under({"call": call, "error": error, "after": after, "from": skip, "to": skip + times})

    def killing(self, skip: int) -> AbstractContextManager[None]:
        """Meanwhile the process that makes the next call of any kind, after so many, gets ``kill -9`` before it."""
        return self._under({"call": "any", "from": skip, "to": skip + 1, "kill": True})

    @contextmanager
    def _under(self, order: Mapping[str, object]) -> Iterator[None]:
        """Meanwhile the order holds."""
        self._counts.write_text("{}")
        self._orders.write_text(json.dumps(order))
        try:
            yield
        finally:
            self._orders.write_text("{}")

    def n_calls(self, call: str) -> int:
        """Returns the number of calls meanwhile."""
        return int(json.loads(self._counts.read_text()).get(call, 0))


def serve(behind: str, place: str, orders: str, counts: str) -> None:
    """Mounts and serves until it is unmounted."""
    import mfusepy

    class PassingOn(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def _do(self, call: str, function: Any, *arguments: Any) -> Any:
            order = json.loads(Path(orders).read_text() or "{}")
            if order.get("call") not in (call, "any"):
                return function(*arguments)
            call = order["call"]
            n = json.loads(Path(counts).read_text() or "{}").get(call, 0)
            Path(counts).write_text(json.dumps({call: n + 1}))
            if not order["from"] <= n < order["to"]:
                return function(*arguments)
            if order.get("kill"):
                os.kill(mfusepy.fuse_get_context()[2], signal.SIGKILL)
                raise mfusepy.FuseOSError(errno.EINTR)
            if order["after"]:
                function(*arguments)
            raise mfusepy.FuseOSError(order["error"])

        def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
            found = os.lstat(behind + path)
            names = ("mode", "nlink", "uid", "gid", "size", "ino")
            times = {f"st_{name}": getattr(found, f"st_{name}_ns") for name in ("atime", "mtime", "ctime")}
            return {f"st_{name}": getattr(found, f"st_{name}") for name in names} | times

        def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
            names = self._do("list", os.listdir, behind + path)
            return [(name, self.getattr(f"{path}/{name}"), 0) for name in [".", "..", *names]]

        def create(self, path: str, mode: int, fi: object = None) -> int:
            return int(self._do("create", os.open, behind + path, os.O_RDWR | os.O_CREAT, mode))

        def open(self, path: str, flags: int) -> int:
            return int(self._do("open", os.open, behind + path, flags))

        def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
            return bytes(self._do("read", os.pread, fh, size, offset))

        def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
            return int(self._do("write", os.pwrite, fh, data, offset))

        def truncate(self, path: str, length: int, fh: int | None = None) -> None:
            os.truncate(behind + path, length)

        def flush(self, path: str, fh: int) -> None:
            self._do("close", lambda: None)

        def release(self, path: str, fh: int) -> None:
            os.close(fh)

        def fsync(self, path: str, datasync: int, fh: int) -> None:
            self._do("fsync", os.fsync, fh)

        def fsyncdir(self, path: str, datasync: int, fh: int) -> None:
            self._do("fsyncdir", lambda: None)

        def rename(self, old: str, new: str, flags: int = 0) -> None:
            self._do("rename", os.rename, behind + old, behind + new)

        def link(self, target: str, source: str) -> None:
            self._do("link", os.link, behind + source, behind + target)

        def unlink(self, path: str) -> None:
            self._do("unlink", os.unlink, behind + path)

        def mkdir(self, path: str, mode: int) -> None:
            self._do("mkdir", os.mkdir, behind + path, mode)

        def rmdir(self, path: str) -> None:
            os.rmdir(behind + path)

    # the kernel keeps nothing, so that every call arrives here
    mfusepy.FUSE(PassingOn(), place, foreground=True, nothreads=True, attr_timeout=0, entry_timeout=0, use_ino=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
