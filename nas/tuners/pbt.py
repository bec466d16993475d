"""Population-based training (Jaderberg et al. 2017, arXiv:1711.09846).

One trial is one interval of one member. A member continues from its last trial, with its weights and the same point,
perturbed if a constraint refuses it now. A member among the worst instead continues from one of the best: with its
weights *and* its point, perturbed (truncation selection). So ``problem.train`` inherits first and then trains one
interval. The intervals along a line of parents make a full training.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.trial import Proposal, Trial
from nas.core.validation import check_bool, check_int, check_number, closest_names
from nas.spaces.domain import Domain, Numeric
from nas.spaces.space import Space
from nas.tuners.base import WAIT, Answer, StartupTrials, Tuner
from nas.tuners.shared.new_points import draw_new_point

MAX_MEMBERS = 10_000
"""The largest population: a record can name a size, and each member takes memory."""
_MAX_DRAWS = 2000
"""The number of random points in which a decision is searched; conditional ones may be rare."""


@dataclass(slots=True)
class _Member:
    """A member: its last scored trial, its number of ended intervals, and whether one is running."""

    number: int
    last: Trial | None = None
    n_ended: int = 0
    is_busy: bool = False


class PbtTuner(Tuner):
    """Trains a population in intervals; the worst members copy the best ones and explore.

    Args:
        space: Any space. A perturbed architecture inherits the weights that fit.
        metrics: The first one counts.
        seed: Seeds every ask, together with its number.
        population_size: The number of members; with fewer slots they take turns.
        fraction: The share of the population that copies, and that is copied.
        factor: A perturbed number is multiplied or divided by it; a whole number changes by at least 1.
        resample: The probability that a decision is drawn again instead; choices change only in this way.
        perturbed: The decisions that may be perturbed, by name or by the beginning of a path; None: all.
        synchronous: Whether a member waits until all members have ended as many trials.
    """

    may_be_inner: ClassVar[bool] = False

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        population_size: int = 8,
        fraction: float = 0.25,
        factor: float = 1.2,
        resample: float = 0.25,
        perturbed: Sequence[str] | None = None,
        synchronous: bool = False,
    ) -> None:
        super().__init__(space, metrics, seed=seed)
        check_int("tuner.population_size", population_size, 2, MAX_MEMBERS)
        check_number("tuner.fraction", fraction, 0, 0.5)
        check_number("tuner.resample", resample, 0, 1)
        check_number("tuner.factor", factor, 1, 10, excluded=1)
        if isinstance(perturbed, str) or not all(isinstance(name, str) for name in perturbed or ()):
            raise ConfigurationError(f"tuner.perturbed={perturbed!r}: must be a list of names, or null")
        check_bool("tuner.synchronous", synchronous)
        if perturbed is not None:
            _check_perturbed(space, perturbed)
        self.population_size = population_size
        self.startup_trials = StartupTrials(population_size, "population_size")
        self.fraction = fraction
        self.factor = factor
        self.resample = resample
        self.perturbed = None if perturbed is None else tuple(perturbed)
        self.synchronous = synchronous

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the next interval of the member with the fewest, or WAIT if all are busy."""
        rng = self.rng(number)
        members = self._members(lineage)
        free = [m for m in members if not m.is_busy]
        if self.synchronous:
            slowest = min(m.n_ended for m in members)
            free = [m for m in free if m.n_ended == slowest]
        if not free:
            return WAIT
        member = min(free, key=lambda m: (m.n_ended, m.number))
        derivation: dict[str, Any] = {"member": member.number, "interval": member.n_ended}
        last = member.last
        source = self._to_copy(members, member, rng)
        if source is not None:
            point = self._explored(source.point, rng)
            derivation |= {"copied": source.number, "given_up": None if last is None else last.number}
            reason = f"member {member.number} copies {source.number}"
            return Proposal(point=point, parents=(source.number,), derivation=derivation, reason=reason)
        if last is not None:
            point = self._explored(last.point, rng) if lineage.refuses(last.point) else last.point
            reason = f"member {member.number} continues from {last.number}"
            return Proposal(point=point, parents=(last.number,), derivation=derivation, reason=reason)
        drawn = draw_new_point(self.space, lineage, rng)
        point = self.space.sample(rng) if drawn is None else drawn
        return Proposal(point=point, derivation=derivation, reason=f"member {member.number} begins")

    def propose_given(self, point: Point, lineage: Lineage, number: int) -> Proposal:
        """Returns the first interval of a member; members take given points in turn."""
        member = self._members(lineage)[number % self.population_size]
        derivation = {"member": member.number, "interval": member.n_ended}
        return Proposal(point=point, derivation=derivation, reason=f"member {member.number} begins as given")

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Returns the members' last trials with a score."""
        return [member.last.number for member in self._members(lineage) if member.last is not None]

    def _members(self, lineage: Lineage) -> list[_Member]:
        members = [_Member(number) for number in range(self.population_size)]
        for trial in lineage:
            member = members[trial.proposal.derivation["member"]]
            if not trial.is_finished:
                member.is_busy = True
                continue
            member.n_ended += trial.is_counted
            is_newest = member.last is None or _interval(trial) >= _interval(member.last)  # a retry may be older
            if is_newest and trial.value(self.metrics[0].name) is not None:
                member.last = trial
        return members

    def _to_copy(self, members: Sequence[_Member], member: _Member, rng: random.Random) -> Trial | None:
        """Returns one of the best trials if the member is among the worst or only failed."""
        metric = self.metrics[0]
        trials = [m.last for m in members if m.last is not None]
        trials.sort(key=lambda t: (metric.rank(t.metrics[metric.name]), t.number), reverse=True)
        if not self.fraction or len(trials) < 2:
            return None
        n = min(max(1, round(self.fraction * len(trials))), len(trials) // 2)  # the best and the worst are disjoint
        if member.last is None:
            return rng.choice(trials[:n]) if member.n_ended else None
        return rng.choice(trials[:n]) if trials.index(member.last) >= len(trials) - n else None

    def _explored(self, point: Point, rng: random.Random) -> Point:
        """Returns the point with the allowed decisions perturbed."""
        here = {decision.name: decision for decision in self.space.decisions(point)}

        def ask(name: str, domain: Domain) -> float:
            decision = here.get(name)
            if decision is None:
                return domain.sample(rng)
            if not self._may_change(name):
                return decision.answer
            if rng.random() < self.resample:
                return domain.sample(rng)
            return self._perturbed(domain, decision.answer, rng) if isinstance(domain, Numeric) else decision.answer

        return self.space.decide(ask)

    def _may_change(self, name: str) -> bool:
        return self.perturbed is None or any(_covers(n, name) for n in self.perturbed)

    def _perturbed(self, domain: Numeric, value: float, rng: random.Random) -> float:
        """Returns the number multiplied or divided by the factor; whole numbers change by at least 1."""
        up = rng.random() < 0.5
        moved = value * self.factor if up else value / self.factor
        if domain.is_integer:
            moved = max(round(moved), value + 1) if up else min(round(moved), value - 1)
        return min(max(moved, domain.low), domain.high)


def _interval(trial: Trial) -> int:
    interval: int = trial.proposal.derivation["interval"]
    return interval


def _covers(given: str, name: str) -> bool:
    """Returns whether a given name is the decision's name or the beginning of its path."""
    return name == given or name.startswith(f"{given}.")


def _check_perturbed(space: Space, perturbed: Sequence[str]) -> None:
    """Raises ConfigurationError for names without a decision in the space, and for an empty list."""
    rng, names, missing = random.Random("perturbed"), dict[str, None](), set(perturbed)

    def ask(name: str, domain: Domain) -> float:
        names[name] = None
        missing.difference_update([given for given in missing if _covers(given, name)])
        return domain.sample(rng)

    space.decide(ask)
    for _ in range(_MAX_DRAWS):
        if not missing:
            break
        space.decide(ask)
    if wrong := [name for name in perturbed if name in missing]:
        raise ConfigurationError(
            f"tuner.perturbed: the space has no decision {wrong[0]!r}. Choose from "
            f"{closest_names(wrong[0], names)}, or null for all"
        )
    if not perturbed:
        raise ConfigurationError(
            f"tuner.perturbed=[]: must name decisions of the space, such as {closest_names('', names)}, or be null"
        )
