"""Long chains of only children in a tree, each folded to one mark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from nas.core.lineage import Lineage
from nas.core.trial import Trial
from nas.views.page.layout import tree_parents

MIN_CHAIN = 10
"""The shortest chain that is folded, in trials."""
_MARGIN = 2
"""Trials that stay at each end of a chain."""


@dataclass(frozen=True, slots=True)
class FoldedLineage:
    """A lineage whose long chains are one trial each.

    Attributes:
        lineage: The trials that are drawn. The first trial of a fold stands for all of them. It is the parent of the
            trial after the fold.
        folds: The trials of each fold, by the first one.
    """

    lineage: Lineage
    folds: Mapping[int, tuple[int, ...]]


def fold_chains(lineage: Lineage, *, keep: int | None = None) -> FoldedLineage:
    """Returns the lineage with its long chains folded.

    A chain is a line of trials with one parent and one child each. No other trial takes weights of them.

    Args:
        lineage: The trials.
        keep: A trial that is in no fold, such as the winner.
    """
    folds = {chain[_MARGIN]: chain[_MARGIN:-_MARGIN] for chain in _chains(lineage, keep) if len(chain) >= MIN_CHAIN}
    if not folds:
        return FoldedLineage(lineage, {})
    first_of = {number: first for first, numbers in folds.items() for number in numbers}
    hidden = first_of.keys() - folds.keys()
    shown = (_rewired(trial, first_of) for trial in lineage if trial.number not in hidden)
    return FoldedLineage(Lineage.of(shown), folds)


def _chains(lineage: Lineage, keep: int | None) -> list[tuple[int, ...]]:
    """Returns the longest chains, each from its oldest trial on."""
    trials = sorted(lineage, key=lambda trial: trial.number)
    parents = tree_parents(trials)
    relatives: dict[int, set[int]] = {}
    for trial in trials:
        sources = {*trial.parents, *trial.proposal.weight_donors, trial.donor, trial.resolved_donor}
        for source in sources:
            if isinstance(source, int):
                relatives.setdefault(source, set()).add(trial.number)
    inner = {
        trial.number
        for trial in trials
        if trial.number in parents and len(trial.parents) == 1 and len(relatives.get(trial.number, ())) == 1
    } - {keep}
    chains: dict[int, list[int]] = {}
    for trial in trials:
        if trial.number in inner:
            chain = chains.pop(parents[trial.number], [])
            chain.append(trial.number)
            chains[trial.number] = chain
    return [tuple(chain) for chain in chains.values()]


def _rewired(trial: Trial, first_of: Mapping[int, int]) -> Trial:
    """Returns the trial with the fold as its parent, if its parent is in one."""
    parents = tuple(first_of.get(parent, parent) for parent in trial.parents)
    if parents == trial.parents or trial.number in first_of:
        return trial
    donors = trial.donor, trial.resolved_donor
    new_donors = [first_of.get(donor, donor) if isinstance(donor, int) else donor for donor in donors]
    proposal = replace(trial.proposal, parents=parents)
    return replace(trial, proposal=proposal, donor=new_donors[0], resolved_donor=new_donors[1])
