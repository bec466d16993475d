"""Epochs of a training that resumes from an earlier attempt, and the weights that it saves."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from nas.core.policy import Policy
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


def save_for_children(run: TrialRun, network: nn.Module, optimizer: torch.optim.Optimizer, rules: Rules) -> None:
    """Saves the weights, with the optimizer state if children inherit it."""
    state = optimizer_tensors(optimizer, network) if rules.optimizer == "inherit" else {}
    run.note_heads(network)
    run.save({**network.state_dict(), **state})


def inherit_or_resume(
    run: TrialRun, network: nn.Module, optimizer: torch.optim.Optimizer, rules: Rules
) -> InheritanceReport | None:
    """Lets a network inherit under SHARE_PARAMS, and returns the report; None: it inherited nothing.

    A resumed training has inherited already: the report is that of the earlier attempt. The optimizer inherits its
    state, too, if the rules say so.
    """
    if (resumed := run.resumed_from()) is not None:
        return resumed.inheritance
    if Policy.SHARE_PARAMS not in run.policies:
        return None
    report = run.inherit(network, rules=rules)
    if rules.optimizer == "inherit":
        run.inherit_optimizer(optimizer, network)
    return report
