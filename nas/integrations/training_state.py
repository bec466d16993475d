"""The state of another library's trainer, as a part of a resume point."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nas.training.temporary_folders import temporary_folder
from nas.training.trial_run import TrialRun


class TrainingState:
    """The state of a trainer, read only if a resume point is due.

    Args:
        read: Returns the state: dicts, lists, tensors and plain values. None: the state is loaded.
    """

    def __init__(self, read: Callable[[], dict[str, Any]] | None = None) -> None:
        self._read = read
        self.loaded: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state now."""
        return self.loaded if self._read is None else self._read()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keeps the state, from which the trainer's own checkpoint is written."""
        self.loaded = state


class ResumedTraining:
    """The resume point of an earlier attempt, for a trainer that reads checkpoints from files.

    Args:
        run: The trial.

    Attributes:
        state: The trainer's state, or None: train from the start.
    """

    def __init__(self, run: TrialRun) -> None:
        self.state: dict[str, Any] | None = None
        self._folder: TemporaryDirectory[str] | None = None
        if (found := run.resumed_from()) is not None:
            holder = TrainingState()
            found.load(holder)
            self.state = holder.loaded

    @property
    def folder(self) -> Path:
        """A temporary folder for the trainer's checkpoint; ``close`` deletes it."""
        if self._folder is None:
            self._folder = temporary_folder("heirloom-resumed-")
        return Path(self._folder.name)

    def close(self) -> None:
        """Deletes the temporary folder."""
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
