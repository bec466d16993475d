"""One-shot search: epochs of a supernet's training, and subnets that are scored with its weights.

With ``inner=random`` this is weight-sharing random search (Li and Talwalkar 2019, arXiv:1902.07638). With
``inner=evolution`` it is single path one-shot search (Guo et al. 2020, arXiv:1904.00420). Differs: subnets are scored
between epochs and while the next one trains, not only after the last.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.policy import Policy
from nas.core.supernet import EPOCH, epoch_of, is_epoch, is_no_epoch, relative_to_epoch
from nas.core.trial import Donor, Proposal, Reason, State, Trial
from nas.core.validation import check_int
from nas.spaces.recorded import RecordedSpace
from nas.spaces.space import Space
from nas.spaces.supernet import SupernetSpace
from nas.training.proxy_scores import ProxyScores
from nas.tuners.base import STOP, WAIT, Answer, Tuner
from nas.tuners.shared.inner import RANDOM, build_inner, inner_code_files, inner_startup_trials

_SUBNET = frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN, Policy.QUICK_EVAL})
_NEEDED = (Policy.SHARE_PARAMS, Policy.SKIP_TRAIN)
_N_KEPT = 2
"""The newest epochs whose weights stay; the second replaces the first if that is lost."""


class SupernetTuner(Tuner):
    """Alternates supernet epochs and subnets, which another tuner proposes.

    Each epoch goes on from the weights of the one before. A subnet inherits all weights of the newest finished epoch
    and trains nothing. With several slots subnets are scored while the next epoch trains. If the weights of an epoch
    are lost, the epoch before replaces it, and the next epoch has its number again.

    Args:
        space: A ``SupernetSpace``.
        metrics: The inner tuner's metrics.
        seed: The inner tuner's seed.
        inner: ``_target_`` and arguments of the tuner that proposes subnets; without ``_target_``, options of
            ``default_inner``. It sees subnets only, with scores measured from those of their epochs. The donors that it
            names are ignored.
        n_epochs: Number of supernet epochs.
        warm_up_epochs: Number of epochs before the first subnet.
        subnets_per_epoch: Number of subnets of the newest epoch before the next one starts. More follow while it
            trains, and after the last.
        n_rescored: Number of the best points of earlier epochs that are scored again with each epoch. Scores of two
            epochs do not compare.
        subnets_beside_epoch: With ``deterministic``, number of subnets that each other slot scores while an epoch
            trains. Otherwise it is as many as time allows.

    Raises:
        ConfigurationError: an argument is invalid, the space is not a supernet's, or the inner tuner does not fit.
    """

    code_arguments: ClassVar[frozenset[str]] = frozenset({"inner"})
    default_inner: ClassVar[Mapping[str, Any]] = RANDOM

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        inner: Mapping[str, Any] | None = None,
        n_epochs: int = 8,
        warm_up_epochs: int = 4,
        subnets_per_epoch: int = 8,
        n_rescored: int = 2,
        subnets_beside_epoch: int = 16,
    ) -> None:
        super().__init__(space, metrics, seed=seed)
        check_int("tuner.n_epochs", n_epochs, 1)
        check_int("tuner.warm_up_epochs", warm_up_epochs, 1)
        check_int("tuner.subnets_per_epoch", subnets_per_epoch, 1)
        check_int("tuner.n_rescored", n_rescored, 0)
        check_int("tuner.subnets_beside_epoch", subnets_beside_epoch, 1)
        if warm_up_epochs > n_epochs:
            raise ConfigurationError(
                f"tuner.warm_up_epochs={warm_up_epochs}: must be at most tuner.n_epochs ({n_epochs}). Give fewer"
            )
        self.n_epochs = n_epochs
        self.warm_up_epochs = warm_up_epochs
        self.subnets_per_epoch = subnets_per_epoch
        self.n_rescored = n_rescored
        self.subnets_beside_epoch = subnets_beside_epoch
        self.policies = _SUBNET
        self.inner = build_inner(self._described(inner), space_of_subnets(space), metrics, seed)
        self.chosen = self.inner.chosen
        self.startup_trials = inner_startup_trials(self.inner, warm_up_epochs)
        self.uses_durations = self.inner.uses_durations

    @property
    def code_files(self) -> Mapping[str, Path]:
        """The files of the inner tuner."""
        return inner_code_files(self.inner)

    def use_proxies(self, scores: ProxyScores) -> None:
        """Passes the proxies of subnets to the inner tuner."""
        self.inner.use_proxies(scores)

    def use_static_metrics(self, static_metrics: Callable[[Point], Mapping[str, float]]) -> None:
        """Passes the static metrics of subnets to the inner tuner."""
        self.inner.use_static_metrics(static_metrics)

    def use_policies(self, policies: frozenset[Policy]) -> None:
        """Sets the policies of subnets to those that the problem implements.

        Raises:
            ConfigurationError: the problem can't score inherited weights without training.
        """
        if missing := [policy for policy in _NEEDED if policy not in policies]:
            raise ConfigurationError(
                f"problem.policies: must have {missing[0]} for a one-shot tuner. Choose problem=cells, or implement it"
            )
        self.policies = _SUBNET & policies
        self.inner.use_policies(policies)

    def check_trials(self, n_trials: int) -> None:
        """Checks that a subnet follows the first epochs.

        Raises:
            ConfigurationError: the trials suffice for epochs alone.
        """
        if (least := self.warm_up_epochs) >= n_trials:
            epochs = f"tuner.warm_up_epochs ({least})" if least > 1 else "1: a supernet epoch comes before each subnet"
            remedy = "Give more trials, or fewer of these epochs" if least > 1 else "Give more trials"
            raise ConfigurationError(f"budget.trials={n_trials}: must be more than {epochs}. {remedy}")

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the next supernet epoch if it is due and has time, else a subnet."""
        shared = SharedWeights.of(lineage)
        is_pending = any(map(is_epoch, lineage.pending))
        if self._is_due(shared) and not is_pending and lineage.allows_epochs:
            return self._propose_epoch(lineage, shared)
        if shared.epoch is None or (lineage.allows_epochs and shared.n_epochs < self.warm_up_epochs):
            return WAIT
        answer = self.propose_subnet(lineage, shared, job)
        if answer is not STOP or shared.n_epochs >= self.n_epochs or not lineage.allows_epochs:
            return answer
        return WAIT if is_pending else self._propose_epoch(lineage, shared)

    def propose_subnet(self, lineage: Lineage, shared: SharedWeights, job: int) -> Proposal | Answer:
        """Returns a suggested point, a point to score again, or the inner tuner's answer."""
        assert shared.epoch is not None
        for proposal in itertools.chain(self._suggested(lineage, shared), self._rescored(lineage, shared)):
            return self._as_subnet(proposal, shared.epoch)
        subnets = subnets_of(lineage)
        self.inner.n_refused = self.n_refused
        try:
            answer = self.inner.ask(subnets, len(lineage.only(_is_counted_subnet)), job)
        finally:
            self.inner.n_refused = 0
        return self._as_subnet(answer, shared.epoch) if isinstance(answer, Proposal) else answer

    def propose_given(self, point: Point, lineage: Lineage, number: int) -> Proposal:
        """Raises ConfigurationError: there are no weights to score an initial point with."""
        raise ConfigurationError(
            "init.points: must not be given to a one-shot tuner, which scores no point before its first supernet "
            "epochs. Leave it out"
        )

    def epoch_derivation(self, lineage: Lineage, number: int) -> Any:
        """Returns the ``derivation`` of supernet epoch ``number``: None, so that the problem draws paths itself."""
        return None

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Returns the newest two finished epochs. Subnets never give weights."""
        return [trial.number for trial in _newest_epochs(lineage)]

    def stop_reason(self, lineage: Lineage) -> str:
        """Returns the inner tuner's reason."""
        return self.inner.stop_reason(subnets_of(lineage))

    def _described(self, inner: Any) -> Any:
        """Returns the description of the inner tuner. Options without ``_target_`` are added to the default."""
        if inner is None:
            return self.default_inner
        if isinstance(inner, Mapping) and "_target_" not in inner:
            return {**self.default_inner, **inner}
        return inner

    def _is_due(self, shared: SharedWeights) -> bool:
        n_subnets = sum(trial.is_counted for trial in shared.subnets)
        is_open = shared.n_epochs < self.warm_up_epochs or n_subnets >= self.subnets_per_epoch
        return shared.n_epochs < self.n_epochs and is_open

    def _propose_epoch(self, lineage: Lineage, shared: SharedWeights) -> Proposal:
        before = () if shared.epoch is None else (shared.epoch.number,)
        return Proposal(
            point={EPOCH: shared.n_epochs},
            parents=before,
            donors=before,
            policies=frozenset({Policy.SHARE_PARAMS}),
            derivation=self.epoch_derivation(lineage, shared.n_epochs),
            reason=f"supernet epoch {shared.n_epochs}",
            relative_duration=self.subnets_beside_epoch,
        )

    def _as_subnet(self, proposal: Proposal, epoch: Trial) -> Proposal:
        return replace(proposal, donors=(epoch.number,), policies=self.policies)

    def _suggested(self, lineage: Lineage, shared: SharedWeights) -> Iterator[Proposal]:
        """Yields the points that the epoch suggests and that it has not scored."""
        assert shared.epoch is not None
        for point in shared.epoch.suggested:
            if not shared.has_subnet(point, self.space) and not lineage.refuses(point):
                parents = (shared.epoch.number,)  # a controller does not learn from points that it did not draw
                yield Proposal(point=point, parents=parents, reason=f"suggested by {shared.epoch.number}")

    def _rescored(self, lineage: Lineage, shared: SharedWeights) -> Iterator[Proposal]:
        """Yields the best points of earlier epochs that the newest epoch has not scored.

        Proxies differ with the number of the proposal, so a constraint may refuse a point that was scored before.
        """
        own = {trial.number for trial in shared.subnets}
        best: dict[str, Trial] = {}
        for trial in self.ranked(lineage) if self.n_rescored else ():
            if len(best) == self.n_rescored:
                break
            if trial.number not in own and not lineage.refuses(trial.point):
                best.setdefault(self.space.key(trial.point), trial)
        for trial in best.values():
            if not shared.has_subnet(trial.point, self.space):
                yield Proposal(point=trial.point, parents=(trial.number,), reason=f"{trial.number} scored again")


