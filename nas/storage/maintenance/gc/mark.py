"""What a search still needs of its weights, and what may go: a function of its trials, for the loop and for flows.gc.

With ``deterministic`` the donors of every trial are the same, whatever was swept and when: what a proposal may name is
never taken (``Tuner.may_inherit_from`` never gives a trial again that it once left out), and neither is the nearest
ancestor with weights of a trial without, nor of one that has not finished and may end without.
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
class Wanted:
    """What others than the trials themselves know of what is needed.

    Attributes:
        inheritable: Trials that later proposals may name, as ``Tuner.may_inherit_from`` says.
        finalists: Trials that a later stage, a test or the export needs, the best among them.
        other_searches: Trials that unfinished trials of other searches name as donors.
        stands_in: Whether the nearest ancestor with weights stands in for a donor without (``on_missing_weights``).
    """

    inheritable: frozenset[int] = frozenset()
    finalists: frozenset[int] = frozenset()
    other_searches: frozenset[int] = frozenset()
    stands_in: bool = True


QUEUED = "donors of trials that are queued or run"
STAND_INS = "ancestors that stand in for trials without weights"
BEST = "finalists and the best"
OTHER_SEARCHES = "donors of another search's trials"
INHERITABLE = "trials that the tuner may still inherit from"


def needed(trials: Sequence[Trial], wanted: Wanted) -> dict[int, str]:
    """Returns the trials whose weights must stay, and what for; only trials that have weights.

    Args:
        trials: All of the search, by number.
        wanted: See there.
    """
    lost = lost_donors(trials)
    marks: dict[int, str] = {}

    def mark(number: int, why: str) -> None:
        has_weights = trials[number].checkpoint is not None
        if has_weights:
            marks.setdefault(number, why)
        if wanted.stands_in and (not has_weights or number in lost):
            stand_in = ancestor_with_weights(trials, number, lost)
            if stand_in is not None:
                marks.setdefault(stand_in, STAND_INS)

    for trial in trials:
        if not trial.is_finished and Policy.SHARE_PARAMS in trial.policies:
            for donor in (*trial.proposal.weight_donors, *trial.resolved_donors):
                if isinstance(donor, int):
                    mark(donor, QUEUED)
    for numbers, why in (
        (wanted.finalists, BEST),
        (wanted.other_searches, OTHER_SEARCHES),
        (wanted.inheritable, INHERITABLE),
    ):
        for number in sorted(number for number in numbers if number < len(trials)):
            mark(number, why)
    for trial in trials:
        if not trial.is_finished:  # it may end without weights
            mark(trial.number, STAND_INS)
    return marks


class Ledger:
    """Which files the checkpoints that stay name; one that several name goes with the last of them.

    What a trial saved in its ``save_dir`` counts as one: the folder.
    """

    def __init__(self, checkpoints: Iterable[Checkpoint] = ()) -> None:
        self.bytes = 0
        """What the files take on a disk."""
        self._n_names: Counter[str] = Counter()
        for checkpoint in checkpoints:
            self.add(checkpoint)

    def __contains__(self, path: object) -> bool:
        return self._n_names[named(str(path))] > 0

    def cost(self, checkpoint: Checkpoint) -> int:
        """What the checkpoint would add."""
        return sum(size for name, size in sizes_of(checkpoint).items() if not self._n_names[name])

    def add(self, checkpoint: Checkpoint) -> None:
        """Its files stay."""
        self.bytes += self.cost(checkpoint)
        self._n_names.update(sizes_of(checkpoint).keys())

    def remove(self, checkpoint: Checkpoint) -> None:
        """Its files go, but for those that another one names."""
        self._n_names.subtract(sizes_of(checkpoint).keys())
        self.bytes -= self.cost(checkpoint)


def sizes_of(checkpoint: Checkpoint) -> dict[str, int]:
    """What each file that a checkpoint names, and the folder of what its trial saved, takes on a disk."""
    sizes = {file.path: on_disk(file.bytes) for file in (checkpoint.manifest, *checkpoint.packs)}
    return sizes if checkpoint.saved is None else {**sizes, checkpoint.saved.path: checkpoint.saved.on_disk}


def named(path: str) -> str:
    """By what a checkpoint names a file: its path, or, of what a trial saved, that of its folder."""
    return "/".join(path.split("/", 2)[:2]) if path.startswith("files/") else path


@dataclass(frozen=True, slots=True)
class Marking:
    """Which trials lose their weights.

    Attributes:
        swept: Their numbers, and why.
        live: The files of those that keep them.
    """

    weights_deleted: Mapping[int, str]
    live: Ledger


def mark(
    trials: Sequence[Trial],
    *,
    needed: Container[int],
    kept: Container[int],
    order: Iterable[Trial] = (),
    max_bytes: float | None = None,
    why: tuple[str, str] = ("", ""),
) -> Marking:
    """Chooses the trials that lose their weights: those that the plan does not keep, then as many as the disk asks for.

    Args:
        trials: All of the search.
        needed: Never swept.
        kept: Swept only for the disk.
        order: In which the disk takes; one whose files others name all the same is spared.
        max_bytes: That the files of checkpoints may take on disk.
        why: What is said of the first and of the second kind.
    """
    holders = {t.number: t.checkpoint for t in trials if t.checkpoint is not None}
    weights_deleted = {number: why[0] for number in holders if number not in needed and number not in kept}
    live = Ledger(checkpoint for number, checkpoint in holders.items() if number not in weights_deleted)
    if max_bytes is None:
        return Marking(weights_deleted, live)
    taken: list[int] = []
    for number in (t.number for t in order if t.number in holders and t.number not in needed):
        if live.bytes <= max_bytes:
            break
        if number not in weights_deleted:
            live.remove(holders[number])
            taken.append(number)
    for number in reversed(taken):
        if live.bytes + live.cost(holders[number]) <= max_bytes:
            live.add(holders[number])
        else:
            weights_deleted[number] = why[1]
    return Marking(weights_deleted, live)
