"""The program ``heirloom``.

It lies beside the packages ``nas`` and ``flows``, so that packages of the user with these names do not hide it.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> int:
    """Runs the command that the first argument names, and returns its exit status."""
    root = str(Path(__file__).resolve().parent)
    sys.path.insert(0, root)
    try:
        from flows.cli.import_path import order_import_path
        from flows.cli.script import run_script
    finally:
        sys.path.remove(root)
    order_import_path()
    return run_script()


if __name__ == "__main__":
    sys.exit(main())
