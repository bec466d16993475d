"""Effect of each inheritance rule on children of trained networks, compared with the default rules.

    $ python benchmarks/rules.py --data DIR               # runs the missing ones of 8 seeds: some minutes each
    $ python benchmarks/rules.py --data DIR --seeds 20    # more seeds
    $ python benchmarks/rules.py                          # prints the results so far

``DIR`` holds the four files of Fashion-MNIST. Each seed has a parent with 3x3 convolutions of 16, 32 and 48
channels and batch-norm. It trains for 3 epochs on 4,000 images. Each kind of child inherits by each rule. A child is
wider, has larger kernels, is a layer deeper at the end or at the beginning, or is narrower. It trains for 3 epochs on
the same images in the same order, by SGD with momentum. The rate falls from 0.05 to 0.

Each row of docs/rules.csv is one child: its accuracy on the 10,000 validation images as inherited, after one epoch and
after three. The table shows the mean difference to the default of the same seed and child. Its 95 % confidence interval
is that of the means of the seeds. ``cold`` inherits nothing.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import torch
from rows import Results
from scipy.stats import t as student
from torch import nn
from torch.nn import functional

from nas.inheritance.freezing import set_frozen
from nas.inheritance.inherit import inherit
from nas.inheritance.optimizer_state import inherit_optimizer, optimizer_tensors
from nas.inheritance.report import InheritanceReport
from nas.inheritance.rules import Rules
from nas.problems.fashion_mnist import FashionMnistProblem
from nas.problems.images.fit import score
from nas.problems.images.pixels import Images
from nas.training.precision import precision_of

MOMENTS = ("inherited", "epoch_1", "epoch_3")
RESULTS = Results(path=Path(__file__).parents[1] / "docs" / "rules.csv", fields=("rule", "child", "seed", *MOMENTS))
N_IMAGES = 4_000
N_EPOCHS = 3
BATCH_SIZE = 64
RATE = 0.05
N_STEPS = N_EPOCHS * (N_IMAGES // BATCH_SIZE)
ARMS: Mapping[str, Rules | None] = {
    "default": Rules(),
    "cold": None,
    "rest=own": Rules(rest="own"),
    "first=structure": Rules(first="structure"),
    "statistics=reset": Rules(statistics="reset"),
    "shrink=0.8 perturb=0.1": Rules(shrink=0.8, perturb=0.1),
    "shrink=0.4 perturb=0.1": Rules(shrink=0.4, perturb=0.1),
    "freeze_epochs=1": Rules(freeze_epochs=1),
    f"warm_up_steps={N_STEPS // 6}": Rules(warm_up_steps=N_STEPS // 6),
    "optimizer=inherit": Rules(optimizer="inherit"),
}
"""The rules of each arm. None: the child inherits nothing."""
PARENT = ((16, 32, 48), 3)
CHILDREN: Mapping[str, tuple[tuple[int, ...], int]] = {
    "wider": ((24, 48, 64), 3),
    "larger kernels": ((16, 32, 48), 5),
    "deeper": ((16, 32, 48, 48), 3),
    "deeper at the beginning": ((16, 16, 32, 48), 3),
    "narrower": ((16, 16, 48), 3),
}
"""The channels of each layer, and the kernel size."""


def chain(widths: tuple[int, ...], kernel: int) -> nn.Module:
    """Returns a network for 28x28 pixels, with a pooling after each of the first two layers."""
    layers: list[nn.Module] = []
    n_inputs = 1
    for place, width in enumerate(widths):
        block = [nn.Conv2d(n_inputs, width, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        layers.append(nn.Sequential(*block, nn.MaxPool2d(2) if place < 2 else nn.Identity()))
        n_inputs = width
    return nn.Sequential(Scaled(), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(n_inputs, 10))


class Scaled(nn.Module):
    """Normalizes pixels to mean 0 and standard deviation 1."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Returns floats of the same shape, in channels-last format."""
        x = (pixels.float() - FashionMnistProblem.pixel_mean) / FashionMnistProblem.pixel_std
        return x.contiguous(memory_format=torch.channels_last)


@cache
def data(folder: Path) -> tuple[Images, Images]:
    """Returns the images for training and validation."""
    train, validation = FashionMnistProblem(str(folder)).load_train()
    return train[:N_IMAGES], validation


