"""Proposals of a tuner, and trials: one training of one point."""

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
from nas.core.validation import check_int, check_number, short_repr

Donor = int | str
"""A trial's number, or ``"name:42"`` for a trial of another search under the same root."""
_MAX_SHOWN_METRICS = 4
"""The metrics in the text of a trial."""
MAX_WARNING = 400
"""Letters of a warning that a trial keeps."""


def trial_name(number: int) -> str:
    """Returns the name of a trial in Prefect and in loggers: ``trial-0042``."""
    return f"trial-{number:04d}"


class DonorRule(StrEnum):
    """A rule that chooses the donor when the trial starts.

    It chooses among the finished trials of the search stage that have weights. Local rules choose among those of the
    same slot. Without such a trial, the child starts from scratch, whatever ``on_missing_weights`` is. The rules are
    those of Rafiki's ``ParamsType``; its NONE is ``donors=()``.
    """

    LOCAL_RECENT = "local_recent"
    """The trial that finished last in the slot."""
    LOCAL_BEST = "local_best"
    """The trial with the best score in the slot. On ties the lower number is chosen."""
    GLOBAL_RECENT = "global_recent"
    """The trial that finished last."""
    GLOBAL_BEST = "global_best"
    """The trial with the best score."""


DONOR_RULES: frozenset[Donor] = frozenset(DonorRule)


OnMissingWeights = Literal["ancestor", "scratch", "fail"]
"""Handling of donors without weights: use the nearest ancestor, start from scratch, or fail."""


class State(StrEnum):
    """State of a trial."""

    WAITING = "WAITING"
    """Proposed. A parent or donor is unfinished, or no slot is free."""
    RUNNING = "RUNNING"
    """A worker has it."""
    COMPLETE = "COMPLETE"
    """Trained to its end, with all metrics."""
    STOPPED = "STOPPED"
    """Ended by a stopper or at the deadline. Its metrics are the last reported ones."""
    FAILED = "FAILED"
    """Ended without metrics. `Trial.reason` says why."""


