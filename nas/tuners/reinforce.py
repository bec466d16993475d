"""REINFORCE (Williams 1992; for architectures Zoph and Le 2017, arXiv:1611.01578) with a table as controller.

Each decision has its own softmax policy, by name. In a tree of choices the name is a path, so a policy below an option
is used only with that option. Ranges are cut into bins. Differs: asynchronous. Gradients are applied in the order
learned, to the policy at that time. A reward is measured in standard deviations above the moving mean, three at most.
"""

from __future__ import annotations

import math
from bisect import insort
from dataclasses import dataclass, field

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.outliers import GREATEST, outlier_limit
from nas.core.trial import Proposal, Trial
from nas.spaces.domain import Domain, Numeric
from nas.spaces.space import Space
from nas.tuners.base import Answer
from nas.tuners.shared.donor_tuner import DonorTuner

_TRIES = 24
_TEMPERATURE_STEP = 1.2
"""The factor by which the temperature rises after each repeated point."""


@dataclass(slots=True)
class _Policy:
    """The policy's state: logits by decision, moving statistics of rewards, and all rewards."""

    learned: list[int] = field(default_factory=list)
    logits: dict[str, list[float]] = field(default_factory=dict)
    mean: float | None = None
    spread: float = 0.0
    ascending: list[float] = field(default_factory=list)


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
        for name, value, high in (
            ("learning_rate", learning_rate, 100.0),
            ("decay", decay, 1.0),
            ("entropy", entropy, 10.0),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= high:
                raise ConfigurationError(f"{name}={value!r}: must be a number from 0 to {high:g}")
        if isinstance(bins, bool) or not isinstance(bins, int) or not 2 <= bins <= 1000:
            raise ConfigurationError(f"bins={bins!r}: must be a whole number from 2 to 1000")
        self.learning_rate = learning_rate
        self.decay = decay
        self.entropy = entropy
        self.bins = bins
        self._cached = _Policy()

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns a point drawn from the present policy."""
        rng = self.rng(number)
        policy = self._policy(lineage)

        def draw(name: str, domain: Domain) -> float:
            logits = policy.logits.get(name) or [0.0] * self._n_options(domain)
            probabilities = _softmax([logit / temperature for logit in logits])
            [chosen] = rng.choices(range(len(probabilities)), probabilities)
            if isinstance(domain, Numeric):
                return domain.from_unit((chosen + rng.random()) / self.bins)
            return chosen

        temperature = 1.0
        for _ in range(_TRIES):
            point = self.space.decide(draw)
            if not lineage.has_point(point):
                return self.propose(lineage, point, "reinforce")
            temperature *= _TEMPERATURE_STEP
        return self.propose_new(lineage, rng, "random")

    def _policy(self, lineage: Lineage) -> _Policy:
        """Returns the policy after all scored trials, in the order learned."""
        scored = [t for t in lineage.finished if t.value(self.metrics[0].name) is not None]
        numbers = [t.number for t in scored]
        policy = self._cached
        if numbers[: len(policy.learned)] != policy.learned:
            policy = self._cached = _Policy()
        for trial in scored[len(policy.learned) :]:
            self._learn(policy, trial)
        return policy

    def _learn(self, policy: _Policy, trial: Trial) -> None:
        metric = self.metrics[0]
        reward = max(-GREATEST, min(GREATEST, metric.rank(trial.metrics[metric.name])))
        policy.learned.append(trial.number)
        insort(policy.ascending, reward)
        if policy.mean is not None and (limit := outlier_limit(policy.ascending)) is not None:
            reward, policy.mean = max(limit, reward), max(limit, policy.mean)
            policy.spread = min(policy.spread, (policy.ascending[-1] - limit) ** 2)
        if policy.mean is None:
            policy.mean = reward
            return
        away = reward - policy.mean
        policy.mean += (1.0 - self.decay) * away
        policy.spread = self.decay * policy.spread + (1.0 - self.decay) * away * away
        if not (math.isfinite(policy.spread) and policy.spread > 0):
            policy.spread = 0.0
            return
        advantage = max(-3.0, min(3.0, away / math.sqrt(policy.spread)))
        for decision in self.space.decisions(trial.point):
            logits = policy.logits.setdefault(decision.name, [0.0] * self._n_options(decision.domain))
            probabilities = _softmax(logits)
            chosen = self._option(decision.domain, decision.answer)
            entropy_now = -sum(p * math.log(p) for p in probabilities if p > 0)
            for option, probability in enumerate(probabilities):
                gradient = advantage * ((option == chosen) - probability)
                if probability > 0:
                    gradient -= self.entropy * probability * (math.log(probability) + entropy_now)
                logits[option] += self.learning_rate * gradient

    def _n_options(self, domain: Domain) -> int:
        return self.bins if isinstance(domain, Numeric) else domain.n

    def _option(self, domain: Domain, answer: float) -> int:
        if isinstance(domain, Numeric):
            return min(max(int(domain.to_unit(answer) * self.bins), 0), self.bins - 1)
        return int(answer)


def _softmax(logits: list[float]) -> list[float]:
    top = max(logits)
    weights = [math.exp(logit - top) for logit in logits]
    total = sum(weights)
    return [weight / total for weight in weights]
