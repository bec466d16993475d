"""The definition of a search, its parts and its identity, which never changes."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.redaction import without_passwords
from nas.core.spec import LoadedSpec, Spec, spec_of
from nas.core.trial import OnMissingWeights
from nas.core.validation import check_bool, check_choice, check_int, short_repr
from nas.search.initial_tuner import InitialTuner
from nas.search.job_plan import JobPlan
from nas.search.search_init import SearchInit
from nas.spaces.space import Space
from nas.stoppers.base import Stopper
from nas.storage.record_format import FORMAT
from nas.storage.record_size import METRICS_BYTES, NUMBER_BYTES, json_size
from nas.training.code_digests import code_digests
from nas.training.data_digest import NO_FILE, contents
from nas.training.problem import LATENCY, Ability, Problem
from nas.training.proxy_scores import ProxyScores
from nas.tuners.base import Tuner
from nas.tuners.shared.constrained import ConstrainedTuner, checked_limits

_INJECTED = frozenset({"space", "metrics", "seed"})
"""Arguments of a tuner that the search gives."""
TWO_STAGE = PolicyPlan(
    (
        Stage(
            name="search",
            policies=frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP, Policy.QUICK_EVAL, Policy.DOWNSCALE}),
        ),
        Stage(name="final"),
    )
)
"""The default plan: cheap trials, then full training of the finalists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """The user's definition of a search.

    Attributes:
        problem: A spec. A class, an instance or a dotted path becomes one.
        tuner: The same.
        stopper: A spec. A class or a dotted path becomes one. None: no trial stops early.
        plan: The stages with their policies. Policies that the problem does not declare are left out.
        plan_is_named: Whether the user named a plan of their own. Then a policy that the problem does not declare is an
            error.
        seed: Of the tuner, and of each trial by its stage and number.
        on_missing_weights: What a trial whose donor has no weights gets: ``ancestor`` (the nearest with weights),
            ``scratch`` or ``fail``.
        constraints: Upper limits of static metrics, by name.
        deterministic: Whether the final table is the same on every run, kills included. Then ``slots`` and
            ``n_threads`` belong to the identity.
        slots: The number of trials at a time.
        n_threads: The torch threads of each trial.
        trials_per_job: The most trials of the search stage that one job runs one after another on a warm worker. None:
            one, or as many as the job requests if the problem loops itself (``train_many``).
        init: Points that come before the tuner's, and weights for trials without a donor:
            ``nas.search.search_init.SearchInit(points=({"width": 16},))``.

    Raises:
        ConfigurationError: an attribute has a value that is not allowed.
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
        object.__setattr__(self, "problem", spec_of("problem", self.problem, Problem))
        object.__setattr__(self, "tuner", spec_of("tuner", self.tuner, Tuner, injected=_INJECTED))
        if self.stopper is not None:
            object.__setattr__(self, "stopper", spec_of("stopper", self.stopper, Stopper))
        self._check_type("plan", PolicyPlan, 'PolicyPlan.from_stages([{"name": "search"}])')
        self._check_type("init", SearchInit, 'SearchInit(points=({"width": 16},))')
        check_choice("on_missing_weights", self.on_missing_weights, get_args(OnMissingWeights))
        check_int("seed", self.seed)
        check_bool("deterministic", self.deterministic)
        check_int("slots", self.slots, 1)
        check_int("n_threads", self.n_threads, 1)

    def _check_type(self, name: str, kind: type, example: str) -> None:
        if not isinstance(value := getattr(self, name), kind):
            path = f"{kind.__module__}.{kind.__name__}"
            raise ConfigurationError(f"{name}={short_repr(value)}: must be a {path}. Write {name}={example}")

    def check_budget(self, budget: Budget) -> None:
        """Checks that a budget fits a deterministic search.

        Raises:
            ConfigurationError: measured time, or the jobs of other slots, would decide.
        """
        for name in ("hours", "gpu_hours", "jobs") if self.deterministic else ():
            if getattr(budget, name) is not None:
                why = "each slot has its own jobs" if name == "jobs" else "measured time decides"
                raise ConfigurationError(
                    f"budget.{name} does not go with deterministic=true: {why}. "
                    f"Set budget.trials and budget.{name}=null."
                )

    def build(self, *, is_loop: bool = False) -> PreparedSearch:
        """Returns the search with its parts built, and its identity.

        Args:
            is_loop: Whether code outside the problem trains the trials, so that the problem needs no ``train``.

        Raises:
            ConfigurationError: a part can't be built, or does not fit another.
        """
        problem = self.build_problem(trains=not is_loop)
        jobs = JobPlan.of(self.trials_per_job, loops=is_loop or Ability.TRAIN_MANY in problem.abilities)
        plan, left_out = self.plan.fitted(problem.policies, strict=self.plan_is_named)
        scores = ProxyScores(problem.proxies, seed=self.seed)
        own_tuner = self._build_tuner(problem, scores)
        tuner, limits = own_tuner, checked_limits(self.constraints)
        if limits:
            tuner = ConstrainedTuner(tuner, partial(_static_metrics, problem), limits, scores)
        if scores.is_used and jobs.requests_trials:
            raise ConfigurationError(
                "job.trials_per_job: must be 1 for proxies that workers compute, since jobs keep the workers. "
                "Leave it out, or choose structural proxies such as live_flops"
            )
        self._check_init_weights(problem, plan)
        if self.init.is_given:
            self.init.check_points(tuner)
            tuner = InitialTuner(tuner, self.init)
        stopper = self._build_stopper(problem)
        identity = self._identity(problem, own_tuner, plan, limits)
        code = {"problem": code_digests(self.problem, problem), "tuner": code_digests(self.tuner, own_tuner)}
        if self.stopper is not None:
            code["stopper"] = code_digests(self.stopper, stopper)
        return PreparedSearch(self, problem, tuner, stopper, plan, left_out, jobs, identity, code, scores)

    def build_problem(self, *, trains: bool = True) -> Problem:
        """Returns the problem, built and checked.

        Args:
            trains: Whether it must have ``train`` or ``train_many``.

        Raises:
            ConfigurationError: it can't be built, or lacks what a search needs.
        """
        problem, target = self.problem.build(), self.problem.target
        if not isinstance(problem, Problem):
            raise ConfigurationError(f"problem {target} must be a subclass of nas.Problem")
        if trains and not problem.abilities & {Ability.TRAIN, Ability.TRAIN_MANY}:
            raise ConfigurationError(f"problem {target} must define `train(run)` or `train_many(job)`")
        _check_declared(problem, target)
        size = sum(json_size(metric.name) + NUMBER_BYTES for metric in problem.metrics)
        if size > METRICS_BYTES:
            raise ConfigurationError(
                f"problem {target} declares {len(problem.metrics)} metrics that take {size} bytes of a record; "
                f"the limit is {METRICS_BYTES}. Declare fewer, or give them shorter names"
            )
        if self.deterministic and any(metric.name == LATENCY for metric in problem.metrics):
            raise ConfigurationError(f"metric {LATENCY} does not go with deterministic=true: measured time varies")
        return problem

    def _build_tuner(self, problem: Problem, scores: ProxyScores) -> Tuner:
        tuner = self.tuner.build(problem.space, problem.metrics, seed=self.seed)
        if not isinstance(tuner, Tuner):
            raise ConfigurationError(f"tuner {self.tuner.target} must be a subclass of nas.Tuner")
        if self.deterministic and tuner.uses_durations:
            raise ConfigurationError(
                f"deterministic=true: must be false with tuner {self.tuner.name}, whose proposals depend on measured "
                "time. Leave it out, or choose another tuner"
            )
        if isinstance(self.tuner, LoadedSpec) and self.tuner.is_instance:
            self._check_tuner(tuner, problem)
        tuner.use_proxies(scores)
        tuner.use_static_metrics(partial(_static_metrics, problem))
        tuner.use_policies(problem.policies)
        return tuner

    def _check_tuner(self, tuner: Tuner, problem: Problem) -> None:
        """Checks that a tuner that was given as an instance belongs to this search."""
        if tuner.seed != self.seed:
            raise ConfigurationError(
                f"seed={self.seed}: must be that of the tuner, {tuner.seed}. Pass the tuner's class"
            )
        if tuner.space is not problem.space and tuner.space.to_json() != problem.space.to_json():
            raise ConfigurationError(
                f"tuner={type(tuner).__name__}(...): must have the problem's space. Pass the tuner's class"
            )

    def _build_stopper(self, problem: Problem) -> Stopper | None:
        if self.stopper is None:
            return None
        stopper = self.stopper.build(problem.metrics)
        if not isinstance(stopper, Stopper):
            raise ConfigurationError(f"stopper {self.stopper.target} must be a subclass of nas.Stopper")
        return stopper

    def _check_init_weights(self, problem: Problem, plan: PolicyPlan) -> None:
        if self.init.weights is None or Policy.SHARE_PARAMS in plan.search.policies:
            return
        is_declared = Policy.SHARE_PARAMS in problem.policies
        why = "does not inherit weights by its plan" if is_declared else "does not declare SHARE_PARAMS"
        raise ConfigurationError(
            f"init.weights ({self.init.weights}): problem {self.problem.target} {why} in stage {plan.search.name!r}. "
            "Leave it out, or choose a policy and a problem that share parameters"
        )

    def _identity(
        self, problem: Problem, tuner: Tuner, plan: PolicyPlan, limits: Mapping[str, float]
    ) -> dict[str, Any]:
        identity: dict[str, Any] = {
            "problem": self.problem.to_json(without=problem.data_arguments | problem.speed_arguments),
            "space": problem.space.to_json(),
            "tuner": self.tuner.to_json(without=tuner.data_arguments),
            "policy": plan.to_json(),
            "stopper": None if self.stopper is None else self.stopper.to_json(),
            "seed": self.seed,
            "on_missing_weights": self.on_missing_weights,
            "deterministic": self.deterministic,
        }
        if self.trials_per_job is not None:
            identity |= {"trials_per_job": self.trials_per_job}
        if tuner.chosen is not None:
            identity |= {"chosen_tuner": tuner.chosen.to_json()}
        if limits:
            identity |= {"constraints": limits}
        if self.init.is_given:
            identity |= {"init": self.init.to_json()}
        if self.deterministic:
            identity |= {"slots": self.slots, "n_threads": self.n_threads}
        if (place := _not_finite(identity)) is not None:
            raise ConfigurationError(f"{place}: must be a finite number")
        try:
            plain: dict[str, Any] = json.loads(json.dumps(identity, allow_nan=False, default=_refuse))
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"problem, tuner and space must consist of plain JSON data: {error}. Name arguments that are "
                "data in `data_arguments` of the problem"
            ) from error
        return plain


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
    code: Mapping[str, Mapping[str, str]]
    """Digests of the code of problem, tuner and stopper, by file (``nas.search.session_code``)."""
    scores: ProxyScores = field(default_factory=ProxyScores)
    """The proxies that workers compute for the tuner."""

    def check_budget(self, budget: Budget) -> None:
        """Checks that trials that can win fit the budget.

        Raises:
            ConfigurationError: the tuner needs more trials.
        """
        if budget.trials is not None:
            self.tuner.check_trials(budget.trials)

    @property
    def digest(self) -> str:
        """The first eight characters of a digest of identity, metrics and data, for the default name."""
        record, arguments = self.search_json, self.search.problem.arguments
        data = {name: digest for name, digest in record.get("data", {}).items() if digest != NO_FILE}
        given = (arguments.get(name) for name in sorted(self.problem.data_files - data.keys()))
        elsewhere = [without_passwords(str(value)) for value in given if value is not None]  # folders and URLs
        text = json.dumps([compared(record), data or None, elsewhere], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def default_name(self) -> str:
        """``<problem>-<tuner>-<digest>``, followed by the problem's label, if any."""
        label = re.sub(r"[^A-Za-z0-9_]+", "_", self.problem.label)[:60]
        name = f"{self.search.problem.name}-{self.search.tuner.name}-{self.digest}"
        return f"{name}-{label}" if label else name

    @property
    def search_json(self) -> dict[str, Any]:
        """The content of ``search.json``."""
        metrics: list[dict[str, Any]] = [{"name": m.name, "direction": m.direction} for m in self.problem.metrics]
        for described, metric in zip(metrics, self.problem.metrics, strict=True):
            if metric.reference is not None:
                described["reference"] = metric.reference
        about = {"about": dict(self.problem.about)} if self.problem.about else {}
        problem = self.problem
        digests = contents(problem.data_files, self.search.problem.arguments, problem.optional_data_files)
        data = {"data": digests} if digests else {}
        return {"format": FORMAT, "identity": self.identity, "metrics": metrics, **about, **data}


