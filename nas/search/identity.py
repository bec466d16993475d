"""The identity of a search in ``search.json``: written once, and compared by every later session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from nas.core.errors import AlreadyPublishedError, ConfigurationError, CorruptError, StorageError
from nas.search.definition import PreparedSearch, compared
from nas.storage.record_format import decode_record, encode_record
from nas.storage.records import Records
from nas.storage.search_records import check_header
from nas.training.data_digest import NO_FILE

_MAX_SHOWN = 200
"""Characters of a value in an error."""


def claim_identity(records: Records, prepared: PreparedSearch) -> None:
    """Creates ``search.json``, or checks that the existing one describes the same search.

    Raises:
        ConfigurationError: identity, metrics or the content of data files differ. The message names each key.
        StorageError: another command has just published the file, but it can't be seen.
    """
    existing = records.header()
    if existing is None:
        _check_readable(prepared.search_json)
        try:
            records.publish("search.json", prepared.search_json)
            return
        except AlreadyPublishedError:  # by another command at the same moment
            existing = records.header()
    if existing is None:
        raise StorageError(f"{records.files.url}/search.json is published, but can't be seen")
    if found := differences(compared(existing), compared(prepared.search_json)):
        raise ConfigurationError(
            f"the search in {records.files.url} is another one: {'; '.join(found)}. "
            "Choose another name=..., or the settings and the version that it was begun with"
        )
    here, there = prepared.search_json.get("data", {}), existing.get("data", {})
    known = here.keys() & there.keys()
    known |= {name for data in (here, there) for name, digest in data.items() if digest == NO_FILE}
    if found := differences(*({name: data[name] for name in sorted(known & data.keys())} for data in (there, here))):
        raise ConfigurationError(
            f"the search in {records.files.url} was begun with other data: problem.{'; problem.'.join(found)}. "
            "Scores on other data can't be compared. Choose another name=..., or the data that it was begun with"
        )


def _check_readable(record: Mapping[str, Any]) -> None:
    """Checks that sessions and reports can read a ``search.json``."""
    try:
        check_header(decode_record(encode_record(record)))
    except (CorruptError, ValueError) as error:
        raise ConfigurationError(f"the search can't be recorded: {error}. Change this part of it") from error


def differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    """Returns one text per key that differs: ``tuner.arguments.sample_size: 3 there, 5 here``."""
    left, right = _flatten(there), _flatten(here)
    return [
        f"{key}: {_shown(left.get(key, 'absent'))} there, {_shown(right.get(key, 'absent'))} here"
        for key in dict.fromkeys([*left, *right])
        if key not in left or key not in right or _to_text(left[key]) != _to_text(right[key])
    ]


def _shown(value: object) -> str:
    """Returns the value, cut if it is long; of a list also its length."""
    text = str(value)
    if len(text) <= _MAX_SHOWN:
        return text
    return f"{text[:_MAX_SHOWN]}..." + (f" ({len(value)} items)" if isinstance(value, list) else "")


def _to_text(value: object) -> str:
    """Returns a text that differs for 1, 1.0 and True, which are equal in Python."""
    return json.dumps(value, sort_keys=True)


def _flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix.rstrip("."): value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flatten(inner, f"{prefix}{key}.")
    return flat
