"""Results as rows of a csv file that grows while tasks are run, so that a long benchmark goes on where it was ended."""

from __future__ import annotations

import csv
import multiprocessing
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
        path: Where it lies, or will.
        fields: Its columns.
        line_end: What ends a line that is written; read is either.
    """

    path: Path
    fields: Sequence[str]
    line_end: str = "\n"

    def kept(self) -> list[dict[str, str]]:
        """Returns the rows that are there, as texts."""
        if not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            return list(csv.DictReader(file))

    def run(
        self, rows_of: Callable[[Task], Sequence[Mapping[str, object]]], tasks: Sequence[Task], n_processes: int
    ) -> Iterator[int]:
        """Runs the tasks and appends the rows of each as they come, in order; gives how many are done, after each.

        Args:
            rows_of: Runs one, in a process that imports the program anew.
            tasks: Those that have no rows yet.
            n_processes: How many run at a time.
        """
        is_new = not self.path.exists()
        context = multiprocessing.get_context("spawn")
        with self.path.open("a", newline="") as file, ProcessPoolExecutor(n_processes, mp_context=context) as pool:
            writer = csv.DictWriter(file, self.fields, lineterminator=self.line_end)
            if is_new:
                writer.writeheader()
            for done, rows in enumerate(pool.map(rows_of, tasks), 1):
                writer.writerows(rows)
                file.flush()
                yield done
