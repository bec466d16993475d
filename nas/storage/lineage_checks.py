"""Checks that the records of all trials make sense together, in one pass over the trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from nas.core.errors import CorruptError
from nas.core.trial import Trial
from nas.core.validation import short_repr


@dataclass(frozen=True, slots=True)
class LineageFault:
    """A record of a trial that no search writes after the records before it."""

    trial: int
    record: Literal["proposal", "result"]
    text: str

    @property
    def path(self) -> str:
        """The path of the record."""
        return f"trials/{self.trial:06d}.{self.record}.json"

    def error(self, folder: str) -> CorruptError:
        """Returns the error of a reader of the folder."""
        return CorruptError(f"{folder}/{self.path} can't be read: {self.text}. Restore it from a backup")


def lineage_faults(trials: Sequence[Trial], stages: Sequence[str] | None) -> Iterator[LineageFault]:
    """Yields the records that contradict those before them.

    Args:
        trials: The trials from number 0 on, without gaps.
        stages: The names in the search's plan, in order; None: they are not known.
    """
    found: dict[str, _Stage] = {}
    for trial in trials:
        text = found.setdefault(trial.stage, _Stage()).add(trial)
        if text := _order(trial) or text or (_place(trial, trials, stages) if stages else ""):
            yield LineageFault(trial.number, "proposal", text)
        if text := _donors(trial, len(trials)):
            yield LineageFault(trial.number, "result", text)


def _order(trial: Trial) -> str:
    """Returns what is wrong with the numbers of trials that a proposal names."""
    if trial.more_epochs is not None and len(trial.parents) != 1:
        return f"more_epochs {trial.more_epochs} must go on with one parent, not {short_repr(trial.parents)}"
    donors = _numbers(trial.proposal.weight_donors)
    retried = [] if trial.retry_of is None else [trial.retry_of]
    if max((*trial.parents, *donors, *trial.learned, *retried), default=-1) < trial.number:
        return ""
    return (
        f"parents {short_repr(trial.parents)}, donors {short_repr(donors)}, learned {short_repr(trial.learned)} "
        f"and retry_of {retried} must be earlier trials"
    )


@dataclass(slots=True)
class _Stage:
    """The proposals of one stage so far."""

    n_proposed: int = 0
    index_of: dict[int, int] = field(default_factory=dict)
    learned: set[int] = field(default_factory=set)

    def add(self, trial: Trial) -> str:
        """Adds a proposal; returns what does not follow from those before it."""
        is_retry = not trial.is_counted
        index = self.n_proposed if trial.retry_of is None else self.index_of.get(trial.retry_of)
        index = trial.index if trial.more_epochs is not None else index  # that of its parent, maybe of another stage
        news = set(trial.learned)
        is_new = len(news) == len(trial.learned) and news <= self.index_of.keys() and news.isdisjoint(self.learned)
        self.n_proposed = self.n_proposed if is_retry else trial.index + 1  # after a fault the others go on from it
        self.index_of[trial.number] = trial.index
        self.learned |= news
        if trial.index == index and is_new and not (is_retry and news):
            return ""
        return (
            f"index {trial.index}, learned {short_repr(trial.learned)} and retry_of {trial.retry_of} must follow from "
            f"the proposals of stage {short_repr(trial.stage)} before it and their results"
        )


def _place(trial: Trial, trials: Sequence[Trial], stages: Sequence[str]) -> str:
    """Returns what is wrong with the stages of a trial and its sources."""
    if trial.stage not in stages:
        return f"stage {short_repr(trial.stage)} must be one of {', '.join(map(short_repr, stages))}"
    place = stages.index(trial.stage)
    before = stages[max(place - 1, 0)]
    sources = (*trial.parents, *_numbers(trial.proposal.weight_donors))
    if trial.more_epochs is not None:
        if trial.stage != stages[-1]:
            return f"a trial of more_epochs must be of stage {short_repr(stages[-1])}"
        before = trials[trial.parents[0]].stage  # of any stage
    if wrong := list(dict.fromkeys(number for number in sources if trials[number].stage != before)):
        allowed = f"must be trials of stage {short_repr(before)}, not {wrong[:5]}"
        return f"parents and donors of stage {short_repr(trial.stage)} {allowed}"
    if place and (len(trial.parents) != 1 or {*trial.proposal.weight_donors} - {*trial.parents}):
        return f"a trial of stage {short_repr(trial.stage)} must have one parent, and no other donor"
    return ""


def _donors(trial: Trial, n_trials: int) -> str:
    """Returns what is wrong if a result names a missing donor or itself."""
    inheritance = trial.inheritance
    named = (trial.resolved_donor, trial.donor, *inheritance.get("replaced", {}).values(), *inheritance.get("lost", ()))
    wrong = [number for number in _numbers(named) if number >= n_trials or number == trial.number]
    return f"its donors {wrong[:5]} must be other trials of the search" if wrong else ""


def _numbers(donors: Sequence[object]) -> list[int]:
    return [donor for donor in donors if isinstance(donor, int)]
