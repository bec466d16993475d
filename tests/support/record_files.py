"""Record files for tests that read, change or forge them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nas.storage.record_format import decode_record, seal


def sealed(record: Mapping[str, Any]) -> bytes:
    """Returns the file of a record, with the right digest, also of one that Heirloom would not write."""
    return seal(json.dumps(record).encode())


def read_record(path: Path) -> dict[str, Any]:
    """Returns the record in a file."""
    return decode_record(path.read_bytes())


def write_record(path: Path, record: Mapping[str, Any]) -> None:
    """Writes a record, with the right digest, over a file."""
    path.write_bytes(sealed(record))
