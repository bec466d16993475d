"""Options of ``flows.verify``, without a command."""

from __future__ import annotations

import math
from typing import Any

import pytest

from flows.verify import Request
from nas.core.errors import ConfigurationError


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"wait_s": 0}, r"wait_s=0: must be a number of seconds greater than 0"),
        ({"wait_s": math.inf}, r"wait_s=inf: must be a number of seconds greater than 0. Write a finite one"),
        ({"wait_s": "long"}, r"wait_s='long': must be"),
        ({"machines": 3}, r"machines=3: must be 1 or 2"),
        ({"machines": True}, r"machines=True: must be 1 or 2"),
        ({"machines": 2.0}, r"machines=2.0: must be 1 or 2"),
    ],
)
def test_invalid_requests_can_not_be_made(wrong: dict[str, Any], complaint: str) -> None:
    """The class itself refuses a value, so no request is invalid."""
    with pytest.raises(ConfigurationError, match=f"^{complaint}"):
        Request(**{"name": None, "second": None, "machines": 1, "wait_s": 60.0, **wrong})
