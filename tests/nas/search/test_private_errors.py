"""Errors in records hold no password, no path of data and no folder of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from nas.api.search import run_search
from nas.core.metric import Metric
from nas.core.spec import Spec
from nas.core.trial import State
from nas.search.definition import Search
from nas.spaces.parameters.space import Int, ParameterSpace
from nas.training.problem import Problem
from nas.training.trial_run import TrialRun
from nas.tuners.random import RandomTuner
from tests.support.problems import network

PASSWORD = "pw-Zk93mVq"
ELSEWHERE = f"https://me:{PASSWORD}@host/other"


class Failing(Problem):
    """Names its data wherever it fails: in the first trial, in tests and in the export."""

    metrics = (Metric("score"),)
    space = ParameterSpace({"x": Int(0, 99)})
    data_arguments: ClassVar[frozenset[str]] = frozenset({"data_root", "source"})

    def __init__(self, data_root: str, source: str) -> None:
        self.text = f"{data_root}/x.gz and {source}/y.gz are damaged, see {ELSEWHERE}"

    def train(self, run: TrialRun) -> dict[str, float]:
        """Raises in the first trial; the others warn."""
        run.warn(self.text)
        if run.number == 0:
            raise OSError(self.text)
        run.save(network())
        return {"score": run.point["x"] / 100}

    def test(self, run: TrialRun) -> dict[str, float]:
        """Raises."""
        raise OSError(self.text)

    def export(self, run: TrialRun) -> tuple[nn.Module, torch.Tensor]:
        """Raises."""
        raise OSError(self.text)


@pytest.mark.parametrize("slots", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_records_hold_what_helps_and_nothing_private(tmp_path: Path, slots: int) -> None:
    """They name the argument, the user's line and the host; with several slots workers write some of them."""
    root, data = tmp_path / "root", tmp_path / "secret" / "data"
    source = f"s3://me:{PASSWORD}@bucket"
    given: dict[str, Any] = {"data_root": str(data), "source": source}
    search = Search(problem=Spec.of(Failing, **given), tuner=Spec.of(RandomTuner))
    found = run_search(search, root=root, name="s", budget=3, slots=slots, finalists=1)
    records = {path: path.read_text() for path in root.rglob("*.json")}

    assert found.lineage[0].state == State.FAILED
    assert [path.name for path, text in records.items() if PASSWORD in text or str(tmp_path) in text] == []
    error = found.lineage[0].error or ""
    said = "<data_root>/x.gz and <source>/y.gz are damaged, see https://me:***@host/other"
    assert error.endswith(f"Failing.train raised OSError: {said}\n")
    assert '  File "tests/nas/search/test_private_errors.py", line ' in error
    assert sum(said in text for text in records.values()) >= 5  # a failure, warnings, a test, an export
