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
    """With 17 trials, jobs of 16 build the table twice instead of 17 times, with the same result."""
    root = str(Path(__file__).parents[2])
    code = (EXAMPLE / "compare.py").read_text().replace("N_TRIALS = 32", "N_TRIALS = 17")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=EXAMPLE, env=environment(PYTHONPATH=root), capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("trials_per_job=1: 17 trials in 17 jobs, ")
    assert lines[1].startswith("trials_per_job=16: 17 trials in 2 jobs, ")
    gain = re.fullmatch(r"the tables agree; jobs of 16 are ([\d.]+) times as fast", lines[2])
    assert gain is not None
    assert float(gain[1]) > 1  # on an idle machine more than five
