"""The example of networks that grow, apart from test_examples.py: each file of tests is run by one process."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.integration.test_examples import ROOT, told_by_commands
from tests.support.commands import connected

GROWING = ROOT / "examples" / "07_networks_that_grow"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_networks_grow(tmp_path: Path, api_url: str) -> None:
    """The README's commands: morphisms keep the function, children are near their parents, searches pass weights on."""
    grown_by_hand, grown, crossed, drawn, again = told_by_commands(GROWING, tmp_path / "here", **connected(api_url))
    summary = r"^search {}: (\d+) trials \(\1 COMPLETE\)$"

    differences = [float(found) for found in re.findall(r"differs by (\S+)$", grown_by_hand, re.MULTILINE)]
    assert len(differences) == 10
    assert max(differences) < 1e-5
    assert "rest=scaled: 52% inherited; its outputs differ from the parent's by 0%" in grown_by_hand
    trained = re.findall(r"^child, .+: 0\.\d+, and (0\.\d+) after two epochs$", grown_by_hand, re.MULTILINE)
    assert len(trained) == 7
    assert min(map(float, trained)) > 0.85
    for name, printed, n_trials in (
        ("grown", grown, 14),
        ("crossed", crossed, 10),
        ("drawn", drawn, 6),
        ("again", again, 6),
    ):
        found = re.search(summary.format(name), printed, re.MULTILINE)
        assert found is not None, printed
        assert int(found[1]) == n_trials
    assert "inherited: 8 trials" in grown
    assert "inherited: 4 trials" in again  # the initial points, which have no parent
    children = sorted((tmp_path / "here" / "heirloom" / "crossed" / "trials").glob("*.proposal.json"))
    assert any(len(json.loads(path.read_text())["proposal"]["parents"]) == 2 for path in children)
