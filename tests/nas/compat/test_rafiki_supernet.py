"""Rafiki's ENAS schedule: shared parameters are trained for an epoch, then many architectures are scored with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nas.api.results import Results
from nas.api.search import run_search
from nas.compat.rafiki.params import from_tensors
from nas.compat.rafiki.problem import RafikiProblem
from nas.compat.rafiki.trained import load_trial_model
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.policy import Policy
from nas.core.spec import Spec
from nas.core.supernet import epoch_of, is_epoch
from nas.core.trial import State, Trial
from nas.search.definition import Search
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.trial_run import TrialRun
from nas.tuners.auto import chosen_tuner
from tests.support.rafiki_data import TEMPLATES, table_files

SUBNET = {Policy.SHARE_PARAMS, Policy.SKIP_TRAIN, Policy.QUICK_EVAL}
TEMPLATE = str(TEMPLATES / "shared.py")


def arguments(folder: Path, **more: Any) -> dict[str, Any]:
    return {"file": TEMPLATE, **table_files(folder), "supernet_paths": 2, **more}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A search by ENAS."""
    folder = tmp_path_factory.mktemp("rafiki")
    schedule = {"n_epochs": 6, "warm_up_epochs": 3, "subnets_per_epoch": 4, "paths_per_epoch": 2}
    definition = Search(
        problem=Spec("nas.compat.rafiki.problem.RafikiProblem", arguments(folder)),
        tuner=Spec("nas.tuners.enas.EnasTuner", schedule),
    )
    return run_search(definition, root=str(folder / "root"), budget=Budget(trials=30), finalists=1)


def params_of(found: Results, trial: Trial) -> Any:
    return from_tensors(TrialRun(trial, Records(open_root(found.url)).files).restore_tensors())


@pytest.mark.slow
class TestSearch:
    def test_epochs_train_shared_parameters(self, found: Results) -> None:
        """Each epoch continues the parameters of the one before, of the smaller network, and its score rises."""
        epochs = [trial for trial in found.lineage if is_epoch(trial)]
        one, last = (params_of(found, epoch)["stem.weight"] for epoch in (epochs[-2], epochs[-1]))

        assert [epoch_of(trial.point) for trial in epochs] == [0, 1, 2, 3, 4, 5]
        assert [trial.donor for trial in epochs[1:]] == [trial.number for trial in epochs[:-1]]
        assert one.shape == last.shape == (32, 64)
        assert not np.array_equal(one, last)
        assert epochs[-1].metrics["score"] > epochs[0].metrics["score"] + 0.1

    def test_subnets_only_score(self, found: Results) -> None:
        """A subnet has the parameters of its epoch to the bit, and adds no bytes to the root."""
        newest = max(trial.number for trial in found.lineage if is_epoch(trial))
        shared = params_of(found, found.lineage[newest])
        subnets = [trial for trial in found.lineage if trial.donor == newest and trial.stage == "search"]

        assert len(subnets) >= 4
        for trial in subnets:
            assert trial.state == State.COMPLETE
            assert trial.policies == SUBNET
            assert trial.checkpoint is not None
            own = params_of(found, trial)
            assert own.keys() == shared.keys()
            assert all(np.array_equal(own[name], array) for name, array in shared.items())

    def test_a_subnet_is_loaded_at_its_size(self, found: Results, tmp_path: Path) -> None:
        """The model of a subnet outside of the search has its score, so DOWNSCALE is on there, too."""
        trial = next(trial for trial in found.lineage if trial.policies == SUBNET)
        model = load_trial_model(found.url, TEMPLATE, trial=trial.number)
        model.knobs["quick_eval"] = True  # type: ignore[attr-defined]

        assert model.evaluate(table_files(tmp_path)["val_data"]) == pytest.approx(trial.metrics["score"])

    def test_an_epoch_is_no_model(self, found: Results) -> None:
        """The trial of an epoch is refused by its number, not the file."""
        with pytest.raises(ConfigurationError, match=r"trial=0: must be a subnet or a finalist of .*; it is"):
            load_trial_model(found.url, TEMPLATE, trial=0)

    def test_the_final_is_trained_in_full(self, found: Results) -> None:
        """All policies are off for the winner, which is the network of a subnet at full size."""
        assert params_of(found, found.winner)["stem.weight"].shape == (96, 64)
        assert found.winner.policies == frozenset()
        assert found.winner.metrics["score"] > 0.93
        assert found.tests[found.winner.number]["metrics"]["score"] > 0.9


def test_auto_chooses_enas(tmp_path: Path) -> None:
    """As in Rafiki, whose advisor chooses ENAS for an ArchKnob."""
    assert chosen_tuner(RafikiProblem(**arguments(tmp_path)).space).target == "nas.tuners.enas.EnasTuner"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"file": str(TEMPLATES / "linear.py")}, "Linear in .* must implement SHARE_PARAMS"),
        ({"knobs": {"skip_train": False}}, "Shared in .* must implement SKIP_TRAIN"),
        ({"supernet_paths": -1}, "problem.supernet_paths=-1: must be"),
    ],
)
def test_templates_that_share_nothing(tmp_path: Path, changes: dict[str, Any], error: str) -> None:
    """A template without the policies is refused by name."""
    with pytest.raises(ConfigurationError, match=error):
        RafikiProblem(**arguments(tmp_path, **changes))
