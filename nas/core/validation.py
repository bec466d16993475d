"""Checks of options, arguments and JSON from a shared root, with limits on size and depth."""

from __future__ import annotations

import difflib
import json
import math
import reprlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, cast

from nas.core.errors import ConfigurationError, CorruptError

MAX_RECORD_BYTES = 32 << 20
"""The largest record, manifest or log. Larger files are not read into memory."""
MAX_DEPTH = 64
"""The maximum depth of nested lists and objects, in a point for example. It limits recursion."""
_OWN_DEPTH = 8
"""Levels that the record itself adds."""
MAX_WHOLE = 2**63 - 1
"""The greatest integer allowed as a count, size or seed."""
MAX_TIME = 10**11
"""The latest time allowed, in seconds since 1970: the year 5138."""

_UNITS = {"s": " of seconds", "gb": " of gigabytes"}
"""Units by the ending of an option's name."""


class _ShortRepr(reprlib.Repr):
    """Texts of limited length, also for integers with more digits than Python converts to text."""

    def repr_int(self, x: int, level: int) -> str:
        """Returns the integer's digits, or their number if there are too many."""
        if x.bit_length() > _MAX_BITS:
            return f"<an integer of {x.bit_length()} bits>"
        return super().repr_int(x, level)


_MAX_BITS = 2**11
"""The longest integer of which digits are shown, below ``sys.int_info.str_digits_check_threshold``."""
_SHORT = _ShortRepr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 80, 80


def short_repr(value: object) -> str:
    """Returns a short text of any value in one line, for a message."""
    return " ".join(map(str.strip, _SHORT.repr(value).splitlines()))[:200]


def parse_object(data: bytes) -> dict[str, Any]:
    """Returns the JSON object in the UTF-8 bytes. Duplicate keys and infinite numbers are errors.

    Raises:
        CorruptError: the bytes are not such an object. The message does not name the file.
    """
    try:
        parsed = _DECODER.decode(data.decode())
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"not JSON ({error})") from error
    if not isinstance(parsed, dict):
        raise CorruptError(f"not a JSON object, but {short_repr(parsed)}")
    return parsed


def is_deep(record: Any) -> bool:
    """Returns whether lists and objects are nested deeper than a record allows."""
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
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the key {short_repr(twice)} is there twice")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is too large")
    return value


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_once, parse_float=_finite, parse_constant=_refuse)


@contextmanager
def path_in_errors(path: str) -> Iterator[None]:
    """Adds the path of the file to each CorruptError raised inside the context."""
    try:
        yield
    except CorruptError as error:
        raise CorruptError(f"{path} can't be read: {error}") from error


def check_int(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """Returns a value that is an integer from ``least`` to ``most``; None: without this limit.

    Raises:
        ConfigurationError: it is not. A bool is not an integer here.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    whole = cast("int", value)
    if not is_whole or (least is not None and whole < least) or (most is not None and whole > most):
        is_integral = isinstance(value, float) and value.is_integer()
        remedy = f". Write {value:.0f}" if is_integral else ""
        allowed = "" if least is None else f" of at least {least}" if most is None else f" from {least} to {most}"
        raise ConfigurationError(f"{name}={short_repr(value)}: must be a whole number{allowed}{remedy}")
    return whole


def check_bool(name: str, value: object) -> bool:
    """Returns a value that is true or false.

    Raises:
        ConfigurationError: it is not; a text counts as true in Python.
    """
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name}={short_repr(value)}: must be true or false")
    return value


def check_seed(name: str, value: object, n_bits: int = 64) -> None:
    """Checks that a value is an unsigned integer of ``n_bits``, as random generators take it.

    Raises:
        ConfigurationError: it is not. A bool is not an integer here.
    """
    check_int(name, value, 0)
    if isinstance(value, int) and value >= 2**n_bits:
        raise ConfigurationError(f"{name}={short_repr(value)}: must be a whole number from 0 to below 2 ** {n_bits}")


def check_number(
    name: str, value: object, low: float = -math.inf, high: float = math.inf, *, excluded: float | None = None
) -> float:
    """Returns a value that is a finite number from ``low`` to ``high``.

    Integers that no float can hold are not finite. One of the bounds may be ``excluded``. An ending of the name such as
    ``_s`` gives the unit.

    Raises:
        ConfigurationError: it is not. A bool is not a number here.
    """
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if abs(number) <= sys.float_info.max and low <= number <= high and number != excluded:
        return number
    rule = f"number{_UNITS.get(name.rpartition('_')[2], '')}{_bounds(low, high, excluded)}"
    remedy = ". Write a finite one" if abs(number) > sys.float_info.max else ""
    raise ConfigurationError(f"{name}={short_repr(value)}: must be a {rule}{remedy}")


def _bounds(low: float, high: float, excluded: float | None) -> str:
    """Returns the bounds of a number in words."""
    if high == math.inf:
        return "" if low == -math.inf else f" {'greater than' if excluded == low else 'of at least'} {low:g}"
    if excluded == low:
        return f" greater than {low:g} and at most {high:g}"
    return f" from {low:g} to {'below ' if excluded == high else ''}{high:g}"


def check_choice(name: str, value: object, choices: Sequence[str]) -> str:
    """Returns a value that is one of the choices.

    Raises:
        ConfigurationError: it is not.
    """
    if not isinstance(value, str) or value not in choices:
        listed = " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))
        raise ConfigurationError(f"{name}={short_repr(value)}: must be {listed}")
    return value


def check_mapping(name: str, value: object) -> dict[str, Any]:
    """Returns a mapping as a dict.

    Raises:
        ConfigurationError: it is none. The message does not show the value, since options hold credentials.
    """
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{name}=***: must hold keys. Set {name}.KEY=VALUE")
    return dict(value)


def check_keys(name: str, given: Iterable[object], allowed: Sequence[str]) -> None:
    """Checks that all keys of an option are allowed.

    Raises:
        ConfigurationError: one is not.
    """
    for key in map(str, given):
        if key not in allowed:
            near = did_you_mean(key, allowed)
            raise ConfigurationError(f"{name}.{key}: must be one of {', '.join(allowed)}{near}")


def closest_names(wrong: str, names: Iterable[str], n: int = 20) -> str:
    """Returns up to ``n`` names for an error message, those most similar to ``wrong`` first."""
    known = list(names)
    near = near_names(wrong, known)
    ordered = [*near, *(name for name in known if name not in near)]
    return first_of(ordered, n)


def first_of(names: Sequence[object], n: int) -> str:
    """Returns the first ``n`` names, and how many more there are."""
    return ", ".join(map(str, names[:n])) + (f" and {len(names) - n:,} more" if len(names) > n else "")


def did_you_mean(wrong: str, names: Iterable[str], cutoff: float = 0.6) -> str:
    """Returns the end of an error that asks for the most similar name, if any."""
    near = near_names(wrong, names, n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def near_names(wrong: str, names: Iterable[str], n: int = 3, cutoff: float = 0.5) -> list[str]:
    """Returns up to ``n`` names that are similar to a wrong one, the best first."""
    return difflib.get_close_matches(wrong, list(names), n, cutoff)
