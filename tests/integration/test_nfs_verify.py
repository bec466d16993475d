"""``flows.verify`` under a real NFS server with two real clients, good and bad mounts, NFSv3 and NFSv4.2."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.nfs.guest import run_in_guest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=["3", "4.2"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    result = run_in_guest("verify.py", request.param, version=request.param, timeout_s=800)
    return {"vers": request.param, **result}


def row(found: dict[str, str], promise: str) -> str:
    """A promise's line of the table, without its name."""
    [line] = [line for line in found["output"].splitlines() if line.startswith(promise)]
    return " ".join(line.removeprefix(promise).split())


def test_second_mount_sees_all_through_its_stale_cache(found: dict[str, Any]) -> None:
    """Every promise is kept between two mounts, although plain look-ups deny nearly every file that was handed over."""
    check = found["second"]

    assert check["status"] == 0, check
    assert "broken" not in check["output"]
    assert "at risk" not in check["output"]
    handed = row(check, "what the other side publishes is read")
    assert handed.startswith("kept ")
    n, denied = (int(handed.partition(mark)[0].split()[-1]) for mark in (" of ", " of them"))
    assert n >= 20
    assert denied > 0.8 * n
    assert row(check, "one of two sides wins").startswith("kept ")
    assert f"vers={found['vers']}" in check["output"]


def test_two_machines_meet_and_agree(found: dict[str, Any]) -> None:
    """The same command on both machines: they find each other, and print the same about what they see together."""
    here, there = found["machine a"], found["machine b"]

    assert (here["status"], there["status"]) == (0, 0), (here, there)
    for promise in ("what the other side publishes is read", "records of the other side are seen", "clocks agree"):
        assert row(here, promise) == row(there, promise)
        assert row(here, promise).startswith("kept ")
    assert "/mnt/b/root" in row(here, "both see one root")
    assert "/mnt/a/root" in row(there, "both see one root")


def test_other_machine_verifies_a_search(found: dict[str, Any]) -> None:
    """A search that was looked for too early is verified by the other machine, and so is what is broken of it later."""
    assert found["early"]["status"] == 2
    assert found["whole"]["status"] == 0, found["whole"]
    assert "stored: all whole" in found["whole"]["output"]
    assert found["broken"]["status"] == 1
    assert "manifests/000003-aa.json" in found["broken"]["output"]
    assert "packs/000001-aa.safetensors  corrupt: 1 of its 1 tensors: head  1, 2" in found["broken"]["output"]


@pytest.mark.parametrize(
    ("case", "status", "verdict", "remedy"),
    [
        ("squashed", 1, "broken: files can be written (Permission denied)", "root_squash"),
        ("nobody's", 0, "at risk: files belong to their writer (uid 65534 instead of 0)", "root_squash"),
        ("read-only", 1, "broken: files can be written (Read-only file system)", "export it with rw"),
        ("soft", 0, "at risk: a slow server is waited for (mounted soft)", "mount with hard"),
        ("one cache", 0, "at risk: two mounts, two caches", "nosharecache"),
        ("gone", 1, "broken: files can be written (Stale file handle)", "unmount it and mount it again"),
    ],
)
def test_bad_mount_is_told_what_to_change(
    found: dict[str, Any], case: str, status: int, verdict: str, remedy: str
) -> None:
    """Each fault of an export or a mount has its line, with the remedy."""
    check = found[case]

    assert check["status"] == status, check
    [line] = [line for line in check["output"].splitlines() if line.startswith(verdict)]
    assert remedy in line


def test_file_system_without_hard_links_is_told(found: dict[str, Any]) -> None:
    """FAT knows no hard links and folds capitals: records can't be published, saved files may be mixed up."""
    if "fat" not in found:
        pytest.skip("tried beside NFSv4.2 only, and needs mkfs.vfat")
    output = found["fat"]["output"]

    assert found["fat"]["status"] == 1
    names = "hard link, records are published, one of many writers wins"
    assert f"broken: {names} (Operation not permitted): choose another storage.root: hard links are needed" in output
    assert "at risk: names are kept as given" in output


def test_nothing_is_left(found: dict[str, Any]) -> None:
    """After all checks the share holds the search and nothing else."""
    assert found["left"]["output"] == ["searches"]
