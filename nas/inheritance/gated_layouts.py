"""Known layouts of gated MLPs: one layer gives the gate and the values that it scales."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.parameter import is_lazy

from nas.inheritance.attention_heads import Sizes, width_of

_PAIRS = (
    ("gate_up_proj", "down_proj"),
    ("Wi", "Wo"),
    ("fc1", "fc2"),
    ("w12", "w3"),
    ("weights_in", "weights_out"),
    ("input_linear", "output_linear"),
    ("linear_1", "linear_2"),
)
"""The layer with both halves, and the layer that reads their product."""


def gated_parts(module: nn.Module) -> Iterator[tuple[str, int, list[Sizes]]]:
    """Yields a gated MLP's tensors with two halves, each with their dimension and sizes.

    The names are the module's own. Nothing is yielded for other modules.
    """
    children = dict(module.named_children())
    for both, output in _PAIRS:
        n_hidden = width_of(children.get(output), inputs=True)
        if n_hidden and width_of(children.get(both)) == 2 * n_hidden and isinstance(children[both], nn.Linear):
            halves: list[Sizes] = [(n_hidden,)] * 2
            yield from ((f"{both}.{name}", 0, halves) for name in ("weight", "bias"))
    own = dict(module.named_parameters(recurse=False))
    experts = [own.get(name) for name in _PAIRS[0]]  # (experts, 2 * hidden, width) and (experts, width, hidden)
    if all(tensor is not None and not is_lazy(tensor) and tensor.dim() == 3 for tensor in experts):
        n_hidden = own["down_proj"].shape[2]
        if own["gate_up_proj"].shape[1:] == (2 * n_hidden, own["down_proj"].shape[1]):
            yield "gate_up_proj", 1, [(n_hidden,)] * 2
