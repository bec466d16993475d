"""Python's, numpy's and torch's global random generators, on every device in use."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int) -> None:
    """Seeds python's, numpy's and torch's global generators."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    if torch.cuda.is_available() or torch.backends.mps.is_available():
        torch.manual_seed(seed)
    else:  # seeds the only generator; manual_seed would also format the stack for later devices (0.8 ms)
        torch.default_generator.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """Returns the state of the global generators, as plain data and tensors."""
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # otherwise its generators are unused
        state["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Restores a state that ``random_state`` returned. Devices that no longer exist are skipped."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available():
        for index, generator in enumerate(state.get("cuda", [])[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(generator, index)
    if torch.backends.mps.is_available() and "mps" in state:
        torch.mps.set_rng_state(state["mps"])


@contextmanager
def kept_torch_state() -> Iterator[None]:
    """Restores the random generators and the number of torch threads, which trials in this process set."""
    state, n_threads = random_state(), torch.get_num_threads()
    try:
        yield
    finally:
        set_random_state(state)
        torch.set_num_threads(n_threads)
