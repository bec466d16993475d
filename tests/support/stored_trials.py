"""Trials with weights on a real store, and lineages in which anything may be, packs shared at random."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from nas.core.checkpoint import Checkpoint, SavedFolder
from nas.core.policy import Policy
from nas.core.reference import Reference
from nas.core.trial import Donor, Proposal, Reason, State, Trial
from nas.storage.blobs import BlobStore
from nas.storage.verified import digest_of

SHARE = frozenset({Policy.SHARE_PARAMS})


def trial(number: int, *, parents: Iterable[int] = (), score: float | None = 0.5, **fields: Any) -> Trial:
    """A trial of the search stage, COMPLETE unless it is said otherwise."""
    donors = fields.pop("donors", None)
    proposal = Proposal(point={"x": number}, parents=tuple(parents), donors=donors)
    metrics = {} if score is None else {"accuracy": score}
    defaults = {"index": number, "job": number, "state": State.COMPLETE, "metrics": metrics, "policies": SHARE}
    return Trial(number=number, proposal=proposal, **{**defaults, "finished": float(number), **fields})


def paper_checkpoint(number: int, packs: Iterable[Reference] = (), size: int = 5000) -> Checkpoint:
    """A checkpoint with a pack of its own and those of others, of which only the references are there."""
    own = Reference(f"packs/{number:06d}-aa.safetensors", size, digest_of(b"%d" % number))
    manifest = Reference(f"manifests/{number:06d}-aa.json", 100 + number, digest_of(b""))
    return Checkpoint(manifest=manifest, packs=(own, *packs))


def real_checkpoint(files: BlobStore, number: int, packs: Iterable[Reference] = (), size: int = 5000) -> Checkpoint:
    """The same, and its files are there."""
    own = files.publish(f"packs/{number:06d}-aa.safetensors", [bytes([number % 256]) * size])
    saved = files.publish(f"files/{number:06d}-aa/deep/notes.txt", [b"notes"])
    manifest = files.publish(f"manifests/{number:06d}-aa.json", [b"{%d}" % number])
    return Checkpoint(manifest=manifest, packs=(own, *packs), saved=SavedFolder.of(f"files/{number:06d}-aa", [saved]))


def all_files(checkpoint: Checkpoint) -> tuple[Reference, ...]:
    """Every file that a checkpoint names."""
    saved = checkpoint.saved
    notes = () if saved is None else (Reference(f"{saved.path}/deep/notes.txt", saved.bytes, digest_of(b"notes")),)
    return (checkpoint.manifest, *checkpoint.packs, *notes)


def given(trials: Sequence[Trial], wanted: Trial, *, stands_in: bool) -> list[Donor | None]:
    """Whose weights a trial is given, as DESIGN.md has it: each donor, or the nearest ancestor that has weights."""
    lost = {donor for t in trials for donor in t.inheritance.get("lost", ())}

    def has_weights(number: int) -> bool:
        return trials[number].checkpoint is not None and number not in lost

    result: list[Donor | None] = []
    for donor in wanted.proposal.weight_donors if Policy.SHARE_PARAMS in wanted.policies else ():
        found: int | None = donor if isinstance(donor, int) else None
        while stands_in and found is not None and not has_weights(found):
            found = next(iter(trials[found].parents), None)
        result.append(found if found is not None and has_weights(found) else None)
    return result


KINDS = ("whole", "whole", "whole", "bare", "failed", "stopped", "deleted", "waiting", "running")


@st.composite
def lineages(draw: st.DrawFn, max_size: int = 18) -> list[Trial]:
    """Draws trials in every state, with any parents and donors, and packs shared with any donor."""
    trials: list[Trial] = []
    packs: dict[int, tuple[Reference, ...]] = {}
    for number in range(draw(st.integers(1, max_size))):
        before = st.lists(st.integers(0, number - 1), max_size=2, unique=True) if number else st.just([])
        parents = tuple(draw(before))
        donors = draw(st.one_of(st.none(), before.map(tuple)))
        kind = draw(st.sampled_from(KINDS))
        state = {"waiting": State.WAITING, "running": State.RUNNING, "failed": State.FAILED, "stopped": State.STOPPED}
        named = parents if donors is None else donors
        inheritance: dict[str, Any] = {}
        if kind == "failed" and named and draw(st.booleans()):
            inheritance["lost"] = [named[0]]
        made = trial(
            number,
            parents=parents,
            donors=donors,
            score=None if kind in ("failed", "waiting", "running") else draw(st.floats(0, 1)),
            state=state.get(kind, State.COMPLETE),
            reason=Reason.PARENT if kind == "failed" else None,
            policies=draw(st.sampled_from([SHARE, SHARE, frozenset()])),
            stage=draw(st.sampled_from(["search", "search", "final"])),
            weights_deleted=kind == "deleted",
            inheritance=inheritance,
        )
        shared = [pack for donor in named for pack in packs.get(donor, ()) if draw(st.booleans())]
        if kind in ("whole", "stopped", "deleted"):
            checkpoint = paper_checkpoint(number, dict.fromkeys(shared), draw(st.integers(0, 20_000)))
            packs[number] = checkpoint.packs
            if kind != "deleted":
                made = replace(made, checkpoint=checkpoint)
        trials.append(made)
    return trials
