"""A search with a logger: ``python -m tests.support.logged_search FOLDER TARGET ARGUMENTS`` is killed in trial 1."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from nas.api.results import Results
from nas.api.search import run_search
from nas.callbacks.base import Callback
from nas.core.budget import Budget
from nas.core.spec import Spec
from nas.core.trial import Trial
from nas.search.definition import Search
from tests.support.callbacks import CurveProblem
from tests.support.problems import InOrderTuner

WRITE_S = 2.0
"""Seconds in which the logger writes what it has before the kill."""


class KillingCallback(Callback):
    """Kills the driver by SIGKILL after the second report of trial 1."""

    def on_trial_report(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        if (trial.number, step) == (1, 2):
            time.sleep(WRITE_S)
            os.kill(os.getpid(), signal.SIGKILL)


def run_logged(folder: Path, *callbacks: Callback, n_trials: int, log_dir: Path | None = None) -> Results:
    """Runs or resumes a search of trials that inherit from the one before; one finalist with a test."""
    tuner = Spec.of(InOrderTuner, xs=[30, 60, 90, 50, 70], donors=["global_recent"])
    return run_search(
        Search(problem=Spec.of(CurveProblem), tuner=tuner),
        root=str(folder / "root"),
        name="curves",
        budget=Budget(trials=n_trials),
        finalists=1,
        callbacks=callbacks,
        log_dir=str(log_dir or folder / "runs"),
    )


if __name__ == "__main__":
    logger = Spec(sys.argv[2], json.loads(sys.argv[3])).build()
    run_logged(Path(sys.argv[1]), logger, KillingCallback(), n_trials=3)
