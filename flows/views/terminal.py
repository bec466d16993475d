"""Tables of searches and trials for standard output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from flows.cli.output import show, show_line
from flows.views.searches import search_lines
from flows.views.summary import outdated_lines
from nas.core.redaction import one_line
from nas.core.spec import Spec
from nas.views.finals_line import finals_line
from nas.views.formatting import brief, cell, count, number, states_text
from nas.views.fronts import front_lines
from nas.views.table import SUGGESTED, lineage_columns
from nas.views.trial_summary import SHARED

if TYPE_CHECKING:
    from rich.console import Console

    from nas.core.trial import Trial
    from nas.views.snapshot import Snapshot

_ORDER = (
    *("trial", "parent", "second_parent", "donor", "state", "inherited", "score", "shared_score"),
    *("duration_s", "stage", "metric.", "front", "test."),
    *(
        "generation",
        "reason",
        "error",
        "point.",
        "cost.",
        "attempt",
        "started",
        "finished",
        "checkpoint_bytes",
        "weights_deleted",
    ),
    *("policies", "job"),
)
"""Order of the columns; ``score`` is the first metric.

A terminal shows as many as fit. It never shows suggested points.
"""
_MAX_CELL = 60
_WIDE = 100_000
"""Width of standard output that is not a terminal."""
_MANY_ROWS = 2_000
"""Number of rows above which rich is too slow, at a millisecond per row."""


def open_console() -> Console:
    """Opens standard output as a console, without a limit of width if it is no terminal."""
    from rich.console import Console

    console = Console(markup=False, highlight=False, emoji=False)
    return console if console.is_terminal else Console(markup=False, highlight=False, emoji=False, width=_WIDE)


def print_table(console: Console, columns: Mapping[str, Sequence[str]], right: frozenset[str] = frozenset()) -> None:
    """Prints a table; columns in ``right`` are aligned to the right.

    The name of a column takes at most half of the width: trial, state and score fit with any metric.
    """
    columns = {one_line(name): [one_line(value) for value in values] for name, values in columns.items()}
    heads = [_head(name, console.width) for name in columns]
    n_rows = len(next(iter(columns.values()), ()))
    if n_rows > _MANY_ROWS:
        _print_plainly(heads, columns, right)
        return
    from rich.table import Table

    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="bold")
    for head, name in zip(heads, columns, strict=True):
        table.add_column(head, justify="right" if name in right else "left", no_wrap=True)
    for row in range(n_rows):
        table.add_row(*(values[row] for values in columns.values()))
    console.print(table)


def _print_plainly(heads: Sequence[str], columns: Mapping[str, Sequence[str]], right: frozenset[str]) -> None:
    filled = []
    for head, (name, values) in zip(heads, columns.items(), strict=True):
        width = max(map(_width, (head, *values)))
        filled.append([_filled(text, width, right=name in right) for text in (head, *values)])
    for row in zip(*filled, strict=True):
        show_line("  ".join(row).rstrip())


def _filled(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - _width(text))
    return f"{space}{text}" if right else f"{text}{space}"


def print_searches(console: Console, searches: Sequence[Snapshot]) -> None:
    """Prints the list of searches with the columns that fit."""
    columns = search_lines(searches)
    fitting = fitting_columns(columns, console.width, {"name"})
    print_table(console, {name: columns[name] for name in fitting}, frozenset({"trials"}))


def print_search(console: Console, snapshot: Snapshot, *, all_columns: bool = False) -> int:
    """Prints the lineage and a summary; returns the number of columns that do not fit.

    Args:
        console: The console.
        snapshot: The search.
        all_columns: Print all columns; the terminal wraps the lines.
    """
    columns = lineage_columns(snapshot.lineage, snapshot.tests, metrics=snapshot.metrics)
    columns.pop(SUGGESTED, None)  # JSON of whole points; formats and trial=N have it
    full = {name: values for name, values in columns.items() if any(cell(name, value) for value in values)}
    score = f"metric.{snapshot.metric.name}"
    in_order = sorted(full, key=lambda name: _ORDER.index("score" if name == score else _kind(name)))
    shown = {name: [_short(cell(name, v)) for v in full[name]] for name in in_order}
    if all_columns:
        console.width = _WIDE
    fitting = fitting_columns(shown, console.width, {"trial", "state", score})
    if fitting:
        right = frozenset(name for name in fitting if all(isinstance(v, int | float | None) for v in full[name]))
        print_table(console, {name: shown[name] for name in fitting}, right)
        show()
    for line in summary_lines(snapshot):
        show_line(line)
    return len(shown) - len(fitting)


def summary_lines(snapshot: Snapshot) -> list[str]:
    """Returns lines on the state of the search, its best trial and the export."""
    lines = [f"{snapshot.name}: {snapshot.standing}, {count(len(snapshot.lineage), 'trial')}"]
    lines[0] += f" ({states_text(snapshot.lineage)})" if len(snapshot.lineage) else ""
    lines += [_searched(snapshot), *outdated_lines(snapshot.lineage)]
    trial, best = snapshot.winner, snapshot.best or {}
    if trial is None:
        return lines
    tested = snapshot.tests.get(trial.number, {}).get("metrics") or {}
    line = [*reversed([t.number for t in snapshot.lineage.ancestors(trial.number)]), trial.number]
    descent = f", descends from {' > '.join(map(str, line[:-1]))}" if 1 < len(line) <= 16 else ""
    said = "winner" if best.get("trial") == trial.number else "best so far"
    shared = SHARED if trial.number in snapshot.shared_scores else ""
    scores = [f"{name} {number(value)}{shared}" for name, value in trial.metrics.items()]
    scores += [f"test {name} {number(value)}{shared}" for name, value in tested.items()]
    lines.append(f"{said}: trial {trial.number} ({trial.stage}): {', '.join(scores)}{descent}")
    lines += filter(None, [finals_line(snapshot.lineage, trial, snapshot.metric, snapshot.final)])
    lines += front_lines(snapshot.lineage, snapshot.metrics)
    if best.get("trial") == trial.number:
        lines += best.get("remarks", [])
    if best.get("export"):
        lines.append(f"export of trial {best.get('trial')}: {snapshot.url.rstrip('/')}/{best['export']}")
    return lines


def _searched(snapshot: Snapshot) -> str:
    """Returns the line that names problem and tuner."""
    identity = snapshot.identity
    problem, tuner = (Spec(identity[kind]["target"]).name for kind in ("problem", "tuner"))
    about = "".join(f", {name} {value}" for name, value in snapshot.about.items())
    chosen = identity.get("chosen_tuner")
    by = f" (chose {_chosen(chosen)})" if chosen else ""
    return f"problem: {problem}{about}; tuner: {tuner}{by}"


def _chosen(described: Mapping[str, Any]) -> str:
    arguments = (f"{name}={brief(value)}" for name, value in described["arguments"].items())
    return " ".join([Spec(described["target"]).name, *arguments])


def _kind(name: str) -> str:
    return name.partition(".")[0] + "." if "." in name else name


def _width(text: str) -> int:
    """Returns the cells that a text takes in a terminal: two for each wide character."""
    return len(text) if text.isascii() else cell_len(text)


def _short(text: str, width: int = _MAX_CELL) -> str:
    line = " ".join(text.split())
    return line if _width(line) <= width else f"{set_cell_size(line, max(0, width - 1))}…"


def _head(name: str, width: int) -> str:
    return _short(name, width // 2)


def fitting_columns(columns: Mapping[str, Sequence[str]], width: int, needed: set[str]) -> list[str]:
    """Returns the columns that fit; needed ones are always included."""
    if not any(columns.values()):
        return []
    widths = {name: max(map(_width, (_head(name, width), *values))) + 2 for name, values in columns.items()}
    left = width + 2 - sum(widths[name] for name in needed if name in widths)
    fitting = set(needed)
    for name in columns:
        if name not in fitting:
            left -= widths[name]
            if left < 0:
                break
            fitting.add(name)
    return [name for name in columns if name in fitting]


def trial_record(snapshot: Snapshot, trial: Trial, logs: Mapping[str, str]) -> dict[str, Any]:
    """Returns all data of a trial as JSON: its row of the table and further fields.

    Args:
        snapshot: The search.
        trial: The trial.
        logs: Logs by writer: ``attempt 1``, ``test``; the log of the last attempt has an empty key.
    """
    columns = lineage_columns(snapshot.lineage, snapshot.tests, metrics=snapshot.metrics)
    row = columns["trial"].index(trial.number)
    return {
        **{name: values[row] for name, values in columns.items()},
        "error": trial.error or columns["error"][row],
        "seed": trial.seed,
        "slot": trial.slot,
        "cost": dict(trial.cost),
        "proposed": trial.proposal.reason or None,
        "derivation": trial.proposal.derivation,
        "resolved_donor": trial.resolved_donor,
        "inheritance": dict(trial.inheritance),
        "ancestors": [t.number for t in snapshot.lineage.ancestors(trial.number)],
        "children": [t.number for t in snapshot.lineage.children(trial.number)],
        "curve": [{"step": step, **metrics} for step, metrics in trial.curve],
        "log": logs[""],
        "other_logs": {what: log for what, log in logs.items() if what},
    }


_NAMES = {"not_copied": "not copied whole (sliced, morphed or new)"}
"""Names of parts for people. Sliced tensors may have inherited all their elements."""


def print_trial(snapshot: Snapshot, trial: Trial, logs: Mapping[str, str]) -> None:
    """Prints fields, cost, inheritance, ancestors, reports and logs of a trial."""
    record = trial_record(snapshot, trial, logs)
    apart = ("cost", "inheritance", "ancestors", "curve", "log", "other_logs", "error")
    fields = {n: v for n, v in record.items() if v != [] and cell(n, v) and n not in apart}
    width = max(len(name) for name in fields)
    show(f"trial {trial.number} of {snapshot.name}\n")
    for name, value in fields.items():
        text = ", ".join(map(str, value)) if name == "children" else cell(name, value)
        show_line(f"  {name:{width}}  {text}")
    _print_parts("cost", trial.cost)
    _print_parts("inheritance", {_NAMES.get(name, name): value for name, value in trial.inheritance.items()})
    _print_ancestors(snapshot, trial)
    if trial.curve:
        show("\nreports\n")
        for step, metrics in trial.curve:
            show_line(f"  step {step:>6}  {', '.join(f'{name} {number(value)}' for name, value in metrics.items())}")
    if record["error"]:
        show("\nerror\n")
        for line in record["error"].rstrip().splitlines():
            show_line(f"  {line}")
    for what in sorted(logs, key=lambda what: (not what.startswith("attempt"), what != "")):
        log = logs[what]
        if what:
            show(f"\nlog of {what}\n")
        else:
            show("\nlog\n" if log else "\nno log")
        if log:
            show(log.removesuffix("\n"))


def _print_parts(title: str, parts: Mapping[str, Any]) -> None:
    if not parts:
        return
    show(f"\n{title}\n")
    for name, value in parts.items():
        if isinstance(value, Mapping):
            show_line(f"  {name}{'' if value else ': none'}")
            for what, why in value.items():
                show_line(f"    {what}: {why if isinstance(why, str) else json.dumps(why)}")
        else:
            show_line(f"  {name}: {brief(value)}")


def _print_ancestors(snapshot: Snapshot, trial: Trial) -> None:
    ancestors = snapshot.lineage.ancestors(trial.number)
    if not ancestors:
        return
    show("\nancestors\n")
    for ancestor in ancestors:
        score = ancestor.value(snapshot.metric.name)
        shown = str(ancestor.state) if score is None else f"{snapshot.metric.name} {number(score)}"
        shown += SHARED if ancestor.number in snapshot.shared_scores else ""
        share = ""
        if ancestor.inherited is not None and ancestor.donor is not None:
            share = f", {ancestor.inherited:.0%} from {ancestor.donor}"
        show_line(f"  {ancestor.number:>6}  generation {ancestor.generation}, {shown}{share}")
