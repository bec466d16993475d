"""REINFORCE (Williams 1992; for architectures Zoph and Le 2017, arXiv:1611.01578) with a table as controller.

Each decision has its own softmax policy, by name. In a tree of choices the name is a path, so a policy below an option
is used only with that option. Ranges are cut into bins. Differs: asynchronous. Gradients are applied in the order
learned, to the policy at that time. A reward is measured in standard deviations above the moving mean, three at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Proposal, Trial
from nas.core.validation import check_number
from nas.spaces.domain import Domain
from nas.spaces.space import Space
from nas.tuners.base import Answer
from nas.tuners.shared.bins import Bins
from nas.tuners.shared.donor_tuner import DonorTuner
from nas.tuners.shared.reward_baseline import RewardBaseline

_TRIES = 24
_TEMPERATURE_STEP = 1.2
"""The factor by which the temperature rises after each repeated point."""


@dataclass(slots=True)
class _Policy:
    """The policy's state: the results learned, the baseline of their rewards, and logits by decision."""

    baseline: RewardBaseline
    learned: list[tuple[Proposal, float]] = field(default_factory=list)
    logits: dict[str, list[float]] = field(default_factory=dict)


class ReinforceTuner(DonorTuner):
    """Draws each decision from a softmax policy; the temperature rises after a repeated point.

    Args:
        space: Any space.
        metrics: The first one is the reward.
        seed: Seeds every ask, together with its number.
        learning_rate: The step of a logit for a reward of one standard deviation.
        decay: The decay of the moving mean and spread of rewards.
        entropy: The weight of the entropy's gradient, which delays convergence.
        bins: The number of equal bins of a range, on its scale.
        donor: The donor of a trial; see ``DonorChooser``.
    """

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        learning_rate: float = 0.1,
        decay: float = 0.9,
        entropy: float = 0.01,
        bins: int = 8,
        donor: str = "none",
    ) -> None:
        super().__init__(space, metrics, seed=seed, donor=donor)
        check_number("tuner.learning_rate", learning_rate, 0, 100)
        check_number("tuner.decay", decay, 0, 1, excluded=1)
        check_number("tuner.entropy", entropy, 0, 10)
        self.learning_rate = learning_rate
        self.decay = decay
        self.entropy = entropy
        self.bins = Bins(bins)
        self._cached = _Policy(RewardBaseline(decay))

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns a point drawn from the present policy."""
        rng = self.rng(number)
        policy = self._policy(lineage)

        def draw(name: str, domain: Domain) -> float:
            logits = policy.logits.get(name) or [0.0] * self.bins.n_options(domain)
            probabilities = _softmax([logit / temperature for logit in logits])
            [chosen] = rng.choices(range(len(probabilities)), probabilities)
            return self.bins.answer(domain, chosen, rng)

        temperature = 1.0
        for _ in range(_TRIES):
            point = self.space.decide(draw)
            if not lineage.has_point(point):
                return self.propose(lineage, point, "reinforce")
            temperature *= _TEMPERATURE_STEP
        return self.propose_new(lineage, rng, "random")

    def _policy(self, lineage: Lineage) -> _Policy:
        """Returns the policy after all scored trials, in the order learned."""
        name = self.metrics[0].name
        scored = [t for t in lineage.finished if t.value(name) is not None]
        results = [(t.proposal, t.metrics[name]) for t in scored]
        policy = self._cached
        if results[: len(policy.learned)] != policy.learned:
            policy = self._cached = _Policy(RewardBaseline(self.decay))
        n_learned = len(policy.learned)
        for trial, result in zip(scored[n_learned:], results[n_learned:], strict=True):
            policy.learned.append(result)
            self._learn(policy, trial)
        return policy

    def _learn(self, policy: _Policy, trial: Trial) -> None:
        metric = self.metrics[0]
        advantage = policy.baseline.advantage(metric.rank(trial.metrics[metric.name]))
        if advantage is None:
            return
        for decision in self.space.decisions(trial.point):
            logits = policy.logits.setdefault(decision.name, [0.0] * self.bins.n_options(decision.domain))
            probabilities = _softmax(logits)
            chosen = self.bins.option(decision.domain, decision.answer)
            entropy_now = -sum(p * math.log(p) for p in probabilities if p > 0)
            for option, probability in enumerate(probabilities):
                gradient = advantage * ((option == chosen) - probability)
                if probability > 0:
                    gradient -= self.entropy * probability * (math.log(probability) + entropy_now)
                logits[option] += self.learning_rate * gradient


def _softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]
