"""Removal of passwords from URLs in messages."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"(?<=://)([^/:\n]*):([^/\n]*)@")


def without_passwords(text: str) -> str:
    """Returns the text with ``***`` as the password of each URL: ``sftp://me:***@host/root``."""
    return _PASSWORD.sub(r"\1:***@", text)


def passwords_of(url: str) -> list[str]:
    """Returns the password in a URL, if any."""
    return [found[2] for found in _PASSWORD.finditer(url) if found[2]]
