"""Verification: everything that a search's records promise is read and hashed, and what is lost is named.

One pass in little memory: a manifest is read when its trial's turn comes, and a pack when that of the last trial has
come that takes tensors from it. Nothing is written, also while the search runs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from nas.core.checkpoint import Checkpoint
from nas.core.errors import CorruptError, MissingError, StorageError
from nas.core.reference import Reference
from nas.storage.blobs import BlobStore
from nas.storage.checkpoints import load_manifest
from nas.storage.maintenance.damage import Damage, Fate, reason_of
from nas.storage.maintenance.gc.mark import counted_name, file_sizes
from nas.storage.maintenance.inventory import Inventory, take_inventory
from nas.storage.maintenance.parts import Part, PartHashes, parts_of
from nas.storage.verified import OnBlock

RETRY_S = 0.02
"""Enough for one more look past the caches; what still seems lost is looked at again at the end."""
PAUSE_S = 1.0
KINDS = ("record", "manifest", "pack", "file", "partial", "export")


@dataclass(slots=True)
class Tally:
    """How much of one kind was read."""

    n_files: int = 0
    n_bytes: int = 0


@dataclass(slots=True)
class Findings:
    """What a verification has found.

    Attributes:
        tallies: What was read, by kind, in the order of the report.
        damages: What is lost.
        unfinished: Trials without a result that name a touched trial as donor.
    """

    tallies: dict[str, Tally] = field(default_factory=lambda: {kind: Tally() for kind in KINDS})
    damages: list[Damage] = field(default_factory=list)
    unfinished: tuple[int, ...] = ()

    @property
    def touched(self) -> tuple[int, ...]:
        """The trials whose weights or files can't be read whole, so that no child can have them."""
        kinds = ("manifest", "pack", "file")
        return tuple(sorted({number for d in self.damages if d.kind in kinds for number in d.trials}))


Progress = Callable[[Findings], None]
"""Told after each file."""


def verify_search(
    files: BlobStore, *, progress: Progress = lambda findings: None, pause_s: float = PAUSE_S
) -> Findings:
    """Reads all records of a search and everything that they promise, and compares sizes and digests.

    What seems lost is looked at once more at the end: a search that runs may have deleted or committed it meanwhile, a
    cache may not have shown it yet.

    Args:
        files: The search's folder, opened with ``retry_s=RETRY_S``: each lost file costs that much.
        progress: See there.
        pause_s: How long after the first look the second one is taken.

    Raises:
        StorageError: the folder can't be listed.
    """
    inventory = take_inventory(files)
    findings = _verify(files, inventory, Findings(), progress)
    if findings.damages:
        time.sleep(pause_s)
        suspects = {damage.path for damage in findings.damages}
        inventory = take_inventory(files)
        again = _verify(files, inventory, Findings(), lambda findings: None, suspects)
        findings.damages = [damage for damage in again.damages if damage.path in suspects]
    findings.damages.sort(key=lambda damage: (KINDS.index(damage.kind), damage.path))
    touched = set(findings.touched)
    findings.unfinished = tuple(
        number
        for number, trial in sorted(inventory.trials.items())
        if not trial.is_finished and not touched.isdisjoint(trial.proposal.weight_donors)
    )
    return findings


def _verify(
    files: BlobStore, inventory: Inventory, findings: Findings, progress: Progress, only: Collection[str] | None = None
) -> Findings:
    findings.damages += inventory.damages
    findings.tallies["record"] = Tally(inventory.n_records, inventory.n_bytes)
    verification = _Verification(files, inventory.checkpoints, findings, progress, only)
    verification.run()
    for kind, promised in (("partial", inventory.partials), ("export", inventory.exports)):
        for number, reference in promised:
            verification.check_file(kind, reference, (number,))
    return findings


