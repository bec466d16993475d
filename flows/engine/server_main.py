"""The process of a temporary server, a child of the command: ``server_main LISTENER_FD DRIVER_PID``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect.server.database import PrefectDBInterface

_TURN_S = 150.0
"""Longest wait for the migrations of another server in the same home."""
_NICENESS = 10
"""Niceness of the started server, which takes 20 ms for a task run."""


def serve(listener_fd: int, driver_pid: int) -> None:
    """Runs the server until the driver ends."""
    threading.Thread(target=_end_with, args=(driver_pid,), daemon=True).start()  # before the long import

    import uvicorn

    # Python shows them for the main module, which is this one. They are SQLAlchemy's.
    warnings.filterwarnings("ignore", category=DeprecationWarning)

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            # Of two first migrations of one new database at the same time, one failed in 2 of 3 tries.
            with _turn(Path("start.lock"), timeout_s=_TURN_S):
                await super().startup(sockets)
            os.nice(_NICENESS)
            self.pruning = asyncio.create_task(_prune())

    factory = "prefect.server.api.server:create_app"
    server = Server(uvicorn.Config(factory, factory=True, log_level="error", lifespan="on"))
    server.run(sockets=[socket.socket(fileno=listener_fd)])
    sys.exit(not server.started)


async def _prune() -> None:
    """Deletes old flow runs from the database, as Prefect's service does in other servers."""
    from prefect.server.database import provide_database_interface
    from prefect.server.services.db_vacuum import vacuum_old_flow_runs

    try:
        await _end_interrupted(provide_database_interface())
        await vacuum_old_flow_runs(db=provide_database_interface())
    except Exception:  # the next start tries again
        logging.getLogger("heirloom").exception("old flow runs were not deleted")


async def _end_interrupted(db: PrefectDBInterface) -> None:
    """Marks as CRASHED the old flow runs of interrupted commands, since only ended ones are deleted.

    A flow run whose task runs still change is left alone.
    """
    import sqlalchemy as sa
    from prefect.server.schemas.states import StateType
    from prefect.settings import get_current_settings
    from prefect.types._datetime import now

    old = now("UTC") - get_current_settings().server.services.db_vacuum.retention_period
    changing = sa.exists().where(db.TaskRun.flow_run_id == db.FlowRun.id, db.TaskRun.updated > old)
    interrupted = sa.and_(db.FlowRun.end_time.is_(None), db.FlowRun.created < old, ~changing)
    ended = {"state_type": StateType.CRASHED, "state_name": "Crashed", "end_time": db.FlowRun.created}
    async with db.session_context(begin_transaction=True) as session:
        await session.execute(
            sa.update(db.FlowRun).where(interrupted).values(ended).execution_options(synchronize_session=False)
        )


def _end_with(driver_pid: int) -> None:
    # The parent is checked as well, because a process that the driver forks (a loader's worker) keeps the pipe open.
    while os.getppid() == driver_pid:
        if select.select([0], [], [], 0.5)[0] and not os.read(0, 1):
            break
    os._exit(0)  # a regular shutdown takes seconds and saves nothing; SQLite's log survives a kill


@contextlib.contextmanager
def _turn(lock: Path, timeout_s: float) -> Iterator[None]:
    """Holds a lock after waiting for it, at most ``timeout_s``.

    The kernel releases the lock of an ended process. After the timeout the caller goes on without the lock.
    """
    import fcntl

    deadline = time.monotonic() + timeout_s
    with lock.open("ab") as file:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
            except OSError:
                break  # a file system without locks
        yield


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))
