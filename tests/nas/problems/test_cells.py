"""Supernet epochs, subnets and single networks of NAS-Bench-201 cells on bundled images."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from nas.core.errors import ConfigurationError
from nas.core.policy import Policy
from nas.problems.cells import LARGEST, CellsProblem
from nas.problems.nasbench201 import live_cell
from nas.supernets.connectivity import is_connected
from nas.training.costs import NetworkCost
from nas.training.trial_run import TrialRun

Train = Callable[..., Any]
SHARE = frozenset({Policy.SHARE_PARAMS})
SUBNET = frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN, Policy.QUICK_EVAL})
EPOCHS = [{"supernet_epoch": 0}, {"supernet_epoch": 1}]
CELL = {
    "op_0_1": "nor_conv_3x3", "op_0_2": "none", "op_1_2": "skip_connect",
    "op_0_3": "nor_conv_1x1", "op_1_3": "avg_pool_3x3", "op_2_3": "nor_conv_3x3",
}  # fmt: skip
SMALL: dict[str, Any] = {"channels": 4, "epoch_steps": 12, "n_epochs": 2, "precision": "float32"}


@pytest.fixture(scope="module")
def problem() -> CellsProblem:
    """Returns one warm problem for all tests, as in a worker."""
    return CellsProblem(**SMALL)


def test_points_are_those_of_the_table(problem: CellsProblem) -> None:
    """The space has the 15,625 cells by the names and operations of the published table, and supernet epochs."""
    assert problem.space.n_points == 5**6
    problem.space.validate(CELL)
    problem.space.validate(EPOCHS[1])
    assert list(problem.space.sample(random.Random(0))) == list(CELL)


@pytest.mark.slow
def test_epoch_continues_the_epoch_before(problem: CellsProblem, train: Train) -> None:
    """An epoch inherits the network and the momentum; it trains and publishes both."""
    first = train(problem, EPOCHS[0], SHARE)
    second = train(problem, EPOCHS[1], SHARE, donors=[first])
    anew = train(problem, EPOCHS[1], SHARE)
    momentum = {name for name in first.weights if name.startswith("optimizer/")}

    assert second.run.inheritance is not None
    assert second.run.inheritance.share == 1.0
    assert momentum
    name = "optimizer/momentum_buffer/head.weight"
    assert not torch.equal(second.weights[name], anew.weights[name])
    assert not torch.equal(second.weights["head.weight"], first.weights["head.weight"])
    assert not any("running" in name or name.endswith("edges.op_0_1.options.nor_conv_3x3.2.weight")
                   for name in first.weights)  # fmt: skip


def test_subnet_is_scored_with_shared_weights(problem: CellsProblem, train: Train) -> None:
    """A subnet inherits all its weights from the epoch, changes none, and is what the supernet computes."""
    epoch = train(problem, EPOCHS[0], SHARE)
    subnet = train(problem, CELL, SUBNET, donors=[epoch])

    assert subnet.run.inheritance.share == 1.0
    assert subnet.accuracies == []
    assert all(torch.equal(tensor, epoch.weights[name]) for name, tensor in subnet.weights.items())
    assert subnet.n_parameters < epoch.n_parameters / 4


def test_score_of_an_epoch_is_that_of_its_subnets(problem: CellsProblem, train: Train) -> None:
    """The score of an epoch is the mean of 16 connected cells, which score the same as subnets."""
    panel = problem.panel()
    epoch = train(problem, EPOCHS[0], SHARE)
    scores = [train(problem, cell, SUBNET, donors=[epoch]).accuracy for cell in panel]

    assert len(panel) == 16
    assert all(map(is_connected, panel))
    assert epoch.accuracy == pytest.approx(sum(scores) / 16)


@pytest.mark.slow
@pytest.mark.parametrize("derivation", ["paths", ["paths"], 1])
def test_other_derivations_list_no_paths(
    problem: CellsProblem, make_run: Callable[..., TrialRun], derivation: object
) -> None:
    """A tuner of one's own may note what it likes; then the problem draws the cells."""
    run = make_run(EPOCHS[0], SHARE)
    run.derivation = derivation

    assert problem.train(run)["accuracy"] > 0