class _Verification:
    """One pass over the checkpoints of a search; with ``only``, over the files of these paths."""

    def __init__(
        self,
        files: BlobStore,
        checkpoints: Mapping[int, Checkpoint],
        findings: Findings,
        progress: Progress,
        only: Collection[str] | None,
    ) -> None:
        self._files = files
        self._checkpoints = checkpoints
        self._findings = findings
        self._progress = progress
        self._only = only
        self._suspects = {counted_name(path) for path in only or ()}
        self._takers: dict[Reference, list[int]] = {}  # a pack -> the trials that take tensors from it
        for number, checkpoint in sorted(checkpoints.items()):
            for pack in checkpoint.packs:
                self._takers.setdefault(pack, []).append(number)
        self._parts: dict[Reference, set[Part]] = {}

    def run(self) -> None:
        """Verifies the checkpoints in the order of their trials."""
        for number, checkpoint in sorted(self._checkpoints.items()):
            saved = self._check_manifest(number, checkpoint)
            for pack in checkpoint.packs:
                if self._takers[pack][-1] == number:
                    self._check_pack(pack, self._parts.pop(pack, set()))
            for reference in saved:
                self.check_file("file", reference, (number,))

    def check_file(self, kind: str, reference: Reference, trials: tuple[int, ...]) -> None:
        """Reads a file as a whole."""
        self._check(kind, reference, (), trials)

    def _check_manifest(self, number: int, checkpoint: Checkpoint) -> tuple[Reference, ...]:
        """Reads the manifest, where it is needed; gives the files that the trial saved."""
        reference = checkpoint.manifest
        if self._only is not None and self._suspects.isdisjoint(file_sizes(checkpoint)):
            return ()
        saved: tuple[Reference, ...] = ()
        try:
            manifest = load_manifest(self._files, checkpoint)
            saved = manifest.files
            packs = {pack.path: pack for pack in manifest.packs}
            for path, parts in parts_of(manifest).items():
                self._parts.setdefault(packs[path], set()).update(parts)
        except StorageError as error:
            self._lose("manifest", reference, _fate(error), _detail(error, reference), (number,))
        self._count("manifest", reference)
        return saved

    def _check_pack(self, pack: Reference, parts: Collection[Part]) -> None:
        takers = tuple(self._takers[pack])
        wrong = self._check("pack", pack, parts, takers)
        if wrong is None:
            return
        by_trial = {number: _names(self._files, self._checkpoints[number], pack, wrong) for number in takers}
        touched = tuple(number for number, found in by_trial.items() if found != [])
        names = max((found or [] for found in by_trial.values()), key=len)
        detail = f"{len(wrong)} of its {len(parts)} tensors: {_few(names)}"
        if not wrong:
            detail = "outside of the tensors that trials take"
        self._lose("pack", pack, Fate.CORRUPT, detail, touched)

    def _check(
        self, kind: str, reference: Reference, parts: Collection[Part], trials: tuple[int, ...]
    ) -> set[Part] | None:
        """Reads a file; which parts are wrong where its size is right and its contents are not, else None."""
        if self._only is not None and reference.path not in self._only:
            return None
        hashes: PartHashes | None = None

        def on_block() -> OnBlock:
            nonlocal hashes
            hashes = PartHashes(parts)
            return hashes.see

        wrong: set[Part] | None = None
        try:
            self._files.check_contents(reference, on_block)
            assert hashes is not None
            wrong = hashes.wrong() or None
        except CorruptError as error:
            if hashes is None or kind != "pack":
                self._lose(kind, reference, Fate.CORRUPT, _detail(error, reference), trials)
            else:
                wrong = hashes.wrong()
        except StorageError as error:
            self._lose(kind, reference, _fate(error), _detail(error, reference), trials)
        self._count(kind, reference)
        return wrong

    def _lose(self, kind: str, reference: Reference, fate: Fate, detail: str, trials: tuple[int, ...]) -> None:
        self._findings.damages.append(Damage(kind=kind, path=reference.path, fate=fate, detail=detail, trials=trials))

    def _count(self, kind: str, reference: Reference) -> None:
        tally = self._findings.tallies[kind]
        tally.n_files += 1
        tally.n_bytes += reference.bytes
        self._progress(self._findings)


def _names(files: BlobStore, checkpoint: Checkpoint, pack: Reference, wrong: Collection[Part]) -> list[str] | None:
    """Returns the checkpoint's tensors that lie in these parts of a pack; None where its manifest can't tell."""
    try:
        tensors = load_manifest(files, checkpoint).tensors
    except StorageError:
        return None
    entries = ((n, e) for n, e in tensors.items() if e.pack == pack.path)
    return [name for name, e in entries if Part(e.offset, e.bytes, e.digest) in wrong]


def _few(names: Iterable[str]) -> str:
    some = sorted(names)
    return ", ".join(some[:3]) + (f" and {len(some) - 3} more" if len(some) > 3 else "")


def _fate(error: StorageError) -> Fate:
    if isinstance(error, MissingError):
        return Fate.MISSING
    return Fate.CORRUPT if isinstance(error, CorruptError) else Fate.UNREADABLE


def _detail(error: StorageError, reference: Reference) -> str:
    """How a damage shows, without the path and the mount, which the caller knows."""
    if isinstance(error, MissingError):
        return ""
    if not isinstance(error, CorruptError):
        return reason_of(error)
    if not (found := re.search(r"found (\d+) bytes", str(error))):
        return str(error).rpartition(" is corrupt: ")[2]
    size = int(found[1])
    return "other contents" if size == reference.bytes else f"{size:,} of {reference.bytes:,} bytes"
