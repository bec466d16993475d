"""Folder, records and machine of a search that runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flows.cli.settings.machine import Machine
from flows.cli.trusted_code import repeated_words
from nas.core.lineage import Lineage
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

    def print_summary(self, pipeline: SearchPipeline, summary: Summary, *, ended_by_tuner: bool) -> None:
        """Prints the search's result on standard output."""
        from flows.views.summary import print_summary

        hours = pipeline.budget.hours
        print_summary(
            summary,
            pipeline.prepared.problem.metrics,
            self.root,
            final=pipeline.prepared.plan.final,
            more=self._repeated_words(pipeline),
            has_options=bool(self.options),
            ended=self._end_by_tuner(pipeline, summary) if ended_by_tuner else None,
            export=pipeline.ranking.export,
            hours=None if hours is None else (spent_hours(self.records), hours),
        )

    def _end_by_tuner(self, pipeline: SearchPipeline, summary: Summary) -> str:
        """Returns the line for a search that its tuner ended."""
        from flows.views.summary import end_by_tuner

        stage = pipeline.prepared.plan.search.name
        searched = Lineage.of([trial for trial in summary.lineage if trial.stage == stage])
        reason = pipeline.prepared.tuner.stop_reason(searched)
        return end_by_tuner(summary.lineage, stage, pipeline.budget.trials, reason)

    def _repeated_words(self, pipeline: SearchPipeline) -> list[str]:
        """Returns what ``flows.final`` needs again, because it trusts no code and no path of a record."""
        search = pipeline.prepared.search
        specs = {"problem": search.problem, "tuner": search.tuner, "stopper": search.stopper}
        return [word for group, spec in specs.items() if spec for word in repeated_words(group, spec)]
