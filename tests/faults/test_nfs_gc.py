"""A collection on one NFS mount while the other reads, with a real server and two real clients."""

from __future__ import annotations

import pytest

from tests.support.nfs.guest import run_in_guest


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["3", "4.2"])
def test_both_machines_agree_after_a_collection(version: str) -> None:
    """Needed weights are readable during the collection; after it both mounts show the same weights."""
    found = run_in_guest("collector.py", version=version, timeout_s=240)

    assert found["writer"] == found["collector"] == {"weights_deleted": list(range(3, 11)), "n_weights": 4 * 3}
    assert found["n_reads"] >= 9
    assert found["folders"] == [f"{number:06d}-aa" for number in (0, 1, 2, 11)]
