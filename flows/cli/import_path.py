"""The order of ``sys.path``, by which a user's packages do not hide Heirloom's."""

from __future__ import annotations

import os
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))
"""The folder that contains Heirloom's packages."""
PACKAGES = ("nas", "flows")


def order_import_path() -> None:
    """Moves the working folder, and folders with packages called like Heirloom's, to the end of ``sys.path``.

    Entries are compared by their real paths and keep their text. In editable installs it may be the name of an import
    hook. Relative folders become absolute. Worker processes get the same path.
    """
    here = os.path.realpath(os.getcwd())
    entries = [os.path.abspath(entry) if os.path.exists(entry or here) else entry for entry in sys.path]
    early = [entry for entry in entries if _is_early(os.path.realpath(entry), here)]
    late = [entry for entry in entries if entry not in early]
    unique: dict[str, str] = {}
    for entry in (*early, ROOT, *late, here):
        unique.setdefault(os.path.realpath(entry), entry)
    sys.path[:] = unique.values()


def _is_early(folder: str, here: str) -> bool:
    """Returns whether the folder stays before the working folder."""
    return folder == ROOT or (folder != here and not _hides(folder))


def _hides(folder: str) -> bool:
    """Returns whether a folder has a module or package called like one of Heirloom's."""
    paths = (os.path.join(folder, name) for name in PACKAGES)
    return any(os.path.isfile(f"{path}.py") or os.path.isfile(f"{path}/__init__.py") for path in paths)
