"""Freed memory stays in the process."""

import subprocess
import sys

import pytest

STEPS = """
import ctypes, resource, sys
from nas.training.memory import keep_freed_memory

if sys.argv[1] == "kept" and not keep_freed_memory():
    sys.exit(3)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def step():  # 64 MB, as a batch's activations
    block = libc.malloc(64 << 20)
    ctypes.memset(block, 1, 64 << 20)
    libc.free(block)

step()
before = faults()
for _ in range(5):
    step()
print(faults() - before)
"""


def faults_of_steps(rule: str) -> int:
    run = subprocess.run([sys.executable, "-c", STEPS, rule], capture_output=True, text=True, check=False)
    if run.returncode == 3:
        pytest.skip("the C library has no mallopt")
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


@pytest.mark.slow
def test_later_steps_use_the_same_pages() -> None:
    assert faults_of_steps("kept") < 500
    assert faults_of_steps("by default") > 5_000  # 16,384 pages of 4 kB a step; fewer with huge pages
