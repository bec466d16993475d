"""``python -m nas.compat.rafiki Model.py [--KNOB=VALUE ...]``: runs a template's ``__main__``."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from nas.compat.rafiki.template import importing
from nas.core.errors import ConfigurationError, HeirloomError
from nas.core.redaction import clean, escape_missing_characters
from nas.core.tracebacks import error_line, frames_of


def main() -> int:
    """Runs the file and returns the exit status."""
    escape_missing_characters()
    if len(sys.argv) < 2 or not os.path.isfile(sys.argv[1]):
        given = f" ({sys.argv[1]} is not a file)" if len(sys.argv) > 1 else ""
        print(f"heirloom: give the file of a template: python -m nas.compat.rafiki Model.py{given}", file=sys.stderr)
        return 2
    del sys.argv[0]
    try:
        with importing(Path(sys.argv[0])):
            runpy.run_path(sys.argv[0], run_name="__main__")
    except ConfigurationError as error:
        return _fail(error, 2)
    except HeirloomError as error:
        return _fail(error, 1)
    except Exception as error:  # of the file's code, or of a method of the template
        line = error_line(error)
        vars(error).pop("__notes__", None)
        print(clean(frames_of(error)), end="", file=sys.stderr)
        return _fail(line, 1)
    return 0


def _fail(why: object, status: int) -> int:
    sys.stdout.flush()
    print(f"heirloom: {clean(why)}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
