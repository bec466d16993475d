"""What a trial is offered: the weights of its donors, or of those that stand in for donors without any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nas.core.checkpoint import Checkpoint
from nas.core.lineage import ancestor_with_weights, lost_donors
from nas.core.metric import Metric
from nas.core.policy import Policy
from nas.core.trial import DONOR_RULES, Donor, DonorRule, DonorWeights, OnMissingWeights, Trial
from nas.inheritance.donors.rules import trial_of_source


@dataclass(frozen=True, slots=True)
class Offer:
    """Whose weights a trial is given.

    Attributes:
        donors: Those with weights, the best first.
        replaced: The named donors without weights, and what stands in for each; the sources, and what each gave.
        lacking: The donor for want of whose weights the trial fails.
    """

    donors: tuple[DonorWeights, ...] = ()
    replaced: Mapping[str, Donor | None] = field(default_factory=dict)
    lacking: Donor | None = None


class Offers:
    """Makes offers.

    Args:
        trials: All trials of the search, by number; the list may grow and change.
        on_missing_weights: What becomes of a child whose donor has no weights.
        sibling: The checkpoint of another search's trial (``"name:42"``), or None where it has no weights.
        metric: Makes a trial better; None where nobody names a source.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        on_missing_weights: OnMissingWeights,
        sibling: Callable[[str], Checkpoint | None],
        metric: Metric | None = None,
    ) -> None:
        self._trials = trials
        self._on_missing_weights = on_missing_weights
        self._sibling = sibling
        self._metric = metric
        self._lost = lost_donors(trials)

    def learn(self, trials: Iterable[Trial]) -> None:
        """Notes whose weights these trials have found missing or corrupt."""
        self._lost |= lost_donors(trials)

    def offer(
        self, trial: Trial, slot: int | None = None, learned: Sequence[Trial] = (), *, is_again: bool = False
    ) -> Offer:
        """What the trial is given now.

        Args:
            trial: About to start.
            slot: Where.
            learned: The finished trials that sources choose from, in the order in which they finished.
            is_again: It trains or scores its donor anew, for which no other stands in. Where it only scores
                (SKIP_TRAIN), it lacks the weights; but not where no trial has any, as on paper.
        """
        found: list[DonorWeights] = []
        replaced: dict[str, Donor | None] = {}
        if Policy.SHARE_PARAMS not in trial.policies:
            return Offer()
        for donor in trial.proposal.weight_donors:
            stand_in: Donor | None = donor
            if donor in DONOR_RULES:
                chosen = self._chosen(DonorRule(str(donor)), slot, learned)
                stand_in = replaced[str(donor)] = None if chosen is None else chosen.number
                checkpoint = None if chosen is None else chosen.checkpoint
            elif (checkpoint := self._weights_of(donor)) is None:
                if self._on_missing_weights == "fail" or (is_again and self._only_scores(trial)):
                    return Offer(lacking=donor)
                stand_in = None
                if self._on_missing_weights == "ancestor" and not is_again and isinstance(donor, int):
                    stand_in = ancestor_with_weights(self._trials, donor, self._lost)
                replaced[str(donor)] = stand_in
                checkpoint = None if stand_in is None else self._weights_of(stand_in)
            if checkpoint is not None and stand_in is not None and stand_in not in [d.donor for d in found]:
                found.append(DonorWeights(stand_in, checkpoint))
        return Offer(tuple(found), replaced)

    def _only_scores(self, trial: Trial) -> bool:
        return Policy.SKIP_TRAIN in trial.policies and any(t.checkpoint is not None for t in self._trials)

    def _chosen(self, source: DonorRule, slot: int | None, learned: Sequence[Trial]) -> Trial | None:
        assert self._metric is not None
        return trial_of_source(source, learned, self._metric, slot, self._lost)

    def _weights_of(self, donor: Donor) -> Checkpoint | None:
        """Returns the donor's checkpoint; None also where a trial before found it missing or corrupt."""
        if donor in self._lost:
            return None
        return self._trials[donor].checkpoint if isinstance(donor, int) else self._sibling(donor)
