"""Processes of a driver whose machine vanishes, on workers that are namespaces of this machine."""

from __future__ import annotations

import pytest

from tests.support.nfs.guest import run_in_namespaces

pytestmark = [pytest.mark.slow, pytest.mark.timeout(750)]


@pytest.mark.parametrize("engine", ["dask", "ray"])
def test_orphans_of_a_lost_machine_end(engine: str) -> None:
    """After a driver's machine has vanished, its trial's processes on a worker end after some 40 s."""
    found = run_in_namespaces(f"cut_links_{engine}.py", "driver", timeout_s=300)

    assert found["n_processes"] > 0
    assert found["ended_s"] < 75  # a busy machine adds to the 40 s
