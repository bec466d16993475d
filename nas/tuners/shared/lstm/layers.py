"""Layers of the LSTM controller, with their gradients, in numpy.

For one point at a time numpy is faster than torch. Sums are numpy's own loops, not those of a BLAS library. So the
number of threads changes no bit of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nas.tuners.shared.lstm.parameters import Array, Parameters


class Vector:
    """A value and its gradient, which later layers add to.

    Args:
        value: The value.
    """

    __slots__ = ("gradient", "value")

    def __init__(self, value: Array) -> None:
        self.value = value
        self.gradient: Array = value * 0.0


@dataclass(frozen=True, slots=True)
class State:
    """The state of the LSTM after a step."""

    hidden: Vector
    cell: Vector


class Tape:
    """The layers of one pass in their order, and the gradients of the parameters.

    Args:
        parameters: The parameters.
    """

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.gradients: dict[str, Array] = {}
        self._backward: list[Callable[[], None]] = []

    def record(self, backward: Callable[[], None]) -> None:
        """Adds a layer, which passes the gradient of its output on to its inputs."""
        self._backward.append(backward)

    def add(self, name: str, gradient: Array) -> None:
        """Adds to the gradient of a parameter."""
        self.gradients[name] = self.gradients[name] + gradient if name in self.gradients else gradient

    def run_backward(self) -> None:
        """Runs all layers from the last to the first."""
        while self._backward:
            self._backward.pop()()


def embedding(tape: Tape, name: str, n_units: int) -> Vector:
    """Returns a parameter as a vector."""
    vector = Vector(tape.parameters.get(name, n_units))
    tape.record(lambda: tape.add(name, vector.gradient))
    return vector


def total(tape: Tape, vectors: Sequence[Vector], weight: float = 1.0) -> Vector:
    """Returns the sum of vectors, times a weight."""
    found = Vector(weight * sum((vector.value for vector in vectors[1:]), vectors[0].value))

    def backward() -> None:
        for vector in vectors:
            vector.gradient += weight * found.gradient

    tape.record(backward)
    return found


def lstm(tape: Tape, inputs: Vector, before: State) -> State:
    """Returns the state after a step (Hochreiter and Schmidhuber 1997)."""
    import numpy as np

    n = len(inputs.value)
    weight, bias = tape.parameters.get("lstm weight", 4 * n, 2 * n), tape.parameters.get("lstm bias", 4 * n)
    both = np.concatenate([inputs.value, before.hidden.value])
    sums = np.einsum("ij,j->i", weight, both) + bias
    enter, keep, leave = (1.0 / (1.0 + np.exp(-sums[: 3 * n]))).reshape(3, n)
    new = np.tanh(sums[3 * n :])
    cell = Vector(keep * before.cell.value + enter * new)
    shown = np.tanh(cell.value)
    hidden = Vector(leave * shown)

    def backward() -> None:
        down = cell.gradient + hidden.gradient * leave * (1.0 - shown * shown)
        at_enter, at_keep = down * new * enter * (1.0 - enter), down * before.cell.value * keep * (1.0 - keep)
        at_leave, at_new = hidden.gradient * shown * leave * (1.0 - leave), down * enter * (1.0 - new * new)
        at_sums = np.concatenate([at_enter, at_keep, at_leave, at_new])
        tape.add("lstm weight", np.multiply.outer(at_sums, both))
        tape.add("lstm bias", at_sums)
        at_both = np.einsum("ij,i->j", weight, at_sums)
        inputs.gradient += at_both[:n]
        before.hidden.gradient += at_both[n:]
        before.cell.gradient += down * keep

    tape.record(backward)
    return State(hidden, cell)


def output(tape: Tape, name: str, n_options: int, hidden: Vector) -> Vector:
    """Returns the scores of options by an output layer."""
    import numpy as np

    weight = tape.parameters.get(f"{name} weight", n_options, len(hidden.value))
    scores = Vector(np.einsum("ij,j->i", weight, hidden.value) + tape.parameters.get(f"{name} bias", n_options))

    def backward() -> None:
        tape.add(f"{name} weight", np.multiply.outer(scores.gradient, hidden.value))
        tape.add(f"{name} bias", scores.gradient)
        hidden.gradient += np.einsum("ij,i->j", weight, scores.gradient)

    tape.record(backward)
    return scores


def attention(tape: Tape, keys: Sequence[Vector], hidden: Vector) -> Vector:
    """Returns the score of each key by additive attention (Bahdanau et al. 2015, arXiv:1409.0473)."""
    import numpy as np

    n = len(hidden.value)
    names = ("attention key", "attention query", "attention score")
    by_key, by_query = (tape.parameters.get(name, n, n) for name in names[:2])
    weight = tape.parameters.get(names[2], n)
    rows = np.stack([key.value for key in keys])
    inner = np.tanh(np.einsum("ij,kj->ki", by_key, rows) + np.einsum("ij,j->i", by_query, hidden.value))
    scores = Vector(np.einsum("ki,i->k", inner, weight))

    def backward() -> None:
        at_sums = np.multiply.outer(scores.gradient, weight) * (1.0 - inner * inner)
        tape.add(names[0], np.einsum("ki,kj->ij", at_sums, rows))
        tape.add(names[1], np.multiply.outer(at_sums.sum(axis=0), hidden.value))
        tape.add(names[2], np.einsum("k,ki->i", scores.gradient, inner))
        hidden.gradient += np.einsum("ij,i->j", by_query, at_sums.sum(axis=0))
        for key, gradient in zip(keys, np.einsum("ij,ki->kj", by_key, at_sums), strict=True):
            key.gradient += gradient

    tape.record(backward)
    return scores
