"""A small search as it lies in a store: real packs, manifests, files, exports and records, written as searches do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nas.core.checkpoint import Checkpoint
from nas.core.trial import Proposal, Reason, State, Trial
from nas.storage.blobs import BlobStore
from nas.storage.checkpoints import load_manifest, publish_checkpoint, publish_tensors
from nas.storage.folders import publish_folder
from nas.storage.open import open_root
from nas.storage.pack import write_pack
from nas.storage.record_format import FORMAT
from nas.storage.records import Records
from tests.support.sample_searches import IDENTITY

SESSION: dict[str, Any] = {
    **{"session": 1, "host": "far", "pid": 1, "boot": "b", "process_started": "1", "machine": "", "started": 1.0},
    "settings": {},
}
BEST: dict[str, Any] = {
    **{"number": 1, "trial": 2, "point": {"width": 2}, "metrics": {"accuracy": 0.5}, "test": None, "ancestors": [1, 0]},
    **{"export": "best/000002-aa", "files": [], "missing": {}, "time": 2.0},
}
RESUME_STATE: dict[str, Any] = {
    **{"step": 3, "curve": [], "parts": [], "inheritance": None, "saved": {}, "files": {}, "random": {}},
    "totals": {
        **dict.fromkeys(("resolved_donor", "donor", "inherited")),
        **{"inheritance": {}, "cost": {"seconds": 1.0, "gpu_seconds": 0.0}},
    },
}
"""The state of a trial that has reported nothing and saves no network."""
TENSORS = {"stem": torch.arange(64.0), "body": torch.arange(100.0, 200.0), "head": torch.arange(8.0)}


def write_stored_search(root: Path, scratch: Path) -> BlobStore:
    """Writes a search under a root. Returns its folder.

    Trial 0 has no parent. 1 inherits from 0 and changes ``head``, so its checkpoint also names 0's pack. 2 inherits
    from 1 without changes, so it has no pack. 3 has only saved files, 4 failed, and 5 waits for 1 and 3. The winner
    is 2. The only session has ended.

    Args:
        root: The folder of the search.
        scratch: An empty folder for what trial 3 saves.
    """
    files = open_root(str(root))
    records = Records(files)
    metrics = [{"name": "accuracy", "direction": "maximize"}]
    records.publish("search.json", {"format": FORMAT, "identity": IDENTITY, "metrics": metrics})
    records.publish("sessions/0001.json", SESSION)
    (scratch / "model").mkdir()
    (scratch / "model" / "weights.bin").write_bytes(b"of another framework" * 100)
    first = publish(files, 0, TENSORS)
    child = publish(files, 1, {**TENSORS, "head": torch.ones(8)}, first)
    same = publish(files, 2, {**TENSORS, "head": torch.ones(8)}, child)
    saved = publish_checkpoint(files, "000003-aa", None, publish_folder(files, "000003-aa", scratch))
    finish(records, proposed(records, 0), first)
    finish(records, proposed(records, 1, parents=(0,), learned=(0,)), child)
    finish(records, proposed(records, 2, parents=(1,), learned=(1,)), same)
    finish(records, proposed(records, 3), saved)
    failed = replace(proposed(records, 4), state=State.FAILED, reason=Reason.EXCEPTION, error="no")
    records.commit(failed)
    proposed(records, 5, parents=(1, 3), learned=(2, 4))
    records.publish("tests/000002.json", {"trial": 2, "metrics": {"accuracy": 0.5}})
    exported = [
        files.publish("best/000002-aa/architecture.json", [b"{}"]),
        write_pack(files, "best/000002-aa/model.safetensors", TENSORS)[0],
    ]
    plain = [reference.to_json() for reference in exported if reference is not None]
    records.publish("best-0001.json", {**BEST, "files": plain})
    records.publish("sessions/0001.beat", {"count": 9, "time": 2.0, "hours": 0.1, "ended": True})
    return files


def publish(
    files: BlobStore, number: int, tensors: Mapping[str, torch.Tensor], donor: Checkpoint | None = None
) -> Checkpoint:
    """A trial's checkpoint, in whose pack lies only what its donor's does not hold."""
    donors = [] if donor is None else [load_manifest(files, donor)]
    manifest = publish_tensors(files, f"packs/{number:06d}-aa.safetensors", tensors, donors)
    return publish_checkpoint(files, f"{number:06d}-aa", manifest)


def proposed(records: Records, number: int, **fields: Any) -> Trial:
    """A trial whose proposal is durable."""
    proposal = Proposal(point={"width": number}, parents=fields.pop("parents", ()))
    trial = Trial(number=number, index=number, proposal=proposal, job=number, created=1.0, **fields)
    records.propose(trial)
    return trial


def finish(records: Records, trial: Trial, checkpoint: Checkpoint | None) -> Trial:
    """The trial after its first attempt, which left this checkpoint."""
    done = replace(
        trial,
        state=State.COMPLETE,
        metrics={"accuracy": 0.5},
        cost={"seconds": 1.0, "gpu_seconds": 0.0},
        checkpoint=checkpoint,
        attempt=1,
        slot=0,
        started=1.0,
        finished=2.0,
    )
    records.start(done, {"session": 1, "host": "far", "pid": 1, "time": 1.0})
    return records.commit(done)
