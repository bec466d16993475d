"""Multiruns: each job is a search under the name of the single command, and no file is left over."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path

import pytest

from tests.support.commands import TIMED, run, trials

DATA = (Path(__file__).parents[2] / os.environ.get("HEIRLOOM_DATA", "../shared/data")).resolve()
TABLE = DATA / "nasbench201_cifar10.parquet"
SMALL = (*TIMED[1:], "finalists=1")


def names(here: Path) -> list[str]:
    return sorted(path.name for path in (here / "heirloom").iterdir())


@pytest.mark.slow
def test_tuners_and_seeds_make_four_searches(here: Path) -> None:
    """-m +tuner=random,evolution seed=1,2 makes four searches under the single commands' names."""
    sweep = (*SMALL, "runner=debug", "budget.trials=2")
    done = run(here, "-m", "+tuner=random,evolution", "seed=1,2", *sweep)
    single = run(here, "+tuner=evolution", "seed=2", *sweep)

    assert done.status == 0
    assert len(names(here)) == 4
    assert [re.sub("-[0-9a-f]{8}$", "", name) for name in names(here)] == ["timed-evolution"] * 2 + ["timed-random"] * 2
    assert done.out.count("best: trial") == 4
    assert re.findall(r"^search (\S+): ", done.out, re.MULTILINE)[-1] in single.out
    assert "is finished" in single.out


@pytest.mark.slow
@pytest.mark.skipif(not TABLE.exists(), reason=f"needs {TABLE.name}")
def test_a_tuner_around_another(here: Path) -> None:
    """tuner.inner=A,B makes a search with each inner tuner, with its own keys; tuner=NAME works without its +."""
    sweep = ("tuner=screened", "tuner.inner=random,evolution", "tuner.n_candidates=4")
    tabled = ("problem=nasbench201", f"problem.table={TABLE}", "tuner.proxies=[live_flops_m]", "budget.trials=3")
    done = run(here, "-m", *sweep, *tabled, "runner=simulated")
    keys = run(here, *sweep[:1], "tuner.inner=evolution", "tuner.inner.population_size=4", "--cfg", "job")

    assert done.status == 0, done.err
    targets = {
        json.loads((path / "search.json").read_text())["identity"]["tuner"]["arguments"]["inner"]["_target_"]
        for path in (here / "heirloom").iterdir()
    }
    assert targets == {"nas.tuners.random.RandomTuner", "nas.tuners.evolution.EvolutionTuner"}
    assert "  inner:\n    _target_: nas.tuners.evolution.EvolutionTuner\n    population_size: 4\n" in keys.out


@pytest.mark.slow
def test_budgets_make_two_searches(here: Path) -> None:
    """-m budget.trials=3,4 makes two searches, whose names end with the difference."""
    done = run(here, "-m", "+tuner=random", *SMALL, "runner=debug", "budget.trials=3,4")
    found = {name.partition("-budget")[2]: trials(here / "heirloom" / name) for name in names(here)}

    assert done.status == 0
    assert {suffix: len(made) for suffix, made in found.items()} == {".trials-3": 4, ".trials-4": 5}


@pytest.mark.slow
def test_slots_make_two_searches(here: Path, api_url: str) -> None:
    """-m slots=1,2 makes two searches on one server, whose names end with the difference."""
    done = run(
        here, "-m", "+tuner=random", *SMALL, "runner=threads", "budget.trials=2", "slots=1,2", PREFECT_API_URL=api_url
    )

    assert done.status == 0, done.err
    assert [name.partition("-slots")[2] for name in names(here)] == ["-1", "-2"]
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_a_multirun_leaves_no_files(here: Path) -> None:
    """No multirun.yaml and no outputs folder is left, here or in the temporary folder."""
    done = run(here, "-m", "+tuner=random", *SMALL, "runner=debug", "budget.trials=1", "seed=1,2")

    assert done.status == 0
    assert [path.name for path in here.iterdir()] == ["heirloom"]
    assert not list(Path(tempfile.gettempdir()).glob(f"heirloom-multirun-{done.pid}*"))


@pytest.mark.slow
def test_swept_data_and_odd_values_make_valid_names(here: Path) -> None:
    """Names show differences outside the identity, without characters that a folder's name can't have."""
    done = run(
        here, "-m", "+tuner=random", *SMALL, "runner=debug", "budget.trials=1", "storage.root=heirloom,./heirloom"
    )

    assert done.status == 0
    assert [name.partition("-storage")[2] for name in names(here)] == [".root-._heirloom", ".root-heirloom"]