def seed_rows(task: tuple[Path, int, tuple[tuple[str, str], ...]]) -> list[dict[str, object]]:
    """Trains the parent of a seed and some children, and returns their rows."""
    folder, seed, arms = task
    torch.set_num_threads(1)
    train, validation = data(folder)
    torch.manual_seed(seed)
    parent = chain(*PARENT)
    optimizer = optimizer_of(parent)
    for _ in trained(parent, optimizer, train, seed, None, None):
        pass
    donor = {name: tensor.detach().clone() for name, tensor in parent.state_dict().items()}
    donor |= {name: tensor.clone() for name, tensor in optimizer_tensors(optimizer, parent).items()}
    rows: list[dict[str, object]] = []
    for name, kind in arms:
        rules = ARMS[name]
        torch.manual_seed(1000 + seed)
        child = chain(*CHILDREN[kind])
        weights = {key: tensor for key, tensor in donor.items() if not key.startswith("optimizer/")}
        structural = rules is not None and rules.first == "structure"
        report = None if rules is None else inherit(child, [parent if structural else weights], rules=rules)
        optimizer = optimizer_of(child)
        if rules is not None and rules.optimizer == "inherit":
            inherit_optimizer(optimizer, child, [donor])
        scores = [score(child, validation, "auto")]
        epochs = trained(child, optimizer, train, seed + 1, rules, report)
        scores += [score(child, validation, "auto") for epoch in epochs if epoch in (1, N_EPOCHS)]
        row: dict[str, object] = {"rule": name, "child": kind, "seed": seed}
        rows.append(row | {m: f"{s:.4f}" for m, s in zip(MOMENTS, scores, strict=True)})
    return rows


def optimizer_of(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4)


def trained(
    network: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Images,
    seed: int,
    rules: Rules | None,
    report: InheritanceReport | None,
) -> Iterator[int]:
    """Trains in place and yields the number of each finished epoch, from 1."""
    shuffling = torch.Generator().manual_seed(seed)
    step = 0
    for epoch in range(N_EPOCHS):
        if rules is not None and report is not None:
            set_frozen(network, report, rules, epoch)
        network.train()
        order = torch.randperm(len(images), generator=shuffling)
        for batch in torch.split(order, BATCH_SIZE)[: N_STEPS // N_EPOCHS]:
            rise = 1.0 if rules is None else rules.warm_up(step)
            optimizer.param_groups[0]["lr"] = RATE * rise * (1 - step / N_STEPS)
            optimizer.zero_grad()
            with precision_of("auto", "cpu"):
                logits = network(images.pixels[batch])
            loss = functional.cross_entropy(logits.float(), images.labels[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
        yield epoch + 1


def show() -> None:
    """Prints a line for each rule: the mean accuracy, or the difference to the default."""
    found = {(row["rule"], row["child"], row["seed"]): row for row in RESULTS.kept()}
    for kind in ("all", *CHILDREN):
        kinds = CHILDREN if kind == "all" else [kind]
        print(f"children: {kind}")
        for rule in ARMS:
            cells = []
            for moment in MOMENTS:
                by_seed: dict[str, list[float]] = {}
                for (name, child, seed), row in found.items():
                    if name == rule and child in kinds and ("default", child, seed) in found:
                        base = 0.0 if rule == "default" else float(found["default", child, seed][moment])
                        by_seed.setdefault(seed, []).append(100 * (float(row[moment]) - base))
                means = [statistics.mean(values) for values in by_seed.values()]
                if len(means) > 1:
                    half = student.ppf(0.975, len(means) - 1) * statistics.stdev(means) / len(means) ** 0.5
                    cells.append(f"{moment} {statistics.mean(means):+6.2f} +- {half:.2f}")
            if cells:
                print(f"  {rule:24} {len(means):2} seeds: {', '.join(cells)}")


def main() -> None:
    """Runs the missing children and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.data is not None:
        done = {(row["rule"], row["child"], int(row["seed"])) for row in RESULTS.kept()}
        tasks = []
        for seed in range(arguments.seeds):
            arms = tuple((rule, kind) for rule in ARMS for kind in CHILDREN if (rule, kind, seed) not in done)
            if arms:
                tasks.append((arguments.data.resolve(), seed, arms))
        for n_done in RESULTS.run(seed_rows, tasks, arguments.processes):
            print(f"{n_done} of {len(tasks)} seeds", flush=True)
    show()


if __name__ == "__main__":
    main()
