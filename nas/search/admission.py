"""From a proposal to a trial: what a tuner answers is checked before it is made durable."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nas.core.checkpoint import Checkpoint
from nas.core.errors import ConfigurationError, PointError, SearchFailedError
from nas.core.point import is_json
from nas.core.policy import Policy, Stage
from nas.core.trial import SOURCES, Proposal, Trial
from nas.spaces.space import Space


@dataclass(frozen=True, slots=True)
class ProposalCheck:
    """Refuses proposals that can't be run: a tuner's bug, which ends the search.

    Attributes:
        space: Validates points; None: any will do.
        declared: The policies that the problem honors; None: any.
        was_proposed: Whether the search stage has a trial of this number.
        sibling: The checkpoint of another search's trial, by its name.
    """

    space: Space | None
    declared: frozenset[Policy] | None
    was_proposed: Callable[[int], bool]
    sibling: Callable[[str], Checkpoint | None]

    def __call__(self, proposal: Proposal, asked: str) -> None:
        """Returns if the proposal can be run.

        Args:
            proposal: What was answered.
            asked: Which proposal of which tuner it is, for errors.

        Raises:
            SearchFailedError: it can't be run.
        """
        for source in (*proposal.parents, *proposal.weight_donors):
            if isinstance(source, int) and not self.was_proposed(source):
                raise SearchFailedError(f"{asked} names parent or donor {source}, but no such trial was proposed")
            if isinstance(source, str) and source not in SOURCES:
                try:
                    self.sibling(source)
                except ConfigurationError as error:
                    raise SearchFailedError(f"{asked}: {error}") from error
        if self.declared is not None and (undeclared := (proposal.policies or frozenset()) - self.declared):
            raise SearchFailedError(
                f"{asked} asks for {', '.join(sorted(undeclared))}, but the problem declares "
                f"{', '.join(sorted(self.declared)) or 'none'}; add them to its `policies`, or ask for others"
            )
        if not is_json(proposal.point) or not is_json(proposal.derivation):
            raise SearchFailedError(f"{asked} is no plain JSON data: {proposal.point!r}, {proposal.derivation!r}")
        if self.space is not None:
            try:
                self.space.validate(proposal.point)
            except PointError as error:
                raise SearchFailedError(f"{asked} is no point of the space: {error}") from error


def trial_of(proposal: Proposal, stage: Stage, index: int, *, trials: Sequence[Trial], seed: int) -> Trial:
    """Returns the trial that a proposal becomes, number ``index`` of its stage.

    Args:
        trials: All before it, by number.
        seed: The search's.
    """
    number = len(trials)
    elders = [trials[parent].generation for parent in proposal.parents]
    return Trial(
        number=number,
        index=index,
        proposal=proposal,
        stage=stage.name,
        job=number,
        policies=stage.policies if proposal.policies is None else proposal.policies,
        seed=trial_seed(seed, stage.name, index),
        generation=1 + max(elders, default=-1),
        created=time.time(),
    )


def again(parent: Trial, stage: Stage) -> Proposal:
    """What a later stage proposes: the same point, from the parent's weights where it is warm."""
    donors = (parent.number,) if stage.warm else ()
    reason = f"{stage.name} of {parent.number}"
    return Proposal(point=parent.point, parents=(parent.number,), donors=donors, reason=reason)


def trial_seed(seed: int, stage: str, index: int) -> int:
    """Returns the seed of a trial, below 2^31, from the search's seed, its stage and its index there."""
    digest = hashlib.blake2b(f"{seed}/{stage}/{index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) & 0x7FFFFFFF
