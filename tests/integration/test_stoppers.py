"""Every stopper of conf/ ends the same trials at the same reports on all runners."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest

from nas.core.trial import Reason, State, Trial
from tests.support.commands import run, trials
from tests.support.remote_search import search_with_remote_workers

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
STOPPERS = sorted(path.stem for path in (ROOT / "conf" / "stopper").glob("*.yaml") if path.stem != "custom")
N_STEPS = 12
HOPELESS = (7, 9, 10, 11)
SEARCH = (
    *("+tuner=grid", "problem=tabular", "problem.table=t.csv", "problem.parameters=[x]"),
    *("problem.metrics.acc.curve=acc_*", "problem.seconds=600", "device=cpu", "threads=1", "finalists=1"),
    *("budget.trials=12", "name=it", "storage.root=root"),
)
DEBUG = ("runner=debug", "deterministic=true")
RUNNERS = {
    "simulated": ("runner=simulated", "deterministic=true", "slots=1"),
    "threads": ("runner=threads", "slots=2"),
    "processes": ("runner=processes", "slots=2"),
    "remote": ("runner=remote", "slots=2"),
}


def reports(x: int) -> list[float]:
    """Returns a point's reports: bad points stay at the start, good ones rise together."""
    return [0.125 if x in HOPELESS else 1 - math.exp(-step / 4) for step in range(1, N_STEPS + 1)]


def searched(here: Path, *more: str, **environment: str) -> list[Trial]:
    """Returns the search stage's trials of a command on the table."""
    lines = [",".join(["x", "acc", *(f"acc_{step}" for step in range(1, N_STEPS + 1))])]
    lines += [",".join(map(repr, [x, reports(x)[-1], *reports(x)])) for x in range(12)]
    (here / "t.csv").write_text("\n".join(lines))
    run_it = partial(search_with_remote_workers, n_workers=2) if "runner=remote" in more else run
    done = run_it(here, *SEARCH, *more, **environment)
    assert done.status == 0, done.err
    return [trial for trial in trials(here / "root" / "it") if trial.stage != "final"]


@pytest.fixture(scope="module")
def n_reports_on_debug(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[int]]:
    """Returns each trial's number of reports with a stopper in one process."""

    @cache
    def count(stopper: str) -> list[int]:
        here = tmp_path_factory.mktemp(stopper)
        return [len(trial.curve) for trial in searched(here, f"stopper={stopper}", *DEBUG)]

    return count


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("stopper", STOPPERS)
def test_bad_trials_end_on_every_runner(
    stopper: str, runner: str, here: Path, api_url: str, n_reports_on_debug: Callable[[str], list[int]]
) -> None:
    """Bad trials are STOPPED at the same report on every runner as on debug; good ones are COMPLETE."""
    found = searched(here, f"stopper={stopper}", *RUNNERS[runner], PREFECT_API_URL=api_url)

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
    assert [len(trial.curve) for trial in found] == n_reports_on_debug(stopper)
