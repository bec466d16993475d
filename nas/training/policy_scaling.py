"""How a trial honors its policies, in one line each; the values without a policy stand beside those with it."""

from __future__ import annotations

import math
import sys
import time
from typing import Any, TypeVar

from nas.core.errors import check_int
from nas.core.policy import Policy

T = TypeVar("T")


class PolicyScaling:
    """What the policies of one trial make of epochs, data and sizes.

    Attributes:
        policies: The policies that are on.
        fidelity: The share of a full training that the tuner asks for, or None.
        asked_epochs_s: When ``epochs`` was first asked, by ``time.perf_counter``: what comes before does not grow with
            them. None: not yet.
    """

    def __init__(self, policies: frozenset[Policy] = frozenset(), fidelity: float | None = None) -> None:
        self.policies = policies
        self.fidelity = fidelity
        self._epochs: dict[tuple[int, int], int] = {}
        self._scales: dict[str, float] = {}
        self.asked_epochs_s: float | None = None

    @property
    def shares(self) -> dict[str, float]:
        """What share of a full training this one is, as ``epochs`` and ``scale`` were called; by what it was cut.

        ``epochs_share``: of the epochs, all calls with different numbers together. ``scale_share``: of the sizes, the
        product over their names. Neither where the problem has not called it; forecasts divide by them.
        """
        shares = {}
        if n_full := sum(full for full, _ in self._epochs):
            shares["epochs_share"] = sum(self._epochs.values()) / n_full
        if self._scales:
            shares["scale_share"] = math.prod(self._scales.values())
        return shares

    def epochs(self, *, full: int, early: int) -> int:
        """How many epochs to train: ``for epoch in range(run.epochs(full=60, early=8))``.

        None with SKIP_TRAIN; else, where the tuner asks for a fidelity, that share of ``full``, at least one; else
        ``early`` with EARLY_STOP, but never more than ``full``.

        Raises:
            ConfigurationError: a number that is no whole number from 0 on.
        """
        check_int("run.epochs: full", full, 0)
        check_int("run.epochs: early", early, 0)
        if self.asked_epochs_s is None:
            self.asked_epochs_s = time.perf_counter()
        if Policy.SKIP_TRAIN in self.policies:
            n = 0
        elif self.fidelity is not None:
            n = max(1, round(self.fidelity * full))
        else:
            n = min(early, full) if Policy.EARLY_STOP in self.policies else full
        self._epochs[full, early] = n
        return n

    def subset(self, data: T, *, quick: int, full: int | None = None) -> T:
        """The data to score on: the first ``quick`` examples with QUICK_EVAL, else the first ``full`` (None: all).

        They are the same for every trial, so that scores can be compared; an order by class must be shuffled before.

        Args:
            data: What has a length and takes slices (a tensor, an array, a list), or a ``torch.utils.data.Dataset``.
            quick: How many with QUICK_EVAL.
            full: How many without.

        Raises:
            ConfigurationError: a number that is no whole number from 1 on.
        """
        check_int("run.subset: quick", quick, 1)
        if full is not None:
            check_int("run.subset: full", full, 1)
        n = quick if Policy.QUICK_EVAL in self.policies else full
        if n is None:
            return data
        sized: Any = data
        n = min(n, len(sized))
        if _is_dataset(data):
            from torch.utils.data import Subset

            part: Any = Subset(sized, range(n))
        else:
            part = sized[:n]
        found: T = part
        return found

    def scale(self, *, downscaled: int, **size: int) -> int:
        """How large to build: ``run.scale(layers=15, downscaled=6)`` is 6 with DOWNSCALE, else 15.

        Use it in ``train``, ``test`` and ``export`` alike: a trial's weights are those of the network that it built.

        Raises:
            ConfigurationError: a number that is no whole number from 1 on.
            TypeError: not one other size, by whatever name.
        """
        if len(size) != 1:
            raise TypeError("run.scale takes one size by a name of yours, and what it is downscaled to")
        [(name, full)] = size.items()
        check_int(f"run.scale: {name}", full, 1)
        check_int("run.scale: downscaled", downscaled, 1)
        size_now = downscaled if Policy.DOWNSCALE in self.policies else full
        self._scales[name] = size_now / full
        return size_now


def _is_dataset(data: object) -> bool:
    found = sys.modules.get("torch.utils.data")  # where nobody has loaded it, it is none
    return found is not None and isinstance(data, found.Dataset)