class Reason(StrEnum):
    """Reason of a FAILED or STOPPED trial."""

    EXCEPTION = "exception"
    OUT_OF_MEMORY = "out_of_memory"
    """Its code raised because the machine or a device had no memory left."""
    TIMEOUT = "timeout"
    LOST = "lost"
    """Its workers were lost ``max_attempts`` times."""
    NO_METRIC = "no_metric"
    NOT_FINITE = "not_finite"
    ABANDONED = "abandoned"
    PARENT = "parent"
    """The weights of its donor are missing or corrupt."""
    STOPPER = "stopper"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A tuner's answer: a point, its parents, and the donors of its weights.

    Raises:
        ConfigurationError: a field is invalid. A tuner that proposes it ends the search.
    """

    point: Point
    parents: tuple[int, ...] = ()
    donors: tuple[Donor, ...] | None = None
    """Donors or donor rules, best first. None: the parents; empty: start from scratch."""
    policies: frozenset[Policy] | None = None
    """The policies of the trial. None: those of its stage."""
    fidelity: float | None = None
    """The share of a full training, in (0, 1]. None: the policies decide."""
    derivation: Any = None
    """The operations that produced the point, as JSON."""
    reason: str = ""
    proxies: Mapping[str, float] = field(default_factory=dict)
    """Proxies of the point, if the search computed them before the proposal (``nas.training.proxies``)."""
    relative_duration: int = 1
    """The number of other trials that take about as long as this one.

    A deterministic search proposes as many trials for each other slot before the tuner sees the result. It assumes that
    no proposal of the search names a local donor rule if one has another value than 1.
    """

    def __post_init__(self) -> None:
        _check_sources("parents", self.parents, "numbers of trials from 0, each once", (int,))
        if self.donors is not None:
            sources = ", ".join(DonorRule)
            allowed = f"numbers of trials from 0, 'search:number' for another search's, or {sources}, each once"
            _check_sources("donors", self.donors, allowed, (int, str))
        if self.policies is not None and (
            not isinstance(self.policies, frozenset) or not all(isinstance(p, Policy) for p in self.policies)
        ):
            raise ConfigurationError(f"proposal.policies={self.policies!r:.200}: must be a frozenset of nas.Policy")
        fidelity = self.fidelity
        if fidelity is not None and (
            isinstance(fidelity, bool) or not isinstance(fidelity, int | float) or not 0 < fidelity <= 1
        ):
            raise ConfigurationError(f"proposal.fidelity={fidelity!r:.200}: must be a number in (0, 1]")
        if not isinstance(self.reason, str):
            raise ConfigurationError(f"proposal.reason={short_repr(self.reason)}: must be a text. Write str(...)")
        if not isinstance(self.proxies, Mapping) or not all(isinstance(name, str) for name in self.proxies):
            raise ConfigurationError(f"proposal.proxies={short_repr(self.proxies)}: must be numbers by name")
        for name, value in self.proxies.items():
            check_number(f"proposal.proxies.{name}", value)
        check_int("proposal.relative_duration", self.relative_duration, 1)

    @property
    def weight_donors(self) -> tuple[Donor, ...]:
        """The donors; by default, the parents."""
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
            **({"proxies": dict(self.proxies)} if self.proxies else {}),
            **({} if self.relative_duration == 1 else {"relative_duration": self.relative_duration}),
        }


def _check_sources(field: str, sources: object, allowed: str, kinds: tuple[type, ...]) -> None:
    def is_one(source: object) -> bool:
        is_number = isinstance(source, int) and not isinstance(source, bool) and source >= 0
        return isinstance(source, kinds) and (is_number or isinstance(source, str))

    if not isinstance(sources, tuple) or not all(map(is_one, sources)) or len(set(sources)) < len(sources):
        raise ConfigurationError(f"proposal.{field}={sources!r:.200}: must be a tuple of {allowed}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One training of one point: its proposal and, after it finishes, its result.

    The fields up to ``learned`` are durable before the trial runs. The others are its result.
    """

    number: int
    """The id, unique in the search over all stages."""
    index: int
    """The position in its stage, from 0: the ``number`` that the tuner was asked with."""
    proposal: Proposal
    stage: str = "search"
    job: int = 0
    policies: frozenset[Policy] = frozenset()
    seed: int = 0
    generation: int = 0
    """0 without parents, else 1 more than the greatest generation of the parents."""
    created: float | None = None
    """The time of the proposal. All times are UTC seconds since 1970."""
    learned: tuple[int, ...] = ()
    """Trials whose results the tuner learned since the previous proposal, in order."""
    retry_of: int | None = None
    """The FAILED trial that it repeats, with the same index and seed (``retry=failed``)."""
    more_epochs: int | None = None
    """The epochs for which it goes on training its parent (``flows.final more_epochs=20``); None for other trials."""

    state: State = State.WAITING
    reason: Reason | None = None
    static_metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics known before training: parameters, FLOPs, latency (``Problem.static_metrics``)."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    curve: tuple[tuple[int, Mapping[str, float]], ...] = ()
    """The reports of ``run.report``: (step, metrics)."""
    returned: str | None = None
    """The unchanged result of an NNI trial: the text of any JSON, NaN included.

    That of a stopped one is its last report.
    """
    suggested: tuple[Point, ...] = ()
    """Points of the space that the trial found, best first, for the tuner (``run.suggest_points``)."""
    cost: Mapping[str, float] = field(default_factory=dict)
    """The resources that the trial used, by name:

    * ``seconds``: duration of the last attempt and of the attempts that it resumed
    * ``gpu_seconds``: the same, times the number of GPUs that the trial had
    * ``static_metrics_seconds``: duration of computing ``static_metrics`` in the last attempt
    * ``setup_seconds``: duration before the first call of ``run.epochs``: loading data, building the network
    * ``threads``: torch threads, if the trial had those of several slots
    * ``epochs_share``, ``scale_share``: share of a full training, by ``run.epochs`` and ``run.scale``
    """
    checkpoint: Checkpoint | None = None
    """The published weights, or None if it published none or they were deleted."""
    weights_deleted: bool = False
    """Whether its weights were deleted. As a donor, it then counts as a failed parent."""
    resolved_donor: Donor | None = None
    """The first of ``resolved_donors`` that had weights when the trial started."""
    donor: Donor | None = None
    """The donor of most inherited parameters. None: no donor was used, or unfinished."""
    inherited: float | None = None
    """Share of parameters inherited from donors, 0 to 1. None: ``run.inherit`` was not called."""
    inheritance: Mapping[str, Any] = field(default_factory=dict)
    """The report of ``run.inherit``: counts, tensors not copied and the reasons, replaced donors; also ``warnings``."""
    attempt: int = 0
    slot: int | None = None
    started: float | None = None
    finished: float | None = None
    error: str | None = None
    """The traceback or message of the failure."""
    code: str | None = None
    """Digest of the problem's code that ran it. None: Heirloom's own code, or unknown."""
    outdated: bool = False
    """Whether the problem's code changed later.

    Then it may give weights, but is no finalist and no winner.
    """

    @property
    def point(self) -> Point:
        """The point to train."""
        return self.proposal.point

    @property
    def parents(self) -> tuple[int, ...]:
        """The trials that the point was derived from."""
        return self.proposal.parents

    @property
    def is_counted(self) -> bool:
        """Whether it counts in its stage: no retry, and no training that goes on."""
        return self.retry_of is None and self.more_epochs is None

    @property
    def is_finished(self) -> bool:
        """Whether it is COMPLETE, STOPPED or FAILED."""
        return self.state not in (State.WAITING, State.RUNNING)

    @property
    def reached_deadline(self) -> bool:
        """Whether the time budget was used up before it finished."""
        return self.reason == Reason.DEADLINE

    @property
    def is_shortened(self) -> bool:
        """Whether it completed only a share of a full training."""
        planned = self.proposal.fidelity
        trained_all = planned is None or self.cost.get("epochs_share", planned) >= 1
        return self.state == State.COMPLETE and not trained_all

    def __repr__(self) -> str:
        state = str(self.state) if self.reason is None else f"{self.state} ({self.reason})"
        parts = [f"{self.number} ({self.stage}) {state}"]
        parts += [f"{name} {value:.4g}" for name, value in [*self.metrics.items()][:_MAX_SHOWN_METRICS]]
        parts += [f"parents {', '.join(map(str, self.parents))}"] if self.parents else []
        if self.donor is not None and self.inherited is not None:
            parts.append(f"inherited {self.inherited:.0%} from {self.donor}")
        return f"<Trial {', '.join([*parts, f'point {short_repr(self.point)}'])}>"

    @property
    def duration_s(self) -> float | None:
        """Duration of the training in seconds, by a monotonic clock."""
        return self.cost.get("seconds")

    @property
    def inherited_share(self) -> float | None:
        """``inherited``, or None also for trials without donors."""
        return None if self.resolved_donor is None and self.donor is None else self.inherited

    @property
    def resolved_donors(self) -> tuple[Donor, ...]:
        """The donors of the proposal, or the trials that replaced them."""
        if Policy.SHARE_PARAMS not in self.policies:
            return ()
        replaced: Mapping[str, Donor | None] = self.inheritance.get("replaced", {})
        donors = (replaced.get(str(donor), donor) for donor in self.proposal.weight_donors)
        return tuple(dict.fromkeys(donor for donor in donors if donor is not None))

    def value(self, metric: str) -> float | None:
        """Returns the finite value of a metric, or None, also unless COMPLETE or STOPPED."""
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
        code: str | None = None,
    ) -> Trial:
        """Returns the trial RUNNING in a slot."""
        return replace(
            self, state=State.RUNNING, attempt=attempt, slot=slot, started=started, resolved_donor=resolved_donor,
            inheritance=self.inheritance if inheritance is None else inheritance, code=code,
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

    def warn(self, text: str) -> Trial:
        """Returns the trial with a warning about the problem's code, which the command shows."""
        warnings = [*self.inheritance.get("warnings", ()), text[:MAX_WARNING]]
        return replace(self, inheritance={**self.inheritance, "warnings": warnings})

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
        """Returns the trial with the end time of its attempt.

        Cost and curve are replaced unless they are None.
        """
        return replace(
            self,
            finished=finished,
            cost=self.cost if cost is None else cost,
            curve=self.curve if curve is None else tuple(curve),
        )

    def lose(self) -> Trial:
        """Returns the trial WAITING again, as proposed, after its attempt was lost."""
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
            learned=self.learned, retry_of=self.retry_of, more_epochs=self.more_epochs, state=state,
        )  # fmt: skip

    def proposal_record(self) -> dict[str, Any]:
        """Returns the proposal record: JSON that is durable before the trial runs."""
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
            **({} if self.retry_of is None else {"retry_of": self.retry_of}),
            **({} if self.more_epochs is None else {"more_epochs": self.more_epochs}),
            "proposal": self.proposal.to_json(),
        }

    def result_record(self) -> dict[str, Any]:
        """Returns the result record, as JSON. Writing it commits the trial."""
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
            **({} if self.code is None else {"code": self.code}),
            **({} if self.returned is None else {"returned": self.returned}),
            **({"suggested": list(self.suggested)} if self.suggested else {}),
        }


def training_cost(seconds: float, n_gpus: float) -> dict[str, float]:
    """Returns ``Trial.cost`` for seconds of training on GPUs, or on a share of one."""
    return {"seconds": seconds, "gpu_seconds": seconds * n_gpus}


@dataclass(frozen=True, slots=True)
class DonorWeights:
    """A donor with weights, and its checkpoint in this search or another."""

    donor: Donor
    checkpoint: Checkpoint
