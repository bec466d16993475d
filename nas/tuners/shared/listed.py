"""Places in a list of points."""

from __future__ import annotations

from nas.core.lineage import Lineage

PLACE = "place"
"""The key of a point's place in the derivation of its proposal."""


def next_place(lineage: Lineage, number: int) -> int:
    """Returns the place after those that the proposals of a lineage record, by default ``number``.

    It is recorded because a proxy that refuses a point is known for the number of one proposal only.
    """
    derivations = [t.proposal.derivation for t in lineage if isinstance(t.proposal.derivation, dict)]
    places = [derivation[PLACE] for derivation in derivations if type(derivation.get(PLACE)) is int]
    return max(places, default=number - 1) + 1
