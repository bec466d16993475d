"""An LSTM that decides one decision after the other (Pham et al. 2018, arXiv:1802.03268).

The logits of options are ``tanh_constant * tanh(scores / temperature)``. Decisions with the same options share their
embeddings. A decision over earlier nodes attends to the nodes. A node is the hidden state at which it was complete,
plus an embedding of its position.

Differs: the LSTM also reads an embedding of the decision's name, because in a tree of choices the order of decisions
varies. Each decision has an output layer of its own, as in Rafiki (Wang et al. 2018, arXiv:1804.06087). With a shared
one, three of four controllers chose the same operation on all edges of a cell with four rewarded ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from nas.tuners.shared.lstm.layers import State, Tape, Vector, attention, embedding, lstm, output, total

if TYPE_CHECKING:
    from nas.tuners.shared.lstm.parameters import Array, Parameters


@dataclass(frozen=True, slots=True)
class LstmSettings:
    """Sizes and constants of the controller.

    Attributes:
        n_units: The length of the hidden state and of embeddings.
        temperature: Divides all scores.
        tanh_constant: The greatest logit of an operation.
        input_tanh_constant: The greatest logit of an earlier node.
    """

    n_units: int = 64
    temperature: float = 5.0
    tanh_constant: float = 2.5
    input_tanh_constant: float = 1.1


@dataclass(slots=True)
class _Decided:
    """A decision with its scores, the greatest logit, its nodes if any, and its answer."""

    scores: Vector
    constant: float
    labels: tuple[str, ...]
    keys: Sequence[Vector]
    probabilities: Array
    option: int = 0


class Episode:
    """One pass through the decisions of a point.

    Args:
        parameters: The controller's parameters, which are not changed.
        settings: Its sizes and constants.
    """

    def __init__(self, parameters: Parameters, settings: LstmSettings) -> None:
        import numpy as np

        self._settings = settings
        self._tape = Tape(parameters)
        self._states = [State(Vector(np.zeros(settings.n_units)), Vector(np.zeros(settings.n_units)))]
        self._decided: list[_Decided] = []
        self._next = embedding(self._tape, "start", settings.n_units)
        self._nodes: list[int] = []

    def probabilities(self, name: str, labels: tuple[str, ...]) -> Array:
        """Returns the probabilities of the options of the next decision; ``take`` gives its answer.

        Args:
            name: The decision's name.
            labels: The names of its options.
        """
        import numpy as np

        inputs = total(self._tape, [self._next, embedding(self._tape, f"name {name}", self._settings.n_units)])
        self._states.append(lstm(self._tape, inputs, self._states[-1]))
        decided = self._over_nodes(labels) if nodes_of(labels) else self._over_options(name, labels)
        logits = decided.constant * np.tanh(decided.scores.value / self._settings.temperature)
        weights = np.exp(logits - logits.max())
        decided.probabilities = weights / weights.sum()
        self._decided.append(decided)
        return decided.probabilities

    def take(self, option: int) -> None:
        """Sets the answer to the last decision."""
        decided = self._decided[-1]
        decided.option = option
        if nodes := nodes_of(decided.labels):
            chosen = [decided.keys[node] for node in nodes[option]]
            self._next = total(self._tape, chosen, 1.0 / len(chosen))
        else:
            self._next = embedding(self._tape, f"option {decided.labels} {option}", self._settings.n_units)

    @property
    def log_probability(self) -> float:
        """The logarithm of the probability of all answers."""
        return math.fsum(math.log(decided.probabilities[decided.option]) for decided in self._decided)

    @property
    def entropy(self) -> float:
        """The sum of the entropies of all decisions."""
        return math.fsum(-float(p) * math.log(p) for decided in self._decided for p in decided.probabilities)

    def gradients(self, advantage: float, entropy: float) -> dict[str, Array]:
        """Returns the gradients of ``advantage * log_probability + entropy * self.entropy`` by parameter.

        It is called once, after the last answer.
        """
        import numpy as np

        for decided in self._decided:
            p = decided.probabilities
            logs = np.log(p)
            at_logits = -advantage * p - entropy * p * (logs - (p * logs).sum())
            at_logits[decided.option] += advantage
            bounded = np.tanh(decided.scores.value / self._settings.temperature)
            slope = decided.constant * (1.0 - bounded * bounded) / self._settings.temperature
            decided.scores.gradient += slope * at_logits
        self._tape.run_backward()
        return self._tape.gradients

    def _over_options(self, name: str, labels: tuple[str, ...]) -> _Decided:
        scores = output(self._tape, f"output {name}", len(labels), self._states[-1].hidden)
        return _Decided(scores, self._settings.tanh_constant, labels, (), scores.value)

    def _over_nodes(self, labels: tuple[str, ...]) -> _Decided:
        """Returns a decision over nodes; nodes that no earlier decision had are complete now."""
        nodes = nodes_of(labels)
        n_nodes = 1 + max(node for option in nodes for node in option)
        del self._nodes[n_nodes:]  # fewer nodes: another cell begins
        self._nodes += [len(self._states) - 2] * (n_nodes - len(self._nodes))
        keys = [self._key(position, at) for position, at in enumerate(self._nodes)]
        found = attention(self._tape, keys, self._states[-1].hidden)
        return _Decided(_means(self._tape, found, nodes), self._settings.input_tanh_constant, labels, keys, found.value)

    def _key(self, position: int, at: int) -> Vector:
        """Returns a node: the hidden state after step ``at`` and an embedding of its position."""
        place = embedding(self._tape, f"node {position}", self._settings.n_units)
        return total(self._tape, [self._states[at].hidden, place])


def _means(tape: Tape, scores: Vector, nodes: Sequence[Sequence[int]]) -> Vector:
    """Returns the mean score of the nodes of each option."""
    import numpy as np

    found = Vector(np.array([scores.value[list(option)].mean() for option in nodes]))

    def backward() -> None:
        for option, gradient in zip(nodes, found.gradient, strict=True):
            for node in option:
                scores.gradient[node] += gradient / len(option)

    tape.record(backward)
    return found


@lru_cache(maxsize=4096)
def nodes_of(labels: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    """Returns the earlier nodes that each option stands for; empty if the options are no nodes.

    Options are nodes if their names are ``0, 1, 2`` and so on, or lists of such numbers: ``[0, 1], [0, 2], [1, 2]``.
    """
    try:
        values = [json.loads(label) for label in labels]
    except ValueError:
        return ()
    found = tuple(tuple(value) if isinstance(value, list) else (value,) for value in values)
    if not all(option and all(type(node) is int and node >= 0 for node in option) for option in found):
        return ()
    named = {node for option in found for node in option}
    return found if named == set(range(len(named))) else ()
