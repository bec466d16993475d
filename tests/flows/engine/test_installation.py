"""Checks of this machine where Heirloom or a GPU's driver is not as it should be."""

from __future__ import annotations

import pytest
import torch

from flows.engine import installation
from nas.storage.maintenance.backend_checks.check import CheckStatus


def test_a_gpu_that_only_the_driver_counts_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that CUDA can't reach gives a result with its remedy, and the other devices are checked."""
    n_gpus = torch.cuda.device_count()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: n_gpus + 1)  # NVML counts what CUDA can't initialize
    results = {result.name: result for result in installation.check_devices()}

    assert results["cpu"].status == CheckStatus.PASSED
    assert results[f"cuda:{n_gpus}"].status == CheckStatus.FAILED
    assert results[f"cuda:{n_gpus}"].observed
    assert "use device=cpu, or update the driver" in results[f"cuda:{n_gpus}"].hint


def test_a_clone_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the distribution's metadata the versions are shown, and that the rest is not checked."""
    monkeypatch.setattr(installation, "DISTRIBUTION", "heirloom-that-nobody-installed")
    [versions] = installation.check_versions()
    [extras] = installation.check_extras()

    assert versions.observed.startswith("Python ")
    assert f"Heirloom not installed, torch {torch.__version__}" in versions.observed
    assert extras.status == CheckStatus.WARNING
    assert extras.observed.startswith("Heirloom is not installed")
    assert extras.hint.startswith("pip install -e .")
