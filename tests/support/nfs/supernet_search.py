"""A supernet search whose drivers are killed on two machines in turn: for whole_search.py.

The last driver gives its machine another name. As on another host, it can't see that the killed process has ended.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.spec import Spec
from nas.search.definition import Search
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.sessions import past_sessions
from nas.tuners.supernet import SposTuner
from tests.support.supernet_problem import SupernetProblem

IMPORTS = ("nas.inheritance.inherit", "nas.storage.lazy_weights", "nas.training.export")
"""Imports take long in the guest, so the drivers are forks of a process that has them."""
N_KILLS = 3
TRIALS = "mine/trials"
NEW_HOST_NAMES = 0x04000000  # CLONE_NEWUTS; os.unshare comes with Python 3.12


def search(root: str, host: str | None = None) -> None:
    """Runs or continues the search, on a host of this name."""
    if host is not None:
        assert ctypes.CDLL(None, use_errno=True).unshare(NEW_HOST_NAMES) == 0, os.strerror(ctypes.get_errno())
        socket.sethostname(host)
    tuner = Spec.of(SposTuner, n_epochs=3, warm_up_epochs=1, subnets_per_epoch=2)
    definition = Search(problem=Spec.of(SupernetProblem, seconds=0.3), tuner=tuner, deterministic=True, n_threads=1)
    run_search(definition, root=root, name="mine", budget=Budget(trials=9), finalists=1)


def results(root: str) -> int:
    return len(list(Path(root, TRIALS).glob("*.result.json")))


def start_driver(root: str, host: str | None = None) -> multiprocessing.process.BaseProcess:
    driver = multiprocessing.get_context("fork").Process(target=search, args=(root, host))
    driver.start()
    return driver


def kill_driver(root: str, n_results: int) -> int:
    """Kills a driver after this many results, and returns how many there are."""
    driver = start_driver(root)
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


def take_over(root: str, host: str, meanwhile: Callable[[], None]) -> dict[str, Any]:
    """Completes the search on another host, whose session follows that of a killed driver."""
    began_s = time.time()
    driver = start_driver(root, host)
    meanwhile()
    driver.join()
    _, last = max(past_sessions(Records(open_root(f"{root}/mine"))).items())
    return {"status": driver.exitcode, "host": last["host"], "seconds": last["started"] - began_s}


def continue_elsewhere(meanwhile: Callable[[], None]) -> dict[str, Any]:
    """Returns the tables that both machines see, and that of an undisturbed search.

    Args:
        meanwhile: Is called while the last driver watches the heartbeat of the one before for a minute.
    """
    for name in IMPORTS:
        importlib.import_module(name)
    roots = [f"{os.environ[mount]}/supernet" for mount in ("NFS_A", "NFS_B")]
    n_results = [0]
    for kill in range(N_KILLS):
        n_results.append(kill_driver(roots[kill % 2], n_results[-1] + 1))
    takeover = take_over(roots[N_KILLS % 2], "another", meanwhile)
    calm = f"{os.environ['TMPDIR']}/calm"
    search(calm)
    tables = [table(root) for root in (*roots, calm)]
    return {"n_results": n_results, "takeover": takeover, "tables": tables}
