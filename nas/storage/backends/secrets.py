"""What a root was opened with and nobody may see: no message, and no traceback below one, shows it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from nas.core.redaction import passwords_of

_HARMLESS = frozenset(
    {"endpoint_url", "region_name", "profile", "host", "username", "known_hosts", "client_keys", "config"}
)
"""Options that help to understand a message; a password in a URL among them is masked all the same."""
_VARIABLES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_KINDS = (PermissionError, FileExistsError, FileNotFoundError, TimeoutError, ConnectionError, OSError, ValueError)


class Secrets:
    """Every text of a root's URL, options and environment that may be a credential."""

    def __init__(self, url: str, options: Mapping[str, object]) -> None:
        found = {password for text in (url, *_texts(options)) for password in passwords_of(text)}
        found |= {unquote(secret) for secret in found}
        found |= set(_texts(options, but=_HARMLESS))
        found |= {os.environ.get(name, "") for name in _VARIABLES}
        self._found = sorted((secret for secret in found if len(secret) > 3), key=len, reverse=True)

    def masked(self, error: BaseException) -> str:
        """The error on one line, with ``***`` for each secret."""
        return self._masked(" ".join(f"{type(error).__name__}: {error}".split()))

    def cause(self, error: Exception) -> Exception:
        """The error itself, or one of its builtin kind where it, or one that led to it, tells a secret."""
        if not any(self._masked(text) != text for text in _chain(error)):
            return error
        kind: type[Exception] = next((kind for kind in _KINDS if isinstance(error, kind)), RuntimeError)
        text = self.masked(error)
        return kind(error.errno, text) if isinstance(error, OSError) and error.errno else kind(text)

    def _masked(self, text: str) -> str:
        for secret in self._found:
            text = text.replace(secret, "***")
        return text


def _chain(error: BaseException | None) -> Iterator[str]:
    """What a traceback says of the error and of those that led to it."""
    while error is not None:
        yield f"{error} {error!r} {getattr(error, '__notes__', '')}"
        yield from _chain(error.__context__) if error.__context__ is not error.__cause__ else ()
        error = error.__cause__


def _texts(value: object, *, but: frozenset[str] = frozenset()) -> Iterator[str]:
    """Every text in nested options, but for those under some names."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in but:
                yield from _texts(item, but=but)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, but=but)
    elif isinstance(value, str):
        yield value
