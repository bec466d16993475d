"""``flows.verify`` on a real NFS server with two clients, good and bad mounts, NFSv3 and NFSv4.2."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.nfs.guest import run_in_guest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=["3", "4.2"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    result = run_in_guest("verify.py", request.param, version=request.param, timeout_s=800)
    return {"vers": request.param, **result}


def row(found: dict[str, str], name: str) -> str:
    """Returns a check's line of the table, without its name."""
    [line] = [line for line in found["output"].splitlines() if line.startswith(name)]
    return " ".join(line.removeprefix(name).split())


def test_second_mount_sees_all_through_its_stale_cache(found: dict[str, Any]) -> None:
    """Every check passes between two mounts, although plain look-ups miss most published files."""
    check = found["second"]

    assert check["status"] == 0, check
    assert "failed" not in check["output"]
    assert "warning" not in check["output"]
    handed = row(check, "files of the other host are read")
    assert handed.startswith("passed ")
    n, hidden = (int(handed.partition(mark)[0].split()[-1]) for mark in (" of ", " of them"))
    assert n >= 20
    assert hidden > 0.8 * n
    assert row(check, "one of two hosts wins").startswith("passed ")
    assert f"vers={found['vers']}" in check["output"]


def test_two_machines_meet_and_agree(found: dict[str, Any]) -> None:
    """The same command on both machines finds the other one, and both print the same."""
    here, there = found["machine a"], found["machine b"]

    assert (here["status"], there["status"]) == (0, 0), (here, there)
    for name in ("files of the other host are read", "records of the other host are seen", "clocks agree"):
        assert row(here, name) == row(there, name)
        assert row(here, name).startswith("passed ")
    assert "/mnt/b/root" in row(here, "both hosts see one root")
    assert "/mnt/a/root" in row(there, "both hosts see one root")


def test_other_machine_verifies_a_search(found: dict[str, Any]) -> None:
    """The other machine verifies a search that it looked up too early, and later finds its damage."""
    assert found["early"]["status"] == 2
    assert found["whole"]["status"] == 0, found["whole"]
    assert "stored: no damage" in found["whole"]["output"]
    assert found["broken"]["status"] == 1
    assert "manifests/000003-aa.json" in found["broken"]["output"]
    assert "packs/000001-aa.safetensors  corrupt: 1 of its 1 tensors: head  1, 2" in found["broken"]["output"]


@pytest.mark.parametrize(
    ("case", "status", "line", "hint"),
    [
        ("squashed", 1, "failed: files can be written (Permission denied)", "root_squash"),
        ("nobody's", 0, "warning: files belong to their writer (uid 65534 instead of 0)", "root_squash"),
        ("read-only", 1, "failed: files can be written (Read-only file system)", "export it with rw"),
        ("soft", 0, "warning: writers wait for a slow server (mounted soft)", "mount with hard"),
        ("one cache", 0, "warning: the mounts have separate caches", "nosharecache"),
        ("gone", 1, "failed: files can be written (Stale file handle)", "unmount it and mount it again"),
    ],
)
def test_bad_mount_gets_a_hint(found: dict[str, Any], case: str, status: int, line: str, hint: str) -> None:
    """Each fault of an export or a mount has a line with a hint."""
    check = found[case]

    assert check["status"] == status, check
    [found_line] = [one for one in check["output"].splitlines() if one.startswith(line)]
    assert hint in found_line


def test_file_system_without_hard_links(found: dict[str, Any]) -> None:
    """On FAT, without hard links and with folded capitals, the checks of records and saved files fail."""
    if "fat" not in found:
        pytest.skip("tried beside NFSv4.2 only, and needs mkfs.vfat")
    output = found["fat"]["output"]

    assert found["fat"]["status"] == 1
    names = "hard link, records are published, one of many writers wins"
    assert f"failed: {names} (Operation not permitted): choose another storage.root: hard links are needed" in output
    assert "warning: file names are preserved" in output


def test_nothing_is_left(found: dict[str, Any]) -> None:
    """After all checks the share holds only the search."""
    assert found["left"]["output"] == ["searches"]
