"""Jinja templates of the page. Every value is escaped, and control characters are replaced."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from nas.core.redaction import clean
from nas.views.formatting import clock, count, duration, number


def render(template: str, **values: object) -> str:
    """Returns a template of this package, filled with values."""
    stream = _environment().get_template(template).stream(values)
    stream.enable_buffering(1000)  # the parts of a large page, all at once, keep the garbage collector busy
    return clean("".join(stream))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("nas.views.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clock": clock, "count": count, "duration": duration, "number": number, "px": _pixels}
    return environment


def _pixels(length: float) -> str:
    return f"{length:.1f}"
