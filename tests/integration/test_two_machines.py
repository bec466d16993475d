"""Driver and workers on machines of their own, which share storage by NFS alone and lose their links."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.nfs.guest import run_in_guest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(750)]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    result: dict[str, Any] = run_in_guest("cut_links.py", memory="3G", timeout_s=700)
    return result


def test_link_that_is_cut_loses_nothing(found: dict[str, Any]) -> None:
    """After 20 s without a link, a trial goes on in its first attempt."""
    assert found["is_kept"]
    assert found["goes_on_s"] > 20


def test_losses_are_noticed(found: dict[str, Any]) -> None:
    """A killed worker is noticed within 3 s, a machine that vanishes without closing a socket within 60 s."""
    assert found["killed_noticed_s"] < 3
    assert found["vanished_noticed_s"] < 60


def test_search_on_two_machines_is_whole(found: dict[str, Any]) -> None:
    """Each trial has one result, two in their second attempts, and children inherit what their donors published."""
    trials = found["trials"]
    by_number = {trial["number"]: trial for trial in trials}
    children = [trial for trial in trials if trial["donor"] is not None]

    assert found["status"] == 0
    assert [trial["state"] for trial in trials] == ["COMPLETE"] * 5
    assert sorted(trial["attempt"] for trial in trials) == [1, 1, 1, 2, 2]
    assert [trial["n_results"] for trial in trials] == [1] * 5
    assert found["damages"] == []
    assert children
    for child in children:
        assert child["donor"] in child["parents"]
        assert set(child["inherits"]) == {by_number[child["donor"]]["digest"]}
