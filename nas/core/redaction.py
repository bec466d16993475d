"""Passwords in URLs, which no line for a person shows."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(?<=://)([^/:\n]*):([^/\n]*)@")


def without_passwords(text: str) -> str:
    """Returns the text with ``***`` for the password of each URL in it: ``sftp://me:***@host/root``."""
    return _PASSWORD.sub(r"\1:***@", text)


def passwords_of(url: str) -> list[str]:
    """Returns the passwords in a URL: one, or none."""
    return [found[2] for found in _PASSWORD.finditer(url) if found[2]]
