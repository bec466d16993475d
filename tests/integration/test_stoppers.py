"""Every stopper of conf/ ends the same trials at the same reports on all runners."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from nas.core.trial import Reason, State, Trial
from tests.support.commands import records, run, trials

pytestmark = pytest.mark.slow

CONF = Path(__file__).parents[2] / "conf" / "stopper"
STOPPERS = sorted(path.stem for path in CONF.glob("*.yaml") if path.stem != "custom")
N_STEPS = 12
HOPELESS = (7, 9, 10, 11)
SEARCH = (
    *("+tuner=grid", "problem=tabular", "problem.table=t.csv", "problem.parameters=[x]"),
    *("problem.metrics.acc.curve=acc_*", "problem.seconds=600", "device=cpu", "threads=1", "finalists=1"),
    *("budget.trials=12", "storage.root=root"),
)
DEBUG = ("runner=debug", "deterministic=true")
RUNNERS = {
    "simulated": ("runner=simulated", "deterministic=true", "slots=1"),
    "threads": ("runner=threads", "slots=2"),
    "processes": ("runner=processes", "slots=1"),
}


def reports(x: int) -> list[float]:
    """Returns a point's reports: bad points stay at the start, good ones rise together."""
    return [0.125 if x in HOPELESS else 1 - math.exp(-step / 4) for step in range(1, N_STEPS + 1)]


def searched(here: Path, *more: str, **environment: str) -> dict[str, list[Trial]]:
    """Returns the search stage's trials by stopper, of one multirun over all stoppers on the table."""
    lines = [",".join(["x", "acc", *(f"acc_{step}" for step in range(1, N_STEPS + 1))])]
    lines += [",".join(map(repr, [x, reports(x)[-1], *reports(x)])) for x in range(12)]
    (here / "t.csv").write_text("\n".join(lines))
    done = run(here, "-m", *SEARCH, f"stopper={','.join(STOPPERS)}", *more, **environment)
    assert done.status == 0, done.err
    return {stopper_of(folder): search_stage(folder) for folder in (here / "root").iterdir()}


def stopper_of(folder: Path) -> str:
    """Returns the name in conf/ of a search's stopper."""
    target = (records(folder).read("search.json") or {})["identity"]["stopper"]["target"]
    [name] = [name for name in STOPPERS if f"_target_: {target}\n" in (CONF / f"{name}.yaml").read_text()]
    return name


def search_stage(folder: Path) -> list[Trial]:
    return [trial for trial in trials(folder) if trial.stage == "search"]


@pytest.fixture(scope="module")
def on_debug(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Trial]]:
    """Returns the trials of all stoppers in one process."""
    return searched(tmp_path_factory.mktemp("debug"), *DEBUG)


@pytest.fixture(scope="module", params=RUNNERS)
def on_runner(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, api_url: str
) -> tuple[str, dict[str, list[Trial]]]:
    """Returns a runner and the trials of all stoppers on it."""
    here = tmp_path_factory.mktemp(request.param)
    return request.param, searched(here, *RUNNERS[request.param], PREFECT_API_URL=api_url)


@pytest.mark.parametrize("stopper", STOPPERS)
def test_bad_trials_end_on_every_runner(
    stopper: str, on_runner: tuple[str, dict[str, list[Trial]]], on_debug: dict[str, list[Trial]]
) -> None:
    """Bad trials are STOPPED at the same report on every runner as on debug; good ones are COMPLETE."""
    runner, by_stopper = on_runner
    found = by_stopper[stopper]

    assert [trial.point["x"] for trial in found if trial.state == State.STOPPED] == list(HOPELESS)
    for trial in found:
        x, n = trial.point["x"], len(trial.curve)
        assert trial.curve == tuple((step, {"acc": reports(x)[step - 1]}) for step in range(1, n + 1))
        assert trial.metrics == {"acc": reports(x)[n - 1]}
        if x in HOPELESS:
            assert (trial.reason, n < N_STEPS) == (Reason.STOPPER, True)
        else:
            assert (trial.state, trial.reason, n) == (State.COMPLETE, None, N_STEPS)
        if runner == "simulated":
            assert trial.duration_s == pytest.approx(600 * n / N_STEPS)
    assert [len(trial.curve) for trial in found] == [len(trial.curve) for trial in on_debug[stopper]]
