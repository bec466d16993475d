"""Removal of passwords and of what terminals obey from texts that are shown."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Mapping

from nas.core.arguments import data_of

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufff9-\ufffb\ufffe\uffff]"
)
"""Characters that terminals and pages obey, and XML refuses.

Control characters except tab and newline, bidirectional and line controls, lone surrogates.
"""
_PASSWORD = re.compile(r"(?<=://)([^/:\n]*):([^/\n]*)@")


def clean(text: object) -> str:
    """Returns the text with U+FFFD for each character that a terminal would obey."""
    return _OBEYED.sub("\N{REPLACEMENT CHARACTER}", re.sub(r"\r\n?", "\n", str(text)))


def one_line(text: object) -> str:
    """Returns the clean text with its lines joined by spaces."""
    return clean(text).strip("\n").replace("\n", " ")


def public_line(text: object) -> str:
    """Returns the text as one clean line without passwords."""
    return one_line(without_passwords(str(text)))


def escaped_json(text: str) -> str:
    """Returns a JSON text of the same value that holds nothing a terminal would obey."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def without_passwords(text: str) -> str:
    """Returns the text with ``***`` as the password of each URL: ``sftp://me:***@host/root``."""
    return _PASSWORD.sub(r"\1:***@", text)


def remove_passwords(text: str) -> str:
    """Returns the text without the password of each URL: ``sftp://me@host/root``."""
    return _PASSWORD.sub(lambda found: found[1] and f"{found[1]}@", text)


def escape_missing_characters() -> None:
    """Lets standard output and error write any text: what their encoding lacks becomes backslash escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def private_texts(problem: object) -> dict[str, str]:
    """Returns ``<name>`` by each form of a path or URL among a problem's ``data_arguments``."""
    found: dict[str, str] = {}
    for name, value in data_of(problem).items():
        given = os.fspath(value).rstrip("/") if isinstance(value, str | os.PathLike) else ""
        if "://" in given:
            found |= dict.fromkeys((given, without_passwords(given), remove_passwords(given)), f"<{name}>")
        elif given:
            path = os.path.expanduser(given)
            found |= dict.fromkeys((os.path.abspath(path), os.path.realpath(path)), f"<{name}>")
    return found


def without_private(text: str, private: Mapping[str, str]) -> str:
    """Returns the text without passwords of URLs and without the keys of ``private_texts``."""
    longest_first = map(re.escape, sorted(private, key=len, reverse=True))
    if private:
        text = re.sub(rf"(?<!\w)({'|'.join(longest_first)})(?!\w)", lambda found: private[found[0]], text)
    return without_passwords(text)


def passwords_of(url: str) -> list[str]:
    """Returns the password in a URL, if any."""
    return [found[2] for found in _PASSWORD.finditer(url) if found[2]]
