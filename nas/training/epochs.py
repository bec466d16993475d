"""Epochs of a training that resumes from an earlier attempt, and the weights that it saves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn

from nas.core.policy import Policy
from nas.inheritance.freezing import set_frozen
from nas.inheritance.optimizer_state import optimizer_tensors
from nas.inheritance.report import InheritanceReport
from nas.inheritance.rules import Rules
from nas.training.trial_run import TrialRun


def resumed_epochs(run: TrialRun, n_epochs: int, *parts: object) -> Iterator[int]:
    """Yields the numbers of the epochs that are left, from 1, and saves resume points.

    None is saved after the last epoch.

    Args:
        run: The trial.
        n_epochs: The number of all epochs.
        parts: All objects with a state, as for ``TrialRun.save_resume_point``. An earlier attempt's state is loaded.
    """
    if (resumed := run.resumed_from()) is not None:
        resumed.load(*parts)
    for epoch in range(1 if resumed is None else resumed.step + 1, n_epochs + 1):
        yield epoch
        if epoch < n_epochs:
            run.save_resume_point(epoch, *parts)


def begin_epoch(network: nn.Module, report: InheritanceReport | None, rules: Rules, epoch: int) -> None:
    """Sets a network to train in an epoch, counted from 1.

    The rules may freeze what it inherited.
    """
    network.train()
    if report is not None:
        set_frozen(network, report, rules, epoch - 1)


def warm_up(rules: Rules, report: InheritanceReport | None, step: int) -> float:
    """Returns the rules' factor on the learning rate at a step; 1 if nothing was inherited."""
    return rules.warm_up(step) if report is not None and report.share > 0 else 1.0


def save_for_children(run: TrialRun, network: nn.Module, optimizer: torch.optim.Optimizer, rules: Rules) -> None:
    """Saves the weights, with the optimizer state if children inherit it."""
    state = optimizer_tensors(optimizer, network) if rules.optimizer == "inherit" else {}
    run.note_heads(network)
    run.save({**network.state_dict(), **state})


def inherit_or_resume(
    run: TrialRun, network: nn.Module, optimizer: torch.optim.Optimizer, rules: Rules, *, only_copies: bool = False
) -> InheritanceReport | None:
    """Lets a network inherit under SHARE_PARAMS, and returns the report; None: it inherited nothing.

    A resumed training has inherited already: the report is that of the earlier attempt. The optimizer inherits its
    state, too, if the rules say so; with ``only_copies`` only if all weights are copies.

    Rules that change the donor's weights are for children. A trial under SKIP_TRAIN, or one that goes on training its
    parent, has them as they are.
    """
    if (resumed := run.resumed_from()) is not None:
        return resumed.inheritance
    if Policy.SHARE_PARAMS not in run.policies:
        return None
    if Policy.SKIP_TRAIN in run.policies or run.more_epochs is not None:
        rules = replace(rules, shrink=1.0, perturb=0.0, statistics="inherit")
    report = run.inherit(network, rules=rules)
    is_copy = all(tensor.how == "copied" for tensor in report.tensors.values())
    if rules.optimizer == "inherit" and (is_copy or not only_copies):
        run.inherit_optimizer(optimizer, network)
    return report