def _not_finite(value: object, path: str = "") -> str | None:
    """Returns the place of a number that is not finite, such as ``problem.rate=nan``, or None."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{path.replace('.arguments.', '.')}={value}"
    parts: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    found = (_not_finite(part, f"{path}.{key}".lstrip(".")) for key, part in parts)
    return next((place for place in found if place is not None), None)


def read_retry(retry: object, *, deterministic: bool) -> bool:
    """Returns whether FAILED trials run again (the option ``retry``).

    Raises:
        ConfigurationError: the value is invalid, or the search is deterministic.
    """
    if retry not in (None, "failed"):
        raise ConfigurationError(f"retry={retry!r}: must be failed, to run FAILED trials again")
    if retry is not None and deterministic:
        raise ConfigurationError("retry=failed: must not be given with deterministic=true. Start another search")
    return retry is not None


def check_random_state(runner: str, slots: int, *, deterministic: bool) -> None:
    """Checks that the slots of a deterministic search do not share torch's random state.

    Raises:
        ConfigurationError: they are threads of one process.
    """
    if deterministic and runner == "threads" and slots > 1:
        raise ConfigurationError(
            f"deterministic=true with runner=threads needs slots=1, not {slots}: threads share torch's random state. "
            "Choose runner=processes"
        )


def read_code(code: object) -> bool:
    """Returns whether a search goes on although code has changed (the option ``code``).

    Raises:
        ConfigurationError: the value is invalid.
    """
    if code not in (None, "changed"):
        raise ConfigurationError(f"code={code!r}: must be changed, to go on with other code")
    return code is not None


def compared(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the parts of ``search.json`` that every session of a search has in common.

    Old records also have ``content``, which is left out.
    """
    metrics = [f"{metric['name']} ({metric['direction']})" for metric in record["metrics"]]
    identity = {key: value for key, value in record["identity"].items() if key != "content"}
    return {**identity, "metrics": ", ".join(metrics)}


