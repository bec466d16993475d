"""Policy shortcuts: epochs, subsets and scale."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from nas.core.errors import ConfigurationError
from nas.core.policy import Policy
from nas.training.policy_scaling import PolicyScaling


def modes(*policies: Policy, fidelity: float | None = None) -> PolicyScaling:
    return PolicyScaling(frozenset(policies), fidelity)


@pytest.mark.parametrize(
    ("policies", "fidelity", "epochs"),
    [
        ([], None, 60),
        ([Policy.EARLY_STOP], None, 8),
        ([Policy.SKIP_TRAIN], None, 0),
        ([Policy.SKIP_TRAIN, Policy.EARLY_STOP], 0.5, 0),
        ([Policy.EARLY_STOP], 0.5, 30),
        ([], 0.001, 1),
        ([Policy.DOWNSCALE, Policy.QUICK_EVAL, Policy.SHARE_PARAMS], None, 60),
    ],
)
def test_epochs(policies: Iterable[Policy], fidelity: float | None, epochs: int) -> None:
    """SKIP_TRAIN takes precedence over a fidelity, and a fidelity over EARLY_STOP."""
    assert modes(*policies, fidelity=fidelity).epochs(full=60, early=8) == epochs


def test_early_is_never_longer_than_full() -> None:
    """EARLY_STOP does not lengthen a training that is already shorter."""
    assert modes(Policy.EARLY_STOP).epochs(full=2, early=8) == 2
    assert modes().epochs(10) == modes(Policy.QUICK_EVAL).epochs(full=10) == 10
    with pytest.raises(ConfigurationError, match=r"run\.epochs\(80\): must have early, such as early=10\. Give it"):
        modes(Policy.EARLY_STOP).epochs(80)


@pytest.mark.parametrize(
    "data",
    [list(range(10)), np.arange(10), torch.arange(10), TensorDataset(torch.arange(10))],
    ids=["list", "array", "tensor", "dataset"],
)
def test_subset(data: Any) -> None:
    """QUICK_EVAL takes the first examples of any kind of data, and at most all of them."""

    def first(part: Any) -> list[int]:
        return [int(example[0] if isinstance(example, tuple) else example) for example in part]

    quick, full = modes(Policy.QUICK_EVAL), modes()
    assert first(quick.subset(data, quick=3)) == [0, 1, 2]
    assert len(quick.subset(data, quick=30)) == 10
    assert full.subset(data, quick=3) is data
    assert first(full.subset(data, quick=3, full=5)) == [0, 1, 2, 3, 4]


def test_scale() -> None:
    """DOWNSCALE builds the smaller size."""
    assert modes().scale(layers=15, downscaled=6) == 15
    assert modes(Policy.DOWNSCALE).scale(layers=15, downscaled=6) == 6


def test_shares_of_a_full_training() -> None:
    """The shares of a full training are recorded: equal calls count once, and different sizes multiply."""
    cheap = modes(Policy.EARLY_STOP, Policy.DOWNSCALE)
    for _ in range(3):
        cheap.epochs(full=50, early=10)
        cheap.scale(layers=15, downscaled=6)
    cheap.epochs(full=10, early=2)  # a phase of its own
    cheap.scale(images=1000, downscaled=500)

    assert cheap.shares == {"epochs_share": 12 / 60, "scale_share": pytest.approx(0.2)}
    assert modes().shares == {}
    full = modes()
    assert (full.epochs(full=60, early=8), full.shares) == (60, {"epochs_share": 1.0})
    asked = modes(Policy.EARLY_STOP, fidelity=0.5)
    assert (asked.epochs(full=60, early=8), asked.shares) == (30, {"epochs_share": 0.5})


@pytest.mark.parametrize("share", [0.5, np.float32(0.5), torch.tensor(0.5)], ids=["float", "numpy", "torch"])
def test_trained_share_is_a_plain_number(share: Any) -> None:
    """A share that the problem sets replaces that of ``epochs``, as a plain number."""
    run = modes()
    run.epochs(full=60, early=8)
    run.trained_share = share

    assert run.shares == {"epochs_share": 0.5}
    assert type(run.shares["epochs_share"]) is float


@pytest.mark.parametrize("share", [math.nan, math.inf, -0.5, True, "half", torch.zeros(2)], ids=str)
def test_wrong_trained_share_is_refused(share: Any) -> None:
    """A share that no record can hold is refused, and does not count."""
    run = modes()
    with pytest.raises((ConfigurationError, TypeError), match=r"run\.trained_share.* must be a number"):
        run.trained_share = share

    assert run.shares == {}


def test_mistakes_name_the_argument() -> None:
    """An invalid number of epochs, examples or layers is refused by name under every policy."""
    with pytest.raises(ConfigurationError, match=r"run.epochs: early=2.5: must be a whole number of at least 0"):
        modes().epochs(full=10, early=2.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"run.subset: quick=0: "):
        modes().subset([1, 2], quick=0)
    with pytest.raises(ConfigurationError, match=r"run.scale: layers=0: "):
        modes(Policy.DOWNSCALE).scale(layers=0, downscaled=6)
    with pytest.raises(TypeError, match="one size"):
        modes().scale(layers=15, width=3, downscaled=6)
