"""The example of a costly start."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.test_examples import environment

EXAMPLE = Path(__file__).parents[2] / "examples" / "04_costly_start"


@pytest.mark.slow
def test_the_program_prints_the_gain() -> None:
    """With 9 trials, jobs of 8 build the table twice instead of 9 times, with the same result.

    Time on the processor counts here, since other processes may delay one of the two searches.
    """
    root = str(Path(__file__).parents[2])
    code = (EXAMPLE / "compare.py").read_text().replace("N_TRIALS = 32", "N_TRIALS = 9").replace("16", "8")
    code = code.replace("perf_counter", "process_time")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=EXAMPLE, env=environment(PYTHONPATH=root), capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("trials_per_job=1: 9 trials in 9 jobs, ")
    assert lines[1].startswith("trials_per_job=8: 9 trials in 2 jobs, ")
    gain = re.fullmatch(r"the tables agree; jobs of 8 are ([\d.]+) times as fast", lines[2])
    assert gain is not None
    assert float(gain[1]) > 1  # on an idle machine more than three
