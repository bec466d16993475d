"""The console script: ``heirloom search ...`` runs ``flows.search``, and so on for each command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import cast

COMMANDS = {
    "search": "search, train the finalists and export the best",
    "report": "list searches, or show the lineage of one",
    "final": "train finalists of a search in full",
    "gc": "delete weights that nothing needs",
    "verify": "check a search, or whether a root is fit for use",
    "nni": "run an unchanged NNI experiment",
}


def run_script() -> int:
    """Runs the command that the first argument names, and returns its exit status."""
    from flows.cli.output import complain, run_printing

    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        return run_printing(_show_help)
    if name not in COMMANDS:
        complain(f"unknown command {name!r}: must be one of {', '.join(COMMANDS)}")
        return 2
    del sys.argv[1]
    main = cast("Callable[[], int]", importlib.import_module(f"flows.{name}").main)
    return main()


def _show_help() -> int:
    from flows.cli.output import show

    lines = [f"  {name:8}{does}" for name, does in COMMANDS.items()]
    example = "for example: heirloom search +tuner=evolution"
    show("\n".join(["usage: heirloom COMMAND [OPTIONS]", example, "", *lines, "", "heirloom COMMAND --help: options"]))
    return 0
