"""Credentials of a root, which no message and no traceback may show."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from nas.core.redaction import passwords_of

_HARMLESS = frozenset(
    {"endpoint_url", "region_name", "profile", "host", "username", "known_hosts", "client_keys", "config"}
)
"""Options that help to understand a message; a password in a URL among them is masked."""
_AWS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_AZURE = ("ACCOUNT_KEY", "CLIENT_SECRET", "CONNECTION_STRING", "SAS_TOKEN")
_VARIABLES = (*_AWS, *(f"AZURE_STORAGE_{name}" for name in _AZURE))
_IN_CONNECTION_STRINGS = (
    re.compile("(?:AccountKey|SharedAccessSignature)=([^;]+)", re.IGNORECASE),
    re.compile(r"\bsig=([^&;]+)"),
)
"""Secrets in Azure's connection strings: keys, in any case, and signatures, also in an endpoint."""
_KINDS = (PermissionError, FileExistsError, FileNotFoundError, TimeoutError, ConnectionError, OSError, ValueError)


class Secrets:
    """Every text of a root's URL, options and environment that may be a credential."""

    def __init__(self, url: str, options: Mapping[str, object]) -> None:
        found = {password for text in (url, *_texts(options)) for password in passwords_of(text)}
        found |= set(_texts(options, but=_HARMLESS))
        found |= {os.environ.get(name, "") for name in _VARIABLES}
        found |= {key for secret in found for pattern in _IN_CONNECTION_STRINGS for key in pattern.findall(secret)}
        found |= {unquote(secret) for secret in found}
        self._found = sorted((secret for secret in found if len(secret) > 3), key=len, reverse=True)

    def masked(self, error: BaseException) -> str:
        """Returns the error on one line, with ``***`` for each secret."""
        return self._masked(" ".join(f"{type(error).__name__}: {error}".split()))

    def cause(self, error: Exception) -> Exception:
        """Returns the error, or a builtin one if the error or a cause shows a secret."""
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
    """Yields what a traceback shows of the error and of its causes."""
    while error is not None:
        yield f"{error} {error!r} {getattr(error, '__notes__', '')}"
        yield from _chain(error.__context__) if error.__context__ is not error.__cause__ else ()
        error = error.__cause__


def _texts(value: object, *, but: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yields every text in nested options, except those of some names."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in but:
                yield from _texts(item, but=but)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, but=but)
    elif isinstance(value, str):
        yield value
