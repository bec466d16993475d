"""Types of the values in records, checked by msgspec.

JSON is parsed by ``nas.core.validation.parse_object``, because msgspec's own parser accepts a key that is there twice.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from nas.core.errors import CorruptError
from nas.core.reference import DIGEST
from nas.core.trial import DonorRule
from nas.core.validation import MAX_TIME, MAX_WHOLE, short_repr

MAX_MESSAGE = 200
"""Letters of a message about a record."""

Whole = Annotated[int, Meta(ge=0, le=MAX_WHOLE)]
Positive = Annotated[int, Meta(ge=1, le=MAX_WHOLE)]
Number = (
    Annotated[int, Meta(ge=-MAX_WHOLE - 1, le=MAX_WHOLE)]
    | Annotated[float, Meta(ge=-sys.float_info.max, le=sys.float_info.max)]
)
"""A finite number or a 64-bit integer. ``float`` alone would make floats of integers."""
Numbers = dict[str, Number]
Share = Annotated[int, Meta(ge=0, le=1)] | Annotated[float, Meta(ge=0, le=1)]
Time = Annotated[int, Meta(ge=-MAX_TIME, le=MAX_TIME)] | Annotated[float, Meta(ge=-MAX_TIME, le=MAX_TIME)]
Digest = Annotated[str, Meta(pattern=rf"\A{DIGEST}\Z")]
_DONOR = "[A-Za-z0-9][A-Za-z0-9._+=-]{0,199}:[0-9]{1,18}"
DonorId = Whole | Annotated[str, Meta(pattern=rf"\A{_DONOR}\Z")]
"""A trial's number, or ``"name:42"`` for a trial of another search."""
DonorSource = Whole | Annotated[str, Meta(pattern=rf"\A(?:{_DONOR}|{'|'.join(DonorRule)})\Z")]
"""A donor, or a rule that chooses one."""

_learned: set[object] = set()
_LEARNING = threading.Lock()
T = TypeVar("T")


def checked_as(kind: type[T], data: object) -> T:
    """Returns parsed JSON as a type. ``bool`` is not ``int``, and integers stay integers.

    Raises:
        CorruptError: the data does not have this type. The message does not name the file.
    """
    _learn(kind)
    try:
        return msgspec.convert(data, kind)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter: half a character in a key
        raise CorruptError(_message(str(error), data)) from error


def _learn(kind: object) -> None:
    """Lets msgspec learn a type in one thread.

    With msgspec 0.22 a second thread would use what is half learned, and crash.
    """
    if kind not in _learned:
        with _LEARNING:
            msgspec.json.Decoder(kind)
        _learned.add(kind)


def check_keys(found: object, data: object) -> None:
    """Checks that parsed JSON has all keys of the object made of it, and no others.

    Dataclasses take defaults for missing keys, and ignore others.

    Raises:
        CorruptError: it has not.
    """
    if found is not None and not _is_same_json(found, data):
        raise CorruptError(f"keys of {type(found).__name__} are missing or unknown")


def checked_exactly(kind: type[T], data: object) -> T:
    """Returns parsed JSON as a dataclass, after ``check_keys``."""
    found = checked_as(kind, data)
    check_keys(found, data)
    return found


def _is_same_json(one: object, other: object) -> bool:
    try:
        return msgspec.json.encode(one, order="sorted") == msgspec.json.encode(other, order="sorted")
    except (UnicodeEncodeError, OverflowError):  # half a character, or more than 64 bits
        texts = [json.dumps(msgspec.to_builtins(value), sort_keys=True) for value in (one, other)]
        return texts[0] == texts[1]


def _message(text: str, data: object) -> str:
    """Returns msgspec's message in one line, position and value first."""
    rule, _, place = text.partition(" - at `$")
    rule = rule.replace("Expected", "must be").replace(", got", ", not")
    place = place[:-1]
    line = f"{place.removeprefix('.')}{_value_at(data, place)}: {rule}" if place else rule
    return "".join(letter if letter.isprintable() else "?" for letter in line[:MAX_MESSAGE])


def _value_at(data: Any, place: str) -> str:
    """Returns ``=value`` for a position such as ``.curve[1][0]``, or nothing where msgspec leaves out a key."""
    try:
        for key, index in re.findall(r"\.([^.\[\]]+)|\[([^\]]*)\]", place):
            data = data[key] if key else data[int(index)]
    except (KeyError, TypeError, ValueError):
        return ""
    return f"={short_repr(data)[:80]}"
