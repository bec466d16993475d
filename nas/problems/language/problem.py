"""Prediction of the next symbol of a text by transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.core.errors import ConfigurationError, TrialStopped
from nas.core.metric import Metric, choose_metrics
from nas.core.point import Point
from nas.core.policy import Policy
from nas.core.validation import check_int
from nas.inheritance.report import InheritanceReport
from nas.inheritance.rules import Rules
from nas.problems.language.network import LanguageModel
from nas.problems.language.text import Corpus, bundled_text, file_text, windows
from nas.spaces.growth import Sizes
from nas.spaces.parameters.space import Float
from nas.spaces.transformer import TransformerSpace
from nas.storage.remote_file import check_file, checked_options
from nas.training.epochs import begin_epoch, inherit_or_resume, resumed_epochs, save_for_children, warm_up
from nas.training.precision import checked_precision, precision_of
from nas.training.problem import LATENCY, Problem
from nas.training.trial_run import TrialRun

_BASE_WIDTH = 64
_BETAS = (0.9, 0.98)
_WARM_UP_STEPS = 20
_DECAY = 0.3  # the share of the steps in which the learning rate falls
_SCORED_AT_ONCE = 64  # windows
_N_SCORED = {"quick": 128, "full": 512}  # windows
_REMEDY = "Give problem.text=FILE, or null for Python's own help texts"


@final
class LanguageProblem(Problem):
    """Prediction of the next symbol of a text, scored by the cross-entropy in nats a symbol.

    The text has three parts in order: 80 % for training, 10 % for validation and 10 % for tests. The training is AdamW
    with clipped gradients. The point's ``learning_rate`` is that of width 64; it is multiplied by
    64 / width (Yang et al. 2022, arXiv:2203.03466). It falls to 0 in the last 30 % of the steps. With a
    fidelity it does not fall: the trial is a part of a training, which a later trial may continue.

    A child continues its donor's optimizer state if all its weights are copies. A grown child starts without.

    Args:
        text: A text file at any fsspec URL, or SQuAD's json, also compressed by gzip. None: the help texts of Python's
            language reference (``pydoc_data``), which depend on Python's version.
        text_options: Options for fsspec.
        vocabulary: The number of byte pairs, at least 256, learned from the training part; None: characters.
        context: The number of symbols that a network sees.
        batch_size: The number of windows in a step.
        epoch_steps: The steps between reports.
        n_epochs: The epochs of a full training.
        n_layers: The least and the greatest number of blocks.
        n_heads: The numbers of heads.
        head_sizes: The sizes of a head; the width is heads times head size.
        mlp_ratios: The MLP's hidden sizes, as multiples of the width.
        precision: Precision of training: ``float32``, ``bfloat16`` or ``auto`` (`nas.training.precision`).
        objectives: ``loss`` and others of ``OBJECTIVES``; None: loss alone.
        rules: Inheritance rules by name (`nas.inheritance.rules`); None: the defaults, but ``optimizer=inherit``.

    Raises:
        ConfigurationError: the file does not exist, or a value is not allowed.
    """

    OBJECTIVES: ClassVar[tuple[Metric, ...]] = (
        Metric("loss", "minimize"),
        Metric("parameters", "minimize"),
        Metric("flops", "minimize"),
        Metric(LATENCY, "minimize"),
    )
    policies = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP, Policy.SKIP_TRAIN, Policy.QUICK_EVAL})
    proxies = frozenset()  # symbols have no gradient
    data_arguments: ClassVar[frozenset[str]] = frozenset({"text", "text_options"})
    data_files: ClassVar[frozenset[str]] = frozenset({"text"})
    optional_data_files: ClassVar[frozenset[str]] = frozenset({"text"})

    def __init__(
        self,
        text: str | None = None,
        *,
        text_options: Mapping[str, Any] | None = None,
        vocabulary: int | None = None,
        context: int = 64,
        batch_size: int = 32,
        epoch_steps: int = 100,
        n_epochs: int = 20,
        n_layers: Sequence[int] = (1, 8),
        n_heads: Sequence[int] = (1, 2, 4, 8),
        head_sizes: Sequence[int] = (16, 32),
        mlp_ratios: Sequence[int] = (1, 2, 4),
        precision: str = "auto",
        objectives: Sequence[str] | None = None,
        rules: Mapping[str, Any] | None = None,
    ) -> None:
        counts = {"context": context, "batch_size": batch_size, "epoch_steps": epoch_steps, "n_epochs": n_epochs}
        for name, value in counts.items():
            check_int(f"problem.{name}", value, 1)
        if vocabulary is not None:
            check_int("problem.vocabulary", vocabulary, 256, 1 << 16)
        self._text, self._options = text, checked_options("problem.text_options", text_options)
        if text is not None:
            check_file("problem.text", text, self._options, _REMEDY)
        self._vocabulary = vocabulary
        self.context, self.batch_size = context, batch_size
        self.epoch_steps, self.n_epochs = epoch_steps, n_epochs
        self.precision = checked_precision(precision)
        self.rules = Rules.of(rules, optimizer="inherit")
        self.metrics = choose_metrics(objectives, self.OBJECTIVES, ["loss"])
        learning_rate = Float(1e-3, 1e-2, log=True)
        try:
            self.space = TransformerSpace(n_layers, n_heads, head_sizes, mlp_ratios, {"learning_rate": learning_rate})
        except ConfigurationError as error:
            raise ConfigurationError(f"problem.{error}") from error

    @cached_property
    def corpus(self) -> Corpus:
        """The text as symbols, read at first use and kept for later trials.

        Raises:
            ConfigurationError: the text is too short.
        """
        text = bundled_text() if self._text is None else file_text(self._text, self._options)
        corpus = Corpus.of(text, self._vocabulary)
        if min(len(corpus.validation), len(corpus.test)) <= self.context:
            n = len(corpus.train) + len(corpus.validation) + len(corpus.test)
            raise ConfigurationError(
                f"problem.text={self._text}: must have more than {10 * self.context} symbols, ten times "
                f"problem.context, not {n}. Give a longer text, or a smaller problem.context."
            )
        return corpus

    def build(self, point: Point) -> nn.Module:
        """Returns the network of this point, newly initialized with torch's global generator."""
        sizes, corpus = Sizes.of(point).to_json(), self.corpus
        return LanguageModel(corpus.n_symbols, **sizes, context=self.context, vocabulary=corpus.vocabulary)

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Returns one text of symbols 0."""
        return (torch.zeros(1, self.context, dtype=torch.int64),)

    def train(self, run: TrialRun) -> dict[str, float]:
        """Trains the point under its policies. Each epoch is reported."""
        validation = windows(self.corpus.validation, self.context)
        validation = run.subset(validation, **_N_SCORED).to(run.device)
        network = self.build(run.point).to(run.device)
        optimizer = self._optimizer(network, run.point)
        report = inherit_or_resume(run, network, optimizer, self.rules, only_copies=True)
        n_epochs = run.epochs(full=self.n_epochs, early=max(1, self.n_epochs // 5))
        scores = {"loss": loss_of(network, validation, self.precision)} if n_epochs == 0 else {}
        for epoch in self._epochs(run, network, optimizer, report, n_epochs):
            scores = {"loss": loss_of(network, validation, self.precision)}
            try:
                run.report(epoch, **scores)
            except TrialStopped:
                save_for_children(run, network, optimizer, self.rules)
                raise
        save_for_children(run, network, optimizer, self.rules)
        return scores

    def test(self, run: TrialRun) -> dict[str, float]:
        """Returns the loss on the last 10 % of the text, in float32."""
        network = run.restore(self.build(run.point))
        return {"loss": loss_of(network, windows(self.corpus.test, self.context).to(run.device), "float32")}

    def export(self, run: TrialRun) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Returns the trained network, and two validation texts."""
        network = run.restore(self.build(run.point)).eval()
        return network, (windows(self.corpus.validation, self.context)[:2, :-1].to(run.device),)

    def _optimizer(self, network: nn.Module, point: Point) -> torch.optim.Optimizer:
        rate = point["learning_rate"] * _BASE_WIDTH / point["width"]
        return torch.optim.AdamW(network.parameters(), rate, betas=_BETAS, weight_decay=0.01)

    def _epochs(
        self,
        run: TrialRun,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        report: InheritanceReport | None,
        n_epochs: int,
    ) -> Iterator[int]:
        """Trains the network in place, and yields the number of each finished epoch, from 1."""
        n_steps, train = max(1, n_epochs * self.epoch_steps), self.corpus.train.to(run.device)
        decay = _DECAY if run.fidelity is None else 0.0
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: rate_share(step, n_steps, decay) * warm_up(self.rules, report, step)
        )
        drawing = torch.Generator().manual_seed(run.seed)
        rounding, span = precision_of(self.precision, run.device), torch.arange(self.context + 1, device=run.device)
        for epoch in resumed_epochs(run, n_epochs, network, optimizer, schedule, drawing):
            begin_epoch(network, report, self.rules, epoch)
            starts = torch.randint(len(train) - self.context, (self.epoch_steps, self.batch_size, 1), generator=drawing)
            for batch in starts.to(run.device):
                texts = train[batch + span]  # (batch_size, context + 1)
                with rounding:
                    logits = network(texts[:, :-1])
                loss = functional.cross_entropy(logits.float().flatten(0, 1), texts[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(network.parameters(), 1.0)
                optimizer.step()
                schedule.step()
            yield epoch


def rate_share(step: int, n_steps: int, decay: float) -> float:
    """Returns the share of the learning rate at a step; it falls in the last ``decay``."""
    rise = min(1.0, (step + 1) / min(_WARM_UP_STEPS, n_steps))
    return min(rise, (n_steps - step) / (decay * n_steps)) if decay else rise


@torch.no_grad()
def loss_of(network: nn.Module, texts: Tensor, precision: str) -> float:
    """Returns the mean cross-entropy in nats of all symbols of ``(n, length)`` but the first."""
    network.eval()
    total = 0.0
    for batch in torch.split(texts, _SCORED_AT_ONCE):
        with precision_of(precision, texts.device.type):
            logits = network(batch[:, :-1]).float()
        total += functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum").item()
    return total / texts[:, 1:].numel()
