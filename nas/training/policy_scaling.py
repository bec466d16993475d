"""Helpers for a problem's code to apply policies, one line for each."""

from __future__ import annotations

import math
import sys
import time
from typing import Any, TypeVar

from nas.core.errors import ConfigurationError
from nas.core.metric import plain_metrics
from nas.core.policy import Policy
from nas.core.validation import check_int, check_number

T = TypeVar("T")


class PolicyScaling:
    """The epochs, data and sizes of one trial under its policies.

    Attributes:
        policies: The policies that are on.
        fidelity: The share of a full training that the tuner requests, or None.
        more_epochs: The epochs for which the trial goes on training its parent, or None for another trial.
        asked_epochs_s: The ``time.perf_counter`` of the first call of ``epochs``, or None. The time before it is setup,
            which does not grow with the epochs.
    """

    def __init__(
        self,
        policies: frozenset[Policy] = frozenset(),
        fidelity: float | None = None,
        more_epochs: int | None = None,
    ) -> None:
        self.policies = policies
        self.fidelity = fidelity
        self.more_epochs = more_epochs
        self._epochs: dict[tuple[int, int], int] = {}
        self._scales: dict[str, float] = {}
        self._trained_share: float | None = None
        self.asked_epochs_s: float | None = None

    @property
    def trained_share(self) -> float | None:
        """The trained share of a full training's epochs.

        The problem sets it if ``epochs`` gave another.

        Raises:
            ConfigurationError: it is set to another number than a finite one of at least 0.
            TypeError: it is set to something else.
        """
        return self._trained_share

    @trained_share.setter
    def trained_share(self, share: float | None) -> None:
        if share is not None:
            [share] = plain_metrics({"run.trained_share": share}).values()
            check_number("run.trained_share", share, 0)
        self._trained_share = share

    @property
    def shares(self) -> dict[str, float]:
        """The shares of a full training, computed from the calls of ``epochs`` and ``scale``.

        ``epochs_share``: of the epochs, all calls with different arguments together. ``scale_share``: of the sizes, the
        product over their names. A share is absent if its method was not called. Duration estimates divide by them.
        """
        shares = {}
        if self._trained_share is not None:
            shares["epochs_share"] = self._trained_share
        elif n_full := sum(full for full, _ in self._epochs):
            shares["epochs_share"] = sum(self._epochs.values()) / n_full
        if self._scales:
            shares["scale_share"] = math.prod(self._scales.values())
        return shares

    def epochs(self, full: int, early: int | None = None) -> int:
        """Returns how many epochs to train: ``for epoch in range(run.epochs(full=60, early=8))``.

        The first rule that applies decides: ``more_epochs``; with SKIP_TRAIN, 0; with a fidelity, that share of
        ``full``, at least 1; with EARLY_STOP, ``early``, at most ``full``; else ``full``.

        ``early`` may be left out if the problem does not declare EARLY_STOP.

        Raises:
            ConfigurationError: an argument is not a whole number of at least 0, or ``early`` is missing.
        """
        check_int("run.epochs: full", full, 0)
        if early is None and Policy.EARLY_STOP in self.policies:
            raise ConfigurationError(f"run.epochs({full}): must have early, such as early={max(1, full // 8)}. Give it")
        early = full if early is None else check_int("run.epochs: early", early, 0)
        if self.asked_epochs_s is None:
            self.asked_epochs_s = time.perf_counter()
        if self.more_epochs is not None:
            n = self.more_epochs
        elif Policy.SKIP_TRAIN in self.policies:
            n = 0
        elif self.fidelity is not None:
            n = max(1, round(self.fidelity * full))
        else:
            n = min(early, full) if Policy.EARLY_STOP in self.policies else full
        self._epochs[full, early] = n
        return n

    def subset(self, data: T, *, quick: int, full: int | None = None) -> T:
        """Returns the data to score on: the first ``quick`` examples with QUICK_EVAL, else the first ``full``.

        They are the same for every trial, so scores can be compared. Data sorted by class must be shuffled before.

        Args:
            data: A sequence with slices (a tensor, an array, a list), or a ``torch.utils.data.Dataset``.
            quick: How many examples with QUICK_EVAL.
            full: How many without; None: all.

        Raises:
            ConfigurationError: a number is not a whole number of at least 1.
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
        result: T = part
        return result

    def scale(self, *, downscaled: int, **size: int) -> int:
        """Returns the size to build: ``run.scale(layers=15, downscaled=6)`` is 6 with DOWNSCALE, else 15.

        Use it in ``train``, ``test`` and ``export`` alike, since the saved weights fit only the network that was built.

        Raises:
            ConfigurationError: a number is not a whole number of at least 1.
            TypeError: the number of sizes besides ``downscaled`` is not 1.
        """
        if len(size) != 1:
            raise TypeError(
                f"run.scale: must have one size beside `downscaled`, got {len(size)}. Call it once for each size"
            )
        [(name, full)] = size.items()
        check_int(f"run.scale: {name}", full, 1)
        check_int("run.scale: downscaled", downscaled, 1)
        size_now = downscaled if Policy.DOWNSCALE in self.policies else full
        self._scales[name] = size_now / full
        return size_now


def _is_dataset(data: object) -> bool:
    module = sys.modules.get("torch.utils.data")  # without the module, data can't be a Dataset
    return module is not None and isinstance(data, module.Dataset)
