"""A search of networks that read real questions, from the command to the predictions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.commands import ROOT, only_search, run, trials

DATA = (ROOT / os.environ.get("HEIRLOOM_DATA", "../shared/data")).resolve()
FILES = {
    "data_file": DATA / "squad" / "dev-v1.1.rebuilt.json.gz",
    "split_file": DATA / "squad" / "article_split.json",
    "vectors_file": DATA / "glove" / "glove_twitter_25d_subset.npz",
}
SEARCH = (
    "+tuner=evolution", "tuner.population_size=2", "tuner.sample_size=2", "problem=squad", "problem.n_questions=160",
    "problem._target_=unexported_squad.UnexportedSquad",
    "policy=search_only", "budget.trials=3", "runner=debug", "device=cpu", "threads=1",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_networks_read_real_questions(here: Path) -> None:
    """A child inherits by name, and each trial has scores and answers to the first 1,000 validation questions."""
    if not all(path.exists() for path in FILES.values()):
        pytest.skip(f"no SQuAD or GloVe in {DATA}; set HEIRLOOM_DATA to the folder that holds squad/ and glove/")
    done = run(here, *SEARCH, *(f"problem.{name}={path}" for name, path in FILES.items()), timeout_s=900.0)

    assert done.status == 0, done.err
    search = only_search(here)
    found = trials(search)
    [child] = [trial for trial in found if trial.parents]
    assert [trial.state for trial in found] == ["COMPLETE"] * 3
    assert 0.3 < (child.inherited or 0) <= 1
    assert all(0 < trial.metrics["exact_match"] < trial.metrics["f1"] < 60 for trial in found)
    predictions = [json.loads(path.read_text()) for path in search.glob("files/*/predictions.json")]
    assert [len(answers) for answers in predictions] == [1_000] * 3
