"""Callbacks of a search in this process: their calls, exceptions and threads."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

import pytest

from nas.api.loop import open_search
from nas.api.results import Results
from nas.api.search import run_search
from nas.callbacks.base import Callback, SearchInfo, SearchOutcome
from nas.callbacks.callback_list import CallbackList
from nas.callbacks.extras import check_folder, check_server
from nas.callbacks.logger import LoggerCallback
from nas.callbacks.mlflow import MlflowCallback
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError, SearchFailedError
from nas.core.lineage import Lineage
from nas.core.spec import Spec
from nas.core.trial import Proposal, State, Trial
from nas.search.definition import Search
from tests.support.callbacks import (
    BackgroundCallback,
    BrokenBackgroundCallback,
    BrokenCallback,
    CurveProblem,
    FolderProblem,
    RecordingCallback,
)
from tests.support.commands import until
from tests.support.problems import InOrderTuner, ScoreProblem


@pytest.fixture
def root() -> str:
    return f"memory://callbacks/{uuid4().hex}"


def run(root: str, *callbacks: Callback, n_trials: int = 2, problem: type[ScoreProblem] = CurveProblem) -> Results:
    """Runs or resumes a search in which trial 1 inherits from trial 0; one finalist."""
    tuner = Spec.of(InOrderTuner, xs=[30, 60, 90, 50], donors=["global_recent"])
    search = Search(problem=Spec.of(problem), tuner=tuner)
    return run_search(
        search, root=root, name="curves", budget=Budget(trials=n_trials), finalists=1, callbacks=callbacks
    )


def calls_of(number: int, score: float) -> list[tuple[object, ...]]:
    """Returns the calls for one trial."""
    reports = [("report", number, step, pytest.approx(score * step / 3)) for step in (1, 2, 3)]
    return [("start", number, 1), *reports, ("end", number, "COMPLETE")]


def test_methods_are_called_in_order(root: str) -> None:
    """A callback gets the start and end of the search and of each trial, finals included, and each report."""
    callback = RecordingCallback()
    summary = run(root, callback)

    trials = [*calls_of(0, 0.3), *calls_of(1, 0.6), *calls_of(2, 0.6)]
    assert callback.calls == [("search start",), *trials, ("search end",)]
    search, outcome = callback.searches[0], callback.outcomes[0]
    assert (search.name, search.session, search.stages) == ("curves", 1, ("search", "final"))
    assert search.identity["tuner"]["arguments"]["xs"] == [30, 60, 90, 50]
    assert len(search.lineage) == 0
    assert outcome.winner is not None
    assert (outcome.winner.number, outcome.error, len(outcome.lineage)) == (2, None, 3)
    assert outcome.tests == summary.tests


def test_trial_has_its_result(root: str) -> None:
    """The trial at its end has metrics, the whole curve, parent, donor and inherited share."""
    callback = RecordingCallback()
    run(root, callback)

    trial = callback.trials[1]
    assert (trial.metrics, len(trial.curve)) == ({"score": 0.6}, 3)
    assert (trial.donor, trial.inherited_share) == (0, 1.0)


def test_resumed_search_calls_for_new_trials_only(root: str) -> None:
    """A second session gets the trials of the first in its lineage, and no calls for them."""
    run(root)
    callback = RecordingCallback()
    run(root, callback, n_trials=3)

    assert [trial.number for trial in callback.searches[0].lineage if trial.is_finished] == [0, 1, 2]
    assert callback.searches[0].session == 2
    assert {call[1] for call in callback.calls if len(call) > 1} == {3, 4}
    assert len(callback.outcomes[0].lineage) == 5


def test_resumed_attempt_repeats_earlier_reports(root: str) -> None:
    """An attempt that continues from a resume point first has the reports that lie before it."""
    callback = RecordingCallback()
    search = Search(problem=Spec.of(CurveProblem), tuner=Spec.of(InOrderTuner, xs=[30]))
    for step in (1, 2):
        with open_search(search, root=root, budget=1, callbacks=[callback]) as loop:
            trial = loop.ask()
            if (resumed := trial.resumed_from()) is not None:
                resumed.load({})
            trial.report(step, score=step / 10)
            trial.save_resume_point(step, {}, force=True)

    reports = [("report", 0, 1, 0.1), ("report", 0, 2, 0.2)]
    assert callback.calls == [
        *(("search start",), ("start", 0, 1), reports[0], ("search end",)),
        *(("search start",), ("start", 0, 2), *reports, ("search end",)),
    ]


def test_id_is_that_of_one_search(tmp_path: Path) -> None:
    """Sessions share the search's id; a new search in the folder of a deleted one has another."""
    callback = RecordingCallback()
    run(str(tmp_path), callback)
    run(str(tmp_path), callback, n_trials=3)
    shutil.rmtree(tmp_path / "curves")
    run(str(tmp_path), callback)

    first, resumed, new = [search.id for search in callback.searches]
    assert first == resumed != new
    assert len({search.url for search in callback.searches}) == 1


