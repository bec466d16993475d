"""Folder, records, machine and command line of a search that runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flows.cli.command import Invocation
from flows.cli.settings import Machine
from nas.search.pipeline import SearchPipeline, Summary
from nas.storage.records import Records
from nas.storage.sessions import spent_hours


@dataclass(frozen=True, slots=True)
class SearchContext:
    """Records of a search, the settings that open them in other processes, and the machine."""

    name: str
    root: str
    url: str
    options: dict[str, Any]
    records: Records
    machine: Machine
    invocation: Invocation

    def print_summary(self, pipeline: SearchPipeline, summary: Summary, *, ended_by_tuner: bool) -> None:
        """Prints the search's result on standard output."""
        from flows.views.summary import end_by_tuner, print_summary

        stage, hours = pipeline.prepared.plan.search.name, pipeline.budget.hours
        print_summary(
            summary,
            pipeline.prepared.problem.metrics,
            self.root,
            final=pipeline.prepared.plan.final,
            more=self._repeated_arguments(pipeline),
            has_options=bool(self.options),
            ended=end_by_tuner(summary.lineage, stage, pipeline.budget.trials) if ended_by_tuner else None,
            hours=None if hours is None else (spent_hours(self.records), hours),
        )

    def _repeated_arguments(self, pipeline: SearchPipeline) -> list[str]:
        """Returns arguments that ``flows.final`` needs again, because it trusts no code and path of a record."""
        search = pipeline.prepared.search
        specs = {"problem": search.problem, "tuner": search.tuner, "stopper": search.stopper}
        own = [f"{group}._target_={s.target}" for group, s in specs.items() if s and not s.target.startswith("nas.")]
        arguments, named = search.problem.arguments, self.invocation.named
        data = sorted(key for key in pipeline.prepared.problem.data_arguments if key in arguments)
        return [*own, *(f"problem.{key}={arguments[key]}" for key in data if f"problem.{key}" in named)]
