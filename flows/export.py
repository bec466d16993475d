"""``python -m flows.export name=last out=DIR``: copies the export of a search's winner into a new folder."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.cli.command import OK, Invocation, run_command
from flows.cli.output import print_message, show_line
from flows.cli.overrides import as_shell
from flows.cli.program import command
from flows.views.delivery import missing_lines, outside
from nas.core.errors import ConfigurationError

if TYPE_CHECKING:
    from nas.core.reference import Reference
    from nas.storage.blobs import BlobStore
    from nas.storage.records import Records
    from nas.storage.verified import OnBlock


def main() -> int:
    """Runs the command and returns its exit status."""
    return run_command("export", export)


def export(invocation: Invocation) -> int:
    """Copies the export; only reads the storage."""
    from flows.cli.settings.root import reach_stored_root, read_root
    from flows.views.searches import find_search, read_name
    from nas.storage.records import Records

    values, name = invocation.values, read_name(invocation.values)
    if values["out"] is None:
        raise ConfigurationError("no out: add out=DIR, a folder to make")
    root = reach_stored_root(values)
    target = _new_folder(str(values["out"]), root)
    records = Records(find_search(root, name, time.time(), print_message))
    best = _exported(records, read_root(values)[0])
    files = _named_files(best)
    with _becomes(target) as folder:
        for name, reference in files.items():
            _copy(records.files, reference, folder / name)
    _show(best, files, target)
    return OK


def _new_folder(out: str, root: BlobStore) -> Path:
    """Returns the folder to make.

    Raises:
        ConfigurationError: it exists, or lies in the storage.
    """
    target = Path(os.path.abspath(os.path.expanduser(out)))
    if os.path.lexists(target):
        raise ConfigurationError(f"out={out}: must not exist, since nothing is overwritten. Name another folder.")
    return outside(root, str(target))


def _exported(records: Records, root: str) -> Mapping[str, Any]:
    """Returns the record of the newest winner.

    Args:
        records: The search's records.
        root: The storage root as the user wrote it.

    Raises:
        ConfigurationError: there is none, or it was not exported.
    """
    from flows.cli.settings.root import root_words
    from nas.search.finals import newest_best

    best, name = newest_best(records), records.files.name
    if best is None:
        where = as_shell([f"name={name}", *root_words(root)])
        finals = f", or train finalists: {command('final')} {where}" if _has_finalist(records, name) else ""
        raise ConfigurationError(
            f"search {name} has no winner yet: it is exported at the end. Run the search to its end{finals}"
        )
    if best["export"] is None:
        why = "; ".join(map(str, best["missing"].values()))
        raise ConfigurationError(
            f"trial {best['trial']}, the winner of {name}, was not exported: {why}. Run the search with retry=failed"
        )
    return best


def _has_finalist(records: Records, name: str) -> bool:
    """Returns whether the search has a final stage, and a trial that it can train."""
    from nas.core.policy import PolicyPlan
    from nas.core.ranking import Ranking
    from nas.views.snapshot import read_header

    header, (trials, _) = read_header(records, name), records.load()
    plan = PolicyPlan.from_stages(header.identity["policy"])
    ranking = Ranking(plan, header.metrics, n_finalists=1)
    return any(ranking.n_finalists_of(trials, stage) for stage in plan.later[:1])


def _named_files(best: Mapping[str, Any]) -> dict[str, Reference]:
    """Returns the files of an export by their names in its folder.

    Raises:
        CorruptError: a file lies elsewhere.
    """
    from nas.core.errors import CorruptError
    from nas.core.reference import Reference

    found, start = {}, f"{best['export']}/"
    for reference in (Reference(**file) for file in best["files"]):
        name = reference.path.removeprefix(start)
        if name == reference.path or "/" in name:
            raise CorruptError(f"the record of the winner names {reference.path}, which is not in {start}")
        found[name] = reference
    return found


@contextmanager
def _becomes(target: Path) -> Iterator[Path]:
    """Yields a temporary folder beside the target, which at the end gets its name.

    After an error it is deleted.

    Raises:
        StorageError: the folder can't be written.
    """
    from nas.storage.os_errors import storage_errors
    from nas.storage.posix import sync_folder, umask

    with storage_errors("write", str(target)):
        target.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        yield folder
        with storage_errors("write", str(target)):
            folder.chmod(0o777 & ~umask())
            sync_folder(str(folder))
            folder.rename(target)
            sync_folder(str(target.parent))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy(files: BlobStore, reference: Reference, path: Path) -> None:
    """Copies a file, verifies its digest and flushes it to the disk."""
    from nas.storage.os_errors import storage_errors

    with storage_errors("write", str(path)), path.open("xb") as file:

        def write(block: memoryview) -> None:
            with storage_errors("write", str(path)):  # else it would be a failed read
                file.write(block)

        def begin() -> OnBlock:
            file.seek(0)
            file.truncate()
            return write

        files.check_contents(reference, begin)
        file.flush()
        os.fsync(file.fileno())


def _show(best: Mapping[str, Any], files: Mapping[str, Reference], target: Path) -> None:
    from nas.views.formatting import count, size

    n_bytes = sum(reference.bytes for reference in files.values())
    show_line(f"trial {best['trial']}: {count(len(files), 'file')}, {size(n_bytes)} in {target}")
    for name in sorted(files):
        show_line(f"  {name}")
    for line in missing_lines(best["missing"]):
        show_line(line)


if __name__ == "__main__":
    sys.exit(main())
