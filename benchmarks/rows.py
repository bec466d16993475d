"""Results of a benchmark as rows of a csv file, which a later run completes."""

from __future__ import annotations

import csv
import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

Task = TypeVar("Task")


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """A csv file of results.

    Attributes:
        path: The path of the file. It need not exist yet.
        fields: The columns.
        line_end: The line ending to write. Any is read.
    """

    path: Path
    fields: Sequence[str]
    line_end: str = "\n"

    def kept(self) -> list[dict[str, str]]:
        """Returns the rows so far, as texts."""
        if not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            return list(csv.DictReader(file))

    def run(
        self, rows_of: Callable[[Task], Sequence[Mapping[str, object]]], tasks: Sequence[Task], n_processes: int
    ) -> Iterator[int]:
        """Runs the tasks, appends their rows in order, and yields the number of finished tasks.

        With one process no task follows one that failed or that Ctrl-C ended. All that are submitted would run, and
        their rows be lost.

        Args:
            rows_of: Runs a task in a fresh process.
            tasks: The tasks without rows.
            n_processes: The number of processes.
        """
        is_new = not self.path.exists() or not self.path.stat().st_size  # empty: killed before the first row
        context = multiprocessing.get_context("spawn")
        with self.path.open("a", newline="") as file, ProcessPoolExecutor(n_processes, mp_context=context) as pool:
            writer = csv.DictWriter(file, self.fields, lineterminator=self.line_end)
            if is_new:
                writer.writeheader()
            n_ahead = 2 * n_processes - 1
            submitted = deque(pool.submit(rows_of, task) for task in tasks[:n_ahead])
            for done in range(1, len(tasks) + 1):
                writer.writerows(submitted.popleft().result())
                file.flush()
                submitted.extend(pool.submit(rows_of, task) for task in tasks[done + n_ahead - 1 : done + n_ahead])
                yield done
