"""Lineages that look like searches, and their records, written to a storage as a search writes them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nas.core.checkpoint import Checkpoint
from nas.core.metric import Metric
from nas.core.policy import Policy
from nas.core.reference import Reference
from nas.core.supernet import EPOCH
from nas.core.trial import Proposal, Reason, State, Trial
from nas.storage.open import open_root
from nas.storage.record_format import FORMAT
from nas.storage.records import Records

IDENTITY: dict[str, Any] = {
    "problem": {"target": "nas.problems.digits.DigitsProblem", "arguments": {}},
    "space": {"type": "ParameterSpace", "parameters": {}, "order": []},
    "tuner": {"target": "nas.tuners.evolution.EvolutionTuner", "arguments": {"population_size": 8}},
    "policy": [
        {"name": "search", "policies": ["EARLY_STOP", "SHARE_PARAMS"], "warm": False},
        {"name": "final", "policies": [], "warm": False},
    ],
    "stopper": None,
    "seed": 7,
    "on_missing_weights": "ancestor",
    "deterministic": False,
}
BEGAN = 1_795_256_700.0


def trial(number: int, *, parents: tuple[int, ...] = (), score: float | None = None, **changes: Any) -> Trial:
    """A complete trial where it has a score, else a waiting one."""
    point = changes.pop("point", {"width": 16, "rate": 0.1})
    donors = changes.pop("donors", None)
    done: dict[str, Any] = {
        "state": State.COMPLETE,
        "metrics": {"accuracy": score},
        "cost": {"seconds": 1.5, "gpu_seconds": 0.0},
        "attempt": 1,
        "slot": 0,
        "started": BEGAN + number,
        "finished": BEGAN + number + 1.5,
    }
    fields: dict[str, Any] = {"index": number, "job": number, "created": BEGAN, **(done if score is not None else {})}
    return Trial(number=number, proposal=Proposal(point=point, parents=parents, donors=donors), **{**fields, **changes})


def evolved(n: int, *, seed: int = 0, population: int = 12) -> list[Trial]:
    """A search of ``n`` trials by evolution with all that happens: stopped, failed, other donors, two finals."""
    rng = random.Random(seed)
    trials: list[Trial] = []
    for number in range(n - 2):
        alive = [t for t in trials[-population:] if t.state == State.COMPLETE]
        parent = max(rng.sample(alive, min(4, len(alive))), key=lambda t: t.metrics["accuracy"], default=None)
        if number < min(population, n // 4):
            parent = None
        score = 0.7 + 0.1 * rng.random() if parent is None else parent.metrics["accuracy"] + rng.gauss(0.003, 0.01)
        born = trial(
            number,
            parents=() if parent is None else (parent.number,),
            score=min(0.999, score),
            point={
                "width": rng.choice([8, 16, 32]),
                "rate": rng.random(),
                "cell": {"ops": ["conv", "skip"], "depth": 2},
            },
            policies=frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP}),
            generation=0 if parent is None else parent.generation + 1,
            checkpoint=_checkpoint(number),
        )
        if parent is not None:
            donor: int | str = parent.number if number % 7 else rng.choice(alive).number
            born = replace(born, resolved_donor=donor, donor=donor, inherited=rng.choice([1.0, rng.random()]))
        if parent is not None and number % 11 == 0:
            born = replace(born, resolved_donor="other-search:42", donor="other-search:42")
        if parent is not None and number % 9 == 0:
            error = "Traceback (most recent call last):\n  File train.py\nValueError: width 8"
            born = replace(born, state=State.FAILED, reason=Reason.EXCEPTION, metrics={}, error=error, checkpoint=None)
        elif parent is not None and number % 10 == 0:
            born = replace(born, state=State.STOPPED, reason=Reason.STOPPER, metrics={"accuracy": score - 0.1})
        trials.append(born)
    best = sorted((t for t in trials if t.state == State.COMPLETE), key=lambda t: -t.metrics["accuracy"])[:2]
    for number, finalist in enumerate(best, start=n - 2):
        full = trial(number, parents=(finalist.number,), donors=(), score=finalist.metrics["accuracy"] + 0.0005)
        trials.append(
            replace(
                full,
                index=number - n + 2,
                stage="final",
                generation=finalist.generation + 1,
                checkpoint=_checkpoint(number),
            )
        )
    return trials


def one_shot(n_epochs: int, n_subnets: int, *, seed: int = 0, n_finals: int = 2, n_warm_up: int = 2) -> list[Trial]:
    """A search of shared weights: epochs, subnets of the newest one, some of them mutated, and finals.

    Args:
        n_epochs: The supernet epochs. They report their skips and the entropy of the choices.
        n_subnets: The subnets after each epoch.
        seed: Seeds scores and parents.
        n_finals: The subnets that are trained in full.
        n_warm_up: The epochs before the first subnets.
    """
    rng = random.Random(seed)
    trials: list[Trial] = []
    epoch: Trial | None = None
    for number in range(n_epochs):
        before = () if epoch is None else (epoch.number,)
        metrics = {"accuracy": 0.2 + 0.02 * number, "skips": float(rng.randrange(6)), "entropy": 1.6 / (1 + number)}
        epoch = trial(
            len(trials), parents=before, score=0.0, metrics=metrics, point={EPOCH: number}, generation=number,
            policies=frozenset({Policy.SHARE_PARAMS}), checkpoint=_checkpoint(len(trials)),
            suggested=({"op_0": "skip", "op_1": "conv", "op_2": "conv"},),
        )  # fmt: skip
        if before:
            epoch = replace(epoch, resolved_donor=before[0], donor=before[0], inherited=1.0)
        trials.append(epoch)
        for _ in range(n_subnets if number >= n_warm_up - 1 else 0):
            trials.append(_subnet(len(trials), epoch, [t for t in trials if t.policies >= _UNTRAINED], rng))
    best = sorted((t for t in trials if t.policies >= _UNTRAINED), key=lambda t: -t.metrics["accuracy"])[:n_finals]
    for index, finalist in enumerate(best):
        full = trial(
            len(trials), parents=(finalist.number,), donors=(), score=0.9 + 0.01 * rng.random(), point=finalist.point
        )
        trials.append(replace(full, index=index, stage="final", generation=finalist.generation + 1))
    return trials


_UNTRAINED = frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN, Policy.QUICK_EVAL})


def _subnet(number: int, epoch: Trial, others: list[Trial], rng: random.Random) -> Trial:
    """A subnet of an epoch, in half of the cases mutated from another one."""
    parent = rng.choice(others) if others and rng.random() < 0.5 else None
    born = trial(
        number,
        parents=() if parent is None else (parent.number,),
        donors=(epoch.number,),
        score=epoch.metrics["accuracy"] + rng.gauss(0.0, 0.03),
        point={f"op_{i}": rng.choice(["none", "skip", "conv"]) for i in range(3)},
        policies=_UNTRAINED,
        generation=0 if parent is None else parent.generation + 1,
    )
    return replace(born, resolved_donor=epoch.number, donor=epoch.number, inherited=1.0)


def write_search(
    root: Path,
    name: str,
    trials: Sequence[Trial],
    *,
    active: float = BEGAN,
    tests: dict[int, dict[str, Any]] | None = None,
    identity: dict[str, Any] | None = None,
    budget: dict[str, float] | None = None,
    metrics: Sequence[Metric] = (Metric("accuracy"),),
) -> Records:
    """Writes the records of a search whose only session has ended; ``active`` is its last heartbeat."""
    records = Records(open_root(f"{root}/{name}"))
    described = [{"name": m.name, "direction": m.direction, "reference": m.reference} for m in metrics]
    header = {"format": FORMAT, "identity": {**IDENTITY, **(identity or {})}, "metrics": described}
    records.publish("search.json", header)
    session = {
        "session": 0,
        "host": "far",
        "pid": 1,
        "boot": "b",
        "process_started": "1",
        "machine": "",
        "started": active,
        "settings": {} if budget is None else {"budget": budget},
    }
    records.publish("sessions/0000.json", session)
    beat = {"count": 1, "time": active, "hours": 0.1, "ended": True}
    records.publish("sessions/0000.beat", beat)
    for one in trials:
        records.propose(one)
        if one.is_finished:
            records.commit(one)
    for number, record in (tests or {}).items():
        records.publish(f"tests/{number:06d}.json", {"trial": number, **record})
    return records


def _checkpoint(number: int) -> Checkpoint:
    digest = f"blake3:{number:064x}"
    pack = Reference(f"packs/{number:06d}-aa.safetensors", 200_000, digest)
    return Checkpoint(manifest=Reference(f"manifests/{number:06d}-aa.json", 2_000, digest), packs=(pack,))
