"""A module's state: its own memory, or copies that its ``state_dict`` makes, which have to be loaded."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from nas.inheritance.shape_rules import storage_refusal


def copies_in(state: Mapping[str, object], model: nn.Module) -> set[str]:
    """Returns the names of what is not the module's own memory: writing into it does not reach the module."""
    own = {_address(tensor) for tensor in (*model.parameters(), *model.buffers())}
    return {name for name, value in state.items() if not isinstance(value, Tensor) or _address(value) not in own}


def load_refusal(state: Mapping[str, object], model: nn.Module) -> str | None:
    """Why the module can't load its own state, or None: it can."""
    try:
        model.load_state_dict(state)
    except Exception as error:  # hooks of a user's: whatever they raise, nothing can be written
        reason = " ".join(str(error).split())
        return f"state_dict gives copies, and load_state_dict does not take them: {reason}"
    return None


def _address(tensor: Tensor) -> int:
    """Where its memory begins; 0 for one that has none, or several parts."""
    return 0 if storage_refusal(tensor) is not None else tensor.untyped_storage().data_ptr()