@pytest.mark.slow
def test_listed_paths_alone_are_trained(problem: CellsProblem, make_run: Callable[..., TrialRun]) -> None:
    """The tuner may list the cells of an epoch; operations that none of them has stay as they were."""
    listed, drawn = (make_run(EPOCHS[0], SHARE) for _ in range(2))
    listed.derivation = {"paths": [[3, 3, 3, 3, 3, 3], [3, 1, 1, 1, 1, 1]]}
    new = problem.build(EPOCHS[0])
    weights = []
    for run in (listed, drawn):
        torch.manual_seed(0)
        problem.train(run)
        weights.append(run.unpublished()[0])
    unused = [name for name in new.state_dict() if "nor_conv_1x1" in name]

    torch.manual_seed(0)
    before = problem.build(EPOCHS[0]).state_dict()
    assert unused
    assert all(torch.equal(weights[0][name], before[name]) for name in unused)
    assert not all(torch.equal(weights[1][name], before[name]) for name in unused)


@pytest.mark.slow
def test_fidelity_is_a_share_of_the_steps(problem: CellsProblem, train: Train) -> None:
    """A fidelity trains that share of the steps of a full training, also less than an epoch."""
    n_steps = 2 * (1077 // 64)
    epoch = train(problem, EPOCHS[0], SHARE)
    few = train(problem, CELL, SHARE, donors=[epoch], fidelity=3 / n_steps)
    more = train(problem, CELL, SHARE, donors=[epoch], fidelity=20 / n_steps)

    assert few.run.inheritance.share == 1.0
    assert few.run.shares == {"epochs_share": 3 / n_steps}
    assert (len(few.run.curve), len(more.run.curve)) == (1, 2)
    assert not torch.equal(few.weights["head.weight"], epoch.weights["head.weight"])


@pytest.mark.slow
def test_final_has_affine_norms_and_statistics(problem: CellsProblem, train: Train) -> None:
    """A full training has norms of its own; networks that share weights have those of the supernet."""
    final, brief = train(problem, CELL), train(problem, CELL, {Policy.EARLY_STOP})
    norm = "stages.0.edges.op_0_1.options.nor_conv_3x3.2."

    assert {f"{norm}weight", f"{norm}running_var", "norm.running_mean"} <= final.weights.keys()
    assert not {f"{norm}weight", f"{norm}running_var", "norm.running_mean"} & brief.weights.keys()
    assert [step for step, _ in final.run.curve] == [1, 2]


def test_loss_may_rank(train: Train, make_run: Callable[..., TrialRun]) -> None:
    """The loss is returned in any case, and ranks if it is the first objective."""
    problem = CellsProblem(**SMALL, objectives=["loss", "accuracy"])
    scores = problem.train(make_run(CELL, {Policy.SKIP_TRAIN}))

    assert [metric.name for metric in problem.metrics] == ["loss", "accuracy"]
    assert problem.metrics[0].direction == "minimize"
    assert scores.keys() == {"accuracy", "loss"}
    assert scores["loss"] > 1


@pytest.mark.slow
def test_costs_are_those_of_the_network(problem: CellsProblem) -> None:
    """Parameters and FLOPs are those of the built network, and edges that no path uses cost nothing."""
    rng = random.Random(3)
    points = [problem.space.sample(rng) for _ in range(4)]
    dead = {**dict.fromkeys(CELL, "none"), "op_0_3": "skip_connect", "op_0_1": "nor_conv_3x3"}

    for point in (*points, CELL, LARGEST, dict.fromkeys(CELL, "none")):
        counted = NetworkCost(lambda point=point: problem.build(point), problem.example_inputs)
        assert dict(problem.static_metrics(point)) == dict(counted)
    assert problem.static_metrics(dead) == problem.static_metrics(live_cell(dead))
    assert problem.static_metrics(EPOCHS[0]).keys() == problem.static_metrics(CELL).keys()


@pytest.mark.slow
def test_export_of_a_subnet_scores_single_images(problem: CellsProblem, train: Train) -> None:
    """The exported network of a subnet has running statistics: an image's output does not depend on the others."""
    subnet = train(problem, CELL, SUBNET, donors=[train(problem, EPOCHS[0], SHARE)])
    network, (pixels,) = problem.export(subnet.again)

    assert all(norm.running_mean is not None for norm in network.modules() if isinstance(norm, nn.BatchNorm2d))
    with torch.no_grad():
        assert torch.allclose(network(pixels)[:1], network(pixels[:1]), atol=1e-5)
    assert 0 <= problem.test(subnet.again)["accuracy"] <= 1


def test_table_appears_in_tests_only(train: Train, tmp_path: Path) -> None:
    """The published accuracy is a score of test, and no score of training."""
    table = tmp_path / "t.csv"
    table.write_text(",".join([*CELL, "c10_test_200"]) + "\n" + ",".join([*CELL.values(), "91.5"]) + "\n")
    problem = CellsProblem(**SMALL, table=str(table))
    scored = train(problem, CELL, {Policy.SKIP_TRAIN})

    assert problem.test(scored.again)["table"] == 91.5
    assert "table" not in problem.train(scored.run)
    with pytest.raises(ConfigurationError, match=r"problem.table=\S+gone.csv: must be a file that exists. Set it to"):
        CellsProblem(table=str(tmp_path / "gone.csv"))
    with pytest.raises(ConfigurationError, match=r"problem.table_column='acc': must be a column of \S+t.csv. It has "):
        CellsProblem(table=str(table), table_column="acc")
    table.write_text("c10_test_200\n91.5\n")
    with pytest.raises(ConfigurationError, match=r"column 'op_0_1': must be in \S+t.csv. It has c10_test_200"):
        CellsProblem(table=str(table))


@pytest.mark.parametrize(
    ("row", "error"),
    [([*LARGEST.values(), "94"], "no row for the point"), ([*CELL.values(), ""], "no c10_test_200 for the point")],
)
def test_cell_that_the_table_lacks_is_tested(train: Train, tmp_path: Path, row: list[str], error: str) -> None:
    """A finalist keeps its score on the test images if the table lacks its row or number."""
    (tmp_path / "t.csv").write_text(",".join([*CELL, "c10_test_200"]) + "\n" + ",".join(row) + "\n")
    problem = CellsProblem(**SMALL, table=str(tmp_path / "t.csv"))
    run = train(problem, CELL, {Policy.SKIP_TRAIN}).again

    assert problem.test(run).keys() == {"accuracy"}
    assert run.test_error is not None
    assert error in run.test_error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": "svhn"}, r"problem.data='svhn': must be digits, fashion_mnist or cifar10"),
        ({"data_root": "/x"}, r"problem.data_root: must be left out with problem.data=digits. It belongs to data=fash"),
        ({"side": 6}, r"problem.side=6: must be a multiple of 4"),
        ({"side": 16}, r"problem.side=16: must be a whole number from 4 to 8"),
        ({"reduction": "max"}, r"problem.reduction='max': must be pool or residual"),
        ({"epoch_steps": 0}, r"problem.epoch_steps=0: must be a whole number of at least 1"),
        ({"objectives": ["loss"]}, r"must be accuracy, and any of loss, parameters, flops, live_flops"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_invalid_options_are_refused(arguments: Mapping[str, Any], message: str) -> None:
    """An option that is wrong, or belongs to other data, is refused by name."""
    with pytest.raises(ConfigurationError, match=message):
        CellsProblem(**arguments)
