"""A search: what is searched, how, and under which name; and its identity, which never changes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from nas.core.errors import ConfigurationError
from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.spec import Spec
from nas.core.trial import OnMissingWeights
from nas.search.initial_tuner import InitialTuner
from nas.search.job_plan import JobPlan
from nas.search.search_init import SearchInit
from nas.stoppers.base import Stopper
from nas.storage.record_format import FORMAT
from nas.storage.record_size import METRICS_BYTES, NUMBER_BYTES, json_size
from nas.training.data_digest import contents
from nas.training.problem import LATENCY, Ability, Problem
from nas.tuners.base import Tuner
from nas.tuners.shared.constrained import ConstrainedTuner, checked_limits

TWO_STAGE = PolicyPlan(
    (
        Stage(
            name="search",
            policies=frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP, Policy.QUICK_EVAL, Policy.DOWNSCALE}),
        ),
        Stage(name="final"),
    )
)
"""Cheap trials, then the finalists in full: the default plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A problem, a tuner, a policy plan, a seed.

    Attributes:
        plan: What the stages ask for; policies that the problem does not declare are left out.
        plan_is_named: The user named the plan, so that an undeclared policy is a mistake.
        constraints: The most that is allowed of what the problem knows of a point before training, by name.
        deterministic: The final table is the same on every run, kills included; ties ``slots`` and ``n_threads``
            (torch threads a worker) to the identity.
        trials_per_job: The most trials of the search stage that one job runs, one after another on a warm worker; None:
            one, or, where the problem loops itself (``train_many``), as many as it asks for.
        init: Points that come before the tuner's, and weights for trials without a donor.
    """

    problem: Spec
    tuner: Spec
    plan: PolicyPlan = TWO_STAGE
    plan_is_named: bool = False
    stopper: Spec | None = None
    seed: int = 0
    on_missing_weights: OnMissingWeights = "ancestor"
    constraints: Mapping[str, float] = field(default_factory=dict)
    deterministic: bool = False
    slots: int = 1
    n_threads: int = 1
    trials_per_job: int | Literal["unlimited"] | None = None
    init: SearchInit = field(default_factory=SearchInit)

    def __post_init__(self) -> None:
        if self.on_missing_weights not in ("ancestor", "scratch", "fail"):
            raise ConfigurationError(
                f"on_missing_weights ({self.on_missing_weights!r}) must be ancestor, scratch or fail"
            )
        if self.slots < 1 or self.n_threads < 1:
            raise ConfigurationError(f"slots ({self.slots}) and n_threads ({self.n_threads}) must be at least 1")

    def build(self) -> PreparedSearch:
        """Returns the problem, tuner, stopper and fitted plan, and the identity that they make.

        Raises:
            ConfigurationError: one can't be built, or does not go with another.
        """
        problem = self.problem.build()
        if not isinstance(problem, Problem):
            raise ConfigurationError(f"problem {self.problem.target} must be a subclass of nas.Problem")
        if not problem.abilities & {Ability.TRAIN, Ability.TRAIN_MANY}:
            raise ConfigurationError(f"problem {self.problem.target} must define `train(run)` or `train_many(job)`")
        jobs = JobPlan.of(self.trials_per_job, loops=Ability.TRAIN_MANY in problem.abilities)
        for attribute in ("metrics", "space"):
            if not getattr(problem, attribute, None):
                raise ConfigurationError(f"problem {self.problem.target} must set `{attribute}`")
        if (size := sum(json_size(m.name) + NUMBER_BYTES for m in problem.metrics)) > METRICS_BYTES:
            raise ConfigurationError(
                f"problem {self.problem.target} declares {len(problem.metrics)} metrics that take {size} bytes of a "
                f"record; the most are {METRICS_BYTES}: declare fewer, or give them shorter names"
            )
        plan, left_out = self.plan.fitted(problem.policies, strict=self.plan_is_named)
        tuner = self.tuner.build(problem.space, problem.metrics, seed=self.seed)
        if not isinstance(tuner, Tuner):
            raise ConfigurationError(f"tuner {self.tuner.target} must be a subclass of nas.Tuner")
        if self.deterministic and any(metric.name == LATENCY for metric in problem.metrics):
            raise ConfigurationError(f"metric {LATENCY} does not go with deterministic=true: measured time decides")
        chosen, data_arguments = tuner.chosen, tuner.data_arguments
        limits = checked_limits(self.constraints)
        if limits:
            tuner = ConstrainedTuner(tuner, problem.static_metrics, limits)
        if self.init.weights is not None and Policy.SHARE_PARAMS not in plan.search.policies:
            why = "declares no SHARE_PARAMS" if Policy.SHARE_PARAMS not in problem.policies else "is to inherit nothing"
            raise ConfigurationError(
                f"init.weights ({self.init.weights}): in the stage {plan.search.name!r}, problem "
                f"{self.problem.target} {why}; leave it out, or choose a policy and a problem that share parameters"
            )
        if self.init.is_given:
            self.init.check_points(tuner)
            tuner = InitialTuner(tuner, self.init)
        stopper = None if self.stopper is None else self.stopper.build(problem.metrics)
        if stopper is not None and not isinstance(stopper, Stopper):
            raise ConfigurationError(f"stopper {cast('Spec', self.stopper).target} must be a subclass of nas.Stopper")
        identity: dict[str, Any] = {
            "problem": self.problem.to_json(without=problem.data_arguments),
            "space": problem.space.to_json(),
            "tuner": self.tuner.to_json(without=data_arguments),
            "policy": plan.to_json(),
            "stopper": None if self.stopper is None else self.stopper.to_json(),
            "seed": self.seed,
            "on_missing_weights": self.on_missing_weights,
            "deterministic": self.deterministic,
        }
        if self.trials_per_job is not None:
            identity |= {"trials_per_job": self.trials_per_job}
        if chosen is not None:
            identity |= {"chosen_tuner": chosen.to_json()}
        if problem.content:
            identity |= {"content": dict(problem.content)}
        if limits:
            identity |= {"constraints": limits}
        if self.init.is_given:
            identity |= {"init": self.init.to_json()}
        if self.deterministic:
            identity |= {"slots": self.slots, "n_threads": self.n_threads}
        try:
            identity = json.loads(json.dumps(identity, allow_nan=False, default=_refuse))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"a problem, tuner or space holds what is no plain JSON data: {error}") from error
        return PreparedSearch(self, problem, tuner, stopper, plan, left_out, jobs, identity)


@dataclass(frozen=True, slots=True)
class PreparedSearch:
    """A search with its parts built in this process."""

    search: Search
    problem: Problem
    tuner: Tuner
    stopper: Stopper | None
    plan: PolicyPlan
    left_out: frozenset[Policy]
    jobs: JobPlan
    identity: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """Eight characters of the identity's digest."""
        text = json.dumps(self.identity, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def default_name(self) -> str:
        """``<problem>-<tuner>-<digest>``, and the problem's label, where it has one."""
        label = re.sub(r"[^A-Za-z0-9_]+", "_", self.problem.label)[:60]
        name = f"{self.search.problem.name}-{self.search.tuner.name}-{self.digest}"
        return f"{name}-{label}" if label else name

    @property
    def search_json(self) -> dict[str, Any]:
        """What ``search.json`` holds: identity, metrics and format; what is said of the problem, and its data."""
        metrics: list[dict[str, Any]] = [{"name": m.name, "direction": m.direction} for m in self.problem.metrics]
        for described, metric in zip(metrics, self.problem.metrics, strict=True):
            if metric.reference is not None:
                described["reference"] = metric.reference
        about = {"about": dict(self.problem.about)} if self.problem.about else {}
        data = {"data": held} if (held := contents(self.problem, self.search.problem.arguments)) else {}
        return {"format": FORMAT, "identity": self.identity, "metrics": metrics, **about, **data}


def _refuse(value: object) -> object:
    raise TypeError(f"{value!r} ({type(value).__name__})")
