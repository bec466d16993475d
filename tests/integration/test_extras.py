"""Tuners that need an extra's library name the install command."""

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
def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, target: str, library: str) -> None:
    """The error has the exact command."""
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(ConfigurationError, match=rf'pip install "heirloom-nas\[{library}\]"'):
        Spec(target, {}).build(SPACE, (METRIC,), seed=0)
