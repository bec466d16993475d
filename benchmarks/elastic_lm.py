"""Five sizes of a language model by one training, and each size trained alone.

Times are processor seconds of one thread. Each size alone gets a fifth of the time of the one training, and then all of
its time. Results are lines of a file; the same command continues after a stop::

    python benchmarks/elastic_lm.py FILE --seeds 5 --seconds 60
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from search_quality import interval
from torch import Tensor, nn
from torch.nn import functional

from nas.core.point import Point
from nas.problems.language.network import LanguageModel
from nas.problems.language.problem import loss_of
from nas.problems.language.text import Corpus, bundled_text, windows
from nas.supernets.elastic import extremes
from nas.supernets.elastic_blocks import ElasticModuleList
from nas.supernets.elastic_layers import ElasticEmbedding, ElasticLinear
from nas.supernets.elastic_norms import ElasticLayerNorm
from nas.supernets.elastic_transformer import ElasticTransformerEncoderLayer
from nas.supernets.module import space_of, subnet
from nas.supernets.paths import ListedPaths, PathSampler, SandwichPaths
from nas.supernets.sizes import Elastic, ElasticProduct
from nas.supernets.training import PathTraining, train_step

POINTS: Sequence[Point] = (
    {"depth": 1, "heads": 2, "mlp_ratio": 2},
    {"depth": 2, "heads": 3, "mlp_ratio": 2},
    {"depth": 2, "heads": 4, "mlp_ratio": 4},
    {"depth": 3, "heads": 6, "mlp_ratio": 4},
    {"depth": 4, "heads": 8, "mlp_ratio": 4},
)
"""The sizes, the largest last. Heads have 16 features; the width is that of all heads."""
COSTS = (1.0, 2.4, 4.4, 10.0, 21.0)
"""The time of a step of each size, as a multiple of the smallest."""
SANDWICH_EVERY = 8  # steps
HEAD_WIDTH = 16
CONTEXT = 64
BATCH_SIZE = 32
RATE = 3e-3
N_WARM_UP = 20  # steps
N_SCORED = 512  # windows


def elastic_network(n_symbols: int) -> LanguageModel:
    """Returns a language model of elastic depth, heads and MLP."""
    heads, depth, ratio = (
        Elastic("heads", (2, 3, 4, 6, 8)),
        Elastic("depth", (1, 2, 3, 4)),
        Elastic("mlp_ratio", (2, 4)),
    )
    width = heads.times(HEAD_WIDTH)
    network = LanguageModel(n_symbols, 1, 1, width.largest, context=CONTEXT)
    blocks = [
        ElasticTransformerEncoderLayer(
            width, heads, ElasticProduct((width, ratio)), dropout=0.0, activation="gelu", norm_first=True
        )
        for _ in range(depth.largest)
    ]  # fmt: skip
    network.layers = ElasticModuleList(depth, blocks)
    network.norm = ElasticLayerNorm(width)
    network.head = ElasticLinear(width, n_symbols, bias=False)
    for name, n_rows in (("embed", n_symbols), ("positions", CONTEXT)):
        embedding = ElasticEmbedding(n_rows, width)
        embedding.load_state_dict(network.get_submodule(name).state_dict())
        network.set_submodule(name, embedding)
    network.head.weight = network.embed.weight
    return network


@dataclass(frozen=True, slots=True)
class MostlySmall:
    """A sandwich step now and then; in other steps one size, for equal times.

    With sandwich steps alone, the largest network takes half of the time, and small ones learn too few batches.
    """

    sandwich: PathSampler
    seed: int

    def __call__(self, step: int) -> list[Point]:
        """Returns the points of a step."""
        if step % SANDWICH_EVERY == 0:
            return self.sandwich(step)
        rng = random.Random(f"{self.seed}/{step}")
        return rng.choices(POINTS, [1 / cost for cost in COSTS])


@cache
def corpus() -> Corpus:
    """Returns the help texts of Python's language reference as characters."""
    return Corpus.of(bundled_text(), None)


