"""Growth of character language models against single sizes, at equal processor time.

    $ python benchmarks/growth.py function                           # (a) the function kept by each operation
    $ python benchmarks/growth.py against --text FILE --seeds 5      # (b) growing against the large model; resumes
    $ python benchmarks/growth.py slopes --text FILE --seconds 60    # (c) growing by slopes against single sizes
    $ python benchmarks/growth.py report                             # prints the results so far

``FILE`` is a text or SQuAD's json; the default is that of ``problem=language``.

How it measures:

* Seconds are processor time of training on one thread, without scoring. ``against`` and ``slopes`` give each arm as
  many. All arms of a seed run one after the other in one process.
* The text, the split, the network and the optimizer are those of ``problem=language``. The learning rate is 0.003 at
  each width, so that a grown network keeps its parent's. It rises in 10 steps and falls in the last 30 % of the time.
* ``against``: ``small`` has width 64 and 2 blocks, ``large`` width 128 and 4 blocks. ``grown`` is small for a quarter
  of the time, then grown to the large size by operations that keep the function. It reaches the loss of
  ``large`` at its first scoring at or below that; its time as small counts.
* ``slopes``: ``autogrow`` asks the tuner of this name after each twentieth of the time. Rejected growth counts. The
  last 30 % train the size that it has then, with a falling rate. Each single size trains for the whole time.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev

import torch
from rows import Results
from torch import Tensor, nn
from torch.nn import functional

from nas import Lineage, Metric
from nas.core.trial import Proposal, State, Trial
from nas.inheritance.growth import grow
from nas.problems.language.network import LanguageModel
from nas.problems.language.problem import loss_of
from nas.problems.language.text import Corpus, bundled_text, file_text, windows
from nas.spaces.growth import Growth, GrowthOperation, InsertBlock, Sizes, Stack, WidenHeads, WidenMlp
from nas.spaces.transformer import TransformerSpace
from nas.training.precision import precision_of
from nas.tuners.autogrow import AutoGrowTuner

FIELDS = ("benchmark", "seconds", "seed", "arm", "sizes", "steps", "loss", "before", "curve")
RESULTS = Path(__file__).parents[1] / "docs" / "growth.csv"
CONTEXT, BATCH, RATE, WARM_UP_STEPS, DECAY = 64, 32, 3e-3, 10, 0.3
SMALL, LARGE = Sizes(2, 2, 64, 4), Sizes(4, 4, 128, 4)
SINGLES = {"small": SMALL, "medium": Sizes(4, 2, 64, 4), "wide": Sizes(2, 4, 128, 4), "large": LARGE}
GROWTH = (WidenHeads(1), InsertBlock(1), InsertBlock(0))
N_SCORED, N_SCORINGS = 256, 20
Row = Mapping[str, object]
Task = tuple[float, int, str | None]
"""Seconds, seed, and the text's file."""


@cache
def corpus(text: str | None) -> tuple[Corpus, Tensor]:
    """Returns the text and the windows that are scored, read once per process."""
    found = Corpus.of(bundled_text() if text is None else file_text(text, {}), None)
    return found, windows(found.validation, CONTEXT)[:N_SCORED]


def network_of(sizes: Sizes, n_symbols: int, weights: Mapping[str, Tensor] | None = None) -> LanguageModel:
    """Returns a network, with these weights if any."""
    network = LanguageModel(n_symbols, **sizes.to_json(), context=CONTEXT)
    if weights is not None:
        network.load_state_dict(weights)
    return network


