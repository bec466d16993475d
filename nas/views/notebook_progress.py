"""Live progress in a notebook, as plain HTML."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from nas.core.metric import Metric
from nas.core.redaction import public_line
from nas.core.trial import Trial
from nas.executors.events import Event
from nas.views.formatting import markup
from nas.views.notebook import is_notebook
from nas.views.progress import Progress

REFRESH_S = 0.5
"""The least seconds between two updates of a cell's output."""
N_NOTES = 5


class NotebookProgress(Progress):
    """Progress display in a notebook: a bar, the state, and the last notes."""

    def __init__(self, metrics: Sequence[Metric], wanted: Mapping[str, int | None], known: list[Trial]) -> None:
        super().__init__(metrics, wanted, known)
        self._is_live = True  # shows failures only: other trials change the bar
        self._notes: deque[str] = deque(maxlen=N_NOTES)
        self._display: Any = None
        self._shown_s = 0.0

    def __enter__(self) -> NotebookProgress:
        from IPython.display import HTML, display

        self._display = display(HTML(self.html()), display_id=True)
        return self

    def stop(self) -> None:
        """Shows the last state."""
        self._update()

    def note(self, text: str) -> None:
        """Adds a line below the bar."""
        self._notes.append(public_line(text))

    def observe(self, event: Event) -> None:
        """Updates the display after an event of the search, at most every half second."""
        super().observe(event)
        if time.monotonic() - self._shown_s >= REFRESH_S:
            self._update()

    def html(self) -> str:
        """Returns the display."""
        n_done, total = self.n_done, self.n_total
        bar = "" if total is None else f'<progress value="{n_done}" max="{total}"></progress> '
        of_total = "" if total is None else f"/{total}"
        lines = [f"{n_done}{of_total} trials", self.detail, *self._notes]
        return bar + "<br>".join(markup(line) for line in lines if line)

    def _update(self) -> None:
        from IPython.display import HTML

        self._shown_s = time.monotonic()
        if self._display is not None:
            self._display.update(HTML(self.html()))


def open_progress(metrics: Sequence[Metric], wanted: Mapping[str, int | None], known: list[Trial]) -> Progress:
    """Returns the progress display for this process: a notebook's, or a terminal's.

    The arguments are those of ``Progress``.
    """
    return NotebookProgress(metrics, wanted, known) if is_notebook() else Progress(metrics, wanted, known)
