"""Verification of a search: reads and hashes all files that its records name.

It needs little memory: it reads a manifest with its trial, and a pack with the last trial that uses it. It writes
nothing, so that it may run during a search.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from nas.core.checkpoint import Checkpoint
from nas.core.errors import CorruptError, MissingError, StorageError
from nas.core.reference import Reference
from nas.core.validation import first_of
from nas.storage.blobs import BlobStore
from nas.storage.checkpoints import load_manifest
from nas.storage.folders import saved_names
from nas.storage.maintenance.damage import Damage, DamageState, reason_of
from nas.storage.maintenance.gc.mark import counted_name, file_sizes
from nas.storage.maintenance.inventory import Inventory, read_inventory
from nas.storage.maintenance.tensor_ranges import RangeHasher, TensorRange, tensor_ranges
from nas.storage.verified import OnBlock

RETRY_S = 0.02
"""Seconds to retry a missing file: one more look past the caches.

Damaged files are read again at the end.
"""
PAUSE_S = 1.0
KINDS = ("record", "manifest", "pack", "file", "resume", "export")


@dataclass(slots=True)
class FileCount:
    """Number and size of the files of one kind that were read."""

    n_files: int = 0
    n_bytes: int = 0


@dataclass(slots=True)
class VerificationReport:
    """Result of a verification.

    Attributes:
        counts: Files that were read, by kind, in the order of the report.
        damages: The damaged files.
        unfinished: Trials without a result that name an affected trial as donor.
    """

    counts: dict[str, FileCount] = field(default_factory=lambda: {kind: FileCount() for kind in KINDS})
    damages: list[Damage] = field(default_factory=list)
    unfinished: tuple[int, ...] = ()

    @property
    def affected(self) -> tuple[int, ...]:
        """The trials whose weights or saved files are damaged: no child can inherit them fully."""
        kinds = ("manifest", "pack", "file")
        damages = [damage for damage in self.damages if damage.kind in kinds]
        return tuple(sorted({number for damage in damages for number in damage.trials}))


Progress = Callable[[VerificationReport], None]
"""Called after each file."""


def verify_search(
    files: BlobStore, *, progress: Progress = lambda report: None, pause_s: float = PAUSE_S
) -> VerificationReport:
    """Compares the records of a search, and all files that they name, with their digests.

    Damaged files are read again at the end. A running search may have deleted or added them meanwhile, or a cache may
    not have shown them yet.

    Args:
        files: The search's folder, with ``retry_s=RETRY_S``: each missing file costs that much.
        progress: Called after each file of the first pass.
        pause_s: Seconds between the two passes.

    Raises:
        StorageError: the folder can't be listed.
    """
    inventory = read_inventory(files)
    report = _verify(files, inventory, progress)
    if report.damages:
        time.sleep(pause_s)
        paths = {damage.path for damage in report.damages}
        inventory = read_inventory(files)
        again = _verify(files, inventory, lambda report: None, paths)
        report.damages = [damage for damage in again.damages if damage.path in paths]
    report.damages.sort(key=lambda damage: (KINDS.index(damage.kind), damage.path))
    affected = set(report.affected)
    report.unfinished = tuple(
        number
        for number, trial in sorted(inventory.trials.items())
        if not trial.is_finished and not affected.isdisjoint(trial.proposal.weight_donors)
    )
    return report


def _verify(
    files: BlobStore, inventory: Inventory, progress: Progress, only: Collection[str] | None = None
) -> VerificationReport:
    report = VerificationReport(damages=list(inventory.damages))
    report.counts["record"] = FileCount(inventory.n_records, inventory.n_bytes)
    verification = _Verification(files, inventory.checkpoints, report, progress, only)
    verification.run()
    for kind, references in (("resume", inventory.resume_packs), ("export", inventory.exports)):
        for number, reference in references:
            verification.check_file(kind, reference, (number,))
    return report


class _Verification:
    """One pass over the checkpoints of a search; with ``only``, over the files of these paths."""

    def __init__(
        self,
        files: BlobStore,
        checkpoints: Mapping[int, Checkpoint],
        report: VerificationReport,
        progress: Progress,
        only: Collection[str] | None,
    ) -> None:
        self._files = files
        self._checkpoints = checkpoints
        self._report = report
        self._progress = progress
        self._only = only
        self._only_names = {counted_name(path) for path in only or ()}
        self._users: dict[Reference, list[int]] = {}  # pack -> trials that use its tensors
        for number, checkpoint in sorted(checkpoints.items()):
            for pack in checkpoint.packs:
                self._users.setdefault(pack, []).append(number)
        self._ranges: dict[Reference, set[TensorRange]] = {}

    def run(self) -> None:
        """Verifies the checkpoints in the order of their trials."""
        for number, checkpoint in sorted(self._checkpoints.items()):
            saved = self._check_manifest(number, checkpoint)
            for pack in checkpoint.packs:
                if self._users[pack][-1] == number:
                    self._check_pack(pack, self._ranges.pop(pack, set()))
            for reference in saved:
                self.check_file("file", reference, (number,))

    def check_file(self, kind: str, reference: Reference, trials: tuple[int, ...]) -> None:
        """Verifies a file as a whole."""
        self._check(kind, reference, (), trials)

    def _check_manifest(self, number: int, checkpoint: Checkpoint) -> tuple[Reference, ...]:
        """Verifies the manifest, if this pass needs it; returns the files that the trial saved."""
        reference = checkpoint.manifest
        if self._only is not None and self._only_names.isdisjoint(file_sizes(checkpoint)):
            return ()
        saved: tuple[Reference, ...] = ()
        try:
            manifest = load_manifest(self._files, checkpoint)
            saved = manifest.files
            saved_names(saved)
            packs = {pack.path: pack for pack in manifest.packs}
            for path, ranges in tensor_ranges(manifest).items():
                self._ranges.setdefault(packs[path], set()).update(ranges)
        except StorageError as error:
            self._add_damage("manifest", reference, _state(error), _detail(error, reference), (number,))
        self._count("manifest", reference)
        return saved

    def _check_pack(self, pack: Reference, ranges: Collection[TensorRange]) -> None:
        users = tuple(self._users[pack])
        wrong = self._check("pack", pack, ranges, users)
        if wrong is None:
            return
        names_of = {number: _names(self._files, self._checkpoints[number], pack, wrong) for number in users}
        affected = tuple(number for number, names in names_of.items() if names != [])
        names = max((names or [] for names in names_of.values()), key=len)
        detail = f"{len(wrong)} of its {len(ranges)} tensors: {first_of(sorted(names), 3)}"
        if not wrong:
            detail = "outside of the tensors that trials use"
        self._add_damage("pack", pack, "corrupt", detail, affected)

    def _check(
        self, kind: str, reference: Reference, ranges: Collection[TensorRange], trials: tuple[int, ...]
    ) -> set[TensorRange] | None:
        """Verifies a file; returns the corrupt ranges of a pack of the right size, else None."""
        if self._only is not None and reference.path not in self._only:
            return None
        hasher: RangeHasher | None = None

        def on_block() -> OnBlock:
            nonlocal hasher
            hasher = RangeHasher(ranges)
            return hasher.update

        wrong: set[TensorRange] | None = None
        try:
            self._files.check_contents(reference, on_block)
            assert hasher is not None
            wrong = hasher.mismatches() or None
        except CorruptError as error:
            if hasher is None or kind != "pack":
                self._add_damage(kind, reference, "corrupt", _detail(error, reference), trials)
            else:
                wrong = hasher.mismatches()
        except StorageError as error:
            self._add_damage(kind, reference, _state(error), _detail(error, reference), trials)
        self._count(kind, reference)
        return wrong

    def _add_damage(
        self, kind: str, reference: Reference, state: DamageState, detail: str, trials: tuple[int, ...]
    ) -> None:
        damage = Damage(kind=kind, path=reference.path, state=state, detail=detail, trials=trials)
        self._report.damages.append(damage)

    def _count(self, kind: str, reference: Reference) -> None:
        count = self._report.counts[kind]
        count.n_files += 1
        count.n_bytes += reference.bytes
        self._progress(self._report)


def _names(
    files: BlobStore, checkpoint: Checkpoint, pack: Reference, wrong: Collection[TensorRange]
) -> list[str] | None:
    """Returns the tensors in these ranges of a pack; None without a readable manifest."""
    try:
        tensors = load_manifest(files, checkpoint).tensors
    except StorageError:
        return None
    in_pack = [(name, entry) for name, entry in tensors.items() if entry.pack == pack.path]
    return [name for name, entry in in_pack if TensorRange(entry.offset, entry.bytes, entry.digest) in wrong]


def _state(error: StorageError) -> DamageState:
    if isinstance(error, MissingError):
        return "missing"
    return "corrupt" if isinstance(error, CorruptError) else "unreadable"


def _detail(error: StorageError, reference: Reference) -> str:
    """Returns what is wrong with a file, without its path and mount."""
    if isinstance(error, MissingError):
        return ""
    if not isinstance(error, CorruptError):
        return reason_of(error)
    if not (found := re.search(r"found (\d+) bytes", str(error))):
        return str(error).rpartition(" is corrupt: ")[2]
    size = int(found[1])
    return "wrong contents" if size == reference.bytes else f"{size:,} of {reference.bytes:,} bytes"
