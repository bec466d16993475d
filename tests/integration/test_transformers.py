"""The example with Hugging Face's GPT-2: children inherit, and the winner loads with the library's own class."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

from nas import Budget, Search, Spec, run_search

EXAMPLE = Path(__file__).parents[2] / "examples" / "12_hugging_face_and_timm"
SMALL = {"heads": 2, "head_size": 8, "layers": 1}


@pytest.mark.slow
def test_a_search_of_gpt2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Children of other sizes inherit; the winner is an exported program and a ``GPT2LMHeadModel``."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.syspath_prepend(EXAMPLE)
    monkeypatch.chdir(tmp_path)
    tuner = Spec("nas.tuners.evolution.EvolutionTuner", {"population_size": 2, "sample_size": 2})
    search = Search(problem=Spec("gpt.Gpt"), tuner=tuner, seed=1)
    found = run_search(search, root=str(tmp_path / "root"), budget=Budget(trials=5), finalists=1)
    children = [trial for trial in found.lineage if trial.stage == "search" and trial.parents]

    assert [trial.error for trial in found.lineage] == [None] * 6
    assert children
    assert all(trial.inherited > 0.2 for trial in children)
    program = torch.export.load(f"{found.url}/{found.export['export']}/program.pt2").module()
    assert program(torch.zeros(3, 32, dtype=torch.int64)).shape == (3, 32, 128)
    monkeypatch.setattr(sys, "argv", ["use.py", f"{found.url}/{found.export['export']}"])
    runpy.run_path(str(EXAMPLE / "use.py"))
    assert capsys.readouterr().out.startswith("GPT2LMHeadModel {")
    assert (tmp_path / "winner" / "model.safetensors").is_file()


@pytest.mark.slow
def test_a_narrower_gpt2_inherits_all_of_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tensor of a network with fewer and narrower heads takes its part of the wider one."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.syspath_prepend(EXAMPLE)
    from gpt import build

    from nas import Rules, inherit

    wide, narrow = build({"heads": 4, "head_size": 16, "layers": 2}), build(SMALL)
    report = inherit(narrow, [wide], rules=Rules(rest="own"))

    assert report.share == 1.0
    assert narrow.lm_head.weight is narrow.transformer.wte.weight
    values = wide.transformer.h[0].attn.c_attn.weight[:16, 128:]  # Conv1D: (inputs, outputs)
    assert narrow.transformer.h[0].attn.c_attn.weight[:, 32:40].equal(values[:, :8])
    assert narrow.transformer.h[0].attn.c_attn.weight[:, 40:].equal(values[:, 16:24])


@pytest.mark.parametrize("arguments", [[], ["best/*"], ["one", "two"]])
def test_use_without_a_winner_says_so(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    """Without the folder of one winner, ``use.py`` ends with a line that names it and the remedy."""
    monkeypatch.setattr(sys, "argv", ["use.py", *arguments])
    with pytest.raises(SystemExit, match=r"^FOLDER=.*: must be the folder of one winner\. Give the folder after"):
        runpy.run_path(str(EXAMPLE / "use.py"))
