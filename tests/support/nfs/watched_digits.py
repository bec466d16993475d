"""The digits, with a line in the log of each trial that tells the weights which it inherits.

Trial n goes on reporting while the file ``n`` is in the folder that ``HOLD_VARIABLE`` names on its worker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from blake3 import blake3

from nas.problems.digits import DigitsProblem
from nas.training.trial_run import TrialRun

HOLD_VARIABLE = "HEIRLOOM_TEST_HOLD"


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Returns a digest of names and values."""
    found = blake3()
    for name in sorted(tensors):
        found.update(name.encode() + tensors[name].contiguous().numpy().tobytes())
    return found.hexdigest()


class WatchedDigits(DigitsProblem):  # type: ignore[misc]
    """`DigitsProblem` that prints a digest of the donor's weights, and trains finals for a few epochs only."""

    recipe = replace(DigitsProblem.recipe, n_epochs=6)

    def train(self, run: TrialRun) -> dict[str, float]:
        """Prints it before the training."""
        tensors = run.inherit_tensors()
        print("inherits", None if tensors is None else digest(tensors), flush=True)
        scores = dict(super().train(run))
        while _is_held(run.number):
            run.report(99, **scores)
            time.sleep(0.5)
        return scores


def _is_held(number: int) -> bool:
    """Returns whether the file is there; NFS shows it to who opens it."""
    try:
        (Path(os.environ[HOLD_VARIABLE]) / str(number)).read_bytes()
    except FileNotFoundError:
        return False
    return True
