"""Mark phase: the trials whose weights a search still needs, and counts of shared files.

The marks are a function of the trials. The controller and ``flows.gc`` both compute them before each collection.

With ``deterministic`` a collection changes no trial's donors, whenever it runs. Weights that a proposal may name stay,
and ``Tuner.may_inherit_from`` never returns a trial again that it once left out. If a trial has no weights, or may end
without them, those of its nearest ancestor stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nas.core.checkpoint import Checkpoint
from nas.core.lineage import ancestor_with_weights, lost_donors
from nas.core.policy import Policy
from nas.core.reference import on_disk
from nas.core.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """Trials whose weights are needed for reasons that the trials' own records do not show.

    Attributes:
        inheritable: Trials that later proposals may name, by ``Tuner.may_inherit_from``.
        finalists: Trials that a later stage, a test or the export needs; the best trial is one of them.
        other_searches: Trials that unfinished trials, or initial weights, of other searches name as donors.
        uses_ancestors: Whether an ancestor replaces a donor without weights (``on_missing_weights=ancestor``).
    """

    inheritable: frozenset[int] = frozenset()
    finalists: frozenset[int] = frozenset()
    other_searches: frozenset[int] = frozenset()
    uses_ancestors: bool = True


DONORS = "donors of waiting or running trials"
ANCESTORS = "ancestors that replace trials without weights"
FINALISTS = "finalists and the best"
OTHER_SEARCHES = "donors of other searches"
INHERITABLE = "trials that the tuner may still inherit from"


def mark(trials: Sequence[Trial], roots: Roots) -> dict[int, str]:
    """Returns the trials whose weights must stay, each with the reason.

    Only trials that have weights are marked.

    Args:
        trials: All trials of the search, by number.
        roots: What the records of these trials do not show.
    """
    lost = lost_donors(trials)
    marked: dict[int, str] = {}

    def add(number: int, reason: str) -> None:
        has_weights = trials[number].checkpoint is not None
        if has_weights:
            marked.setdefault(number, reason)
        if roots.uses_ancestors and (not has_weights or number in lost):
            ancestor = ancestor_with_weights(trials, number, lost)
            if ancestor is not None:
                marked.setdefault(ancestor, ANCESTORS)

    unfinished = [trial for trial in trials if not trial.is_finished]
    for trial in unfinished:
        if Policy.SHARE_PARAMS in trial.policies:
            for donor in (*trial.proposal.weight_donors, *trial.resolved_donors):
                if isinstance(donor, int):
                    add(donor, DONORS)
    for numbers, reason in (
        (roots.finalists, FINALISTS),
        (roots.other_searches, OTHER_SEARCHES),
        (roots.inheritable, INHERITABLE),
    ):
        for number in sorted(number for number in numbers if number < len(trials)):
            add(number, reason)
    for trial in unfinished:  # it may end without weights
        add(trial.number, ANCESTORS)
    return marked


class ReferenceCounts:
    """Number of checkpoints that name each file; a file is deleted with the last of them.

    The files of a trial's ``save_dir`` count as one: their folder.
    """

    def __init__(self, checkpoints: Iterable[Checkpoint] = ()) -> None:
        self.bytes = 0
        """Bytes on disk of all named files."""
        self._counts: Counter[str] = Counter()
        for checkpoint in checkpoints:
            self.add(checkpoint)

    def __contains__(self, path: object) -> bool:
        return self._counts[counted_name(str(path))] > 0

    def added_bytes(self, checkpoint: Checkpoint) -> int:
        """Returns the bytes on disk that adding the checkpoint would add."""
        return sum(size for name, size in file_sizes(checkpoint).items() if not self._counts[name])

    def add(self, checkpoint: Checkpoint) -> None:
        """Counts the files of a checkpoint."""
        self.bytes += self.added_bytes(checkpoint)
        self._counts.update(file_sizes(checkpoint).keys())

    def remove(self, checkpoint: Checkpoint) -> None:
        """Stops counting the files of a checkpoint."""
        self._counts.subtract(file_sizes(checkpoint).keys())
        self.bytes -= self.added_bytes(checkpoint)


def file_sizes(checkpoint: Checkpoint) -> dict[str, int]:
    """Returns the bytes on disk of a checkpoint's files; a ``save_dir`` counts as one."""
    sizes = {file.path: on_disk(file.bytes) for file in (checkpoint.manifest, *checkpoint.packs)}
    return sizes if checkpoint.saved is None else {**sizes, checkpoint.saved.path: checkpoint.saved.on_disk}


def counted_name(path: str) -> str:
    """Returns the counted name of a file: its path, or the folder of a ``save_dir``."""
    return "/".join(path.split("/", 2)[:2]) if path.startswith("files/") else path


@dataclass(frozen=True, slots=True)
class Deletions:
    """Trials that lose their weights.

    Attributes:
        not_kept: Trials that are neither marked nor kept by the retention plan.
        for_space: Further trials, deleted because of the disk budget.
        remaining: The files of all other trials.
    """

    not_kept: tuple[int, ...]
    for_space: tuple[int, ...]
    remaining: ReferenceCounts


def choose_deletions(
    trials: Sequence[Trial],
    *,
    marked: Container[int],
    kept: Container[int],
    order: Iterable[Trial] = (),
    max_bytes: float | None = None,
    slack: float = 0.0,
) -> Deletions:
    """Chooses the trials that lose their weights, by the retention plan, then the disk budget.

    Args:
        trials: All trials of the search.
        marked: Trials that keep their weights in any case.
        kept: Trials that lose them only because of the disk budget.
        order: Trials in the order in which the disk budget deletes their weights.
        max_bytes: Limit for the files of checkpoints on disk, or None.
        slack: Bytes to free below the limit once it is exceeded.
    """
    checkpoints = {trial.number: trial.checkpoint for trial in trials if trial.checkpoint is not None}
    not_kept = tuple(number for number in checkpoints if number not in marked and number not in kept)
    left = checkpoints.keys() - set(not_kept)
    remaining = ReferenceCounts(checkpoints[number] for number in left)
    for_space: tuple[int, ...] = ()
    if max_bytes is not None and remaining.bytes > max_bytes:
        numbers = [trial.number for trial in order if trial.number in left and trial.number not in marked]
        for_space = _free_space(remaining, {number: checkpoints[number] for number in numbers}, max_bytes - slack)
    return Deletions(not_kept, for_space, remaining)


def _free_space(remaining: ReferenceCounts, candidates: Mapping[int, Checkpoint], max_bytes: float) -> tuple[int, ...]:
    """Removes checkpoints, in order, until the remaining files fit; returns the trials.

    A checkpoint that fits after all, since others share its files, is added again.
    """
    removed: list[int] = []
    for number, checkpoint in candidates.items():
        if remaining.bytes <= max_bytes:
            break
        remaining.remove(checkpoint)
        removed.append(number)
    deleted: list[int] = []
    for number in reversed(removed):
        if remaining.bytes + remaining.added_bytes(candidates[number]) <= max_bytes:
            remaining.add(candidates[number])
        else:
            deleted.append(number)
    return tuple(deleted)
