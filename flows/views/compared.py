"""The comparison on standard output."""

from __future__ import annotations

from flows.cli.output import show, show_line
from flows.views.terminal import fitting_columns, open_console, print_table
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
