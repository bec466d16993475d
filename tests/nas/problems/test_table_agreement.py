"""Agreement of trials with the published table."""

from __future__ import annotations

from pathlib import Path

import pytest

from nas.core.policy import Policy
from nas.core.trial import Proposal, State, Trial
from nas.problems.cells import CellsProblem
from nas.problems.images.cell_costs import EDGES
from nas.problems.table_agreement import tau

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3")


def test_tau_of_subnets_is_given_for_each_epoch(tmp_path: Path) -> None:
    """Shared scores of one epoch are compared with the table, and those of live FLOPs beside them."""
    cells = [dict.fromkeys(EDGES, operation) for operation in OPERATIONS]
    rows = [",".join([*cell.values(), str(90 + index)]) for index, cell in enumerate(cells)]
    (tmp_path / "t.csv").write_text("\n".join([",".join([*EDGES, "c10_test_200"]), *rows]) + "\n")
    problem = CellsProblem(channels=4, table=str(tmp_path / "t.csv"))
    shared = frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN})
    epoch = Trial(
        number=0,
        index=0,
        proposal=Proposal(point={"supernet_epoch": 0}),
        state=State.COMPLETE,
        metrics={"accuracy": 0.5},
    )
    subnets = [
        Trial(
            number=1 + index,
            index=1 + index, proposal=Proposal(point=cell, donors=(0,), policies=shared), policies=shared,
            state=State.COMPLETE, metrics={"accuracy": 0.9 - index / 10, "loss": 1.0 - index / 10}, donor=0,
        )
        for index, cell in enumerate(cells)
    ]  # fmt: skip

    chosen, flops, agreement = problem.remarks([epoch, *subnets], subnets[1])
    assert chosen == (
        "c10_test_200: chosen cell 91.00; six 3x3 convolutions 93.00; best cell 93.00; one at random 91.50, "
        "standard deviation 1.29"
    )
    assert flops.startswith("c10_test_200: most live FLOPs of 4 random cells 92.")
    assert agreement == "tau of 4 subnets of trial 0: accuracy -1.00, loss 1.00, live_flops 1.00"
    assert CellsProblem(channels=4).remarks([epoch, *subnets], subnets[1]) == []


def test_tau_of_equal_scores_is_zero() -> None:
    """Equal scores rank nothing."""
    assert tau([1, 1, 1], [1, 2, 3]) == 0
    assert tau([1, 2, 3], [1, 2, 3]) == pytest.approx(1)
