"""Signatures, and the lock of whatever parses Python sources."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

PARSING = threading.RLock()
"""Held while a source is parsed: in two threads at once Python 3.11 may raise SystemError."""


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Returns ``inspect.signature``, which parses text for a class without a constructor.

    Raises:
        TypeError, ValueError: as ``inspect.signature``.
    """
    with PARSING:
        return inspect.signature(function)
