"""Marks of very many trials as one path, which a browser draws at once."""

from __future__ import annotations

from collections.abc import Iterable

from nas.views.page.legend import Path

MAX_MARKS = 2_000
"""The largest number of trials with a mark each. Of more, most are dots."""


def dots(kind: str, places: Iterable[tuple[float, float]]) -> Path:
    """Returns a dot at each place; dots on the same pixel are one."""
    on_pixels = dict.fromkeys((round(x), round(y)) for x, y in places)
    return Path(f"dots {kind}".rstrip(), "".join(f"M{x} {y}h0" for x, y in on_pixels))
