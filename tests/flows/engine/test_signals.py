"""Signals that come twice, as ``timeout`` sends them."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal, time
from flows.engine.signals import SignalHandler

with SignalHandler("search") as signals:
    with signals.ends_block():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    os.kill(os.getpid(), signal.SIGTERM)
    print("the summary", flush=True)
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGTERM)
"""


def test_doubled_signal_ends_the_final_wait_only() -> None:
    """A signal that comes twice during the last wait counts as one; a later one ends the process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, check=False)

    assert done.stdout == "the summary\n"
    assert done.returncode == 128 + 15
