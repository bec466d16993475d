"""An sftp server on loopback, as a program: ``python sftp_server.py PASSWORD [FAULT]``; prints its port, ends at EOF.

FAULT, which it commits once (``failing_reads``: three times):

* ``lost_rename``: renames, then drops the connection instead of replying
* ``dropped_rename``: drops the connection instead of renaming
* ``lost_data``: takes 8 MB, then forgets the last 4 and drops the connection, as a server that crashes
* ``cut_write``: takes 8 MB, then drops the connection
* ``failing_reads``: fails to read, as with a stale handle of its own file system
* ``small_disk``: (always) lets no file grow beyond 1 MB
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import sys
from typing import Any

import asyncssh

PASSWORD, FAULT = sys.argv[1], "".join(sys.argv[2:])
left = {"lost_rename": 1, "dropped_rename": 1, "lost_data": 1, "cut_write": 1, "failing_reads": 3}


def fails(*faults: str) -> bool:
    """Whether to commit the fault now."""
    if FAULT not in faults or not left[FAULT]:
        return False
    left[FAULT] -= 1
    return True


class Server(asyncssh.SSHServer):
    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return password == PASSWORD


class Files(asyncssh.SFTPServer):
    def rename(self, oldpath: bytes, newpath: bytes) -> Any:
        if fails("dropped_rename"):
            self.channel.get_connection().abort()
            return
        super().rename(oldpath, newpath)
        if fails("lost_rename"):
            self.channel.get_connection().abort()

    def posix_rename(self, oldpath: bytes, newpath: bytes) -> Any:
        super().posix_rename(oldpath, newpath)
        if fails("lost_rename"):
            self.channel.get_connection().abort()

    def write(self, file_obj: Any, offset: int, data: bytes) -> Any:
        if offset >= 8_000_000 and FAULT in ("cut_write", "lost_data") and left[FAULT]:
            if fails("lost_data"):
                file_obj.flush()
                os.ftruncate(file_obj.fileno(), 4_000_000)
            fails("cut_write")
            self.channel.get_connection().abort()
        return super().write(file_obj, offset, data)

    def read(self, file_obj: Any, offset: int, size: int) -> Any:
        if fails("failing_reads"):
            raise OSError(errno.ESTALE, "Stale file handle")
        return super().read(file_obj, offset, size)


async def serve() -> None:
    keys = [asyncssh.generate_private_key("ssh-ed25519")]
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=keys, sftp_factory=Files)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)


if FAULT == "small_disk":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
asyncio.run(serve())
