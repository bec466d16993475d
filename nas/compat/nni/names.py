"""The ids that the code of an experiment is told: the same in every session."""

from __future__ import annotations

import hashlib

_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def experiment_id(search: str) -> str:
    """Eight letters and digits, for a search of this name."""
    return _short(search, 8)


def job_id(search: str, job: int) -> str:
    """Five letters and digits, for a job of the search."""
    return _short(f"{search}/{job}", 5)


def is_job_id(text: str) -> bool:
    """Returns whether ``job_id`` may have made it."""
    return len(text) == 5 and all(letter in _LETTERS for letter in text)


def _short(text: str, n: int) -> str:
    number = int.from_bytes(hashlib.blake2b(text.encode()).digest())
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(n))
