"""Hostile resume points: the trial starts again, and the log says why."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from nas.core.trial import Proposal, Trial
from nas.storage.open import open_root
from nas.storage.record_format import decode_record, seal
from nas.training.trial_run import TrialRun
from tests.faults.test_hostile_records import MUCH, changed, lies


class Saved:
    """A trial with one whole resume point on disk."""

    def __init__(self, root: Path) -> None:
        self.files = open_root(str(root), retry_s=0)
        self._trial = Trial(number=1, index=1, proposal=Proposal(point={}), attempt=1)
        run = TrialRun(self._trial, self.files)
        run.report(1, score=0.5)
        assert run.save_resume_point(1, {"weight": torch.ones(4)}, every_s=0)
        run.close()
        [self._place] = root.glob("resume/000001/*.json")
        self.record: Any = decode_record(self._place.read_bytes())

    def resumes(self, data: bytes) -> bool:
        """Returns whether the next attempt resumes from a record with this text and a digest."""
        self._place.write_bytes(seal(data))
        run = TrialRun(replace(self._trial, attempt=2), self.files)
        try:
            return run.resumed_from() is not None
        finally:
            run.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    saved = Saved(tmp_path_factory.mktemp("saved"))
    assert saved.resumes(json.dumps(saved.record).encode())
    return saved


@pytest.mark.parametrize(
    ("what", "where", "value"), lies("resume_point"), ids=[what for what, *_ in lies("resume_point")]
)
def test_an_invalid_value_is_ignored(
    saved: Saved, caplog: pytest.LogCaptureFixture, what: str, where: list[str | int], value: Any
) -> None:
    """A resume point with one invalid value is skipped in little memory, and the log names it."""
    tracemalloc.start()
    resumes = saved.resumes(json.dumps(changed(saved.record, where, value)).encode())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert not resumes
    assert "resume point is damaged" in caplog.text
    assert "resume/000001/" in caplog.text
    assert peak < MUCH


@pytest.mark.parametrize("text", ["", "[]", "null", '{"format": NaN}', '{"format": 2, "format": 2}', "[" * 100_000])
def test_an_invalid_text_is_ignored(saved: Saved, caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Text that is no JSON object, repeats a key or nests endlessly is skipped too."""
    assert not saved.resumes(text.encode())
    assert "resume point is damaged" in caplog.text
