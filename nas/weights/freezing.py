"""Inherited tensors that do not learn for the first epochs, so that fresh ones don't spoil them."""

from __future__ import annotations

from torch import nn

from nas.weights.report import InheritanceReport
from nas.weights.rules import Rules


def set_frozen(model: nn.Module, report: InheritanceReport, rules: Rules, epoch: int) -> int:
    """Has the parameters that were copied learn or not, as the rules say for this epoch.

    Call it before each epoch. What is frozen has no gradient, so an optimiser leaves it alone, weight decay included;
    batch-norm statistics still follow the data. What operations changed or made learns, as what is sliced or fresh
    does. Where every parameter was copied, none is frozen. With ``freeze_epochs`` of 0 nothing is touched.

    Args:
        model: The child.
        report: What ``inherit`` did.
        rules: Of which ``freeze_epochs`` counts.
        epoch: From 0.

    Returns:
        How many elements are frozen.
    """
    parameters = dict(model.named_parameters())
    copied = [p for name, p in parameters.items() if name in report.tensors and report.tensors[name].how == "copied"]
    if not rules.freeze_epochs or len(copied) == len(parameters):
        return 0
    is_frozen = epoch < rules.freeze_epochs
    n_frozen = 0
    for parameter in copied:
        parameter.requires_grad_(not is_frozen)
        if is_frozen:
            parameter.grad = None
            n_frozen += parameter.numel()
    return n_frozen
