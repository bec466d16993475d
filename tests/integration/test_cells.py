"""A one-shot search of NAS-Bench-201 cells on bundled images, from supernet epochs to the tested winner."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import pytest

from flows.views.terminal import summary_lines
from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.spec import Spec
from nas.core.supernet import is_epoch
from nas.problems.cells import CellsProblem
from nas.problems.images.cell_costs import EDGES
from nas.search.definition import Search
from nas.storage.open import open_root
from nas.tuners.supernet import SupernetTuner
from nas.views.page.document import lineage_page
from nas.views.snapshot import read_snapshot
from tests.support.commands import run, trials

FASHION_MNIST = (
    Path(__file__).parents[2] / os.environ.get("HEIRLOOM_DATA", "../shared/data")
).resolve() / "fashion_mnist"


def write_table(path: Path) -> None:
    """Writes a table of all cells whose accuracy is the number of 3x3 convolutions."""
    space = CellsProblem(channels=4).space
    rows = [",".join([*point.values(), str(list(point.values()).count("nor_conv_3x3"))]) for point in space.points()]
    path.write_text("\n".join([",".join([*EDGES, "c10_test_200"]), *rows]) + "\n")


@pytest.mark.slow
def test_search_with_shared_weights(tmp_path: Path) -> None:
    """Epochs form a chain, subnets inherit from the newest, finals train alone, and only tests know the table."""
    write_table(tmp_path / "t.csv")
    problem = Spec.of(
        CellsProblem, channels=4, epoch_steps=30, n_supernet_epochs=3, n_epochs=4, table=str(tmp_path / "t.csv")
    )
    tuner = Spec.of(SupernetTuner, n_epochs=3, warm_up_epochs=2, subnets_per_epoch=3)
    found = run_search(Search(problem=problem, tuner=tuner), root=str(tmp_path), budget=Budget(trials=9), finalists=1)
    searched = [trial for trial in found.lineage if trial.stage == "search"]
    epochs = [trial for trial in searched if is_epoch(trial)]
    subnets = [trial for trial in searched if not is_epoch(trial)]
    winner = found.winner

    assert [trial.point for trial in epochs] == [{"supernet_epoch": number} for number in range(3)]
    assert all(later.proposal.donors == (earlier.number,) for earlier, later in pairwise(epochs))
    assert len(subnets) == 6
    assert all(trial.inherited == 1.0 and trial.donor in {epoch.number for epoch in epochs} for trial in subnets)
    assert all(trial.metrics.keys() == {"accuracy", "loss"} for trial in searched)
    assert winner is not None
    assert winner.stage == "final"
    tested = found.tests[winner.number]["metrics"]
    assert tested["table"] == list(winner.point.values()).count("nor_conv_3x3")
    assert found.export is not None
    chosen, flops, *_, agreement = found.export["remarks"]
    assert chosen.startswith(
        f"c10_test_200: chosen cell {tested['table']:.2f}; six 3x3 convolutions 6.00; best cell 6.00; one at random 1.2"
    )
    assert flops.startswith("c10_test_200: most live FLOPs of ")
    assert agreement.startswith(f"tau of 3 subnets of trial {epochs[-1].number}: accuracy ")
    snapshot = read_snapshot(open_root(f"{tmp_path}/{found.name}"), now=0.0)
    assert chosen in summary_lines(snapshot)
    assert agreement in lineage_page(snapshot)


@pytest.mark.slow
def test_fashion_mnist_by_command(here: Path, api_url: str) -> None:
    """A one-shot search of cells on Fashion-MNIST trains epochs, scores subnets, and tests and exports a final."""
    if not FASHION_MNIST.is_dir():
        pytest.skip(f"no Fashion-MNIST in {FASHION_MNIST}; set HEIRLOOM_DATA to the folder that holds fashion_mnist/")
    overrides = (
        *("+tuner=enas", "tuner.n_epochs=2", "tuner.warm_up_epochs=1", "tuner.subnets_per_epoch=2", "problem=cells"),
        "tuner.n_rescored=1",
        *("problem.data=fashion_mnist", f"problem.data_root={FASHION_MNIST}", "problem.side=8", "problem.channels=4"),
        *("problem.epoch_steps=10", "problem.n_epochs=1", "budget.trials=5", "finalists=1", "name=mine", "device=cpu"),
    )
    done = run(here, *overrides, "threads=1", "slots=1", "runner=debug", timeout_s=280, PREFECT_API_URL=api_url)
    found = trials(here / "heirloom" / "mine")
    final = found[-1]

    assert done.status == 0, done.err
    assert [is_epoch(trial) for trial in found] == [True, False, False, True, False, False]
    assert (final.stage, final.state) == ("final", "COMPLETE")
    assert final.metrics["accuracy"] > 0.5
    assert list((here / "heirloom" / "mine" / "best").glob("*/program.pt2"))
