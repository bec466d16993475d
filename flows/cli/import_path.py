"""The order of ``sys.path``, by which a user's packages do not hide Heirloom's."""

from __future__ import annotations

import os
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))
"""The folder that contains Heirloom's packages."""
PACKAGES = ("nas", "flows")


def order_import_path() -> None:
    """Moves the working folder, and folders with packages called like Heirloom's, to the end of ``sys.path``.

    Worker processes get the same path.
    """
    here = os.path.realpath(os.getcwd())
    folders = [os.path.realpath(path or here) for path in sys.path]
    early = [folder for folder in folders if folder == ROOT or (folder != here and not _hides(folder))]
    late = [folder for folder in (*folders, here) if folder not in early]
    sys.path[:] = dict.fromkeys([*early, ROOT, *late])


def _hides(folder: str) -> bool:
    """Returns whether a folder has a module or package called like one of Heirloom's."""
    paths = (os.path.join(folder, name) for name in PACKAGES)
    return any(os.path.isfile(f"{path}.py") or os.path.isfile(f"{path}/__init__.py") for path in paths)
