"""Names of searches."""

from __future__ import annotations

import re

from nas.core.errors import ConfigurationError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]{0,199}")


CHECKS = "_check"
"""The folder of a root with one folder per backend check; no search is named so."""
LAST = "last"
"""The name by which commands find the newest search."""


def check_name(name: str) -> str:
    """Returns the name of a search, which is also the name of its folder.

    Raises:
        ConfigurationError: it is not a valid folder name on every file system.
    """
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ConfigurationError(
            f"name={name!r}: must be 1 to 200 letters, digits, '.', '_', '+', '=' or '-', the first a letter or digit. "
            "Choose another name."
        )
    return name


def check_new_name(name: str) -> str:
    """Returns the name of a search that runs.

    Raises:
        ConfigurationError: it is not valid, or has another meaning.
    """
    if name == LAST:
        raise ConfigurationError(f"name={LAST}: must be another name, since {LAST} stands for the newest search")
    return check_name(name)
