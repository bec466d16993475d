"""The network and its example inputs, from what a problem's ``export`` returned."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nas.core.errors import ConfigurationError
from nas.inheritance.module_state import unwrapped

_RULE = "must return the network and an example batch. Write `return network, (x[:2],)`"


def export_parts(returned: object) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns the network, out of ``torch.compile`` and ``DataParallel``, and its inputs on the CPU.

    The inputs may be a tensor, or a tuple or list of tensors. A batch of one is doubled, since torch would treat its
    size as a constant. The network is left on its device and in its mode.

    Raises:
        ConfigurationError: ``export`` returned something else.
    """
    if not isinstance(returned, tuple | list) or len(returned) != 2 or not isinstance(returned[0], nn.Module):
        raise ConfigurationError(f"export returned {_kind(returned)}: {_RULE}")
    network, given = unwrapped(returned[0]), returned[1]
    if isinstance(network, torch.jit.ScriptModule):
        raise ConfigurationError("export returned a ScriptModule: must return the network that torch.jit was given")
    inputs = (given,) if isinstance(given, Tensor) else given
    if not isinstance(inputs, tuple | list) or not inputs or not all(isinstance(one, Tensor) for one in inputs):
        raise ConfigurationError(f"export returned the network and {_kind(given)}: {_RULE}")
    sizes = [one.shape[0] if one.dim() else 0 for one in inputs]
    if len(set(sizes)) != 1 or 0 in sizes:
        shapes = ", ".join(str(tuple(one.shape)) for one in inputs)
        raise ConfigurationError(
            f"export returned the network and inputs of shapes {shapes}: must have one batch size of at least 1, first"
        )
    tensors = [one.detach().cpu() for one in inputs]
    return network, tuple(torch.cat([one, one]) if len(one) == 1 else one for one in tensors)


def _kind(value: object) -> str:
    """Returns the type of a value, with those of its first items."""
    items = ", ".join(type(item).__name__ for item in value[:4]) if isinstance(value, tuple | list) else ""
    return f"{type(value).__name__}({items})" if items else type(value).__name__
