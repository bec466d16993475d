"""A space of networks: graphs of typed layers, with what else a training needs (docs/decisions/015)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from nas.core.errors import ConfigurationError, PointError, SpaceExhaustedError, nearest_first
from nas.core.point import Point, point_key
from nas.spaces.domain import Ask, Decision, Domain
from nas.spaces.graphs.canonical import digest
from nas.spaces.graphs.crossover import Crossing, crossed
from nas.spaces.graphs.decisions import decided, decisions_of
from nas.spaces.graphs.derivation import Derivation
from nas.spaces.graphs.distance import Steps, edit_distance, steps_of
from nas.spaces.graphs.limits import Limits
from nas.spaces.graphs.moves import MOVES, drawn_move
from nas.spaces.graphs.network import Network
from nas.spaces.parameters.space import ParameterSpace
from nas.spaces.space import Space, Variation

NETWORK = "network"
"""Where a point holds its network."""
DEFAULT_MOVES = (
    "widen", "narrow", "deepen", "residual", "grow_kernel", "shrink_kernel", "add_skip", "concat_skip", "activation",
    "branch", "remove", "disconnect",
)  # fmt: skip
_SHARE = 0.25  # of the mutations change a parameter instead of the network


class GraphSpace(Space):
    """The networks that moves make of the ones to start from, and what other parameters a point has.

    Example: ``GraphSpace([plain_cnn((1, 28, 28), 10, widths=[32, 64], pool_after=[0])], {"rate": Float(0.01, 0.2)})``
    has points such as ``{"network": {"input": [1, 28, 28], "nodes": [...]}, "rate": 0.05}``.

    Any network that takes and gives the same shapes as these and is within the limits lies in the space.

    Args:
        starts: Where samples begin, each as likely (`nas.spaces.graphs.starts`): networks, or their JSON. They take the
            same shape, and give a vector of the same length.
        parameters: What else a point holds, as in a ``ParameterSpace``; not by the name ``network``.
        limits: How large a network may be.
        moves: What changes a network (`nas.spaces.graphs.moves`), each as likely where it is possible.
        n_moves: A sample is a start after 0 to so many moves.

    Raises:
        ConfigurationError: there is no start, one is ill-formed or unlike the others, or over the limits; or a name is
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
            raise ConfigurationError(f"limits (a {type(limits).__name__}) must be a Limits; give Limits(...)")
        for name, value in (("starts", starts), ("moves", moves)):
            if isinstance(value, str | Mapping | Network) or not isinstance(value, Iterable):
                raise ConfigurationError(f"{name} (a {type(value).__name__}) must be a list; give one of one or more")
        self.moves = tuple(map(str, moves))
        if not self.moves or (wrong := next((name for name in self.moves if name not in MOVES), None)):
            known = nearest_first(str(wrong if self.moves else ""), MOVES)
            raise ConfigurationError(f"moves ({list(moves)}) must hold one or more of {known}; correct it")
        if isinstance(n_moves, bool) or not isinstance(n_moves, int) or n_moves < 0:
            raise ConfigurationError(f"n_moves ({n_moves!r}) must be a whole number of at least 0; correct it")
        self.n_moves = n_moves
        if NETWORK in (parameters or {}):
            raise ConfigurationError(f"parameters: the name {NETWORK!r} is the network's; choose another")
        self.parameters = ParameterSpace(parameters or {})
        self.starts = tuple(_start(place, start) for place, start in enumerate(starts))
        if not self.starts:
            raise ConfigurationError("starts ([]) must hold a network or more; give one of nas.spaces.graphs.starts")
        self.input_shape, output_shape = self.starts[0].input_shape, self.starts[0].output_shape
        if len(output_shape) != 1:
            raise ConfigurationError(f"starts[0]: its output {output_shape} must be a vector; put a global_pool in it")
        self.n_outputs = output_shape[0]
        for place, start in enumerate(self.starts):
            if refusal := self._refusal(start):
                raise ConfigurationError(f"starts[{place}]: {refusal}")

    def __repr__(self) -> str:
        return f"GraphSpace({len(self.starts)} starts, {self.input_shape} to {self.n_outputs}, {self.parameters!r})"

    def network(self, point: Point) -> Network:
        """Returns the network of a point.

        Raises:
            PointError: the point lies outside the space.
        """
        _check_point(point)
        network = Network.from_json(point[NETWORK])
        if refusal := self._refusal(network):
            raise PointError(f"{NETWORK}: {refusal}")
        self.parameters.validate(self._others(point))
        return network

    def sample(self, rng: random.Random) -> Point:
        """A start, each as likely, after 0 to ``n_moves`` random moves, each number as likely; parameters at random."""
        network = rng.choice(self.starts)
        for _ in range(rng.randint(0, self.n_moves)):
            move = drawn_move(network, self.moves, self.limits, rng)
            network = network if move is None else move.network
        return self._point(network, self.parameters.sample(rng))

    def mutate(self, point: Point, rng: random.Random) -> Point:
        """Returns a point whose network is one move away, or (a quarter, where there are parameters) one parameter."""
        return self.vary(Variation.of(point), rng).point

    def vary(self, variation: Variation, rng: random.Random) -> Variation:
        """Returns the variation after one more step of ``mutate``, with the operation on the network that it was."""
        network, others = self.network(variation.point), self._others(variation.point)
        has_parameters = self.parameters.n_points != 1
        if not (has_parameters and rng.random() < _SHARE):
            move = drawn_move(network, self.moves, self.limits, rng)
            if move is not None:
                operations = (*variation.operations, move.operation)
                return replace(variation, point=self._point(move.network, others), operations=operations)
        if has_parameters:
            return replace(variation, point=self._point(network, self.parameters.mutate(others, rng)))
        raise SpaceExhaustedError("no move is possible; raise the limits or allow more moves")

    def turned(self, variation: Variation) -> Variation:
        """With the crossing's two networks in the other order."""
        crossing = variation.crossing
        return replace(variation, crossing=crossing.turned) if isinstance(crossing, Crossing) else variation

    def derivation(self, variation: Variation) -> dict[str, Any]:
        """``mutated``, and how the child's network comes from its parents': what `inherit` needs to follow it."""
        names = super().derivation(variation)
        made: Derivation | Crossing | None = variation.crossing
        if made is None and variation.operations:
            made = Derivation(self.network(variation.origin), ())
        if made is None:
            return names
        return {**names, **replace(made, operations=variation.operations).to_json()}

    def key(self, point: Point) -> str:
        """Returns the digest of the network, which knows no names of nodes, and the parameters.

        Raises:
            PointError: the point holds no network.
        """
        _check_point(point)
        return f"{_digest(point_key(point[NETWORK]))} {point_key(self._others(point))}"

    def outline(self, point: Point) -> tuple[Steps, Any]:
        """What is aligned of the network, and the outline of the parameters."""
        return steps_of(self.network(point)), self.parameters.outline(self._others(point))

    def apart(self, first: tuple[Steps, Any], second: tuple[Steps, Any]) -> float:
        """The edit distance of the networks (`nas.spaces.graphs.distance`), plus that of the parameters (at most 1)."""
        return edit_distance(first[0], second[0]) + self.parameters.apart(first[1], second[1])

    def cross(self, first: Point, second: Point, rng: random.Random) -> Variation:
        """Returns the beginning of one network and the end of the other; each parameter is that of one of the two.

        Either may be the beginning. Where no two cuts give a network within the limits, it is that of one of them.
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
        """Returns if the network is well-formed, of the right shapes and within the limits, and the parameters are."""
        self.network(point)

    def describe(self) -> dict[str, Any]:
        """Returns all that decides what is drawn, as JSON."""
        others = self.parameters.describe()
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
        """Asks for the nodes in order and each one's attributes and inputs by its id, then for the parameters."""

        def ask_network(name: str, domain: Domain) -> float:
            return ask(f"{NETWORK}.{name}", domain)

        network = decided(ask_network, self.input_shape, self.n_outputs, self.limits)
        return self._point(network, self.parameters.decide(ask))

    def decisions(self, point: Point) -> list[Decision]:
        """Returns the answers that give the point; of the network as ``network.7.channels``, 7 being a node's id."""
        found = decisions_of(self.network(point), self.limits)
        named = [Decision(f"{NETWORK}.{name}", domain, answer) for name, domain, answer in found]
        return [*named, *self.parameters.decisions(self._others(point))]

    @property
    def n_points(self) -> None:
        """Too many to be worth a count."""
        return None

    def points(self) -> Iterator[Point]:
        """They can't be listed."""
        raise ConfigurationError("the networks of a graph space can't be listed; use a tuner that draws them")

    def _point(self, network: Network, others: Point) -> Point:
        return {NETWORK: network.to_json(), **others}

    def _others(self, point: Point) -> Point:
        return {name: value for name, value in point.items() if name != NETWORK}

    def _refusal(self, network: Network) -> str | None:
        if (network.input_shape, network.output_shape) != (self.input_shape, (self.n_outputs,)):
            return (
                f"it takes {network.input_shape} and gives {network.output_shape}; it must take {self.input_shape} and "
                f"give ({self.n_outputs},)"
            )
        return self.limits.refusal(network)


def _check_point(point: object) -> None:
    if type(point) is not dict or NETWORK not in point:
        raise PointError(f"the point must be a dict with {NETWORK}; add it")


@lru_cache(maxsize=1024)
def _digest(network: str) -> str:
    """That of a network's JSON: a tuner asks more than once for a point that it looks at."""
    return digest(Network.from_json(json.loads(network)))


def _start(place: int, start: Network | Mapping[str, Any]) -> Network:
    if isinstance(start, Network):
        return start
    try:
        return Network.from_json(start)
    except PointError as error:
        raise ConfigurationError(f"starts[{place}]: {error}") from error
