"""Inherited tensors that do not learn for the first epochs, so that fresh ones don't spoil them."""

from __future__ import annotations

from torch import nn

from nas.inheritance.report import InheritanceReport
from nas.inheritance.rules import Rules

_HELD = "_held_by_rules"
"""The attribute of a model that names the parameters that are frozen for now."""


def set_frozen(model: nn.Module, report: InheritanceReport, rules: Rules, epoch: int) -> int:
    """Has the parameters that were copied learn or not, as the rules say for this epoch.

    Call it before each epoch. What is frozen has no gradient, so an optimizer leaves it alone, weight decay included;
    batch-norm statistics still follow the data. What operations changed or made learns, as what is sliced or fresh
    does. What a user froze stays frozen. Where everything that learns was copied, none is frozen. With
    ``freeze_epochs`` of 0 nothing changes.

    Args:
        model: The child.
        report: What ``inherit`` did.
        rules: Of which ``freeze_epochs`` counts.
        epoch: From 0.

    Returns:
        How many elements are frozen.
    """
    held: frozenset[str] = getattr(model, _HELD, frozenset())
    learning = {name: p for name, p in model.named_parameters() if p.requires_grad or name in held}
    copied = {n: p for n, p in learning.items() if n in report.tensors and report.tensors[n].how == "copied"}
    if len(copied) == len(learning) or epoch >= rules.freeze_epochs:
        copied = {}
    for name, parameter in learning.items():
        parameter.requires_grad_(name not in copied)
        if name in copied:
            parameter.grad = None
    setattr(model, _HELD, frozenset(copied))
    return sum(parameter.numel() for parameter in copied.values())
