"""Record format 2: one JSON object whose last field is the digest of its other bytes.

    {"trial":7,"state":"complete","digest":"blake3:5f0c..."}

The digest covers the bytes of the object without that field, so no canonical form is needed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from nas.core.errors import CorruptError
from nas.core.validation import MAX_DEPTH, MAX_RECORD_BYTES, is_deep, parse_object
from nas.storage.verified import digest_of

FORMAT: Final = 2
MAX_BYTES = 16 << 20
"""Maximum size of a record: a result with 100,000 reports takes 5 MB."""
MAX_VALUES = 400_000
"""Maximum number of commas and opening brackets in a record that is written."""
MAX_READ_VALUES = 1_000_000
"""The same in a record that is read. Earlier versions wrote longer curves."""
MAX_LARGE_VALUES = 1_200_000
"""The same for manifests and resume points, which have ``MAX_RECORD_BYTES``.

100,000 tensors of four dimensions take 1,100,000 values and 25 MB, and 1.5 s to decode; nothing takes over 400 MB.
"""
_KEY = b'"digest":"'
_SEAL_BYTES = len(_KEY + digest_of(b"").encode() + b'"}')


def encode_record(record: Mapping[str, Any], *, is_large: bool = False) -> bytes:
    """Returns the bytes of a record; ``is_large`` for manifests and resume points.

    Raises:
        ValueError: the record is too large, a value is not JSON or not finite, or values are nested too deep.
    """
    if is_deep(record):
        raise ValueError(f"lists and objects are nested deeper than {MAX_DEPTH}")
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    data = seal(text.encode(errors="backslashreplace"))  # lone surrogates, as in file names, become JSON escapes
    if excess := _excess(data, MAX_VALUES, is_large=is_large):
        raise ValueError(excess)
    return data


def decode_record(data: bytes, *, is_large: bool = False) -> dict[str, Any]:
    """Returns the record in the bytes of its file; ``is_large`` as it was written.

    Raises:
        CorruptError: the digest is missing or wrong, or ``encode_record`` does not write such an object; the message
            does not name the file.
    """
    if not _has_digest(data):
        raise CorruptError(f"it has no digest: it is cut off, or not a record of format {FORMAT}")
    if excess := _excess(data, MAX_READ_VALUES, is_large=is_large):
        raise CorruptError(f"it has {excess}")
    if not _is_intact(data):
        raise CorruptError("its content does not match its digest")
    record = parse_object(data)
    del record["digest"]
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and is_deep(record):
        raise CorruptError(f"lists and objects are nested deeper than {MAX_DEPTH}")
    return record


def seal(text: bytes) -> bytes:
    """Returns the text of a JSON object with its digest as the last field.

    The text must end with the closing bracket.
    """
    comma = b"" if text == b"{}" else b","
    return text[:-1] + comma + _KEY + digest_of(text).encode() + b'"}'


def is_format_1(data: bytes) -> bool:
    """Returns whether the bytes are a ``search.json`` of format 1, which has no digest."""
    try:
        return not _has_digest(data) and parse_object(data).get("format") == 1
    except CorruptError:
        return False


def _has_digest(data: bytes) -> bool:
    return data[-_SEAL_BYTES:].startswith(_KEY)


def _is_intact(data: bytes) -> bool:
    text = data[:-_SEAL_BYTES].removesuffix(b",") + b"}"
    return seal(text) == data


def _excess(data: bytes, max_values: int, *, is_large: bool) -> str:
    """Returns the size or count that exceeds its bound, or an empty text."""
    most_bytes, most_values = (MAX_RECORD_BYTES, MAX_LARGE_VALUES) if is_large else (MAX_BYTES, max_values)
    if len(data) > most_bytes:
        return f"{len(data)} bytes; a record has at most {most_bytes}"
    if len(data) > most_values and (n_values := _n_values(data)) > most_values:
        return f"{n_values} values; a record has at most {most_values}"
    return ""


def _n_values(data: bytes) -> int:
    return data.count(b",") + data.count(b"[") + data.count(b"{")
