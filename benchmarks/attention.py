"""Loss of a wider or narrower transformer before training: with inherited weights, and fresh.

    $ python benchmarks/attention.py                                  # about 90 s of a core
    $ python benchmarks/attention.py --text SQUAD.json.gz --steps 600 --parents 2 --children 4

A parent (width 32, 4 heads, 2 blocks) learns the characters of a text. Its weights are published and inherited by
children of other widths, numbers of heads and sizes of heads. A pair is a child with inherited weights and the same
child as initialized. The loss is that of validation, in nats for each character.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import NamedTuple
from uuid import uuid4

import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.inheritance.attention import parts_of
from nas.inheritance.inherit import inherit
from nas.inheritance.rules import Rest, Rules
from nas.problems.language.network import LanguageModel
from nas.problems.language.text import Corpus, bundled_text, file_text
from nas.storage.checkpoints import publish_checkpoint, publish_tensors
from nas.storage.lazy_weights import StoredWeights
from nas.storage.open import open_root

PARENT = (32, 4)
CHILDREN = ((40, 4), (48, 4), (48, 6), (64, 4), (64, 8), (32, 8), (32, 2), (24, 3))
"""Widths and numbers of heads."""
LENGTH = 64
BATCH = 32
RATE = 3e-3


class Pair(NamedTuple):
    """The loss of a child before training.

    Attributes:
        fresh: As initialized.
        inherited: With inherited weights.
        n_weights: Its weight tensors.
        n_inherited: Those of them that were inherited, whole or in part.
        share: The share of its parameters that was inherited.
    """

    fresh: float
    inherited: float
    n_weights: int
    n_inherited: int
    share: float


def model_of(sizes: tuple[int, int], n_symbols: int, seed: int) -> LanguageModel:
    """Returns a new network of this width and number of heads."""
    torch.manual_seed(seed)
    width, n_heads = sizes
    return LanguageModel(n_symbols, 2, n_heads, width, context=LENGTH)


def batch(symbols: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Returns random windows of a text, and the symbols that follow."""
    starts = torch.randint(len(symbols) - LENGTH, (BATCH,), generator=generator)
    windows = symbols[starts[:, None] + torch.arange(LENGTH + 1)]
    return windows[:, :-1], windows[:, 1:]


def loss_of(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """Returns the mean cross-entropy."""
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def train(model: nn.Module, symbols: Tensor, n_steps: int, seed: int) -> None:
    """Trains a network by AdamW, with a warm-up and a linear decay of the learning rate."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), RATE)
    for step in range(n_steps):
        optimizer.param_groups[0]["lr"] = RATE * min(1, (step + 1) / 50) * (1 - 0.9 * step / n_steps)
        optimizer.zero_grad()
        loss_of(model, *batch(symbols, generator)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def validation_loss(model: nn.Module, symbols: Tensor) -> float:
    """Returns the loss on eight fixed batches."""
    generator = torch.Generator().manual_seed(5)
    model.eval()
    with torch.no_grad():
        losses = [loss_of(model, *batch(symbols, generator)).item() for _ in range(8)]
    model.train()
    return statistics.mean(losses)


def stored(model: nn.Module) -> StoredWeights:
    """Returns the network's weights as a child reads them."""
    files = open_root(f"memory://attention/{uuid4().hex}", retry_s=0)
    tensors = publish_tensors(files, "packs/000001-ab", model.state_dict(), parts=parts_of(model))
    return StoredWeights(files, publish_checkpoint(files, "000001-ab", tensors))


def pair(sizes: tuple[int, int], donor: StoredWeights, corpus: Corpus, rest: Rest, seed: int) -> Pair:
    """Returns the losses of one child."""
    child = model_of(sizes, corpus.n_symbols, seed)
    fresh = validation_loss(child, corpus.validation)
    report = inherit(child, [donor], rules=Rules(rest=rest))
    weights = [name for name, tensor in child.state_dict().items() if tensor.dim() > 1]
    n_inherited = sum(report.tensors[name].how in ("copied", "sliced") for name in weights)
    return Pair(fresh, validation_loss(child, corpus.validation), len(weights), n_inherited, report.share)


def main() -> None:
    """Prints a row for each change of sizes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", help="a text, or SQuAD's json; by default one that Python brings along")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--parents", type=int, default=2)
    parser.add_argument("--children", type=int, default=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    corpus = Corpus.of(bundled_text() if options.text is None else file_text(options.text, {}), None)
    parents = [model_of(PARENT, corpus.n_symbols, seed) for seed in range(options.parents)]
    for seed, parent in enumerate(parents):
        train(parent, corpus.train, options.steps, seed)
    losses = [validation_loss(parent, corpus.validation) for parent in parents]
    print(f"parents {PARENT}: {statistics.mean(losses):.3f} nats after {options.steps} steps")
    print("| width, heads | rest | weights inherited | share | fresh | inherited | of the parent's | lower |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    donors = [stored(parent) for parent in parents]
    rests: tuple[Rest, ...] = ("scaled", "own")
    for sizes in CHILDREN:
        for rest in rests:
            pairs = [pair(sizes, donor, corpus, rest, 100 + n) for donor in donors for n in range(options.children)]
            fresh = statistics.mean(found.fresh for found in pairs)
            inherited = statistics.mean(found.inherited for found in pairs)
            n_lower = sum(found.inherited < found.fresh for found in pairs)
            print(
                f"| {sizes[0]}, {sizes[1]} | {rest} | {pairs[0].n_inherited} of {pairs[0].n_weights} | "
                f"{pairs[0].share:.0%} | {fresh:.3f} | {inherited:.3f} | "
                f"{inherited / statistics.mean(losses) - 1:+.1%} | {n_lower} of {len(pairs)} |",
                flush=True,
            )
    print(f"{time.process_time():.0f} s of a processor")


if __name__ == "__main__":
    main()
