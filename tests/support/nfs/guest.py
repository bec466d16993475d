"""Runs a script beside two real mounts of a real NFS share (``with-nfs``)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

WITH_NFS = Path(__file__).with_name("with-nfs")


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
