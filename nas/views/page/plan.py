"""The policy plan and the budget: what is allowed and what is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from nas.core.lineage import Lineage
from nas.core.ranking import stage_competitors
from nas.core.trial import Trial
from nas.views.formatting import number, states_text

if TYPE_CHECKING:
    from nas.views.snapshot import Snapshot


class StageRow(NamedTuple):
    """A stage: its policies, and what its trials did."""

    name: str
    policies: str
    states: str
    share: str
    seconds: float
    best: str


class BudgetRow(NamedTuple):
    """A limit and what is used of it; ``limit`` is None without one."""

    name: str
    used: float
    limit: float | None

    @property
    def share(self) -> float | None:
        """The used share, at most 1, or None without a limit."""
        return None if self.limit is None else min(1.0, self.used / self.limit)


@dataclass(frozen=True, slots=True)
class Plan:
    """Stages in order, and the rows of the budget."""

    stages: tuple[StageRow, ...]
    budget: tuple[BudgetRow, ...]


def policy_plan(snapshot: Snapshot) -> Plan:
    """Returns the plan of a search, by its identity, and its budget, by the newest session."""
    by_stage: dict[str, list[Trial]] = {}
    for trial in snapshot.lineage:
        by_stage.setdefault(trial.stage, []).append(trial)
    stages = snapshot.identity.get("policy") or ()
    rows = tuple(_stage(snapshot, stage, by_stage.get(str(stage.get("name")), [])) for stage in stages)
    return Plan(rows, tuple(_budget(snapshot, by_stage.get(snapshot.stages[0], []) if snapshot.stages else [])))


def _stage(snapshot: Snapshot, stage: Mapping[str, Any], trials: list[Trial]) -> StageRow:
    in_full = "none" if any(trial.is_shortened for trial in trials) else "none: trained in full"
    policies = " + ".join(map(str, stage.get("policies") or ())) or in_full
    name, metric = str(stage.get("name")), snapshot.metric
    competing = stage_competitors(snapshot.lineage, name, metric)
    best = max(competing, key=lambda trial: metric.rank(trial.metrics[metric.name]), default=None)
    return StageRow(
        name,
        f"{policies}, from the weights of the search" if stage.get("warm") else policies,
        states_text(Lineage.of(trials)) if trials else "no trial yet",
        _share(trials),
        sum(trial.duration_s or 0.0 for trial in trials),
        "" if best is None else f"{number(best.metrics[metric.name])} (trial {best.number})",
    )


def _share(trials: list[Trial]) -> str:
    """Returns the mean shares of epochs and size of these trials, if they are known."""
    texts = []
    for name, said in (("epochs_share", "epochs"), ("scale_share", "size")):
        values = [trial.cost[name] for trial in trials if name in trial.cost]
        texts += [f"{fmean(values):.0%} of {said}"] if values else []
    return ", ".join(texts)


def _budget(snapshot: Snapshot, searched: list[Trial]) -> Iterator[BudgetRow]:
    """Yields trials, hours, GPU-hours and jobs; those that are neither limited nor used are left out."""
    budget = {} if snapshot.session is None else snapshot.session.budget
    gpu_hours = sum(trial.cost.get("gpu_seconds", 0.0) for trial in snapshot.lineage) / 3600
    counted = [trial for trial in searched if trial.is_counted]
    used = {
        "trials": float(len(counted)),
        "hours": snapshot.hours,
        "gpu_hours": gpu_hours,
        "jobs": float(len({trial.job for trial in counted})),
    }
    for name, value in used.items():
        limit = budget.get(name)
        if limit is not None or (value and name != "jobs"):
            yield BudgetRow(name.replace("gpu_hours", "GPU-hours"), value, limit)
