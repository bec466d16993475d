"""Signals while a command starts, and signals that come twice, as ``timeout`` sends them."""

from __future__ import annotations

import subprocess
import sys

import pytest

EARLY = """
import os, runpy, signal, sys

def interrupt(event, args):
    if event == "import" and args[0] == "flows.engine.runner":
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
runpy.run_module("flows.{}", run_name="__main__")
"""

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


@pytest.mark.parametrize("command", ["search", "final"])
def test_ctrl_c_during_imports_is_silent(command: str) -> None:
    """Ctrl-C before a command has read its words ends it without a traceback."""
    words = [sys.executable, "-c", EARLY.format(command)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (-2, "", "")


def test_doubled_signal_ends_the_final_wait_only() -> None:
    """A signal that comes twice during the last wait counts as one; a later one ends the process."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=30, check=False)

    assert done.stdout == "the summary\n"
    assert done.returncode == 128 + 15
