"""Searches in simulated time, for the benchmarks of tuners and stoppers."""

from __future__ import annotations

from uuid import uuid4

from nas.core.budget import Budget
from nas.core.policy import Stage
from nas.core.trial import Trial
from nas.executors.simulated import SimulatedExecutor
from nas.search.controller import ControllerSettings, SearchController
from nas.stoppers.base import Stopper
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.problem import Problem
from nas.tuners.base import Tuner


def simulate(
    problem: Problem, tuner: Tuner, budget: Budget, *, seed: int, slots: int = 1, stopper: Stopper | None = None
) -> list[Trial]:
    """Returns all trials of one search on simulated workers."""
    from fsspec.implementations.memory import MemoryFileSystem

    records = Records(open_root(f"memory://{uuid4().hex}"))
    executor = SimulatedExecutor(problem, records, slots=slots, has_stopper=stopper is not None)
    controller = SearchController(
        records,
        executor,
        ControllerSettings(seed=seed, budget=budget),
        tuner=tuner,
        space=problem.space,
        stopper=stopper,
        spent_hours=lambda: executor.now_s() / 3600,
    )
    controller.search(Stage(name="search"))
    MemoryFileSystem.store.clear()
    return controller.trials
