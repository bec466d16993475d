"""Proposals (what a tuner answers) and trials (one training of one point), as frozen records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from nas.core.checkpoint import Checkpoint
from nas.core.errors import ConfigurationError
from nas.core.metric import is_finite
from nas.core.point import Point
from nas.core.policy import Policy

Donor = int | str
"""A trial of this search by its number, or another search's as ``"name:42"`` (under the same root)."""


class DonorRule(StrEnum):
    """A donor by a rule, applied when the trial starts (Rafiki's ``ParamsType``; its NONE is ``donors=()``).

    Of the search stage's finished trials that have weights. Local: only those that ran on the same slot. Where there is
    none, the trial starts afresh, whatever ``on_missing_weights`` says.
    """

    LOCAL_RECENT = "local_recent"
    """The one that finished last on this slot."""
    LOCAL_BEST = "local_best"
    """The one with the best score on this slot; one without a score is none, of equal ones the lower number."""
    GLOBAL_RECENT = "global_recent"
    """The one that finished last."""
    GLOBAL_BEST = "global_best"
    """The one with the best score."""


DONOR_RULES: frozenset[Donor] = frozenset(DonorRule)


OnMissingWeights = Literal["ancestor", "scratch", "fail"]
"""What becomes of a child whose donor has no weights: another's are taken, it starts afresh, or it fails."""


class State(StrEnum):
    """Where a trial stands."""

    WAITING = "WAITING"
    """Proposed; a parent or donor of it has not finished, or no slot is free."""
    RUNNING = "RUNNING"
    COMPLETE = "COMPLETE"
    STOPPED = "STOPPED"
    """Ended by a stopper or at a deadline; its metrics are the last reported."""
    FAILED = "FAILED"


