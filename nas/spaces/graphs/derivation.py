"""The operations that made a child's network, recorded in a proposal and replayed on weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nas.core.errors import PointError
from nas.core.validation import short_repr
from nas.spaces.graphs.crossover import Crossing
from nas.spaces.graphs.network import Network
from nas.spaces.graphs.operation import Operation
from nas.spaces.graphs.operations import operations_from_json

_KEY = "morphism"


@dataclass(frozen=True, slots=True)
class Derivation:
    """The parent's network and the operations on it.

    Attributes:
        network: The parent's network.
        operations: The operations, in order.
    """

    network: Network
    operations: tuple[Operation, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns ``{"morphism": {...}}`` with the fields, for a proposal's ``derivation``."""
        operations = [operation.to_json() for operation in self.operations]
        return {_KEY: {"network": self.network.to_json(), "operations": operations}}

    @classmethod
    def from_json(cls, data: Any) -> Derivation | None:
        """Returns the derivation of a proposal's ``derivation``, or None if it has no ``morphism``.

        Raises:
            PointError: the morphism is invalid.
        """
        if not isinstance(data, Mapping) or _KEY not in data:
            return None
        found = data[_KEY]
        if not isinstance(found, Mapping) or {*found} != {"network", "operations"}:
            raise PointError(f"{_KEY}={short_repr(found)}: must be a dict of network and operations")
        return cls(Network.from_json(found["network"]), operations_from_json(_KEY, found["operations"]))


def derivation_from_json(data: Any) -> Derivation | Crossing | None:
    """Returns the derivation or crossing of a proposal's ``derivation``, or None if it has neither.

    Raises:
        PointError: it is invalid.
    """
    return Derivation.from_json(data) or Crossing.from_json(data)