class RspsTuner(SupernetTuner):
    """Random subnets with shared weights (Li and Talwalkar 2019)."""


class SposTuner(SupernetTuner):
    """Evolution of subnets with shared weights (Guo et al. 2020)."""

    default_inner: ClassVar[Mapping[str, Any]] = {"_target_": "nas.tuners.evolution.EvolutionTuner"}


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """The newest finished supernet epoch whose weights are not lost, and its subnets.

    Attributes:
        epoch: The epoch, or None.
        subnets: The trials that inherit from it, whatever their state.
    """

    epoch: Trial | None
    subnets: Sequence[Trial]

    @classmethod
    def of(cls, lineage: Lineage) -> SharedWeights:
        """Returns the newest shared weights of a lineage."""
        epochs = _newest_epochs(lineage)
        oldest = epochs[-1].number if epochs else None
        newer = itertools.takewhile(lambda trial: trial.number != oldest, lineage.newest())
        children = [trial for trial in itertools.chain(lineage.pending, newer) if trial.proposal.weight_donors]
        lost = {_donor(trial) for trial in children if trial.reason == Reason.PARENT}
        epoch = next((epoch for epoch in epochs if epoch.number not in lost), None)
        own = () if epoch is None else [t for t in children if _donor(t) == epoch.number and is_no_epoch(t)]
        return cls(epoch, own)

    @property
    def n_epochs(self) -> int:
        """The number of epochs behind the weights."""
        number = None if self.epoch is None else epoch_of(self.epoch.point)
        return 0 if number is None else number + 1

    def has_subnet(self, point: Point, space: Space) -> bool:
        """Returns whether a subnet has the point."""
        key = space.key(point)
        return any(space.key(trial.point) == key for trial in self.subnets)


def subnets_of(lineage: Lineage) -> Lineage:
    """Returns the subnets of a lineage, with scores measured from those of their supernet epochs."""
    return lineage.only(is_no_epoch, relative_to_epoch)


def space_of_subnets(space: Space) -> Space:
    """Returns the inner space of a supernet's space, or of its record.

    Raises:
        ConfigurationError: it is the space of something else.
    """
    if isinstance(space, SupernetSpace):
        return space.inner
    if isinstance(space, RecordedSpace) and "supernet" in space.to_json():
        return RecordedSpace(space.to_json()["supernet"])
    raise ConfigurationError(
        "problem.space: must be the space of a supernet (SupernetSpace) for a one-shot tuner. Choose problem=cells"
    )


def _is_counted_subnet(trial: Trial) -> bool:
    return is_no_epoch(trial) and trial.is_counted


def _donor(trial: Trial) -> Donor:
    return trial.proposal.weight_donors[0]


def _newest_epochs(lineage: Lineage) -> list[Trial]:
    """Returns the newest finished epochs, newest first. They are independent of the state of weights."""
    complete = (trial for trial in lineage.newest() if is_epoch(trial) and trial.state == State.COMPLETE)
    return list(itertools.islice(complete, _N_KEPT))