_REPORT_PARAMETERS = frozenset({"self", "step"})
"""``run.report`` takes metrics as keywords."""


def _check_declared(problem: Problem, target: str) -> None:
    """Checks the types of ``metrics``, ``space`` and ``policies``.

    Raises:
        ConfigurationError: one is missing or of another type.
    """
    for attribute in ("metrics", "space"):
        if not getattr(problem, attribute, None):
            raise ConfigurationError(f"problem {target} must set `{attribute}`")
    metrics: object = problem.metrics
    if not isinstance(metrics, tuple | list) or not all(isinstance(metric, Metric) for metric in metrics):
        raise ConfigurationError(
            f"problem {target}: metrics={short_repr(metrics)}: must be a tuple of nas.Metric. "
            'Write metrics = (Metric("accuracy"),)'
        )
    names = [metric.name for metric in metrics]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ConfigurationError(
            f"problem {target}: metrics: must have different names, but {twice[0]} is there twice. Choose another name"
        )
    if taken := _REPORT_PARAMETERS & {*names}:
        raise ConfigurationError(
            f"problem {target}: metrics: must have no name of a parameter of run.report ({', '.join(sorted(taken))}). "
            "Choose another name"
        )
    if not isinstance(problem.space, Space):
        raise ConfigurationError(
            f"problem {target}: space={short_repr(problem.space)}: must be a nas.Space. "
            'Write space = ParameterSpace({"width": Int(8, 64)})'
        )
    label: object = problem.label
    if not isinstance(label, str):
        raise ConfigurationError(f"problem {target}: label={short_repr(label)}: must be text")
    policies: object = problem.policies
    if not isinstance(policies, set | frozenset) or not policies <= {*Policy}:
        raise ConfigurationError(
            f"problem {target}: policies={short_repr(policies)}: must be a set of nas.Policy. "
            "Write policies = frozenset({Policy.SHARE_PARAMS})"
        )


def _static_metrics(problem: Problem, point: Point) -> Mapping[str, float]:
    """Returns the static metrics of a copy of the point, which the problem's code may change."""
    return problem.static_metrics(copy.deepcopy(point))


def _refuse(value: object) -> object:
    raise TypeError(f"{value!r} ({type(value).__name__})")
