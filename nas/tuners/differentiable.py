"""Differentiable search: supernet epochs that train alphas, and the subnets that they suggest.

The methods are DARTS, GDAS, DrNAS and DARTS-PT (`nas.supernets.differentiable`, `nas.supernets.perturbation`). The stop
against collapse follows DARTS+ (Liang et al. 2019, arXiv:1909.06035). Differs: it also counts ``none``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from nas.core.errors import ConfigurationError, SearchFailedError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.supernet import is_epoch, is_no_epoch, shared_epoch, shared_epochs
from nas.core.trial import Proposal, Trial
from nas.core.validation import check_int
from nas.spaces.space import Space
from nas.supernets.method import Method, n_nones, n_skips
from nas.tuners.base import STOP, WAIT, Answer
from nas.tuners.supernet import SharedWeights, SupernetTuner


class _Suggestion(NamedTuple):
    """A point, and the supernet epoch that suggested it."""

    point: Point
    number: int
    epoch: Trial


class DartsTuner(SupernetTuner):
    """Asks for one supernet epoch after another, and proposes the points that they suggest as subnets.

    A point that a later epoch suggests again is scored again, with the weights of that epoch. So the point of the last
    epoch wins also in a search without finals.

    An epoch has collapsed if its point has too many skips or nones. Then no further epoch is trained. Only points of
    earlier epochs are subnets, and finalists, those of later epochs first. The first epoch never counts as collapsed.

    Args:
        space: A ``SupernetSpace``.
        metrics: The first one ranks subnets of the same epoch.
        seed: Unused: epochs draw from the seeds of their trials.
        order: Of ``darts`` and ``darts_pt``: 1, or 2 for the gradient through a step of the weights.
        n_epochs: The number of supernet epochs.
        alpha_rate: The learning rate of alphas.
        alpha_decay: The weight decay of alphas.
        alpha_share: The share of the training images that train alphas.
        allows_none: Whether a point may have the option ``none``.
        temperature: The first and the last temperature of ``gdas``.
        max_skips: The number of skips that a point may have; None: any.
        max_nones: The number of nones that a point may have; None: any.

    Raises:
        ConfigurationError: an argument is not allowed, or the space is not that of a supernet.
    """

    code_arguments: ClassVar[frozenset[str]] = frozenset()
    method_name: ClassVar[str] = "darts"

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        order: int = 1,
        n_epochs: int = 6,
        alpha_rate: float = 0.01,
        alpha_decay: float = 1e-3,
        alpha_share: float = 0.5,
        allows_none: bool = True,
        temperature: Sequence[float] = (10.0, 0.1),
        max_skips: int | None = 4,
        max_nones: int | None = 3,
    ) -> None:
        super().__init__(space, metrics, seed=seed, n_epochs=n_epochs, warm_up_epochs=1)
        self.method = Method(
            method=self.method_name, order=order, n_epochs=n_epochs, alpha_rate=alpha_rate, alpha_decay=alpha_decay,
            alpha_share=alpha_share, allows_none=allows_none, temperature=temperature,
        )  # fmt: skip
        for name, limit in (("max_skips", max_skips), ("max_nones", max_nones)):
            if limit is not None:
                check_int(f"tuner.{name}", limit, 0)
        self.max_skips, self.max_nones = max_skips, max_nones

    def check_trials(self, n_trials: int) -> None:
        """Checks that a subnet follows the first epochs: two, if there are as many.

        Raises:
            ConfigurationError: the trials suffice for epochs alone.
        """
        super().check_trials(n_trials)
        if n_trials == 2 and self.n_epochs > 1:
            raise ConfigurationError(
                "budget.trials=2: must be more than 2: two supernet epochs come before the first subnet. Give more "
                "trials, or tuner.n_epochs=1"
            )

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the next supernet epoch, or a subnet that an epoch suggested.

        Subnets are scored while the next epoch trains. With one slot, at most one point waits for its score.

        Raises:
            SearchFailedError: no epoch suggested a point, so that no subnet can follow.
        """
        shared = SharedWeights.of(lineage)
        chain = _chain(lineage, shared)
        if chain and not any(trial.suggested for trial in chain):
            raise SearchFailedError(
                f"problem: must call run.suggest_points in each supernet epoch for tuner={self.method.method}; trial "
                f"{chain[-1].number} did not. Choose problem=cells, or tuner=supernet"
            )
        new = self._new_suggestions(lineage, chain)
        has_next = shared.n_epochs < self.n_epochs and len(self._sound(chain)) == len(chain)
        is_open = has_next and lineage.allows_epochs
        is_pending = any(map(is_epoch, lineage.pending))
        if is_open and not is_pending and len(new) < 2:
            return self._propose_epoch(lineage, shared)
        if new:
            return self._propose_suggested(new[0])
        return WAIT if is_open or lineage.pending else STOP  # a pending subnet may find its epoch's weights lost

    def epoch_derivation(self, lineage: Lineage, number: int) -> Mapping[str, Any]:
        """Returns the method, which the problem reads."""
        return self.method.to_json()

    def stop_reason(self, lineage: Lineage) -> str:
        """Returns the epoch that collapsed, with its skips and nones, or ``tuner.n_epochs``."""
        chain = _chain(lineage, SharedWeights.of(lineage))
        number = len(self._sound(chain))
        if number == len(chain):
            return f"tuner.n_epochs={self.n_epochs}: all epochs are trained, and all points they suggested are scored"
        found = " or ".join(f"{n_skips(point)} skips and {n_nones(point)} nones" for point in chain[number].suggested)
        return (
            f"supernet epoch {number} (trial {chain[number].number}) collapsed to {found}. "
            f"tuner.max_skips is {self.max_skips}, tuner.max_nones {self.max_nones}; only earlier epochs count"
        )

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Returns the newest two finished epochs, and those that suggested points without a subnet of them.

        An epoch stays until its point has a subnet of a later one, since the weights of that may be lost.
        """
        waiting = self._unscored(lineage, _chain(lineage, SharedWeights.of(lineage)))
        return {*super().may_inherit_from(lineage), *(suggestion.epoch.number for suggestion in waiting)}

    def ranked(self, lineage: Lineage) -> Sequence[Trial]:
        """Returns the scored subnets: those of the newest epoch without a collapse first, newest weights first."""
        chain = _chain(lineage, SharedWeights.of(lineage))
        newest = {self.space.key(found.point): found.number for found in self._suggestions(chain)}
        epochs, scored = shared_epochs(lineage), filter(is_no_epoch, lineage.ranked(self.metrics[0]))

        def place(trial: Trial) -> tuple[int, int]:
            return -newest.get(self.space.key(trial.point), -1), -shared_epoch(trial, epochs)

        return sorted(scored, key=place)

    def _propose_suggested(self, suggestion: _Suggestion) -> Proposal:
        epoch = suggestion.epoch
        reason = f"suggested by supernet epoch {suggestion.number}"
        return self._as_subnet(Proposal(point=dict(suggestion.point), parents=(epoch.number,), reason=reason), epoch)

    def _sound(self, chain: Sequence[Trial]) -> Sequence[Trial]:
        """Returns the epochs before the first that collapsed."""
        for number, trial in enumerate(chain):
            if number and any(map(self._is_collapsed, trial.suggested)):
                return chain[:number]
        return chain

    def _is_collapsed(self, point: Point) -> bool:
        has_skips = self.max_skips is not None and n_skips(point) > self.max_skips
        return has_skips or (self.max_nones is not None and n_nones(point) > self.max_nones)

    def _suggestions(self, chain: Sequence[Trial]) -> Iterator[_Suggestion]:
        """Yields the points of epochs that are not collapsed, in the order of the epochs."""
        for number, trial in enumerate(self._sound(chain)):
            for point in trial.suggested:
                yield _Suggestion(point, number, trial)

    def _unscored(self, lineage: Lineage, chain: Sequence[Trial]) -> list[_Suggestion]:
        """Returns the suggestions without a subnet of their epoch or a later one, oldest first."""
        last: dict[str, int] = {}
        for trial in filter(is_no_epoch, lineage):
            key, epoch = self.space.key(trial.point), trial.proposal.weight_donors[0]
            assert isinstance(epoch, int)
            last[key] = max(epoch, last.get(key, epoch))
        found = [s for s in self._suggestions(chain) if last.get(self.space.key(s.point), -1) < s.epoch.number]
        return [suggestion for suggestion in found if not lineage.refuses(suggestion.point)]

    def _new_suggestions(self, lineage: Lineage, chain: Sequence[Trial]) -> list[_Suggestion]:
        """Returns the newest suggestion of each point without a score, newest first."""
        newest: dict[str, _Suggestion] = {}
        for suggestion in reversed(self._unscored(lineage, chain)):
            newest.setdefault(self.space.key(suggestion.point), suggestion)
        return list(newest.values())


class GdasTuner(DartsTuner):
    """Like ``DartsTuner``, but each step samples one option of each choice."""

    method_name: ClassVar[str] = "gdas"


class DrnasTuner(DartsTuner):
    """Like ``DartsTuner``, but the weights of options are drawn from Dirichlet distributions."""

    method_name: ClassVar[str] = "drnas"


class DartsPtTuner(DartsTuner):
    """Like ``DartsTuner``, but takes the options that the supernet needs most."""

    method_name: ClassVar[str] = "darts_pt"


def _chain(lineage: Lineage, shared: SharedWeights) -> list[Trial]:
    """Returns the epochs behind the newest shared weights, from the first one on."""
    if shared.epoch is None:
        return []
    return [*reversed(lineage.ancestors(shared.epoch.number)), shared.epoch]