class Reason(StrEnum):
    """Why a trial is FAILED or STOPPED."""

    EXCEPTION = "exception"
    TIMEOUT = "timeout"
    LOST = "lost"
    """Its worker died as often as ``max_attempts`` allows."""
    NO_METRIC = "no_metric"
    NOT_FINITE = "not_finite"
    ABANDONED = "abandoned"
    PARENT = "parent"
    """Its donor has no weights, or they can't be read whole."""
    STOPPER = "stopper"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a tuner answers: a point, where it comes from, and whose weights it takes.

    Raises:
        ConfigurationError: a field that can't be; from a tuner, it ends the search.
    """

    point: Point
    parents: tuple[int, ...] = ()
    donors: tuple[Donor, ...] | None = None
    """Best first; None: the parents; empty: start afresh. A ``DonorRule`` is a donor, too."""
    policies: frozenset[Policy] | None = None
    """None: the plan decides."""
    fidelity: float | None = None
    """The share of a full training that the tuner asks for, in (0, 1]; None: the plan decides."""
    derivation: Any = None
    """JSON: the operations that made the point."""
    reason: str = ""

    def __post_init__(self) -> None:
        _check_sources("parents", self.parents, "numbers of trials from 0, each once", (int,))
        if self.donors is not None:
            sources = ", ".join(DonorRule)
            allowed = f"numbers of trials from 0, 'search:number' for another search's, or {sources}, each once"
            _check_sources("donors", self.donors, allowed, (int, str))
        if self.policies is not None and (
            not isinstance(self.policies, frozenset) or not all(isinstance(p, Policy) for p in self.policies)
        ):
            raise ConfigurationError(
                f"a proposal's policies ({self.policies!r:.200}) must be a frozenset of nas.Policy"
            )
        fidelity = self.fidelity
        if fidelity is not None and (
            isinstance(fidelity, bool) or not isinstance(fidelity, int | float) or not 0 < fidelity <= 1
        ):
            raise ConfigurationError(f"a proposal's fidelity ({fidelity!r:.200}) must be a number that lies in (0, 1]")

    @property
    def weight_donors(self) -> tuple[Donor, ...]:
        """The donors, or by default the parents."""
        return self.parents if self.donors is None else self.donors

    def to_json(self) -> dict[str, Any]:
        """Returns the proposal as plain data."""
        return {
            "point": self.point,
            "parents": list(self.parents),
            "donors": None if self.donors is None else list(self.donors),
            "policies": None if self.policies is None else sorted(self.policies),
            "fidelity": self.fidelity,
            "derivation": self.derivation,
            "reason": self.reason,
        }


def _check_sources(field: str, sources: object, allowed: str, kinds: tuple[type, ...]) -> None:
    def is_one(source: object) -> bool:
        is_number = isinstance(source, int) and not isinstance(source, bool) and source >= 0
        return isinstance(source, kinds) and (is_number or isinstance(source, str))

    if not isinstance(sources, tuple) or not all(map(is_one, sources)) or len(set(sources)) < len(sources):
        raise ConfigurationError(f"a proposal's {field} ({sources!r:.200}) must be a tuple of {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One training of one point: its proposal and, once it has finished, its result.

    The fields down to ``learned`` are durable before the trial runs; those from ``state`` on are its result's.
    """

    number: int
    """Its id, unique in the search; counts all stages."""
    index: int
    """Its place within its stage, from 0: what a tuner's ``number`` was."""
    proposal: Proposal
    stage: str = "search"
    job: int = 0
    policies: frozenset[Policy] = frozenset()
    seed: int = 0
    generation: int = 0
    """0 for a founder, else one more than the greatest of its parents'."""
    created: float | None = None
    """UTC seconds since 1970, as all times."""
    learned: tuple[int, ...] = ()
    """The trials that the tuner learned of between the proposal before and this one, in order."""

    state: State = State.WAITING
    reason: Reason | None = None
    static_metrics: Mapping[str, float] = field(default_factory=dict)
    """Costs of its point that are known before training: parameters, FLOPs, latency (``Problem.static_metrics``)."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    curve: tuple[tuple[int, Mapping[str, float]], ...] = ()
    """What ``run.report`` said: (step, metrics)."""
    returned: str | None = None
    """What an adapter's trial (NNI) gave as its result, in its own words: any JSON, NaN included, as text."""
    cost: Mapping[str, float] = field(default_factory=dict)
    """What the trial took, by name:

    * ``seconds``, ``gpu_seconds``: of the attempt that counts and of the attempts that it resumed;
    * ``static_metrics_seconds``: for ``static_metrics``, in the last attempt;
    * ``setup_seconds``: until the problem first called ``run.epochs``, when data are loaded and the network is built;
    * ``threads``: torch threads at the start, if it had those of several slots;
    * ``epochs_share``, ``scale_share``: its shares of a full training, by the problem's ``run.epochs``, ``run.scale``.
    """
    checkpoint: Checkpoint | None = None
    """None where it published no weights, or they were swept."""
    weights_deleted: bool = False
    """Whether it published weights that were deleted to make room; as a donor it is like a failed parent."""
    resolved_donor: Donor | None = None
    """The best donor whose weights were there when it started, or the one that stood in for it."""
    donor: Donor | None = None
    """Whose weights went in: the donor that gave most parameters. None: nobody's, or not finished."""
    inherited: float | None = None
    """Share of its parameters that came from donors, 0 to 1; None: ``run.inherit`` was not called."""
    inheritance: Mapping[str, Any] = field(default_factory=dict)
    """What ``run.inherit`` did: counts, the tensors that did not fit and why, and which donor was replaced."""
    attempt: int = 0
    slot: int | None = None
    started: float | None = None
    finished: float | None = None
    error: str | None = None
    """The traceback or message of a failure."""

    @property
    def point(self) -> Point:
        """The point that it trains."""
        return self.proposal.point

    @property
    def parents(self) -> tuple[int, ...]:
        """The trials that its point was derived from."""
        return self.proposal.parents

    @property
    def is_finished(self) -> bool:
        """Whether it is COMPLETE, STOPPED or FAILED."""
        return self.state not in (State.WAITING, State.RUNNING)

    @property
    def met_deadline(self) -> bool:
        """Whether the hours were spent before it had finished."""
        return self.reason == Reason.DEADLINE

    @property
    def duration_s(self) -> float | None:
        """Seconds that its training took, by a clock that never jumps."""
        return self.cost.get("seconds")

    @property
    def taken(self) -> float | None:
        """The share of its parameters that came from donors; None: it had none, or never called ``run.inherit``."""
        return None if self.resolved_donor is None and self.donor is None else self.inherited

    @property
    def resolved_donors(self) -> tuple[Donor, ...]:
        """The donors after replacement: those named by the proposal, or the trials that stood in for them."""
        if Policy.SHARE_PARAMS not in self.policies:
            return ()
        replaced: Mapping[str, Donor | None] = self.inheritance.get("replaced", {})
        donors = (replaced.get(str(donor), donor) for donor in self.proposal.weight_donors)
        return tuple(dict.fromkeys(donor for donor in donors if donor is not None))

    def value(self, metric: str) -> float | None:
        """Returns its metric, or None where it failed, did not report it, or is not finished."""
        if self.state not in (State.COMPLETE, State.STOPPED):
            return None
        value = self.metrics.get(metric)
        return value if value is not None and is_finite(value) else None

    def start(
        self,
        *,
        attempt: int,
        slot: int | None,
        started: float | None = None,
        resolved_donor: Donor | None = None,
        inheritance: Mapping[str, Any] | None = None,
    ) -> Trial:
        """Returns the trial RUNNING in a slot."""
        return replace(
            self, state=State.RUNNING, attempt=attempt, slot=slot, started=started, resolved_donor=resolved_donor,
            inheritance=self.inheritance if inheritance is None else inheritance,
        )  # fmt: skip

    def report(self, step: int, metrics: Mapping[str, float]) -> Trial:
        """Returns the trial with one more point on its curve."""
        return replace(self, curve=(*self.curve, (step, metrics)))

    def complete(self, metrics: Mapping[str, float], checkpoint: Checkpoint | None = None) -> Trial:
        """Returns the trial COMPLETE."""
        return replace(self, state=State.COMPLETE, metrics=metrics, checkpoint=checkpoint)

    def fail(self, reason: Reason, error: str) -> Trial:
        """Returns the trial FAILED."""
        return replace(self, state=State.FAILED, reason=reason, error=error)

    def stop(
        self, reason: Reason, curve: Sequence[tuple[int, Mapping[str, float]]], known: Mapping[str, float] | None = None
    ) -> Trial:
        """Returns the trial STOPPED with its last report, or FAILED if it reported nothing.

        Args:
            reason: STOPPER or DEADLINE.
            curve: Its reports.
            known: Metrics known before training. Reported values replace them.
        """
        if not curve:
            return self.fail(reason, "stopped before its first report")
        _, reported = curve[-1]
        return replace(self, state=State.STOPPED, reason=reason, metrics={**(known or {}), **reported})

    def finish(
        self,
        finished: float,
        *,
        cost: Mapping[str, float] | None = None,
        curve: Sequence[tuple[int, Mapping[str, float]]] | None = None,
    ) -> Trial:
        """Returns the trial with the end of its last attempt; cost and curve stay as they are if None."""
        return replace(
            self,
            finished=finished,
            cost=self.cost if cost is None else cost,
            curve=self.curve if curve is None else tuple(curve),
        )

    def lose(self) -> Trial:
        """Returns the trial WAITING again, as proposed: its attempt was lost."""
        return self._as_proposed(State.WAITING)

    def as_running(self) -> Trial:
        """Returns the trial RUNNING, without reports and result, for readers that must not see them."""
        return self._as_proposed(State.RUNNING)

    def delete_weights(self) -> Trial:
        """Returns the trial after its weights were deleted."""
        return replace(self, checkpoint=None, weights_deleted=True)

    def _as_proposed(self, state: State) -> Trial:
        return Trial(
            number=self.number, index=self.index, proposal=self.proposal, stage=self.stage, job=self.job,
            policies=self.policies, seed=self.seed, generation=self.generation, created=self.created,
            learned=self.learned, state=state,
        )  # fmt: skip

    def proposal_record(self) -> dict[str, Any]:
        """What is durable before it runs, as JSON."""
        return {
            "trial": self.number,
            "index": self.index,
            "stage": self.stage,
            "job": self.job,
            "policies": sorted(self.policies),
            "seed": self.seed,
            "generation": self.generation,
            "created": self.created,
            "learned": list(self.learned),
            "proposal": self.proposal.to_json(),
        }

    def result_record(self) -> dict[str, Any]:
        """Returns its result, as JSON; the commit point."""
        return {
            "trial": self.number,
            "state": self.state,
            "reason": self.reason,
            **({"static_metrics": dict(self.static_metrics)} if self.static_metrics else {}),
            "metrics": dict(self.metrics),
            "curve": [[step, dict(metrics)] for step, metrics in self.curve],
            "cost": dict(self.cost),
            "checkpoint": None if self.checkpoint is None else self.checkpoint.to_json(),
            "resolved_donor": self.resolved_donor,
            "donor": self.donor,
            "inherited": self.inherited,
            "inheritance": dict(self.inheritance),
            "attempt": self.attempt,
            "slot": self.slot,
            "started": self.started,
            "finished": self.finished,
            "error": self.error,
            **({} if self.returned is None else {"returned": self.returned}),
        }


def training_cost(seconds: float, *, on_gpu: bool) -> dict[str, float]:
    """Returns ``Trial.cost`` for a training of so many seconds."""
    return {"seconds": seconds, "gpu_seconds": seconds if on_gpu else 0.0}


@dataclass(frozen=True, slots=True)
class DonorWeights:
    """A donor whose weights are whole: its name and its checkpoint, in this search or another."""

    donor: Donor
    checkpoint: Checkpoint
