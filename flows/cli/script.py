"""The console script: ``heirloom search ...`` runs ``flows.search``, and so on for each command."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import cast

COMMANDS = {
    "search": "search, train the finalists and export the best",
    "report": "list searches, or show the lineage of one",
    "compare": "compare searches, with means over seeds",
    "final": "train finalists of a search in full",
    "gc": "delete weights that nothing needs",
    "verify": "check a search, or whether a root is fit for use",
    "export": "copy the winner's export into a new folder",
    "init": "write a small project that runs as it is",
    "ui": "show Prefect's UI with all recorded searches",
    "doctor": "check versions, devices, Prefect's server and the storage root",
    "nni": "run an unchanged NNI experiment",
}


NOTES = (
    "heirloom COMMAND --help: options; heirloom --version",
    'eval "$(heirloom --shell-completion install=bash)": completion (zsh and fish: docs/reference/commands.md)',
)


def run_script() -> int:
    """Runs the command that the first argument names, and returns its exit status."""
    from flows.cli.completion import FLAGS, run_completion
    from flows.cli.output import print_message, run_printing

    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        return run_printing(_show_help)
    if name in ("-V", "--version"):
        return run_printing(_show_version)
    if name in FLAGS:
        return run_completion(COMMANDS, _main_of)
    if name not in COMMANDS:
        from nas.core.validation import did_you_mean

        print_message(f"unknown command {name!r}: must be one of {', '.join(COMMANDS)}{did_you_mean(name, COMMANDS)}")
        return 2
    del sys.argv[1]
    return _main_of(name)()


def _main_of(name: str) -> Callable[[], int]:
    return cast("Callable[[], int]", importlib.import_module(f"flows.{name}").main)


def _show_version() -> int:
    import nas
    from flows.cli.output import show

    show(f"heirloom {nas.__version__}")
    return 0


def _show_help() -> int:
    from flows.cli.output import show

    lines = [f"  {name:10}{does}" for name, does in COMMANDS.items()]
    example = "for example: heirloom search +tuner=evolution"
    show("\n".join(["usage: heirloom COMMAND [OPTIONS]", example, "", *lines, "", *NOTES]))
    return 0
