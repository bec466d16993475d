"""Models of a network graph's training time: its FLOPs, its activations, or both.

    $ python benchmarks/epoch_time.py   # a minute

The networks are the hand-made one of ``benchmarks/headline.py``, and samples of the space of ``problem=fashion_mnist``.
Most samples are followed by 6 to 60 random moves, as in a search. Half of them have at most 20 million FLOPs. Each
trains on batches of 128 random images, in torch's default precision and number of threads. The median step times 390
is an epoch of 50,000 images, without loading and scoring.

The models are ``seconds = a * FLOPs + b * activations`` with non-negative a and b and the least squared relative error.
The root mean square of the error is printed. ``--networks`` also prints each network.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator

import numpy as np
import torch
from headline import hand_made
from scipy.optimize import nnls
from torch.nn import functional

from nas.problems.fashion_mnist import FashionMnistProblem
from nas.problems.images.fit import optimizer_of
from nas.problems.images.graph_recipes import WIDTHS, ImageGraph, image_graphs
from nas.spaces.graphs.network import Network
from nas.spaces.space import Variation
from nas.training.precision import precision_of

N_DRAWS, N_GROWN = 10, 20
N_STEPS, N_WARM = 14, 3
N_BATCHES = 390
BATCH = 128
FLOPS = (80_000_000, 20_000_000)
MODELS = {"FLOPs": ["flops"], "activations": ["activations"], "both": ["flops", "activations"]}


def networks() -> Iterator[Network]:
    """Yields the networks to measure, the same in each run."""
    rng = random.Random(5)
    yield hand_made("fashion_mnist")
    for index in range(N_DRAWS + N_GROWN):
        space = image_graphs(FashionMnistProblem.image_shape, WIDTHS, FLOPS[index % 2])
        variation = Variation.of(space.sample(rng))
        for _ in range(rng.randint(6, 60) if index >= N_DRAWS else 0):
            variation = space.vary(variation, rng)
        yield space.network(variation.point)


def epoch_s(network: Network) -> float:
    """Returns the seconds of an epoch of training."""
    scale = {"pixel_mean": FashionMnistProblem.pixel_mean, "pixel_std": FashionMnistProblem.pixel_std}
    module, rounding = ImageGraph(network, **scale), precision_of("auto", "cpu")
    optimizer = optimizer_of(module, {"learning_rate": 0.01})
    pixels = torch.randint(0, 256, (BATCH, *FashionMnistProblem.image_shape), dtype=torch.uint8)
    labels, seconds = torch.randint(0, 10, (BATCH,)), []
    for _ in range(N_STEPS):
        began_s = time.perf_counter()
        with rounding:
            logits = module(pixels)
        loss = functional.cross_entropy(logits.float(), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        seconds.append(time.perf_counter() - began_s)
    return N_BATCHES * statistics.median(seconds[N_WARM:])


def main() -> None:
    """Measures the networks, fits the models and prints both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", action="store_true")
    prints_networks = parser.parse_args().networks
    torch.manual_seed(0)
    rows = []
    for network in networks():
        rows.append({"s": epoch_s(network), "flops": network.flops / 1e6, "activations": network.activations / 1e3})
        if prints_networks:
            n_nodes = len(network.nodes)
            print(
                "{s:6.1f} s {flops:6.1f} million FLOPs {activations:7.0f} thousand activations".format(**rows[-1]),
                n_nodes,
            )
    seconds = np.array([row["s"] for row in rows])
    n_threads = torch.get_num_threads()
    print(f"{len(rows)} networks, {seconds.min():.1f} to {seconds.max():.1f} s an epoch, {n_threads} threads")
    for name, columns in MODELS.items():
        features = np.array([[row[column] for column in columns] for row in rows])
        weights, _ = nnls(features / seconds[:, None], np.ones(len(rows)))
        error = np.sqrt(np.mean((features @ weights / seconds - 1) ** 2))
        terms = " + ".join(f"{weight:.3f} {column}" for weight, column in zip(weights, columns, strict=True))
        print(f"{name}: {terms}; relative error {error:.0%}")
    cheap = [row for row in rows if row["flops"] <= FLOPS[1] / 1e6]
    per_flop = [row["s"] / row["flops"] for row in cheap]
    print(f"of {len(cheap)} with at most 20 million FLOPs: {min(per_flop):.2f} to {max(per_flop):.2f} s a million")


if __name__ == "__main__":
    main()
