"""Freezes inherited tensors for the first epochs, so that new ones do not spoil them."""

from __future__ import annotations

from torch import nn

from nas.inheritance.report import InheritanceReport
from nas.inheritance.rules import Rules
from nas.storage.tensor_names import unwrapped

_FROZEN = "_frozen_by_rules"
"""The attribute of a model that holds the names of the parameters that are frozen now."""


def set_frozen(model: nn.Module, report: InheritanceReport, rules: Rules, epoch: int) -> int:
    """Freezes or unfreezes the copied parameters for an epoch, by the rules.

    Call it before each epoch. Frozen parameters have no gradient, so optimizers skip them, weight decay included.
    Batch-norm statistics still follow the data. Morphed, inserted, sliced and new tensors always learn. Parameters that
    the user froze stay frozen. If all parameters that learn were copied, none is frozen.

    Args:
        model: The child.
        report: The report of ``inherit``.
        rules: The rules; ``freeze_epochs`` is used.
        epoch: The epoch, from 0.

    Returns:
        The number of frozen elements.
    """
    model = unwrapped(model)
    frozen: frozenset[str] = getattr(model, _FROZEN, frozenset())
    learning = {name: p for name, p in model.named_parameters() if p.requires_grad or name in frozen}
    copied = {n: p for n, p in learning.items() if n in report.tensors and report.tensors[n].how == "copied"}
    if len(copied) == len(learning) or epoch >= rules.freeze_epochs:
        copied = {}
    for name, parameter in learning.items():
        parameter.requires_grad_(name not in copied)
        if name in copied:
            parameter.grad = None
    setattr(model, _FROZEN, frozenset(copied))
    return sum(parameter.numel() for parameter in copied.values())
