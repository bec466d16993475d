"""Tensors of a ``state_dict`` that are copies and have to be loaded back."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from nas.inheritance.shape_rules import storage_refusal


def copies_in(state: Mapping[str, object], model: nn.Module) -> set[str]:
    """Returns the names of entries that are copies: writing into them does not change the module."""
    own = {_address(tensor) for tensor in (*model.parameters(), *model.buffers())}
    return {name for name, value in state.items() if not isinstance(value, Tensor) or _address(value) not in own}


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
