"""``python -m nas.compat.rafiki Model.py [--KNOB=VALUE ...]``: runs a template's ``__main__`` with our modules."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from nas.compat.rafiki.template import importing
from nas.errors import ConfigurationError


def main() -> int:
    """Runs the file; gives the exit status."""
    if len(sys.argv) < 2 or not os.path.isfile(sys.argv[1]):
        given = f" ({sys.argv[1]} is none)" if len(sys.argv) > 1 else ""
        print(f"heirloom: name a template's file: python -m nas.compat.rafiki Model.py{given}", file=sys.stderr)
        return 2
    del sys.argv[0]
    try:
        with importing(Path(sys.argv[0])):
            runpy.run_path(sys.argv[0], run_name="__main__")
    except ConfigurationError as error:
        print(f"heirloom: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
