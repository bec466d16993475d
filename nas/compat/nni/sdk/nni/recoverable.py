"""The base class of tuners and assessors."""

from __future__ import annotations

import os


class Recoverable:
    """Methods for checkpoints, which are never called: a resumed tuner gets the same calls again."""

    def load_checkpoint(self) -> None:
        """Is never called."""

    def save_checkpoint(self) -> None:
        """Is never called, as in NNI."""

    def get_checkpoint_path(self) -> str | None:
        """Returns the folder of checkpoints, which is the tuner's working folder."""
        return os.environ.get("NNI_CHECKPOINT_DIRECTORY")
