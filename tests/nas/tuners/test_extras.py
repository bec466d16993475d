"""Tuners that need the library of an extra say how to get it: from the repository, in the version that is tested."""

from __future__ import annotations

import sys

import pytest

from nas.core.errors import ConfigurationError
from nas.core.spec import Spec
from tests.support.landscape import METRIC, SPACE


@pytest.mark.parametrize(
    ("target", "library"),
    [
        ("nas.tuners.cmaes.CmaEsTuner", "cmaes"),
        ("nas.tuners.optuna.OptunaTuner", "optuna"),
        ("nas.tuners.smac.SmacTuner", "smac"),
    ],
)
def test_a_library_that_is_not_there_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch, target: str, library: str
) -> None:
    """The line holds the command word for word."""
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(ConfigurationError, match=rf'pip install -c constraints\.txt "\.\[{library}\]"'):
        Spec(target, {}).build(SPACE, (METRIC,), seed=0)
