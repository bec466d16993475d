"""Runs a script beside two real mounts of a real NFS share (``with-nfs``), or in namespaces of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WITH_NFS = Path(__file__).with_name("with-nfs")
SANDBOX = 'mount -t tmpfs none /run; mount -t tmpfs none /mnt; mkdir /mnt/exp /mnt/tmp; exec timeout "$@"'
NAMESPACES = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def run_in_guest(script: str, *arguments: str, version: str = "4.2", memory: str = "2G", timeout_s: int) -> Any:
    """The JSON that the script prints last; skips the test where the guest can't be started.

    Args:
        script: A Python file of this folder; it finds the mounts as ``NFS_A`` and ``NFS_B``.
        arguments: The script's.
        version: Of NFS.
        memory: Of the guest.
        timeout_s: For the guest; the test's own bound must be longer.
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    guest = [WITH_NFS, "--vers", version, "--mem", memory, "--timeout", str(timeout_s), "--"]
    done = subprocess.run(
        [*guest, sys.executable, WITH_NFS.with_name(script), *arguments],
        env=plain,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 97:
        pytest.skip(f"the NFS guest can't be started here: {done.stderr[-300:]}")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def run_in_namespaces(script: str, *arguments: str, timeout_s: int) -> Any:
    """The JSON that the script prints last; skips the test where this user can't make namespaces.

    Args:
        script: A Python file of this folder; its ``/mnt/exp`` is empty, and no process is left after it.
        arguments: The script's.
        timeout_s: For the script; the test's own bound must be longer.
    """
    if subprocess.run([*NAMESPACES, "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces can't be made here")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "RAY"))}
    command = [
        "bash",
        "-euc",
        SANDBOX,
        "bash",
        str(timeout_s),
        sys.executable,
        str(WITH_NFS.with_name(script)),
        *arguments,
    ]
    done = subprocess.run(
        [*NAMESPACES, *command], env=plain | {"TMPDIR": "/mnt/tmp"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1])