def optimizer_of(network: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(network.parameters(), RATE, betas=(0.9, 0.98), weight_decay=0.01)


class Training:
    """Training of one network by processor time.

    Attributes:
        curve: Seconds and loss at each scoring, after ``offset``.
    """

    def __init__(self, sizes: Sizes, text: str | None, seed: int, weights: Mapping[str, Tensor] | None = None) -> None:
        self.corpus, self.scored = corpus(text)
        torch.manual_seed(seed)
        self.network = network_of(sizes, self.corpus.n_symbols, weights)
        self.optimizer = optimizer_of(self.network)
        self.drawing = torch.Generator().manual_seed(seed)
        self.n_steps = 0
        self.curve: list[tuple[float, float]] = []

    def loss(self) -> float:
        """Returns the loss on the validation windows, in float32."""
        return loss_of(self.network, self.scored, "float32")

    def run(self, seconds: float, *, decay: float = 0.0, offset: float = 0.0, every: float = math.inf) -> float:
        """Trains for so many seconds, and returns the loss after them.

        Args:
            seconds: The processor time.
            decay: The last share of the time, in which the rate falls.
            offset: The seconds before, for the curve.
            every: The seconds between scorings.
        """
        used, next_score = 0.0, every
        while used < seconds:
            begin = time.process_time()
            fall = (1 - used / seconds) / decay if decay else 1.0
            self._step(max(0.02, min(1.0, (self.n_steps + 1) / WARM_UP_STEPS, fall)))
            used += time.process_time() - begin
            if used >= next_score:
                self.curve.append((round(offset + used, 2), round(self.loss(), 4)))
                next_score += every
        return self.loss()

    def _step(self, share: float) -> None:
        train = self.corpus.train
        starts = torch.randint(len(train) - CONTEXT, (BATCH, 1), generator=self.drawing)
        texts = train[starts + torch.arange(CONTEXT + 1)]
        self.optimizer.param_groups[0]["lr"] = RATE * share
        self.network.train()
        with precision_of("auto", "cpu"):
            logits = self.network(texts[:, :-1])
        loss = functional.cross_entropy(logits.float().flatten(0, 1), texts[:, 1:].flatten())
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.n_steps += 1


def against(task: Task) -> list[Row]:
    """Returns the rows of small, grown and large for one seed."""
    seconds, seed, text = task
    torch.set_num_threads(1)
    every = seconds / N_SCORINGS

    large = Training(LARGE, text, seed)
    rows = [_row("against", task, "large", LARGE, large, large.run(seconds, decay=DECAY, every=every))]
    small = Training(SMALL, text, seed)
    before = small.run(seconds / 4, every=every)
    grown = Training(LARGE, text, seed, grow(SMALL, small.network.state_dict(), GROWTH)[1])
    grown.curve = small.curve
    loss = grown.run(0.75 * seconds, decay=DECAY / 0.75, offset=seconds / 4, every=every)
    rows.append({**_row("against", task, "grown", LARGE, grown, loss), "before": round(before, 4)})
    alone = Training(SMALL, text, seed)
    return [*rows, _row("against", task, "small", SMALL, alone, alone.run(seconds, decay=DECAY, every=every))]


def slopes(task: Task) -> list[Row]:
    """Returns the rows of single sizes and of the tuner's network, for one seed."""
    seconds, seed, text = task
    torch.set_num_threads(1)
    rows = []
    for arm, sizes in SINGLES.items():
        single = Training(sizes, text, seed)
        rows.append(_row("slopes", task, arm, sizes, single, single.run(seconds, decay=DECAY)))
    return [*rows, _grown_by_slopes(task)]


def _grown_by_slopes(task: Task) -> Row:
    """Returns the row of a network that the tuner grows, with its trials in memory."""
    seconds, seed, text = task
    space = TransformerSpace((2, 4), (2, 4), (32,), (4,))
    tuner = AutoGrowTuner(space, (Metric("loss", "minimize"),), seed=seed, n_starts=1)
    trials: list[Trial] = []
    trainings: list[Training] = []
    segment = seconds / N_SCORINGS
    for number in range(round((1 - DECAY) * N_SCORINGS)):
        proposal = tuner.ask(Lineage.of(trials), number, number)
        assert isinstance(proposal, Proposal)
        parent = trainings[proposal.parents[0]] if proposal.parents else None
        training = _continued(proposal, parent, text, seed + number)
        loss = training.run(segment)
        training.curve.append((round((number + 1) * segment, 2), round(loss, 4)))
        trainings.append(training)
        trial = Trial(number=number, index=number, proposal=proposal, state=State.RUNNING)
        trials.append(trial.finish(float(number), cost={"seconds": segment}).complete({"loss": loss}))
    [best] = tuner.may_inherit_from(Lineage.of(trials))
    last = trainings[best]
    loss = last.run(DECAY * seconds, decay=1.0)
    return _row("slopes", task, "autogrow", Sizes.of(trials[best].point), last, loss)


def _continued(proposal: Proposal, parent: Training | None, text: str | None, seed: int) -> Training:
    """Returns a training of the proposal's size that continues its parent's."""
    sizes, growth = Sizes.of(proposal.point), Growth.from_json(proposal.derivation)
    if parent is None:
        return Training(sizes, text, seed)
    weights = parent.network.state_dict()
    if growth is not None:
        child = Training(sizes, text, seed, grow(growth.sizes, weights, growth.operations)[1])
    else:
        child = Training(sizes, text, seed, weights)
        child.optimizer.load_state_dict(parent.optimizer.state_dict())
        child.n_steps = parent.n_steps
    child.curve = [*parent.curve]
    return child


def _row(kind: str, task: Task, arm: str, sizes: Sizes, training: Training, loss: float) -> dict[str, object]:
    shown = f"{sizes.n_layers}x{sizes.width}"
    return {
        "benchmark": kind, "seconds": task[0], "seed": task[1], "arm": arm, "sizes": shown,
        "steps": training.n_steps, "loss": round(loss, 4), "curve": json.dumps(training.curve),
    }  # fmt: skip


def function_kept() -> Iterator[str]:
    """Yields the greatest relative change of a logit by each operation, in float64 and float32."""
    operations: list[Sequence[GrowthOperation]] = [
        (WidenHeads(1),), (InsertBlock(0),), (WidenMlp(8, 1),), (*GROWTH, WidenMlp(8, 1)), (Stack(),),
    ]  # fmt: skip
    for dtype in (torch.float64, torch.float32):
        for chain in operations:
            yield f"{'+'.join(one.kind for one in chain)}: {str(dtype)[6:]} {_change(chain, dtype):.1e}"


def _change(chain: Sequence[GrowthOperation], dtype: torch.dtype) -> float:
    """Returns the greatest change of a logit of random weights, as a share."""
    torch.manual_seed(0)
    parent = network_of(SMALL, 100).to(dtype)
    with torch.no_grad():
        for parameter in parent.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        sizes, weights = grow(SMALL, parent.state_dict(), chain)
        child = network_of(sizes, 100).to(dtype)
        child.load_state_dict(weights)
        symbols = torch.randint(100, (8, CONTEXT))
        before, after = parent(symbols), child(symbols)
        return float((after - before).abs().max() / before.abs().max())


def report_lines(rows: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yields the means and standard deviations of each arm, and the factors of time."""
    groups: dict[tuple[str, float], list[Mapping[str, str]]] = {}
    for row in rows:
        groups.setdefault((row["benchmark"], float(row["seconds"])), []).append(row)
    for (kind, seconds), found in sorted(groups.items()):
        yield f"{kind}, {seconds:g} s"
        for arm in dict.fromkeys(row["arm"] for row in found):
            own = [row for row in found if row["arm"] == arm]
            sizes = ", ".join(sorted({row["sizes"] for row in own}))
            yield f"  {arm:9} {_spread([float(row['loss']) for row in own])}  {len(own)} seeds  {sizes}"
        if kind == "against":
            yield f"  sooner    {_spread(list(_factors(found, seconds)))}"


def _factors(rows: Sequence[Mapping[str, str]], seconds: float) -> Iterator[float]:
    """Yields the seconds of large over those of grown to the same loss, by seed."""
    losses = {row["seed"]: float(row["loss"]) for row in rows if row["arm"] == "large"}
    for row in rows:
        if row["arm"] == "grown":
            curve = [*json.loads(row["curve"]), (seconds, float(row["loss"]))]
            yield seconds / next((at for at, loss in curve if loss <= losses[row["seed"]]), math.inf)


def _spread(values: Sequence[float]) -> str:
    low_high = f" ({min(values):.3f} to {max(values):.3f})"
    return f"{fmean(values):.3f} +- {stdev(values):.3f}{low_high}" if len(values) > 1 else f"{values[0]:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmark", choices=["function", "against", "slopes", "report"])
    parser.add_argument("--text")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    if given.benchmark == "function":
        print(*function_kept(), sep="\n")
        return
    results = Results(path=given.results, fields=FIELDS)
    kinds: dict[str, Callable[[Task], list[Row]]] = {"against": against, "slopes": slopes}
    if given.benchmark in kinds:
        key = (given.benchmark, given.seconds)
        done = {int(row["seed"]) for row in results.kept() if (row["benchmark"], float(row["seconds"])) == key}
        tasks = [(given.seconds, seed, given.text) for seed in range(given.seeds) if seed not in done]
        for n_done in results.run(kinds[given.benchmark], tasks, given.processes):
            print(f"{n_done} of {len(tasks)} seeds", flush=True)
    print(*report_lines(results.kept()), sep="\n")


if __name__ == "__main__":
    main()
