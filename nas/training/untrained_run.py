"""A trial's handle before its training, with which a problem's ``export`` is checked early."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nas.training.trial_run import TrialRun

if TYPE_CHECKING:
    import torch


class UntrainedRun(TrialRun):
    """The handle of a trial without weights: ``restore`` leaves a network as it was built."""

    def restore(self, model: torch.nn.Module) -> torch.nn.Module:
        """Moves the network to ``device``."""
        return model.to(self.device)
