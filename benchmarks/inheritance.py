"""Costs of morphisms, inheritance, digests and distances of networks, and the accuracy of morphisms.

    $ python benchmarks/inheritance.py                 # costs: under a minute
    $ python benchmarks/inheritance.py --chains 10000  # also runs the missing chains: 0.1 s each on a core

A chain is twenty random morphisms of a small network with random weights in float32. Eight random examples are given
to the network before and after. The error is the greatest difference of the outputs, as a share of the greatest
output. It is measured in eval mode, and also in train mode if all operations are exact there (every second chain).

Each row of docs/morphisms.csv counts the errors of a hundred chains by powers of ten. Existing rows are not run again.
Costs are processor time of one thread.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rows import Results
from torch import nn

from nas.inheritance.channel_edits import Weights
from nas.inheritance.inherit import inherit
from nas.inheritance.morphism import replay
from nas.spaces.graphs.canonical import digest
from nas.spaces.graphs.distance import edit_distance, steps_of
from nas.spaces.graphs.limits import Limits
from nas.spaces.graphs.module import GraphModule
from nas.spaces.graphs.moves import MOVES, draw_move
from nas.spaces.graphs.network import Network
from nas.spaces.graphs.starts import nas_bench_201, plain_cnn, resnet

POWERS = (-8, -7, -6, -5, -4)
RESULTS = Results(
    path=Path(__file__).parents[1] / "docs" / "morphisms.csv",
    fields=("first_seed", "mode", "chains", "operations", "max", *(f"below_1e{power}" for power in POWERS)),
)
BLOCK = 100
N_MORPHISMS = 20
SHRINKING = ("narrow", "shrink_kernel", "remove", "disconnect")
SHAPE = (2, 8, 8)
CELL = "|nor_conv_3x3~0|+|none~0|skip_connect~1|+|skip_connect~0|nor_conv_1x1~1|avg_pool_3x3~2|"
STARTS = (
    plain_cnn(SHAPE, 5, widths=[8, 12], pool_after=[0]),
    resnet(SHAPE, 5, widths=[8, 12]),
    nas_bench_201(SHAPE, 5, cell=CELL, widths=[8, 12]),
)


def chain(seed: int) -> tuple[int, float, float | None]:
    """Returns the number of operations and the errors in eval and train mode (or None)."""
    rng = random.Random(seed)
    start = network = rng.choice(STARTS)
    operations = []
    left_out = SHRINKING if seed % 2 else (*SHRINKING, "deepen")
    kinds = [kind for kind in MOVES if kind not in left_out]
    for _ in range(N_MORPHISMS):
        move = draw_move(network, kinds, Limits(size=48), rng)
        if move is None:
            break
        operations.append(move.operation)
        network = move.network
    torch.manual_seed(seed)
    module = GraphModule(start)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
        module(torch.randn(16, *SHAPE))
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    child, morphed = replay(start, weights, operations)
    x = torch.randn(8, *SHAPE)
    is_exact = all(operation.exactness == "always" for operation in operations)
    errors = [error(start, weights, child, morphed, x, train=train) for train in (False, True)[: 1 + is_exact]]
    return len(operations), errors[0], errors[1] if is_exact else None


def error(start: Network, weights: Weights, child: Network, morphed: Weights, x: torch.Tensor, *, train: bool) -> float:
    """Returns the greatest difference of the outputs as a share of the greatest output."""
    outputs = []
    for network, state in ((start, weights), (child, morphed)):
        with torch.device("meta"):
            module = GraphModule(network).train(train)
        module.load_state_dict(state, assign=True)
        with torch.no_grad():
            outputs.append(module(x))
    return float((outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max())


def block(first_seed: int) -> list[dict[str, object]]:
    """Returns the rows of a hundred chains."""
    torch.set_num_threads(1)
    found = [chain(seed) for seed in range(first_seed, first_seed + BLOCK)]
    rows = []
    for mode, errors in (
        ("eval", [one[1] for one in found]),
        ("train", [one[2] for one in found if one[2] is not None]),
    ):
        counts = {f"below_1e{power}": sum(value < 10.0**power for value in errors) for power in POWERS}
        n_operations = sum(one[0] for one in found)
        row = {"first_seed": first_seed, "mode": mode, "chains": len(errors), "operations": n_operations}
        rows.append({**row, "max": f"{max(errors, default=0.0):.3g}", **counts})
    return rows


def run(n_chains: int, n_processes: int) -> None:
    """Runs the blocks that have no row yet and appends their rows."""
    there = {int(row["first_seed"]) for row in RESULTS.kept()}
    tasks = [seed for seed in range(0, n_chains, BLOCK) if seed not in there]
    for done in RESULTS.run(block, tasks, n_processes):
        print(f"{done * BLOCK} of {len(tasks) * BLOCK} chains", file=sys.stderr)


def print_errors() -> None:
    """Prints the distribution of the errors in each mode."""
    for mode in ("eval", "train"):
        rows = [row for row in RESULTS.kept() if row["mode"] == mode]
        n_chains = sum(int(row["chains"]) for row in rows)
        if not n_chains:
            continue
        greatest = max(float(row["max"]) for row in rows)
        shares = [
            f"{sum(int(row[f'below_1e{power}']) for row in rows) / n_chains:.2%} below 1e{power}" for power in POWERS
        ]
        print(f"{mode:5} mode: {n_chains:,} chains, greatest error {greatest:.2g}; {', '.join(shares)}")


def seconds(call: Callable[[], object], n: int) -> float:
    """Returns the median processor time of ``n`` calls."""
    taken = []
    for _ in range(n):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return statistics.median(taken)


def large(width: int, n_layers: int = 22) -> nn.Module:
    """Returns a chain of convolutions and norms, with 49.6 million parameters at width 512."""
    layers: list[nn.Module] = []
    for place in range(n_layers):
        layers += [nn.Conv2d(width if place else 1, width, 3), nn.BatchNorm2d(width)]
    return nn.Sequential(*layers)


def print_costs() -> None:
    """Prints the costs of inheritance, digests and distances."""
    torch.set_num_threads(1)
    donor = large(512)
    n_parameters = sum(parameter.numel() for parameter in donor.parameters())
    for word, width in (("the same architecture", 512), ("a wider one, in slices", 520)):
        child, state = large(width), donor.state_dict()
        taken = seconds(lambda child=child, state=state: inherit(child, [state]), 5)  # type: ignore[misc]
        print(f"inherit, {n_parameters / 1e6:.1f} million parameters into {word}: {taken:.3f} s")
    rng = random.Random(0)
    networks = []
    for seed in range(200):
        network = STARTS[seed % len(STARTS)]
        for _ in range(rng.randrange(10)):
            move = draw_move(network, list(MOVES), Limits(), rng)
            network = network if move is None else move.network
        networks.append(network)
    sizes = [len(network.nodes) for network in networks]
    described = f"of {min(sizes)} to {max(sizes)} nodes, {math.floor(statistics.mean(sizes))} on average"
    taken = seconds(lambda: [digest(network) for network in networks], 9)
    print(f"digests of networks {described}: {len(networks) / taken:,.0f} a second")
    steps = [steps_of(network) for network in networks]
    pairs = [(one, other) for one in range(0, 200, 7) for other in range(200)]

    def measure() -> list[float]:
        return [edit_distance(steps[one], steps[other]) for one, other in pairs]

    for when, n in (("the first time", 1), ("again, with cached layer distances", 3)):
        print(f"distances of two of them, {when}: {len(pairs) / seconds(measure, n):,.0f} pairs a second")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    run(arguments.chains, arguments.processes) if arguments.chains else print_costs()
    print_errors()


if __name__ == "__main__":
    main()
