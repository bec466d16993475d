"""Number formats of forward passes."""

from __future__ import annotations

import pytest
import torch

from nas.training.precision import precision_of


@pytest.mark.parametrize(("name", "dtype"), [("float32", torch.float32), ("bfloat16", torch.bfloat16)])
def test_precision_is_that_of_the_forward_pass(name: str, dtype: torch.dtype) -> None:
    """A product is computed in the given precision."""
    with precision_of(name, "cpu"):
        assert torch.nn.Linear(3, 2)(torch.ones(1, 3)).dtype is dtype
