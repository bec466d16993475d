"""A space of networks as graphs of typed layers, with other parameters (docs/decisions/015)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from nas.core.errors import ConfigurationError, PointError, SpaceExhaustedError
from nas.core.point import Point, point_key
from nas.core.validation import check_int, closest_names
from nas.spaces.domain import Ask, Decision, Domain
from nas.spaces.graphs.canonical import digest
from nas.spaces.graphs.crossover import Crossing, crossed
from nas.spaces.graphs.decisions import decide_network, decisions_of
from nas.spaces.graphs.derivation import Derivation
from nas.spaces.graphs.distance import Steps, edit_distance, steps_of
from nas.spaces.graphs.limits import Limits
from nas.spaces.graphs.moves import MOVES, draw_move
from nas.spaces.graphs.network import Network
from nas.spaces.parameters.space import ParameterSpace
from nas.spaces.space import Space, Variation

NETWORK = "network"
"""The key of the network in a point."""
DEFAULT_MOVES = (
    "widen", "narrow", "deepen", "residual", "grow_kernel", "shrink_kernel", "add_skip", "concat_skip", "activation",
    "branch", "remove", "disconnect",
)  # fmt: skip
_SHARE = 0.25  # the share of mutations that change a parameter instead of the network


class GraphSpace(Space):
    """The networks that moves make from start networks, and other parameters.

    Example: ``GraphSpace([plain_cnn((1, 28, 28), 10, widths=[32, 64], pool_after=[0])], {"rate": Float(0.01, 0.2)})``
    has points such as ``{"network": {"input": [1, 28, 28], "nodes": [...]}, "rate": 0.05}``.

    Any network within the limits with the same input and output shapes is in the space.

    Args:
        starts: The start networks (`nas.spaces.graphs.starts`) or their JSON, each with the same probability. All have
            the same input shape, and a vector of the same length as output.
        parameters: The other parameters, as in a ``ParameterSpace``; none is called ``network``.
        limits: The limits on a network's size.
        moves: The moves that change a network (`nas.spaces.graphs.moves`), each with the same probability.
        n_moves: The greatest number of moves between a start network and a sample.

    Raises:
        ConfigurationError: there is no start network, one is invalid, over the limits or of other shapes, or a name is
            unknown.
    """

    def __init__(
        self,
        starts: Sequence[Network | Mapping[str, Any]],
        parameters: Mapping[str, Any] | None = None,
        *,
        limits: Limits | None = None,
        moves: Sequence[str] = DEFAULT_MOVES,
        n_moves: int = 8,
    ) -> None:
        self.limits = Limits() if limits is None else limits
        if not isinstance(self.limits, Limits):
            raise ConfigurationError(f"limits={type(limits).__name__}: must be a Limits. Give Limits(...).")
        for name, value in (("starts", starts), ("moves", moves)):
            if isinstance(value, str | Mapping | Network) or not isinstance(value, Iterable):
                raise ConfigurationError(f"{name}={type(value).__name__}: must be a list of one or more")
        self.moves = tuple(map(str, moves))
        if not self.moves or (wrong := next((name for name in self.moves if name not in MOVES), None)):
            known = closest_names(str(wrong if self.moves else ""), MOVES)
            raise ConfigurationError(f"moves={list(moves)}: must hold one or more of {known}")
        self.n_moves = check_int("n_moves", n_moves, 0)
        if NETWORK in (parameters or {}):
            raise ConfigurationError(f"parameters: the name {NETWORK!r} is the network's. Choose another.")
        self.parameters = ParameterSpace(parameters or {})
        self.starts = tuple(_start(index, start) for index, start in enumerate(starts))
        if not self.starts:
            raise ConfigurationError("starts=[]: must hold a network or more. Give one of nas.spaces.graphs.starts.")
        self.input_shape, output_shape = self.starts[0].input_shape, self.starts[0].output_shape
        if len(output_shape) != 1:
            raise ConfigurationError(f"starts[0]: its output {output_shape} must be a vector. Put a global_pool in it.")
        self.n_outputs = output_shape[0]
        for index, start in enumerate(self.starts):
            if refusal := self._refusal(start):
                raise ConfigurationError(f"starts[{index}]: {refusal}")

    def __repr__(self) -> str:
        return f"GraphSpace({len(self.starts)} starts, {self.input_shape} to {self.n_outputs}, {self.parameters!r})"

    def network(self, point: Point) -> Network:
        """Returns the network of a point.

        Raises:
            PointError: the point is not in the space.
        """
        _check_point(point)
        network = Network.from_json(point[NETWORK])
        if refusal := self._refusal(network):
            raise PointError(f"{NETWORK}: {refusal}")
        self.parameters.validate(self._others(point))
        return network

    def sample(self, rng: random.Random) -> Point:
        """Returns a random start network after 0 to ``n_moves`` moves, with random parameters."""
        network = rng.choice(self.starts)
        for _ in range(rng.randint(0, self.n_moves)):
            move = draw_move(network, self.moves, self.limits, rng)
            network = network if move is None else move.network
        return self._point(network, self.parameters.sample(rng))

    def mutate(self, point: Point, rng: random.Random) -> Point:
        """Returns a point with one move in its network, or (one in four) one changed parameter."""
        return self.vary(Variation.of(point), rng).point

    def vary(self, variation: Variation, rng: random.Random) -> Variation:
        """Returns the variation after one more step of ``mutate``, and records its operation."""
        network, others = self.network(variation.point), self._others(variation.point)
        has_parameters = self.parameters.n_points != 1
        if not (has_parameters and rng.random() < _SHARE):
            move = draw_move(network, self.moves, self.limits, rng)
            if move is not None:
                operations = (*variation.operations, move.operation)
                return replace(variation, point=self._point(move.network, others), operations=operations)
        if has_parameters:
            return replace(variation, point=self._point(network, self.parameters.mutate(others, rng)))
        raise SpaceExhaustedError("no move is possible. Raise the limits or allow more moves.")

    def swap_parents(self, variation: Variation) -> Variation:
        """Returns the variation with the crossing's networks in the other order."""
        crossing = variation.crossing
        return replace(variation, crossing=crossing.swapped) if isinstance(crossing, Crossing) else variation

    def derivation(self, variation: Variation) -> dict[str, Any]:
        """Returns ``mutated``, and the operations or crossing that `inherit` replays."""
        names = super().derivation(variation)
        found: Derivation | Crossing | None = variation.crossing
        if found is None and variation.operations:
            found = Derivation(self.network(variation.origin), ())
        if found is None:
            return names
        return {**names, **replace(found, operations=variation.operations).to_json()}

    def key(self, point: Point) -> str:
        """Returns the digest of the network, which knows no names of nodes, and the parameters.

        Raises:
            PointError: the point holds no network.
        """
        _check_point(point)
        return f"{_digest(point_key(point[NETWORK]))} {point_key(self._others(point))}"

    def features(self, point: Point) -> tuple[Steps, Any]:
        """Returns the steps of the network, and the features of the parameters."""
        return steps_of(self.network(point)), self.parameters.features(self._others(point))

    def feature_distance(self, first: tuple[Steps, Any], second: tuple[Steps, Any]) -> float:
        """Returns the edit distance of the networks, plus the distance of the parameters (at most 1)."""
        return edit_distance(first[0], second[0]) + self.parameters.feature_distance(first[1], second[1])

    def cross(self, first: Point, second: Point, rng: random.Random) -> Variation:
        """Returns a crossing of the two networks, with each parameter of one of the points.

        Either network can give the first part. If no two cuts give a network within the limits, one of the networks is
        used.
        """
        networks = self.network(first), self.network(second)
        begins = rng.randrange(2)
        crossing: Crossing | Derivation | None = crossed(networks, begins, rng, self._refusal)
        if crossing is None:
            crossing = Derivation(networks[begins], ())
        others = self.parameters.cross(self._others(first), self._others(second), rng).point
        point = self._point(crossing.network, others)
        return Variation(point, point, crossing=crossing)

    def validate(self, point: Point) -> None:
        """Checks the network (valid, right shapes, within the limits) and the parameters."""
        self.network(point)

    def to_json(self) -> dict[str, Any]:
        """Returns everything that decides the samples, as JSON."""
        others = self.parameters.to_json()
        network = {
            "type": "Network",
            "starts": [start.to_json() for start in self.starts],
            "limits": {name: getattr(self.limits, name) for name in self.limits.__slots__},
            "moves": list(self.moves),
            "n_moves": self.n_moves,
        }
        return {
            "type": "GraphSpace",
            "parameters": {NETWORK: network, **others["parameters"]},
            "order": [NETWORK, *others["order"]],
        }

    def decide(self, ask: Ask) -> Point:
        """Asks for the nodes in order, with attributes and inputs by id, then for the parameters."""

        def ask_network(name: str, domain: Domain) -> float:
            return ask(f"{NETWORK}.{name}", domain)

        network = decide_network(ask_network, self.input_shape, self.n_outputs, self.limits)
        return self._point(network, self.parameters.decide(ask))

    def decisions(self, point: Point) -> list[Decision]:
        """Returns the answers that give the point; ``network.7.channels`` is of node 7."""
        found = decisions_of(self.network(point), self.limits)
        named = [Decision(f"{NETWORK}.{name}", domain, answer) for name, domain, answer in found]
        return [*named, *self.parameters.decisions(self._others(point))]

    @property
    def n_points(self) -> None:
        """None: too many to count."""
        return None

    def points(self) -> Iterator[Point]:
        """Raises ConfigurationError, since the networks can't be listed."""
        raise ConfigurationError("the networks of a graph space can't be listed. Use a tuner that draws them.")

    def _point(self, network: Network, others: Point) -> Point:
        return {NETWORK: network.to_json(), **others}

    def _others(self, point: Point) -> Point:
        return {name: value for name, value in point.items() if name != NETWORK}

    def _refusal(self, network: Network) -> str | None:
        if (network.input_shape, network.output_shape) != (self.input_shape, (self.n_outputs,)):
            return (
                f"its input is {network.input_shape} and its output {network.output_shape}; they must be "
                f"{self.input_shape} and ({self.n_outputs},)"
            )
        return self.limits.refusal(network)


def _check_point(point: object) -> None:
    if type(point) is not dict or NETWORK not in point:
        raise PointError(f"the point must be a dict with {NETWORK}. Add it.")


@lru_cache(maxsize=1024)
def _digest(network: str) -> str:
    """Returns the digest of a network's JSON; cached, since tuners ask repeatedly for a point."""
    return digest(Network.from_json(json.loads(network)))


def _start(index: int, start: Network | Mapping[str, Any]) -> Network:
    if isinstance(start, Network):
        return start
    try:
        return Network.from_json(start)
    except PointError as error:
        raise ConfigurationError(f"starts[{index}]: {error}") from error
