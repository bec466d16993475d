"""The example with timm's vision transformer; .ci/run installs timm before it runs this file."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from nas import Budget, Rules, Search, Spec, inherit, run_search

pytest.importorskip("timm")

EXAMPLE = Path(__file__).parents[2] / "examples" / "12_hugging_face_and_timm"


@pytest.mark.slow
def test_a_search_of_a_vision_transformer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Children inherit, and the winner's weights load into ``timm.create_model``."""
    monkeypatch.syspath_prepend(EXAMPLE)
    tuner = Spec("nas.tuners.evolution.EvolutionTuner", {"population_size": 2, "sample_size": 2})
    found = run_search(
        Search(problem=Spec("vit.Vit"), tuner=tuner, seed=1), root=str(tmp_path), budget=Budget(trials=5), finalists=1
    )
    children = [trial for trial in found.lineage if trial.stage == "search" and trial.parents]

    assert [trial.error for trial in found.lineage] == [None] * 6
    assert children
    assert all(trial.inherited > 0.2 for trial in children)
    assert found.winner.metrics["accuracy"] > 0.5
    monkeypatch.setattr(sys, "argv", ["use.py", f"{found.url}/{found.export['export']}"])
    runpy.run_path(str(EXAMPLE / "use.py"))
    assert capsys.readouterr().out.startswith("VisionTransformer {")


@pytest.mark.slow
def test_a_narrower_vision_transformer_inherits_all_of_its_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tensor of a network with fewer and narrower heads takes its part of the wider one."""
    monkeypatch.syspath_prepend(EXAMPLE)
    from vit import build

    wide = build({"heads": 4, "head_size": 16, "layers": 2})
    narrow = build({"heads": 2, "head_size": 8, "layers": 1})
    report = inherit(narrow, [wide], rules=Rules(rest="own"))

    assert report.share == 1.0
    values = wide.blocks[0].attn.qkv.weight[128:, :16]
    assert narrow.blocks[0].attn.qkv.weight[32:40].equal(values[:8])
    assert narrow.blocks[0].attn.qkv.weight[40:].equal(values[16:24])