def batches(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields texts of the training part, and the symbols after each of theirs, without end."""
    generator, text = torch.Generator().manual_seed(seed), corpus().train
    while True:
        starts = torch.randint(len(text) - CONTEXT, (BATCH_SIZE, 1), generator=generator)
        texts = text[starts + torch.arange(CONTEXT + 1)]
        yield texts[:, :-1], texts[:, 1:]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the cross-entropy in nats a symbol."""
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def train(network: nn.Module, paths: PathSampler, seconds: float, seed: int, *, distill: bool = False) -> int:
    """Trains a network for a processor time. Returns the number of steps."""
    settings = PathTraining(loss=loss, clip_norm=1.0, distill=distill, class_dim=-1)
    optimizer = torch.optim.AdamW(network.parameters(), RATE, betas=(0.9, 0.98))
    network.train()
    began_s = time.process_time()
    for step, batch in enumerate(batches(seed)):
        share = (time.process_time() - began_s) / seconds
        if share >= 1:
            return step
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / N_WARM_UP) * 0.5 * (1 + math.cos(math.pi * share))
        train_step(network, batch, optimizer, paths(step), settings=settings)
    raise AssertionError("batches end")


def measure(seed: int, seconds: float) -> dict[str, Any]:
    """Returns the losses and steps of one seed, in the order of ``POINTS``.

    They are those of shared weights, of each size alone in a fifth of the time, and in the whole time.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    n_symbols, scored = corpus().n_symbols, windows(corpus().validation, CONTEXT)[:N_SCORED]
    network = elastic_network(n_symbols)
    largest, smallest = extremes(network)
    paths = SandwichPaths(
        space=space_of(network),
        seed=seed,
        largest=largest,
        smallest=smallest,
        n_random=1,
        accept=POINTS.__contains__,
    )
    found: dict[str, Any] = {"seed": seed, "seconds": seconds}
    found["shared_steps"] = train(network, MostlySmall(paths, seed), seconds, seed, distill=True)
    found["shared"] = [loss_of(subnet(network, point), scored, "float32") for point in POINTS]
    for name, own_s in (("fifth", seconds / len(POINTS)), ("whole", seconds)):
        alone = [subnet(elastic_network(n_symbols), point) for point in POINTS]
        steps = [train(own, ListedPaths([point]), own_s, seed) for own, point in zip(alone, POINTS, strict=True)]
        found |= {name: [loss_of(own, scored, "float32") for own in alone], f"{name}_steps": steps}
    return found


def lines(found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the table of all seeds, as markdown."""
    yield "| depth, heads, MLP | together | alone, 1/5 time | together - alone | alone, whole time | together - alone |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for index, point in enumerate(POINTS):
        shared = [own["shared"][index] for own in found]
        cells = [", ".join(map(str, point.values())), f"{fmean(shared):.3f}"]
        for name in ("fifth", "whole"):
            alone = [own[name][index] for own in found]
            differences = [one - other for one, other in zip(shared, alone, strict=True)]
            cells += [f"{fmean(alone):.3f}", f"{fmean(differences):+.3f} +- {interval(differences):.3f}"]
        yield f"| {' | '.join(cells)} |"
    yield f"steps together {fmean(own['shared_steps'] for own in found):.0f}, alone in the whole time " + ", ".join(
        f"{fmean(own['whole_steps'][index] for own in found):.0f}" for index in range(len(POINTS))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="lines of JSON, one a seed; seeds in it are not repeated")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=60.0, help="processor time of the shared training")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    kept = [json.loads(line) for line in given.file.read_text().splitlines()] if given.file.exists() else []
    found = {own["seed"]: own for own in kept if own["seconds"] == given.seconds}
    left = [seed for seed in range(given.seeds) if seed not in found]
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        for future in as_completed([pool.submit(measure, seed, given.seconds) for seed in left]):
            own = future.result()
            found[own["seed"]] = own
            with given.file.open("a") as file:
                file.write(json.dumps(own) + "\n")
    print("\n".join(lines([found[seed] for seed in sorted(found) if seed < given.seeds])))


if __name__ == "__main__":
    main()
