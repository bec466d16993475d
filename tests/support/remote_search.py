"""A search with ``runner=remote`` and its workers, each a command of its own, as a user starts them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import TracebackType

from tests.support.commands import Command, Done, until

LINE = re.compile(r"^  HEIRLOOM_CHANNEL_TOKEN=(\S+) python -m flows\.worker (.*)$", re.MULTILINE)


class RemoteSearch:
    """A driver, and workers that are started by the line that it prints.

    Args:
        folder: Where it is started, and they.
        overrides: Of ``flows.search`` or another module; they say ``runner=remote``.
        changes: Variables of the driver's environment.
    """

    def __init__(self, folder: Path, *overrides: str, module: str = "flows.search", **changes: str) -> None:
        self.folder = folder
        self.driver = Command(folder, *overrides, module=module, **changes)
        self.workers: list[Command] = []

    def __enter__(self) -> RemoteSearch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for command in (self.driver, *self.workers):
            command.__exit__(kind, error, traceback)

    @property
    def line(self) -> re.Match[str]:
        """What it says starts a worker."""
        until(lambda: LINE.search(self.driver.err) or self.driver.process.poll() is not None, what="the line")
        found = LINE.search(self.driver.err)
        assert found is not None, self.driver.err
        return found

    def join(self, *more: str, token: str | None = None, **changes: str) -> Command:
        """A worker more, by the driver's line and what is added to it."""
        given = token or self.line[1]
        command = Command(
            self.folder,
            *shlex.split(self.line[2]),
            *more,
            module="flows.worker",
            HEIRLOOM_CHANNEL_TOKEN=given,
            **changes,
        )
        self.workers.append(command)
        return command

    def wait(self) -> Done:
        """What the driver has left, once it has ended; all workers have ended then."""
        done = self.driver.wait()
        for worker in self.workers:
            worker.wait(60)
        return done


def search_with_remote_workers(folder: Path, *overrides: str, n_workers: int, **changes: str) -> Done:
    """Runs a search with so many workers to its end."""
    with RemoteSearch(folder, *overrides, **changes) as search:
        for _ in range(n_workers):
            search.join()
        return search.wait()
