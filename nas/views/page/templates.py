"""Jinja templates of the page.

Values are escaped. Passwords in URLs and control characters are replaced.
"""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined

from nas.core.redaction import clean, without_passwords
from nas.views.formatting import amount, clock, count, duration, number


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
        finalize=_public,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}  # keys keep their order
    environment.filters |= {
        "clock": clock,
        "count": count,
        "duration": duration,
        "number": number,
        "px": _pixels,
        "amount": amount,
    }
    return environment


def _pixels(length: float) -> str:
    return f"{length:.1f}"


def _public(value: object) -> object:
    """Returns a text without passwords; what a template has made stays as it is."""
    return without_passwords(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
