"""What tuners and assessors have in common."""

from __future__ import annotations

import os


class Recoverable:
    """May keep checkpoints of itself; nothing here calls for them: a resumed tuner is asked again what it was asked."""

    def load_checkpoint(self) -> None:
        """Never called."""

    def save_checkpoint(self) -> None:
        """Never called, as in NNI."""

    def get_checkpoint_path(self) -> str | None:
        """Returns the folder of checkpoints, which is the folder that the tuner runs in."""
        return os.environ.get("NNI_CHECKPOINT_DIRECTORY")
