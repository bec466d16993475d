"""A display that keeps what a pool shows."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RecordedDisplay:
    """The lines, and what trials waited for, in order."""

    lines: list[str] = field(default_factory=list)
    waits: list[str | None] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Keeps a line."""
        self.lines.append(text)

    def show_wait(self, what: str | None) -> None:
        """Keeps what trials wait for."""
        self.waits.append(what)
