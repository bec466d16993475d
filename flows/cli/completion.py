"""Completion of the program ``heirloom`` in bash, zsh and fish, by Hydra's own scripts.

Hydra completes a program with one configuration. This module completes the command's name, and lets the command itself
complete the rest.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Mapping

from flows.cli.options import CONF
from flows.cli.output import print_message, show

FLAGS = ("-sc", "--shell-completion")
"""Hydra's option: ``install=bash`` prints a script that asks ``query=bash`` with the line in ``COMP_LINE``."""
SHELLS = ("bash", "zsh", "fish")
SCRIPTS_BY = "report"
"""A command of which Hydra prints the script; each prints the same."""


def run_completion(commands: Mapping[str, str], main_of: Callable[[str], Callable[[], int]]) -> int:
    """Runs what follows ``heirloom --shell-completion``, and returns the exit status.

    Args:
        commands: The commands by name.
        main_of: Returns the ``main`` of a command.
    """
    request = sys.argv[2] if len(sys.argv) > 2 else ""
    if not re.fullmatch(f"(install|uninstall|query)=({'|'.join(SHELLS)})", request):
        print_message(f"--shell-completion {request}: must be install=SHELL, with one of {', '.join(SHELLS)}")
        return 2
    if not request.startswith("query="):
        return main_of(SCRIPTS_BY)()
    program, *words = os.environ.get("COMP_LINE", "").split(" ")
    if len(words) < 2:
        found = [name for name in commands if name.startswith(words[0] if words else "")]
        show(("\n" if request == "query=fish" else " ").join(found))
        return 0
    if words[0] not in commands or not (CONF / f"{words[0]}.yaml").exists():
        return 0  # the shell completes files
    os.environ["COMP_LINE"] = " ".join([os.path.basename(program), *words[1:]])
    with open(os.devnull, "w", encoding="utf-8") as nothing, contextlib.redirect_stderr(nothing):
        return main_of(words[0])()  # a line that is no command yet has errors, which would be printed into it
