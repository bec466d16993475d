"""The tuner that chooses another by the space."""

from __future__ import annotations

import pytest

from nas import Choice, Metric, ParameterSpace
from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.spaces.supernet import SupernetSpace
from nas.tuners.auto import AutoTuner


def test_what_the_chosen_tuner_refuses_is_refused() -> None:
    """For a supernet it is ``enas``, which needs more trials than supernet epochs, and takes no given points."""
    tuner = AutoTuner(SupernetSpace(ParameterSpace({"a": Choice(0, 1), "b": Choice(0, 1)})), (Metric("accuracy"),))

    with pytest.raises(ConfigurationError, match=r"budget.trials=3: must be more than tuner.warm_up_epochs"):
        tuner.check_trials(3)
    with pytest.raises(ConfigurationError, match="one-shot tuner"):
        tuner.propose_given({"a": 0, "b": 1}, Lineage.of([]), 0)
