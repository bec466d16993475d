"""Resolves the donors of a trial: applies donor rules and replaces donors without weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nas.core.checkpoint import Checkpoint
from nas.core.lineage import ancestor_with_weights, lost_donors
from nas.core.metric import Metric
from nas.core.policy import Policy
from nas.core.supernet import is_epoch, is_subnet
from nas.core.trial import DONOR_RULES, Donor, DonorRule, DonorWeights, OnMissingWeights, Trial
from nas.inheritance.donors.donor_rules import donor_by_rule


@dataclass(frozen=True, slots=True)
class ResolvedDonors:
    """The donors that a trial gets, and why.

    Attributes:
        donors: The donors with weights, best first.
        replaced: For each donor rule, the trial that it chose; for each donor without weights, its replacement or None.
        missing: The missing donor that makes the trial fail, or None.
    """

    donors: tuple[DonorWeights, ...] = ()
    replaced: Mapping[str, Donor | None] = field(default_factory=dict)
    missing: Donor | None = None


class DonorResolver:
    """Resolves the donors that proposals name into checkpoints.

    Args:
        trials: All trials of the search, by number; the list may grow and change.
        on_missing_weights: What replaces a donor without weights: its nearest ancestor with weights, or nothing; or
            the trial fails.
        other_search_checkpoint: Returns the checkpoint of another search's trial (``"name:42"``), or None if it has no
            weights.
        metric: Compares trials; may be None if no proposal names a donor rule.
    """

    def __init__(
        self,
        trials: Sequence[Trial],
        on_missing_weights: OnMissingWeights,
        other_search_checkpoint: Callable[[str], Checkpoint | None],
        metric: Metric | None = None,
    ) -> None:
        self._trials = trials
        self._on_missing_weights = on_missing_weights
        self._other_search_checkpoint = other_search_checkpoint
        self._metric = metric
        self._lost = lost_donors(trials)

    def learn(self, trials: Iterable[Trial]) -> None:
        """Notes the donors whose weights these trials found missing or corrupt."""
        self._lost |= lost_donors(trials)

    def resolve(
        self, trial: Trial, slot: int | None = None, learned: Sequence[Trial] = (), *, is_retraining: bool = False
    ) -> ResolvedDonors:
        """Returns the donors of a trial that is about to start.

        Args:
            trial: The trial.
            slot: Its slot.
            learned: The finished trials that donor rules choose from, in the order in which they finished.
            is_retraining: Whether it trains or scores its donor's point again. Then no ancestor replaces the donor.
                With SKIP_TRAIN a donor without weights makes it fail, unless no trial of the search has weights. The
                same holds for a subnet and for a supernet epoch, which counts the epochs behind its weights.
        """
        found: dict[Donor, Checkpoint] = {}
        replaced: dict[str, Donor | None] = {}
        if Policy.SHARE_PARAMS not in trial.policies:
            return ResolvedDonors()
        for donor in trial.proposal.weight_donors:
            resolved: Donor | None = donor
            if donor in DONOR_RULES:
                resolved = replaced[str(donor)] = self._choose(DonorRule(str(donor)), slot, learned)
            elif self._weights_of(donor) is None:
                if self._on_missing_weights == "fail" or self._must_keep_donor(trial, is_retraining=is_retraining):
                    return ResolvedDonors(missing=donor)
                resolved = replaced[str(donor)] = None if is_retraining else self._ancestor(donor)
            checkpoint = None if resolved is None else self._weights_of(resolved)
            if resolved is not None and checkpoint is not None:
                found.setdefault(resolved, checkpoint)
        donors = tuple(DonorWeights(donor, checkpoint) for donor, checkpoint in found.items())
        return ResolvedDonors(donors, replaced)

    def error(self, trial: Trial, missing: Donor) -> str:
        """Returns the message of a trial that fails because of its missing donor."""
        needs = "a supernet epoch needs them" if is_epoch(trial) else "SKIP_TRAIN trains none"
        needs = needs if trial.more_epochs is None else "more_epochs goes on from them"
        is_strict = self._on_missing_weights == "fail"
        return f"donor {missing} has no weights{' (on_missing_weights=fail)' if is_strict else f', and {needs}'}"

    def _must_keep_donor(self, trial: Trial, *, is_retraining: bool) -> bool:
        """Returns whether the trial fails without its donor's weights.

        It never does if no trial of the search has weights.
        """
        if trial.more_epochs is not None:
            return True
        only_scores = Policy.SKIP_TRAIN in trial.policies and (is_retraining or is_subnet(trial, self._trials))
        if not only_scores and not is_epoch(trial):
            return False
        return any(t.checkpoint is not None or t.weights_deleted for t in self._trials)

    def _choose(self, rule: DonorRule, slot: int | None, learned: Sequence[Trial]) -> int | None:
        assert self._metric is not None
        chosen = donor_by_rule(rule, learned, self._metric, slot, self._lost)
        return None if chosen is None else chosen.number

    def _ancestor(self, donor: Donor) -> int | None:
        """Returns the nearest ancestor with weights, if ``on_missing_weights`` asks for it and there is one."""
        if self._on_missing_weights != "ancestor" or not isinstance(donor, int):
            return None
        return ancestor_with_weights(self._trials, donor, self._lost)

    def _weights_of(self, donor: Donor) -> Checkpoint | None:
        """Returns the donor's checkpoint, or None if it is absent, missing or corrupt."""
        if donor in self._lost:
            return None
        return self._trials[donor].checkpoint if isinstance(donor, int) else self._other_search_checkpoint(donor)
