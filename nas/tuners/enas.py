"""ENAS: efficient search by sharing parameters (Pham et al. 2018, arXiv:1802.03268).

Differs from the paper, and from ``search-cell.py`` of Dong et al. 2021 (arXiv:2009.00437):

* The first ``warm_up_epochs`` train shared weights before the first reward, because untrained weights reward skips.
* A reward is the score of a subnet on the problem's validation images, not on one minibatch. It is measured from the
  score of its epoch, then from a moving mean, in standard deviations. Rewards of two epochs do not compare.
* The mean moves after it is used, not before. The bonus for entropy acts on the logits and is no part of the reward.
* The derived cell is not the best of 100 on one minibatch: later stages score finalists on all validation data.
* It ends if the controller collapses to skips or nones, before the epoch that would train such paths.
* Nothing is stored. The controller follows from the scored subnets, in the order learned.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.supernet import epoch_of
from nas.core.trial import Proposal
from nas.core.validation import check_int, check_number
from nas.spaces.space import Space
from nas.supernets.connectivity import NONE
from nas.supernets.method import SKIP
from nas.supernets.paths import PATHS, ListedPaths, option_share
from nas.tuners.base import STOP, WAIT, Answer
from nas.tuners.shared.lstm.tuner import LstmTuner
from nas.tuners.supernet import SharedWeights, SupernetTuner, subnets_of


class EnasTuner(SupernetTuner):
    """Alternates supernet epochs and subnets; an LSTM draws the subnets and the paths of epochs.

    The derivation of an epoch holds its paths, one for each minibatch: the answers of the decisions in order. Later
    minibatches begin with the first path again.

    Args:
        space: A ``SupernetSpace``.
        metrics: The first one is the reward.
        seed: Seeds the controller and, together with its number, every draw.
        n_epochs: As in ``SupernetTuner``, like the next three.
        warm_up_epochs: Number of epochs before the first subnet.
        subnets_per_epoch: Number of subnets of the newest epoch, rescored ones included, before the next one starts.
        n_rescored: Number of the best points of earlier epochs that are scored again. They are no rewards, so it is
            less than ``subnets_per_epoch``.
        subnets_beside_epoch: As in ``SupernetTuner``.
        paths_per_epoch: Number of paths in the derivation of an epoch.
        learning_rate: The controller's step (`nas.tuners.shared.lstm.tuner`).
        decay: The decay of the moving mean and spread of rewards.
        entropy: The weight of the entropy's gradient.
        max_share: The share of the layers of an epoch's paths that may be skips, or nones, where a layer may be one;
            None: any. Paths of warm-up epochs may have any.

    Raises:
        ConfigurationError: an argument is invalid, or the space is not a supernet's.
    """

    code_arguments: ClassVar[frozenset[str]] = frozenset()

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        n_epochs: int = 8,
        warm_up_epochs: int = 4,
        subnets_per_epoch: int = 8,
        n_rescored: int = 2,
        subnets_beside_epoch: int = 16,
        paths_per_epoch: int = 64,
        learning_rate: float = 0.005,
        decay: float = 0.9,
        entropy: float = 0.01,
        max_share: float | None = 0.7,
    ) -> None:
        check_int("tuner.paths_per_epoch", paths_per_epoch, 1)
        if max_share is not None:
            check_number("tuner.max_share", max_share, 0, 1)
        controller = {"learning_rate": learning_rate, "decay": decay, "entropy": entropy}
        super().__init__(
            space,
            metrics,
            seed=seed,
            inner={"_target_": f"{LstmTuner.__module__}.{LstmTuner.__name__}", **controller},
            n_epochs=n_epochs,
            warm_up_epochs=warm_up_epochs,
            subnets_per_epoch=subnets_per_epoch,
            n_rescored=n_rescored,
            subnets_beside_epoch=subnets_beside_epoch,
        )
        if n_rescored >= subnets_per_epoch:
            raise ConfigurationError(
                f"tuner.n_rescored={n_rescored}: must be less than tuner.subnets_per_epoch ({subnets_per_epoch}): "
                "points that are scored again are no rewards. Give fewer, or more subnets"
            )
        self.paths_per_epoch = paths_per_epoch
        self.max_share = max_share

    @property
    def controller(self) -> LstmTuner:
        """The inner tuner."""
        assert isinstance(self.inner, LstmTuner)
        return self.inner

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the next supernet epoch if it is due, else a subnet; nothing after a collapse."""
        answer = super().ask(lineage, number, job)
        if not isinstance(answer, Proposal) or (epoch := epoch_of(answer.point)) is None:
            return answer
        if self._collapse(epoch, answer.derivation) is None:
            return answer
        return WAIT if lineage.pending else STOP  # further rewards may correct it

    def stop_reason(self, lineage: Lineage) -> str:
        """Returns the epoch whose paths collapsed, or the inner tuner's reason."""
        epoch = SharedWeights.of(lineage).n_epochs
        found = self._collapse(epoch, self.epoch_derivation(lineage, epoch)) if epoch < self.n_epochs else None
        return super().stop_reason(lineage) if found is None else found

    def _collapse(self, epoch: int, derivation: Mapping[str, Any]) -> str | None:
        """Returns the option that an epoch's paths have collapsed to, with its share, else None."""
        if epoch < self.warm_up_epochs or self.max_share is None:
            return None
        paths = ListedPaths.of_derivation(self.space, derivation)
        assert paths is not None
        for option in (SKIP, NONE):
            if (share := option_share(self.space, paths.points, option)) > self.max_share:
                return (
                    f"the paths of supernet epoch {epoch} collapsed: {option} is {share:.0%} of their layers. "
                    f"tuner.max_share is {self.max_share}"
                )
        return None

    def propose_subnet(self, lineage: Lineage, shared: SharedWeights, job: int) -> Proposal | Answer:
        """Returns a subnet; a point of an earlier epoch may be drawn again."""
        self.controller.taken = {self.space.key(trial.point) for trial in shared.subnets}
        return super().propose_subnet(lineage, shared, job)

    def epoch_derivation(self, lineage: Lineage, number: int) -> dict[str, Any]:
        """Returns the paths of supernet epoch ``number``, drawn from the present controller."""
        rng = random.Random(f"{self.seed}/paths/{number}")
        subnets = subnets_of(lineage)
        points = [self.controller.draw(subnets, rng) for _ in range(self.paths_per_epoch)]
        return {PATHS: [[decision.answer for decision in self.space.decisions(point)] for point in points]}
