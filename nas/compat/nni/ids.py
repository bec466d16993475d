"""Ids of experiments and jobs for NNI code. They are the same in every session."""

from __future__ import annotations

import hashlib

_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def experiment_id(search: str) -> str:
    """Returns eight letters and digits for the name of a search."""
    return _short(search, 8)


def job_id(search: str, job: int) -> str:
    """Returns five letters and digits for a job of the search."""
    return _short(f"{search}/{job}", 5)


def is_job_id(text: str) -> bool:
    """Returns whether the text has the form of a job id."""
    return len(text) == 5 and all(letter in _LETTERS for letter in text)


def _short(text: str, n: int) -> str:
    number = int.from_bytes(hashlib.blake2b(text.encode()).digest())
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(n))
