"""Checks of a logger before a search starts: its package, its folder and its server."""

from __future__ import annotations

import os
import socket
import tempfile
from importlib.util import find_spec
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from nas.core.errors import ConfigurationError
from nas.core.redaction import without_passwords

CONNECT_S = 5.0
"""Seconds in which a server must accept a connection."""


def check_extra(logger: str, module: str) -> None:
    """Checks that a logger's package is installed.

    Raises:
        ConfigurationError: it is not.
    """
    if find_spec(module) is None:
        raise ConfigurationError(
            f"logger={logger}: needs the package {module}. Install it: pip install 'heirloom-nas[{logger}]'"
        )


def log_folder(log_dir: object) -> str:
    """Returns the absolute path of the local folder that ``log_dir`` names.

    Raises:
        ConfigurationError: it is empty, a URL, or no path.
    """
    folder = os.fspath(log_dir) if isinstance(log_dir, str | os.PathLike) else ""
    # a Path of s3://bucket has one slash
    if not isinstance(folder, str) or not folder or ":/" in folder or "\0" in folder:
        given = without_passwords(str(log_dir))
        raise ConfigurationError(f"log_dir={given:.100}: must be a local folder, as text. Loggers write no URLs.")
    return os.path.abspath(os.path.expanduser(folder))


def check_folder(option: str, folder: str) -> str:
    """Creates a folder and returns its absolute path.

    Raises:
        ConfigurationError: it can't be created or written.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return os.path.abspath(folder)
    except OSError as error:
        raise ConfigurationError(
            f"{option}={folder}: must be a folder that can be written ({error.strerror}). Choose another."
        ) from error


def check_server(option: str, url: str) -> None:
    """Checks that a server of an HTTP URL accepts connections; other URLs are not checked.

    A server behind a proxy (``HTTPS_PROXY``, ``NO_PROXY``) is not checked either.

    Raises:
        ConfigurationError: it does not.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        return
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = parts.hostname or ""
        if getproxies().keys() & {parts.scheme, "all"} and not proxy_bypass(f"{host}:{port}"):
            return
        with socket.create_connection((host, port), timeout=CONNECT_S):
            pass
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"{option}={url}: must be a server that can be reached ({error}). "
            "Start it, choose another, or leave the logger out."
        ) from error
