"""Driver and workers on machines of their own, which share storage by mounts alone and lose their links.

Dask's have real NFS between them. Ray's are namespaces of this machine.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.nfs.guest import run_in_guest, run_in_namespaces

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module", params=["dask", "ray"])
def seen(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Returns what was seen of a search whose workers and links are lost."""
    if request.param == "dask":
        return run_in_guest("cut_links_dask.py", memory="3G", timeout_s=1100)
    return run_in_namespaces("cut_links_ray.py", timeout_s=300)


def test_link_that_is_cut_loses_nothing(seen: dict[str, Any]) -> None:
    """After 20 s without a link, a trial goes on in its first attempt."""
    assert seen["is_kept"]
    assert seen["goes_on_s"] > 20


def test_losses_are_noticed(seen: dict[str, Any]) -> None:
    """A killed worker is noticed within seconds, a machine that vanishes without closing a socket after 45 s."""
    assert seen["killed_noticed_s"] < 35  # half a second; a silent loss takes 40 s and more
    assert seen["vanished_noticed_s"] < 75  # a busy machine adds to the 45 s


def test_search_on_two_machines_is_whole(seen: dict[str, Any]) -> None:
    """Each trial has one result, two in their second attempts, and children inherit what their donors published."""
    trials = seen["trials"]
    by_number = {trial["number"]: trial for trial in trials}
    children = [trial for trial in trials if trial["donor"] is not None]

    assert seen["status"] == 0
    assert [trial["state"] for trial in trials] == ["COMPLETE"] * 5
    assert sorted(trial["attempt"] for trial in trials) == [1, 1, 1, 2, 2]
    assert [trial["n_results"] for trial in trials] == [1] * 5
    assert seen["damages"] == []
    assert children
    for child in children:
        assert child["donor"] in child["parents"]
        assert set(child["inherits"]) == {by_number[child["donor"]]["digest"]}
