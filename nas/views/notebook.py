"""The results of a search in a notebook."""

from __future__ import annotations

import base64
import sys

from nas.views.finals_line import finals_line
from nas.views.formatting import count, markup, number, states_text
from nas.views.page.tree import family_tree_svg
from nas.views.snapshot import Snapshot
from nas.views.trial_summary import SHARED


def is_notebook() -> bool:
    """Returns whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def results_html(snapshot: Snapshot) -> str:
    """Returns standing, best trial and family tree of a search.

    The tree is an image, so that its styles do not change the notebook.
    """
    lines = [f"<b>{markup(snapshot.name)}</b>: {snapshot.standing}, {count(len(snapshot.lineage), 'trial')}"]
    if states := states_text(snapshot.lineage):
        lines[0] += f" ({states})"
    if (best := snapshot.winner) is not None:
        shared = SHARED if best.number in snapshot.shared_scores else ""
        scores = ", ".join(f"{markup(name)} {number(value)}{shared}" for name, value in best.metrics.items())
        tested = snapshot.tests.get(best.number, {}).get("metrics") or {}
        on_test = "".join(f", test {markup(name)} {number(value)}{shared}" for name, value in tested.items())
        lines.append(f"best: trial {best.number}, {scores}{on_test}")
    better = finals_line(snapshot.lineage, snapshot.winner, snapshot.metric, snapshot.final)
    lines += [] if better is None else [markup(better)]
    picture = ""
    if len(snapshot.lineage):
        svg = family_tree_svg(snapshot.lineage, snapshot.metric, winner=best.number if best else None)
        data = base64.b64encode(svg.encode()).decode()
        picture = f'<img alt="family tree" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'
    return f"<div>{'<br>'.join(lines)}<br>{picture}</div>"
