"""Writers that commit trials until they are killed: run by test_killed_writer.py, as a program that forks them.

The program has loaded torch already, so that a writer lives in milliseconds and a kill finds it at its work. Prints, as
JSON, the trials of which a writer has said that they are committed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace

import torch

from nas.core.trial import Proposal, State, Trial
from nas.storage.checkpoints import load_manifest, publish_checkpoint, publish_tensors
from nas.storage.folders import publish_folder
from nas.storage.open import open_root
from nas.storage.records import Records

N_TENSORS = 6


def tensors_of(number: int) -> dict[str, torch.Tensor]:
    """Returns the tensors that a trial saves: one of its own, one of its grandparent's, and so on."""
    return {str(n): torch.full((20_000,), float(max(0, number - n))) for n in range(N_TENSORS)}


def write_trials(root: str, number: int, folder: str, said: int) -> None:
    """Commits one trial after the other, each with a delta pack, a file, a manifest and a result."""
    records = Records(open_root(root))
    donor = records.finished_trial(number - 1) if number else None
    while True:
        trial = records.finished_trial(number)
        if trial is None:
            proposal = Proposal(point={"x": number}, parents=() if donor is None else (donor.number,))
            trial = Trial(number=number, index=number, proposal=proposal, attempt=1)
            if records.read(f"trials/{number:06d}.proposal.json") is None:
                records.propose(trial)
            stem = f"{number:06d}-{os.urandom(4).hex()}"
            known = (
                [] if donor is None or donor.checkpoint is None else [load_manifest(records.files, donor.checkpoint)]
            )
            saved = publish_tensors(records.files, f"packs/{stem}.safetensors", tensors_of(number), known)
            beside = publish_folder(records.files, stem, folder)
            checkpoint = publish_checkpoint(records.files, stem, saved, beside)
            metrics = {"x": float(number)}
            trial = records.commit(replace(trial, state=State.COMPLETE, metrics=metrics, checkpoint=checkpoint))
        os.write(said, f"{number}\n".encode())
        donor, number = trial, number + 1


def main(root: str, folder: str, n_kills: int, seed: int) -> None:
    """Kills so many writers, one after the other, each at a random moment of its first few trials."""
    torch.set_num_threads(1)
    moments = random.Random(seed)
    committed: list[int] = []
    lived_s = 0.0
    for kill in range(n_kills + 1):
        said, saying = os.pipe()
        began_s = time.monotonic()
        writer = os.fork()
        if not writer:
            os.close(said)
            write_trials(root, len(committed), folder, saying)
        os.close(saying)
        with os.fdopen(said, "rb") as told:
            if kill:  # within some three trials, as long as they take on this disk
                time.sleep(moments.uniform(0, 3 * lived_s / len(committed)))
            else:
                committed += [int(told.readline()) for _ in range(5)]
            os.kill(writer, signal.SIGKILL)
            os.waitpid(writer, 0)
            committed += [int(line) for line in told.read().split()]
        lived_s += time.monotonic() - began_s
    print(json.dumps(committed))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
