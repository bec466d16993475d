"""The notebook of the examples runs as it is, and shows progress, tree, table and plot."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nas import load

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
EXECUTE = "from nbclient.cli import main; main()"


def executed(folder: Path) -> list[dict[str, Any]]:
    """Runs the notebook in a folder, and returns its cells with their outputs."""
    shutil.copy(ROOT / "examples" / "17_notebook" / "search.ipynb", folder)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder / "ipython")}
    command = [sys.executable, "-c", EXECUTE, "--inplace", "search.ipynb"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    cells: list[dict[str, Any]] = json.loads((folder / "search.ipynb").read_text())["cells"]
    return cells


def test_notebook_runs(tmp_path: Path) -> None:
    """Each cell shows what it is for, and the loop that was left is continued."""
    outputs = [
        {kind: "".join(text) for kind, text in output["data"].items()}
        for cell in executed(tmp_path)
        for output in cell.get("outputs", ())
    ]
    progress, results, table, plot, standing, best = outputs

    assert '<progress value="12" max="12"></progress> 12/12 trials<br>best accuracy' in progress["text/html"]
    assert "<b>digits</b>: finished, 12 trials (12 complete)<br>best: trial" in results["text/html"]
    assert 'src="data:image/svg+xml;base64,' in results["text/html"]
    assert "metric.accuracy" in table["text/html"]
    assert plot["image/png"]
    assert (standing["text/plain"], best["text/plain"]) == ("'not finished'", "{'accuracy': 0.53}")
    assert {trial.slot for trial in load("digits", str(tmp_path / "heirloom")).lineage} == {0, 1}
