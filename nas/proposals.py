"""Whether a proposal can be run: what a tuner answers is checked before it is made durable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nas.errors import ConfigurationError, PointError, SearchFailedError
from nas.policy import Policy
from nas.spaces.base import Space, is_json
from nas.store.checkpoint import Checkpoint
from nas.trial import Proposal


@dataclass(frozen=True, slots=True)
class ProposalCheck:
    """Refuses proposals that can't be run: a tuner's bug, which ends the search.

    Attributes:
        space: Validates points; None: any will do.
        declared: The policies that the problem honours; None: any.
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
            if isinstance(source, str):
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