@pytest.mark.parametrize("broken", [BrokenCallback, BrokenBackgroundCallback])
def test_exception_is_one_warning(root: str, broken: type[Callback], caplog: pytest.LogCaptureFixture) -> None:
    """A callback that raises in every method loses no trial, and is shown once; other callbacks go on."""
    callback = RecordingCallback()
    with caplog.at_level(logging.WARNING):
        summary = run(root, broken(), callback)

    assert [trial.state for trial in summary.lineage] == [State.COMPLETE] * 3
    assert callback.calls[-1] == ("search end",)
    warnings = [record.getMessage() for record in caplog.records if "callback" in record.getMessage()]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"callback {broken.__name__}: on_trial_start: ")
    assert "OSError: no server for trial 0. The search goes on" in warnings[0]


class ChangingCallback(Callback):
    """Changes in place what it is given."""

    def on_trial_start(self, trial: Trial) -> None:
        trial.point["x"] = 77

    def on_trial_report(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None:
        assert isinstance(metrics, dict)
        trial.point["x"] = 88
        metrics.clear()

    def on_trial_end(self, trial: Trial) -> None:
        assert isinstance(trial.metrics, dict)
        trial.point["x"] = 99
        trial.metrics.clear()


def test_callback_may_change_what_it_is_given(root: str) -> None:
    """Trials, finals and records are those of a search without the callback."""
    changed, plain = run(root, ChangingCallback()), run(f"{root}-plain")

    assert [(t.point, t.metrics, t.curve) for t in changed.lineage] == [
        (t.point, t.metrics, t.curve) for t in plain.lineage
    ]
    assert [trial.point["x"] for trial in changed.lineage] == [30, 60, 60]


class RefusingCallback(Callback):
    """Can't start."""

    def on_search_start(self, search: SearchInfo) -> None:
        raise ConfigurationError("folder=/: must be writable. Choose another folder.")


def test_callback_that_cannot_start_ends_the_search(root: str) -> None:
    """An exception at the start ends the search before its first trial; callbacks that had started get the end."""
    callback = RecordingCallback()
    with pytest.raises(ConfigurationError, match=r"^folder=/: must be writable"):
        run(root, callback, RefusingCallback())

    assert callback.calls == [("search start",), ("search end",)]
    assert callback.outcomes[0].error == "folder=/: must be writable. Choose another folder."
    assert len(run(root).lineage) == 3


class FailingProblem(CurveProblem):
    """Fails each trial."""

    def __init__(self) -> None:
        super().__init__(search=[None] * 100, final=[None] * 100)


def test_failed_search_ends_with_the_error(root: str) -> None:
    """If the search fails, its error is in the outcome, and failed trials have ended."""
    callback = RecordingCallback()
    search = Search(problem=Spec.of(FailingProblem), tuner=Spec.of(InOrderTuner, xs=list(range(12))))
    with pytest.raises(SearchFailedError):
        run_search(search, root=root, budget=Budget(trials=12), callbacks=[callback])

    assert {call[2] for call in callback.calls if call[0] == "end"} == {"FAILED"}
    assert callback.outcomes[0].error is not None
    assert "the first 3 trials failed with the same error" in callback.outcomes[0].error
    assert callback.outcomes[0].winner is None


def test_no_callback_is_refused(root: str) -> None:
    """An element that is no callback is named."""
    with pytest.raises(ConfigurationError, match=r"callbacks: <class .*: must be an instance of nas\.Callback"):
        run(root, RecordingCallback)  # type: ignore[arg-type]


class ForgetfulLogger(LoggerCallback):
    """Its tracker has no trial of earlier sessions, and fails once."""

    runs_in_background = False

    def __init__(self, fails_at: int) -> None:
        super().__init__()
        self.written: list[int] = []
        self._fails_at = fails_at

    def setup(self, search: SearchInfo) -> None: ...

    def logged_trials(self) -> set[int]:
        return set()

    def log_trial_start(self, trial: Trial) -> None:
        if trial.number == self._fails_at:
            self._fails_at = -1
            raise OSError("the tracker restarts")

    def log_trial_report(self, trial: Trial, step: int, metrics: Mapping[str, float]) -> None: ...

    def log_trial_end(self, trial: Trial) -> None:
        self.written.append(trial.number)

    def log_search_end(self, outcome: SearchOutcome) -> None: ...


def test_one_error_loses_one_earlier_trial(root: str) -> None:
    """A tracker that fails for one trial of an earlier session gets the others, and those of this session."""
    run(root, n_trials=3)
    logger = ForgetfulLogger(fails_at=1)
    found = run(root, logger, n_trials=4)

    assert sorted(logger.written) == [trial.number for trial in found.lineage if trial.number != 1]


def test_background_calls_are_in_order(root: str) -> None:
    """A callback in the background gets the same calls in the same order, on one thread, before run_search returns."""
    direct, background = RecordingCallback(), BackgroundCallback()
    run(root, direct, background)

    assert background.calls == direct.calls
    assert direct.threads == {threading.current_thread().name}
    assert background.threads == {threading.current_thread().name, "heirloom-BackgroundCallback"}


STUCK_S = 30.0


class StuckCallback(BackgroundCallback):
    """Waits for a server that does not answer."""

    def __init__(self, release: threading.Event) -> None:
        super().__init__()
        self.release = release
        self.is_stuck = threading.Event()

    def on_trial_start(self, trial: Trial) -> None:
        self.is_stuck.set()
        self.release.wait(STUCK_S)


INFO = SearchInfo(
    name="n",
    url="u",
    id="i",
    session=1,
    metrics=(),
    stages=(),
    budget=Budget(),
    identity={},
    lineage=Lineage.of([]),
    log_dir="runs",
)


def test_stuck_callback_delays_the_end_only() -> None:
    """A callback that hangs does not delay the search, and the wait at the end is bounded and told."""
    warnings: list[str] = []
    release = threading.Event()
    callback = StuckCallback(release)
    calls = CallbackList([callback], warnings.append, end_s=0.2)
    calls.start(INFO)
    began = time.monotonic()
    for number in range(3):
        calls.trial_started(Trial(number=number, index=number, proposal=Proposal(point={"x": 1})))
    started_s = time.monotonic() - began
    assert callback.is_stuck.wait(STUCK_S)
    calls.end(lambda: SearchOutcome(lineage=Lineage.of([]), winner=None))
    ended_s = time.monotonic() - began
    release.set()

    assert started_s < STUCK_S / 2
    assert 0.2 <= ended_s < STUCK_S / 2
    assert warnings == [
        "callback StuckCallback: 4 calls were not done within 0.2 s of the end. "
        "The search goes on; its further errors are not shown"
    ]


class LastCallback(Callback):
    """Ends after another callback."""

    def __init__(self, other: RecordingCallback) -> None:
        self._other = other

    def on_search_end(self, outcome: SearchOutcome) -> None:
        until(lambda: self._other.outcomes)


def test_stuck_callbacks_share_the_wait_at_the_end() -> None:
    """The wait is bounded for all callbacks together, and one that is done gets no warning."""
    warnings: list[str] = []
    release = threading.Event()
    stuck = [StuckCallback(release) for _ in range(60)]
    quick = BackgroundCallback()
    calls = CallbackList([*stuck, quick, LastCallback(quick)], warnings.append, end_s=1.0)
    calls.start(INFO)
    calls.trial_started(Trial(number=0, index=0, proposal=Proposal(point={"x": 1})))
    began = time.monotonic()
    calls.end(lambda: SearchOutcome(lineage=Lineage.of([]), winner=None))
    ended_s = time.monotonic() - began
    release.set()

    assert ended_s < STUCK_S / 2
    assert len(warnings) == len(stuck)


def test_trial_finds_its_folder(root: str, tmp_path: Path) -> None:
    """A trial's name and folder are those that loggers use; the folder lies in the search's."""
    callback = RecordingCallback()
    search = Search(problem=Spec.of(FolderProblem), tuner=Spec.of(InOrderTuner, xs=[1, 2]))
    run_search(search, root=root, name="logs", budget=Budget(trials=2), callbacks=[callback], log_dir=str(tmp_path))

    assert callback.searches[0].log_dir == str(tmp_path / "logs")
    assert (tmp_path / "logs" / "trial-0001" / "note.txt").read_text() == "trial-0001 of logs"


def test_log_dir_below_home(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~`` in ``log_dir`` is the user's home; no folder of that name is made."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    search = Search(problem=Spec.of(FolderProblem), tuner=Spec.of(InOrderTuner, xs=[1]))
    run_search(search, root=root, name="logs", budget=Budget(trials=1), log_dir="~/runs")

    assert (tmp_path / "home" / "runs" / "logs" / "trial-0000" / "note.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_log_dir_that_cannot_be_created(root: str, tmp_path: Path) -> None:
    """A folder that can't be created fails the trial with one line."""
    (tmp_path / "file").touch()
    search = Search(problem=Spec.of(FolderProblem), tuner=Spec.of(InOrderTuner, xs=[1]))
    summary = run_search(search, root=root, budget=Budget(trials=1), log_dir=str(tmp_path / "file"))

    assert f"log_dir={tmp_path}/file: must be a folder that workers can create" in (summary.lineage[0].error or "")


class TestExtras:
    def test_missing_package_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A logger without its package says what to install."""
        monkeypatch.setattr("nas.callbacks.extras.find_spec", lambda module: None)
        with pytest.raises(ConfigurationError, match=r"^logger=mlflow: .* pip install 'heirloom-nas\[mlflow\]'$"):
            MlflowCallback()

    def test_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        """A file in place of a folder is named."""
        (tmp_path / "runs").touch()
        with pytest.raises(ConfigurationError, match=r"log_dir=.*/x: must be a folder that can be written \(Not a"):
            check_folder("log_dir", str(tmp_path / "runs" / "x"))

    def test_unreachable_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A server that does not answer is named without its password; a file is no server."""
        monkeypatch.setenv("no_proxy", "*")
        check_server("uri", "sqlite:///mlflow.db")
        with pytest.raises(ConfigurationError, match=r"^uri=http://me:\*\*\*@127.0.0.1:1: must be a server that can"):
            check_server("uri", "http://me:secret@127.0.0.1:1")

    def test_server_behind_a_proxy(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A server that is reached by a proxy is not asked directly, unless ``NO_PROXY`` names it."""
        monkeypatch.setenv("https_proxy", "http://127.0.0.1:2")
        monkeypatch.setenv("no_proxy", "localhost")
        check_server("uri", "https://127.0.0.1:1")
        with pytest.raises(ConfigurationError, match=r"^uri=https://localhost:1: must be a server that can"):
            check_server("uri", "https://localhost:1")
        monkeypatch.delenv("https_proxy")
        with pytest.raises(ConfigurationError, match=r"^uri=https://127.0.0.1:1: must be a server that can"):
            check_server("uri", "https://127.0.0.1:1")


def test_public_names(tmp_path: Path) -> None:
    """Callback, SearchInfo and SearchOutcome are public."""
    import nas

    assert (nas.Callback, nas.SearchInfo, nas.SearchOutcome) == (Callback, SearchInfo, SearchOutcome)
