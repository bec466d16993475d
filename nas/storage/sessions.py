"""Records of sessions, their heartbeats, and the hours that they took."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from nas.core.ranking import Export
from nas.core.redaction import remove_passwords
from nas.core.validation import path_in_errors
from nas.storage.record_format import decode_record
from nas.storage.records import SESSION_NAME, Records
from nas.storage.search_records import check_heartbeat, check_session


def past_sessions(records: Records) -> dict[int, dict[str, Any]]:
    """Returns the session records of a search by number, oldest first."""
    found = records.files.read_folder("sessions", ".json")
    numbers = {int(name.removesuffix(".json")): name for name in found if SESSION_NAME.fullmatch(name)}
    return {
        number: _checked_session(found[name], records.url_of(f"sessions/{name}"))
        for number, name in sorted(numbers.items())
    }


def newest_session(records: Records) -> tuple[int, dict[str, Any], dict[str, Any] | None] | None:
    """Returns number, record and last heartbeat of the newest session, or None."""
    if (number := newest_number(records)) is None:
        return None
    path = f"sessions/{number:04d}.json"
    if (data := records.files.read_if_present(path)) is None:
        return None
    return number, _checked_session(data, records.url_of(path)), read_heartbeat(records, number)


def last_with_setting(records: Records, name: str) -> tuple[int, Any] | None:
    """Returns number and setting of the newest session whose record has the setting, or None.

    The sessions of the commands ``gc`` and ``final`` have fewer settings than those of a search.
    """
    for number in sorted(_numbers(records), reverse=True):
        path = f"sessions/{number:04d}.json"
        if (data := records.files.read_if_present(path)) is None:
            continue
        settings = _checked_session(data, records.url_of(path))["settings"]
        if name in settings:
            return number, settings[name]
    return None


def last_export(records: Records) -> Export:
    """Returns the option ``export`` of the newest session that has it; ``final`` without one."""
    found = last_with_setting(records, "export")
    return "best" if found is not None and found[1] == "best" else "final"


def newest_number(records: Records) -> int | None:
    """Returns the number of the newest session, or None if there is no session."""
    return max(_numbers(records), default=None)


def _numbers(records: Records) -> list[int]:
    names = records.files.names("sessions")
    return [int(name.removesuffix(".json")) for name in names if SESSION_NAME.fullmatch(name)]


def read_heartbeat(records: Records, number: int) -> dict[str, Any] | None:
    """Returns the last heartbeat of a session, or None if it has none."""
    path = f"sessions/{number:04d}.beat"
    record = records.read(path)
    if record is not None:
        with path_in_errors(records.url_of(path)):
            check_heartbeat(record)
    return record


def spent_hours(records: Records, sessions: Iterable[int] | None = None) -> float:
    """Returns the hours of these sessions, or of all, by their last heartbeats."""
    numbers = past_sessions(records) if sessions is None else sessions
    heartbeats = (read_heartbeat(records, number) for number in numbers)
    return sum(float(heartbeat["hours"]) for heartbeat in heartbeats if heartbeat is not None)


def search_id(records: Records) -> str:
    """Returns a digest of the search's folder and first session.

    The process and time of that session tell the search from a later one in the same folder.
    """
    path = "sessions/0001.json"
    data = records.files.read_if_present(path)
    first = {} if data is None else _checked_session(data, records.url_of(path))
    fields = [first.get(name) for name in ("host", "machine", "boot", "pid", "started")]
    text = json.dumps([remove_passwords(records.files.url), *fields])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _checked_session(data: bytes, place: str) -> dict[str, Any]:
    with path_in_errors(place):
        record = decode_record(data)
        check_session(record)
    return record
