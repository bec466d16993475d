"""Networks without weights, trials that offer them, and the best donor found the long way: for tests of donors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

from nas.core.checkpoint import Checkpoint
from nas.core.reference import Reference
from nas.core.trial import Proposal, State, Trial
from nas.storage.blobs import BlobStore
from nas.storage.manifest import TensorEntry
from nas.storage.record_format import FORMAT
from nas.storage.records import Records
from nas.storage.signature import Signature
from nas.storage.verified import digest_of
from tests.support.sample_searches import IDENTITY

Network = Mapping[str, TensorEntry]

SPACE = {
    "type": "ParameterSpace",
    "parameters": {
        "b": {"type": "Choice", "options": [{"type": "constant", "value": 1}, {"type": "constant", "value": 2}]},
        "a": {"type": "Int", "low": 0, "high": 9, "log": False},
        "lr": {"type": "Float", "low": 0.0, "high": 1.0, "log": False},
    },
    "order": ["b", "a", "lr"],
}


def chain(*widths: int, dtype: str = "float32") -> Network:
    """Linear layers in a row, ``0.weight`` and ``0.bias`` and so on, each as wide as said."""
    shapes: dict[str, tuple[int, ...]] = {}
    for place, (before, width) in enumerate(zip([3, *widths], widths, strict=False)):
        shapes |= {f"{place}.weight": (width, before), f"{place}.bias": (width,)}
    return {
        name: TensorEntry(pack="", offset=0, bytes=0, dtype=dtype, shape=shape, digest="")
        for name, shape in shapes.items()
    }


def layers(network: Network) -> list[list[tuple[object, ...]]]:
    """The layers of a network, each with names, types and shapes."""
    tensors = [(name, entry.dtype, entry.shape) for name, entry in network.items()]
    return [list(layer) for _, layer in groupby(tensors, key=lambda tensor: tensor[0].rpartition(".")[0])]


def n_same(one: Sequence[object], other: Sequence[object]) -> int:
    """Returns the number of equal items at the beginning."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def offer(
    number: int,
    network: Network | None = None,
    *,
    score: float | None = 0.5,
    point: Mapping[str, Any] | None = None,
    state: State = State.COMPLETE,
    finished: float | None = None,
) -> Trial:
    """A trial that has finished with such a network's weights, or without any."""
    reference = Reference(f"manifests/{number:06d}-ab.json", 0, digest_of(b""))
    text = Signature.of(network).text if network else ""
    return Trial(
        number=number,
        index=number,
        proposal=Proposal(point=dict(point or {})),
        state=state,
        metrics={} if score is None else {"score": score},
        checkpoint=None if network is None else Checkpoint(manifest=reference, packs=(), signature=text),
        finished=float(number) if finished is None else finished,
    )


def best_of(wanted: Network, networks: Mapping[int, Network], trials: Iterable[Trial], newest: str) -> int | None:
    """The answer by comparing everything with everything: most layers, best score, newest."""

    def standing(trial: Trial) -> tuple[float, ...]:
        score = trial.value("score")
        shared = n_same(layers(wanted), layers(networks[trial.number]))
        return shared, -math.inf if score is None else score, getattr(trial, newest), trial.number

    able = [t for t in trials if t.checkpoint is not None and t.state in (State.COMPLETE, State.STOPPED)]
    best = max(map(standing, able), default=(0,))
    return None if best[0] == 0 else int(best[-1])


def begin(root: BlobStore, name: str, *, problem: str = "tests.Some", metric: str = "score") -> Records:
    """The records of a new search."""
    records = Records(root.subfolder(name))
    identity = {**IDENTITY, "problem": {"target": problem, "arguments": {}}, "space": SPACE}
    metrics = [{"name": metric, "direction": "maximize"}]
    records.publish("search.json", {"format": FORMAT, "identity": identity, "metrics": metrics})
    return records


def publish(records: Records, *trials: Trial) -> None:
    """Proposes and commits trials, in this order."""
    for trial in trials:
        records.propose(trial)
        records.commit(trial)
