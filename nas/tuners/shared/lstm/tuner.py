"""REINFORCE (Williams 1992) with an LSTM as controller (Zoph and Le 2017, arXiv:1611.01578).

Differs from the paper: asynchronous. Gradients are applied in the order learned, to the parameters at that time, for
the decisions that the trials record. A reward is measured in standard deviations above the moving mean, three at most.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.trial import Proposal, Trial
from nas.core.validation import check_number
from nas.spaces.domain import Domain, Numeric
from nas.spaces.space import Space
from nas.tuners.base import Answer
from nas.tuners.shared.bins import Bins
from nas.tuners.shared.donor_tuner import DonorTuner
from nas.tuners.shared.lstm.episode import Episode, LstmSettings
from nas.tuners.shared.lstm.parameters import Parameters
from nas.tuners.shared.reward_baseline import RewardBaseline

_TRIES = 24
_TEMPERATURE_STEP = 1.2
"""The factor by which the temperature rises after each repeated point."""


@dataclass(slots=True)
class _Controller:
    """The controller's state: its parameters, the baseline of rewards, and the results learned."""

    parameters: Parameters
    baseline: RewardBaseline
    learned: list[tuple[Proposal, float]] = field(default_factory=list)


class LstmTuner(DonorTuner):
    """Draws each decision from an LSTM; the temperature rises after a repeated point.

    Args:
        space: Any space. Ranges are cut into eight bins.
        metrics: The first one is the reward.
        seed: Seeds the parameters and, together with its number, every ask.
        learning_rate: The step of Adam.
        decay: The decay of the moving mean and spread of rewards.
        entropy: The weight of the entropy's gradient, which delays convergence.
        donor: The donor of a trial; see ``DonorChooser``.
    """

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        learning_rate: float = 0.005,
        decay: float = 0.9,
        entropy: float = 0.01,
        donor: str = "none",
    ) -> None:
        super().__init__(space, metrics, seed=seed, donor=donor)
        check_number("tuner.learning_rate", learning_rate, 0, 1)
        check_number("tuner.decay", decay, 0, 1, excluded=1)
        check_number("tuner.entropy", entropy, 0, 10)
        self.learning_rate = learning_rate
        self.decay = decay
        self.entropy = entropy
        self.settings = LstmSettings()
        self.bins = Bins(8)
        self.taken: Collection[str] | None = None
        """The keys of points that are not drawn again; None: those of all trials."""
        self._cached = self._new_controller()

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns a point drawn from the present controller."""
        rng = self.rng(number)
        temperature = 1.0
        for _ in range(_TRIES):
            point = self.draw(lineage, rng, temperature)
            if not self._is_taken(lineage, point):
                return self.propose(lineage, point, "lstm")
            temperature *= _TEMPERATURE_STEP
        return self.propose_new(lineage, rng, "random")

    def draw(self, lineage: Lineage, rng: random.Random, temperature: float = 1.0) -> Point:
        """Returns a point drawn from the controller after all scored trials of the lineage."""
        episode = Episode(self._controller(lineage).parameters, self.settings)

        def decide(name: str, domain: Domain) -> float:
            probabilities = episode.probabilities(name, self._labels(name, domain)) ** (1.0 / temperature)
            [option] = rng.choices(range(len(probabilities)), probabilities.tolist())
            episode.take(option)
            return self.bins.answer(domain, option, rng)

        return self.space.decide(decide)

    def reward(self, trial: Trial) -> float:
        """Returns the reward of a scored trial; greater is better."""
        metric = self.metrics[0]
        return metric.rank(trial.metrics[metric.name])

    def episode(self, parameters: Parameters, point: Point) -> Episode:
        """Returns the pass that gave a point, whatever the controller was then."""
        episode = Episode(parameters, self.settings)
        for decision in self.space.decisions(point):
            episode.probabilities(decision.name, self._labels(decision.name, decision.domain))
            episode.take(self.bins.option(decision.domain, decision.answer))
        return episode

    def _controller(self, lineage: Lineage) -> _Controller:
        """Returns the controller after all scored trials without parents, in the order learned.

        A trial with a parent was proposed by another tuner, so its point was not drawn by this policy.
        """
        name = self.metrics[0].name
        scored = [t for t in lineage.finished if t.value(name) is not None and not t.parents]
        results = [(trial.proposal, trial.metrics[name]) for trial in scored]
        if results[: len(self._cached.learned)] != self._cached.learned:
            self._cached = self._new_controller()
        n_learned = len(self._cached.learned)
        for trial, result in zip(scored[n_learned:], results[n_learned:], strict=True):
            self._cached.learned.append(result)
            self._learn(self._cached, trial)
        return self._cached

    def _is_taken(self, lineage: Lineage, point: Point) -> bool:
        if self.taken is None:
            return lineage.has_point(point)
        return self.space.key(point) in self.taken or lineage.refuses(point)

    def _learn(self, controller: _Controller, trial: Trial) -> None:
        advantage = controller.baseline.advantage(self.reward(trial))
        if advantage is not None:
            gradients = self.episode(controller.parameters, trial.point).gradients(advantage, self.entropy)
            controller.parameters.ascend(gradients, self.learning_rate)

    def _new_controller(self) -> _Controller:
        return _Controller(Parameters(self.seed), RewardBaseline(self.decay))

    def _labels(self, name: str, domain: Domain) -> tuple[str, ...]:
        """Returns the names of a decision's options; bins belong to one range only."""
        if isinstance(domain, Numeric):
            return tuple(f"{name} {i}" for i in range(self.bins.n))
        return domain.labels
