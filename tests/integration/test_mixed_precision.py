"""The example of dependent phases, run as a user does, and killed between and within phases."""

from __future__ import annotations

import os
import re
import shutil
import textwrap
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from nas import Budget, Search, Spec, State, run_search
from nas.storage.lazy_weights import StoredWeights
from nas.storage.open import open_root
from tests.faults.test_kill import attempts, finished, table
from tests.support.commands import ROOT, Command, run, trials, until

EXAMPLE = ROOT / "examples" / "03_mixed_precision"
PYTHONPATH = os.pathsep.join(map(str, (ROOT, EXAMPLE)))
TUNER = ("+tuner=custom", "tuner._target_=phase_tuner.PhaseTuner", "tuner.goal=0.9")
HELD = (
    *("problem._target_=pausable_phases.PausableProblem", "problem.n_epochs=2", "problem.max_phases=5", *TUNER),
    *("deterministic=true", "slots=2", "device=cpu", "threads=1", "budget.trials=10", "finalists=1"),
)


@pytest.mark.slow
def test_bits_follow_the_last_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each phase changes one layer: fewer bits after reaching the goal, else more; weights come from the last phase."""
    monkeypatch.syspath_prepend(EXAMPLE)
    search = Search(
        problem=Spec("mixed_precision.MixedPrecision", {"n_epochs": 1}),
        tuner=Spec("phase_tuner.PhaseTuner", {"goal": 0.8}),
    )
    found = run_search(search, root="memory://mixed_precision", budget=Budget(trials=8))
    phases = list(found.lineage)
    told = set()

    assert [(t.state, t.job, t.stage) for t in phases] == [(State.COMPLETE, 0, "search")] * 8
    for before, after in pairwise(phases):
        changes = [after.point[layer] - bits for layer, bits in before.point.items() if after.point[layer] != bits]
        enough = before.metrics["accuracy"] >= 0.8
        told.add(enough)
        assert [change < 0 for change in changes] == [enough]
        assert (after.parents, after.donor, after.inherited) == ((before.number,), before.number, 1.0)
    assert told == {True, False}


def test_weights_have_their_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer of b bits has at most 2**b - 1 values; the size counts them; gradients pass through."""
    monkeypatch.syspath_prepend(EXAMPLE)
    from mixed_precision import QuantizedNetwork

    bits = {"stem": 2, "middle": 3, "last": 4, "head": 6}
    network = QuantizedNetwork(bits)
    network(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).sum().backward()
    weights = {layer: network.weight(layer) for layer in bits}

    assert all(1 < len(weights[layer].unique()) <= 2**b - 1 for layer, b in bits.items())
    assert weights["stem"].unique().numel() == 3
    n_bits = 2 * 16 * 9 + 3 * 32 * 16 * 9 + 4 * 32 * 32 * 9 + 6 * 10 * 32 + 32 * (16 + 32 + 32 + 10 + 4)
    assert network.size_kb() == n_bits / 8 / 1024
    grad = torch.autograd.grad(weights["stem"].sum(), network.stem.weight)[0]
    assert torch.equal(grad, torch.ones_like(grad))


def test_the_guide_shows_the_example() -> None:
    """The lines in docs/guides/jobs.md are the example's."""
    quoted = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guides" / "jobs.md").read_text(), re.DOTALL)
    [controller] = [block for block in quoted if "previous" in block]

    assert textwrap.indent(controller, " " * 8) in (EXAMPLE / "mixed_precision.py").read_text()


@pytest.mark.slow
def test_the_readmes_command(here: Path, api_url: str) -> None:
    """The command finds smaller networks at 95 % in two jobs, and shows the front of both metrics."""
    [line] = re.findall(r"^```bash\n(.*?)\n```$", (EXAMPLE / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    done = run(here, line=f"{line} name=mine", PYTHONPATH=PYTHONPATH, PREFECT_API_URL=api_url)
    found = trials(here / "heirloom" / "mine")
    good = [t for t in found if t.metrics["accuracy"] >= 0.95]

    assert done.status == 0, done.err
    assert [t.job for t in found] == [0, 1] * 16
    assert all(t.parents == (t.number - 2,) and t.inherited == 1.0 for t in found[2:])
    assert min(t.metrics["size_kb"] for t in good) < 0.8 * good[0].metrics["size_kb"]
    assert "front" in done.out


@pytest.mark.slow
@pytest.mark.timeout(600)  # five commands
def test_kills_between_phases_leave_no_trace(here: Path, api_url: str) -> None:
    """Killed between and within phases (group and driver), it ends with an uninterrupted run's table.

    A restarted job has an empty cache, so it reads from the storage what was in memory before.
    """
    torn, calm, hold = here / "heirloom" / "torn", here / "heirloom" / "calm", here / "hold"
    for module in EXAMPLE.glob("*.py"):
        shutil.copy(module, here)
    for number, to_group in ((3, True), (6, False)):
        hold.write_text(f"after {number}")
        with Command(here, *HELD, "name=torn", forked=True, PREFECT_API_URL=api_url) as command:
            until((here / f"held-{number}").exists, what="the pause between two phases")
            assert number in finished(torn)
            assert not (torn / "trials" / f"{number + 2:06d}.start-1.json").exists()
            command.kill(to_group=to_group)
            until(lambda: not command.leftovers(), 20, what="the end of all processes")
        hold.unlink()
    hold.write_text("in 8")
    with Command(here, *HELD, "name=torn", forked=True, PREFECT_API_URL=api_url) as command:
        until((here / "held-8").exists, what="the pause in a phase")
        command.kill()
    hold.unlink()
    interrupted = attempts(torn).keys() - finished(torn)
    last = run(here, *HELD, "name=torn", PREFECT_API_URL=api_url)
    quiet = run(here, *HELD, "name=calm", PREFECT_API_URL=api_url)

    assert last.status == quiet.status == 0, last.err + quiet.err
    assert 8 in interrupted
    assert all(trial.attempt > 1 for trial in trials(torn) if trial.number in interrupted)
    assert [trial.job for trial in trials(calm)] == [0, 1] * 5
    assert table(torn) == table(calm)
    for trial in trials(torn)[2:]:
        assert (trial.donor, trial.inherited) == (trial.number - 2, 1.0)
        assert trial.checkpoint is not None
        assert StoredWeights(open_root(str(torn)), trial.checkpoint).read_all()
