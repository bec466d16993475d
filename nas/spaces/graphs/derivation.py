"""How a child's network was made of its parents': recorded in a proposal, and followed by their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nas.core.errors import PointError
from nas.core.validation import shown
from nas.spaces.graphs.crossover import Crossing
from nas.spaces.graphs.network import Network
from nas.spaces.graphs.operation import Operation
from nas.spaces.graphs.operations import operations_from_json

_KEY = "morphism"


@dataclass(frozen=True, slots=True)
class Derivation:
    """The parent's network, and what was done to it, which is replayed on the parent's weights.

    Attributes:
        network: The parent's.
        operations: In order.
    """

    network: Network
    operations: tuple[Operation, ...]

    def to_json(self) -> dict[str, Any]:
        """``{"morphism": {"network": ..., "operations": [...]}}``: a proposal's ``derivation``, or a part of it."""
        operations = [operation.to_json() for operation in self.operations]
        return {_KEY: {"network": self.network.to_json(), "operations": operations}}

    @classmethod
    def from_json(cls, data: Any) -> Derivation | None:
        """What a proposal's ``derivation`` says; None where it holds no ``morphism``.

        Raises:
            PointError: it holds one that can't be.
        """
        if not isinstance(data, Mapping) or _KEY not in data:
            return None
        found = data[_KEY]
        if not isinstance(found, Mapping) or {*found} != {"network", "operations"}:
            raise PointError(f"{_KEY} ({shown(found)}) must be a dict of network and operations")
        return cls(Network.from_json(found["network"]), operations_from_json(_KEY, found["operations"]))


def derivation_from_json(data: Any) -> Derivation | Crossing | None:
    """What a proposal's ``derivation`` says of one parent's network or of two; None where it says nothing.

    Raises:
        PointError: it says what can't be.
    """
    return Derivation.from_json(data) or Crossing.from_json(data)
