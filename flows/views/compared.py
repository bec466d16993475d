"""The comparison on standard output."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from flows.cli.output import print_message, show, show_line
from flows.cli.overrides import as_shell
from flows.cli.program import command
from flows.cli.settings.root import reach_root, root_words
from flows.views.terminal import fitting_columns, open_console, print_table
from nas.core.errors import HeirloomError
from nas.views.comparison.searches import read_compared
from nas.views.comparison.tables import Comparison, group_texts, search_texts, test_lines

_LEFT = frozenset({"name", "group", "standing"})


def print_comparison(comparison: Comparison) -> None:
    """Prints a row per search, a row per group over seeds, and the tests."""
    console = open_console()
    for columns in (search_texts(comparison), group_texts(comparison)):
        fitting = fitting_columns(columns, console.width, {next(iter(columns))})
        print_table(console, {name: columns[name] for name in fitting}, frozenset(columns) - _LEFT)
        show()
    for line in test_lines(comparison):
        show_line(line)


def print_searches(searches: Sequence[tuple[Mapping[str, Any], str]]) -> None:
    """Prints the comparison of the searches of a multirun, and the command for its page.

    Args:
        searches: The values of ``storage`` and the name of each search.
    """
    unique = {(str(storage["root"]), name): storage for storage, name in searches}
    roots = {root: reach_root({"storage": storage}) for (root, _), storage in unique.items()}
    if len(unique) < 2 or any(root.in_process for root in roots.values()):
        return
    now = time.time()
    show()
    try:
        print_comparison(Comparison.of([read_compared(roots[root].subfolder(name), now) for root, name in unique]))
    except HeirloomError as error:
        print_message(f"no comparison: {error}")
        return
    if len(roots) == 1:
        (root,) = roots
        names = ",".join(name for _, name in unique)
        show_line(f"next: {command('compare')} names={names} {as_shell([*root_words(root), 'format=html'])}")
