"""The network and its example inputs, from what a problem's ``export`` returned."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from nas.core.errors import ConfigurationError
from nas.core.tracebacks import text_of
from nas.storage.tensor_names import unwrapped

ONE_BATCH_SIZE = "export returned a network for one batch size: must accept any. Write x.flatten(1), not fixed sizes"
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


def run_example(network: nn.Module, inputs: tuple[Tensor, ...]) -> object:
    """Returns the output of a network in eval mode for its example batch.

    Raises:
        ConfigurationError: the network does not accept the example, or no other batch size.
    """
    with torch.no_grad():
        try:
            output = network(*inputs)
        except Exception as error:
            raise ConfigurationError(
                f"export returned a network that does not accept its example batch: {reason(error)}"
            ) from error
        try:
            network(*(torch.cat([one, one[:1]]) for one in inputs))
        except Exception as error:
            raise ConfigurationError(ONE_BATCH_SIZE) from error
    return output


def check_export_parts(returned: object) -> None:
    """Checks what ``export`` returned, as far as two forward passes can tell.

    The passes run on a copy, since the network may be in use. A network that can't be copied is not run.

    Raises:
        ConfigurationError: it can't be exported.
    """
    network, inputs = export_parts(returned)
    try:
        copied = copy.deepcopy(network)
    except Exception:  # torch refuses, for example, weights that an old-style weight norm computed
        return
    run_example(copied.cpu().eval(), inputs)


def reason(error: BaseException) -> str:
    """Returns the type and the first line of an error."""
    lines = text_of(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def _kind(value: object) -> str:
    """Returns the type of a value, with those of its first items."""
    items = ", ".join(type(item).__name__ for item in value[:4]) if isinstance(value, tuple | list) else ""
    return f"{type(value).__name__}({items})" if items else type(value).__name__
