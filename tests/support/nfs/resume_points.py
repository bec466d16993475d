"""A trial that goes on on another machine: for two_machines.py.

Attempts publish through the mount $NFS_A, and the next one looks through the mount $NFS_B, which has caches of its own.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from nas.storage.resume_points import ResumePoints

TICK_S = 0.03
"""NFSv3 sees no change of a folder within one tick of the server's clock."""


def publish(files: BlobStore, trial: int, step: int) -> None:
    time.sleep(TICK_S)
    ResumePoints(files, trial).publish({"step": step}, {"weight": torch.full((1000,), float(step))})


def newest(files: BlobStore, trial: int) -> int | None:
    found = ResumePoints(files, trial).newest()
    return None if found is None or found[1]["weight"][0] != found[0]["step"] else found[0]["step"]


def go_on_elsewhere() -> dict[str, Any]:
    """Returns what the second machine found."""
    a = open_root(f"{os.environ['NFS_A']}/resumed/search")
    b = open_root(f"{os.environ['NFS_B']}/resumed/search")
    early, late, last = [], [], []
    for trial in range(10):  # the second machine looks into a folder that is not there yet
        early.append(newest(b, trial))
        publish(a, trial, trial)
        late.append(newest(b, trial))
    for step in range(10, 40):  # and again and again into one whose files come and go
        publish(a, 0, step)
        last.append(newest(b, 0))
    time.sleep(TICK_S)
    ResumePoints(b, 0).delete()
    time.sleep(TICK_S)
    return {"early": early, "late": late, "newest": last, "left": a.names("resume/000000")}
