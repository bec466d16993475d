"""REINFORCE (Williams 1992; for architectures Zoph and Le 2017, arXiv:1611.01578) with a table for a controller.

Each decision has a softmax policy of its own, by its name; in a tree of choices the name is a path, so that a policy
below an option is met with that option only. Ranges are cut into bins. Differs: asynchronous; gradients are taken in
the order learned, at the policy that is there then. A reward counts by how many standard deviations it lies over a
moving mean of the rewards, three at most.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Proposal, Trial
from nas.spaces.domain import Domain, Numeric
from nas.spaces.space import Space
from nas.tuners.base import Answer
from nas.tuners.shared.donor_tuner import DonorTuner

_TRIES = 24
_HEATS_UP = 1.2
"""How much flatter the policy gets each time that it gives a point that came before."""


@dataclass(slots=True)
class _Policy:
    """What was learned: logits by decision, and the moving mean and spread of the rewards."""

    learned: list[int] = field(default_factory=list)
    logits: dict[str, list[float]] = field(default_factory=dict)
    mean: float | None = None
    spread: float = 0.0


class ReinforceTuner(DonorTuner):
    """Draws each decision from a softmax that rewards have shifted; instead of a point that came before, a flatter one.

    Args:
        space: Any.
        metrics: The first one is the reward.
        seed: Seeds every ask together with its number.
        learning_rate: How far one reward, of one standard deviation over the mean, shifts a logit.
        decay: Of the moving mean and spread of the rewards.
        entropy: The weight of the entropy's gradient, which keeps the policy from settling too soon.
        bins: Into how many equal parts of its scale a range is cut.
        donor: Whose weights a trial takes; see ``DonorChooser``.
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
                raise ConfigurationError(f"{name} ({value!r}) must be a number from 0 to {high:g}")
        if isinstance(bins, bool) or not isinstance(bins, int) or not 2 <= bins <= 1000:
            raise ConfigurationError(f"bins ({bins!r}) must be a whole number from 2 to 1000")
        self.learning_rate = learning_rate
        self.decay = decay
        self.entropy = entropy
        self.bins = bins
        self._cached = _Policy()

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns a point drawn from the policy that the finished trials give."""
        rng = self.rng(number)
        policy = self._policy(lineage)

        def draw(name: str, domain: Domain) -> float:
            logits = policy.logits.get(name) or [0.0] * self._n_options(domain)
            chances = _softmax([logit / heat for logit in logits])
            [chosen] = rng.choices(range(len(chances)), chances)
            if isinstance(domain, Numeric):
                return domain.from_unit((chosen + rng.random()) / self.bins)
            return chosen

        heat = 1.0
        for _ in range(_TRIES):
            point = self.space.decide(draw)
            if not lineage.has_point(point):
                return self.propose(lineage, point, "reinforce")
            heat *= _HEATS_UP
        return self.propose_new(lineage, rng, "random")

    def _policy(self, lineage: Lineage) -> _Policy:
        """What the scored trials teach, in the order learned; those that failed teach nothing."""
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
        reward = metric.rank(trial.metrics[metric.name])
        policy.learned.append(trial.number)
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
            chances = _softmax(logits)
            chosen = self._option(decision.domain, decision.answer)
            surprise = -sum(p * math.log(p) for p in chances if p > 0)
            for option, chance in enumerate(chances):
                gradient = advantage * ((option == chosen) - chance)
                if chance > 0:
                    gradient -= self.entropy * chance * (math.log(chance) + surprise)
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
