"""The state of a module: lazy layers, and a ``state_dict`` of copies."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from nas.inheritance.shape_rules import storage_refusal


def copies_in(state: Mapping[str, object], model: nn.Module) -> set[str]:
    """Returns the names of entries that are copies: writing into them does not change the module."""
    own = {_address(tensor) for tensor in (*model.parameters(), *model.buffers())}
    return {name for name, value in state.items() if not isinstance(value, Tensor) or _address(value) not in own}


def lazy_layers(model: nn.Module) -> list[str]:
    """Returns the names of the lazy layers that have no sizes yet."""
    return [
        name or "(the network)"
        for name, module in model.named_modules()
        if any(map(is_lazy, (*module._parameters.values(), *module._buffers.values())))  # faster than their generators
    ]


def size_lazy_layers(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Gives lazy layers their sizes by one forward pass in eval mode.

    Other layers stay as they are.

    Raises:
        Exception: the network does not accept the inputs.
    """
    device = next((tensor.device for tensor in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            model(*(tensor.to(device) for tensor in inputs))
    finally:
        for module, mode in modes.items():
            module.training = mode


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Loads a ``state_dict`` with exactly the names of the module.

    Lazy layers get the sizes of the tensors.
    """
    model.load_state_dict(tensors)
    for module in model.modules():
        if isinstance(module, _NormBase) and module.num_features == 0 and (sized := [*module.parameters()]):
            module.num_features = len(sized[0])  # torch forgets it, and a lazy instance norm then refuses its input


def load_refusal(state: Mapping[str, object], model: nn.Module) -> str | None:
    """Returns why the module can't load its own state, or None."""
    try:
        model.load_state_dict(state)
    except Exception as error:  # a user's hooks may raise anything
        reason = " ".join(str(error).split())
        return f"state_dict gives copies, and load_state_dict does not take them: {reason}"
    return None


def _address(tensor: Tensor) -> int:
    """Returns the address of its memory; 0 without data, or if the memory has several parts."""
    return 0 if storage_refusal(tensor) is not None else tensor.untyped_storage().data_ptr()
