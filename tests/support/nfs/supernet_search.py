"""A supernet search whose drivers are killed on two machines in turn: for whole_search.py."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

from nas.core.budget import Budget
from nas.core.spec import Spec
from nas.search.api import run_search
from nas.search.definition import Search
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.tuners.supernet import SposTuner
from tests.support.supernet_problem import SupernetProblem

N_KILLS = 4
TRIALS = "mine/trials"


def search(root: str) -> None:
    """Runs or continues the search."""
    tuner = Spec.of(SposTuner, n_epochs=3, warm_up_epochs=1, subnets_per_epoch=2)
    definition = Search(problem=Spec.of(SupernetProblem), tuner=tuner, deterministic=True, n_threads=1)
    run_search(definition, root=root, name="mine", budget=Budget(trials=9), finalists=1)


def results(root: str) -> int:
    return len(list(Path(root, TRIALS).glob("*.result.json")))


def kill_driver(root: str, n_results: int) -> int:
    """Kills a driver after this many results, and returns how many there are."""
    driver = multiprocessing.get_context("fork").Process(target=search, args=(root,))
    driver.start()
    while results(root) < n_results and driver.is_alive():
        time.sleep(0.02)
    driver.kill()
    driver.join()
    return results(root)


def table(root: str) -> list[list[Any]]:
    """Returns what must depend neither on machines nor on kills."""
    return [
        [t.number, t.stage, t.state, t.point, t.parents, t.donor, t.inherited, t.learned, dict(t.metrics)]
        for t in Records(open_root(f"{root}/mine")).load()[0]
    ]


def continue_elsewhere() -> dict[str, Any]:
    """Returns the tables that both machines see, and that of an undisturbed search."""
    roots = [f"{os.environ[mount]}/supernet" for mount in ("NFS_A", "NFS_B")]
    n_results = [0]
    for kill in range(N_KILLS):
        n_results.append(kill_driver(roots[kill % 2], n_results[-1] + 1))
    search(roots[N_KILLS % 2 - 1])
    calm = f"{os.environ['TMPDIR']}/calm"
    search(calm)
    return {"n_results": n_results, "tables": [table(root) for root in (*roots, calm)]}
