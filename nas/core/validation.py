"""Plain data from a shared root: parsed within bounds, and checked before anything believes it."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn

from nas.core.errors import CorruptError

MAX_RECORD_BYTES = 64 << 20
"""What a record, a manifest or a log takes at the most: a larger file is not read into memory."""
MAX_DEPTH = 64
"""How deep lists and objects may lie in one another in a point, say: code that walks them calls itself as often."""
_OWN_DEPTH = 8
"""How deep a record itself puts them."""
MAX_WHOLE = 2**63 - 1
"""The greatest whole number that counts, sizes and seeds may have."""
MAX_TIME = 1e11
"""Seconds since 1970, in the year 5138: beyond, no calendar goes."""

_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 80, 80


def shown(value: object) -> str:
    """Returns the value for a message: in little room, however large it is."""
    return _SHORT.repr(value)[:200]


def parse_object(data: bytes, decoder: json.JSONDecoder | None = None) -> dict[str, Any]:
    """Returns the JSON object (in UTF-8) that the bytes hold; no key stands there twice, and every number is finite.

    Args:
        data: The bytes.
        decoder: One that is not as strict.

    Raises:
        CorruptError: anything else; the message does not say which file.
    """
    try:
        parsed = (decoder or _DECODER).decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"not JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise CorruptError(f"not a JSON object, but {shown(parsed)}")
    return parsed


def is_deep(record: Any) -> bool:
    """Returns whether lists and objects lie in one another deeper than a record's may."""
    level = [record]
    for _ in range(MAX_DEPTH + _OWN_DEPTH + 1):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner += value.values()
            elif isinstance(value, list):
                inner += value
        level = [value for value in inner if isinstance(value, dict | list)]
        if not level:
            return False
    return True


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for n, (key, _) in enumerate(pairs) if any(key == other for other, _ in pairs[:n]))
        raise ValueError(f"the key {shown(twice)} stands there twice")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is beyond every number")
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_float=_finite, parse_constant=_refuse)


def checked_fields(data: object, kinds: Mapping[str, tuple[type, ...]], *, others: bool = False) -> dict[str, Any]:
    """Returns the fields of a JSON object that must have these keys and types (``bool`` is no ``int``).

    Args:
        data: What was parsed.
        kinds: The types that each key's value may have.
        others: Whether there may be other keys besides.

    Raises:
        CorruptError: a missing key, another type, or another key.
    """
    if not isinstance(data, dict):
        raise CorruptError(f"expected an object with the keys {sorted(kinds)}, found {shown(data)}")
    if data.keys() != kinds.keys() and not (others and data.keys() >= kinds.keys()):
        odd = sorted(kinds.keys() - data.keys()) or sorted(data.keys() - kinds.keys())
        raise CorruptError(f"expected an object with the keys {sorted(kinds)}; {shown(odd)} is lacking or unknown")
    for key, allowed in kinds.items():
        if type(data[key]) not in allowed:
            raise CorruptError(f"{key} must not be {shown(data[key])}")
    return data


def whole(value: object, what: str, least: int = 0, most: int = MAX_WHOLE) -> int:
    """Returns the value, if it is a whole number within the bounds.

    Raises:
        CorruptError: it is not.
    """
    if type(value) is not int or not least <= value <= most:
        raise CorruptError(f"{what} must not be {shown(value)}")
    return value


def number_within(value: object, what: str, least: float, most: float) -> float:
    """Returns the value, if it is a number within the bounds.

    Raises:
        CorruptError: it is not.
    """
    if isinstance(value, int | float) and type(value) is not bool and least <= value <= most:
        return value
    raise CorruptError(f"{what} must not be {shown(value)}")


def time_of(value: object, what: str) -> float | None:
    """Returns the value, if it is None or a time in UTC seconds since 1970.

    Raises:
        CorruptError: it is neither.
    """
    return None if value is None else number_within(value, what, -MAX_TIME, MAX_TIME)


def numbers(data: object, what: str) -> dict[str, float]:
    """Returns the value, if it is an object of finite numbers, the whole ones within 64 bits.

    Raises:
        CorruptError: it is not.
    """
    if not isinstance(data, dict):
        raise CorruptError(f"{what} must not be {shown(data)}")
    for name, value in data.items():
        is_good = abs(value) <= MAX_WHOLE + 1 if type(value) is int else type(value) is float and math.isfinite(value)
        if not is_good:
            raise CorruptError(f"{what}: {shown(name)} must not be {shown(value)}")
    return data


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Puts the file's name before what is wrong with it."""
    try:
        yield
    except CorruptError as error:
        raise CorruptError(f"{path} can't be read: {error}") from error
