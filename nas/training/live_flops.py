"""Floating-point operations on a path from a network's inputs to its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

_aten = torch.ops.aten
_WITHOUT_VALUES = frozenset(
    {
        *(_aten.zeros_like, _aten.ones_like, _aten.empty_like, _aten.full_like, _aten.rand_like, _aten.randn_like),
        *(_aten.new_zeros, _aten.new_ones, _aten.new_empty, _aten.new_full),
    }
)
"""Operations that read the shape of their input only."""
_NORMS = frozenset({_aten._native_batch_norm_legit_no_training, _aten.native_batch_norm, _aten.native_group_norm})
"""Operations that take torch milliseconds on its meta device. The first output is like the input."""
_RECURRENT = frozenset({_aten.lstm.input, _aten.gru.input, _aten.rnn_tanh.input, _aten.rnn_relu.input})
"""Layers that are counted as a whole. Taken apart, they are several operations a step."""


@dataclass(frozen=True, slots=True)
class _Step:
    """One operation: its FLOPs, and the storages that it reads, writes, and overwrites as a whole."""

    flops: int
    reads: frozenset[int]
    writes: frozenset[int]
    overwrites: frozenset[int]


def count_flops(network: nn.Module, inputs: Sequence[Tensor]) -> tuple[int, int]:
    """Returns the FLOPs of one forward pass, and the live ones of them.

    Live operations lie on a path from the inputs to the outputs. A product with the number 0 ends a path. FLOPs are
    those of torch's counter: matrix products, convolutions and attention; a multiplication and an addition are two.

    Args:
        network: On torch's meta device, in eval mode.
        inputs: On the meta device too.
    """
    recorder = _Recorder()
    is_recurrent = any(isinstance(module, nn.RNNBase) for module in network.modules())
    # Inference mode hands recurrent layers over as one operation, but refuses what some forward passes do.
    with torch.inference_mode() if is_recurrent else torch.no_grad(), recorder:
        outputs = network(*inputs)
    steps = recorder.steps
    live = sum(steps[index].flops for index in _live(steps, recorder.ids(inputs), recorder.ids(outputs)))
    return sum(step.flops for step in steps), live


def _live(steps: Sequence[_Step], inputs: frozenset[int], outputs: frozenset[int]) -> Iterator[int]:
    """Yields the steps that depend on the inputs and on which the outputs depend."""
    reached, from_inputs = set(inputs), set[int]()
    for index, step in enumerate(steps):
        if step.reads & reached:
            reached |= step.writes
            from_inputs.add(index)
        else:
            reached -= step.overwrites
    needed = set(outputs)
    for index in reversed(range(len(steps))):
        if steps[index].writes & needed:
            needed = (needed - steps[index].overwrites) | steps[index].reads
            if index in from_inputs:
                yield index


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records each operation of a forward pass."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[_Step] = []
        self._kept: dict[int, Any] = {}
        """The storages by id: none is freed, so that no id is used twice."""

    def ids(self, values: object) -> frozenset[int]:
        """Returns the ids of the storages of all tensors in nested values."""
        storages = [leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
        self._kept |= {storage._cdata: storage for storage in storages}
        return frozenset(storage._cdata for storage in storages)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        packet = func._overloadpacket
        if packet not in flop_registry and func is not torch.ops.prim.device.default and func not in _RECURRENT:
            with self:
                parts = func.decompose(*args, **options)
            if parts is not NotImplemented:
                return parts
        if packet in _NORMS and not torch.is_grad_enabled():
            out = torch.empty_like(args[0]), args[0].new_empty(0), args[0].new_empty(0)
        else:
            out = func(*args, **options)
        count = _recurrent_flops if func in _RECURRENT else flop_registry.get(packet)
        flops = 0 if count is None else int(count(*args, **options, out_val=out))
        reads = frozenset[int]() if _ignores_values(packet, args) else self.ids((args, options))
        overwrites = self.ids(out) if not reads and _is_whole(out) else frozenset[int]()
        self.steps.append(_Step(flops, reads, self.ids(out), overwrites))
        return out


def _recurrent_flops(inputs: Tensor, _states: Any, parameters: Sequence[Tensor], *_: Any, **_options: Any) -> int:
    """Returns the FLOPs of a recurrent layer: each step multiplies by each weight matrix."""
    n_steps = inputs.numel() // inputs.shape[-1]
    return 2 * n_steps * sum(tensor.numel() for tensor in parameters if tensor.dim() == 2)


def _is_whole(out: object) -> bool:
    """Returns whether a tensor has all elements of its storage."""
    return isinstance(out, Tensor) and out.numel() * out.element_size() == out.untyped_storage().nbytes()


def _ignores_values(packet: Any, args: tuple[Any, ...]) -> bool:
    """Returns whether an operation's result does not depend on the values of its tensors."""
    if packet in _WITHOUT_VALUES:
        return True
    return packet in (_aten.mul, _aten.mul_) and any(not isinstance(arg, Tensor) and arg == 0 for arg in args)
