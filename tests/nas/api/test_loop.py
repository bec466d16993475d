"""Ask and tell: trials in a loop of the calling code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import torch
from torch import nn

from nas import (
    Budget,
    Int,
    Metric,
    ParameterSpace,
    Policy,
    Problem,
    Proposal,
    Results,
    Search,
    SearchLoop,
    Spec,
    State,
    Stopper,
    TrialRun,
    TrialStopped,
    open_search,
    run_search,
)
from nas.core.errors import ConfigurationError, SearchFailedError, SearchInterruptedError
from nas.core.policy import PolicyPlan, Stage
from nas.search.lease import SearchLease
from nas.search.more_epochs import MoreEpochs
from nas.search.pipeline import SearchPipeline
from nas.search.session import ONLY_AT_REPORTS, run_session
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.sessions import last_export
from nas.training.seeds import random_state
from nas.tuners.base import WAIT
from nas.tuners.evolution import EvolutionTuner
from nas.tuners.random import RandomTuner
from tests.support.problems import InOrderTuner, PlainProblem

ROOT = Path(__file__).parents[3]


class Untrained(Problem):
    """Has no ``train``, and inherits."""

    metrics = (Metric("score"),)
    policies = frozenset({Policy.SHARE_PARAMS})
    space = ParameterSpace({"x": Int(0, 99)})


class WithTest(Untrained):
    """Has test data."""

    def test(self, run: TrialRun) -> dict[str, float]:
        return {"score": run.restore(nn.Linear(1, 1)).bias.item()}


class StopsAtZero(Stopper):
    """Stops a trial that reports 0."""

    def should_stop(self, lineage: Any, trial: Any) -> bool:
        return trial.curve[-1][1]["score"] == 0


class Waits(InOrderTuner):
    """Waits for a result that never comes."""

    def ask(self, lineage: Any, number: int, job: int) -> Any:
        return Proposal(point={"x": 1}) if number == 0 else WAIT


def memory() -> str:
    return f"memory://{uuid4().hex}"


def opened(root: str, problem: type[Problem] = Untrained, **more: Any) -> SearchLoop:
    return open_search(problem, **{"tuner": InOrderTuner, "root": root, "name": "s", "budget": 3, **more})


def finish(run: TrialRun) -> None:
    """Trains nothing, saves a network, and scores ``x``."""
    network = nn.Linear(1, 1)
    run.inherit(network)
    run.save(network)
    run.finish(score=run.point["x"])


def states(results: Results) -> list[str]:
    return [str(trial.state) for trial in results.lineage]


def test_loop_is_a_search_like_any_other() -> None:
    """A loop leaves the trials, winner and export of ``run_search``, and its trials are one job."""

    class Trained(Untrained):
        def train(self, run: TrialRun) -> dict[str, float]:
            return {"score": run.point["x"]}

    with open_search(Trained, tuner=EvolutionTuner, root=memory(), budget=4) as search:
        for run in search:
            run.finish(score=run.point["x"])
    alone = run_search(Trained, tuner=EvolutionTuner, root=memory(), budget=4)

    found = search.results
    assert [(t.point, t.metrics, t.parents) for t in found.lineage] == [
        (t.point, t.metrics, t.parents) for t in alone.lineage
    ]
    assert {trial.job for trial in found.lineage} == {0}
    assert found.standing == "finished"
    assert found.winner is not None


def test_hours_that_end_no_silent_trial_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """The end of the hours stops only trials that report, which a line says."""
    with opened(memory(), budget=Budget(trials=1, hours=1.0)) as search:
        for run in search:
            finish(run)

    assert [text for text in caplog.messages if ONLY_AT_REPORTS in text] == [ONLY_AT_REPORTS]


@pytest.mark.parametrize("is_caught", [False, True])
def test_loop_that_was_taken_over_names_the_other_session(monkeypatch: pytest.MonkeyPatch, is_caught: bool) -> None:
    """``report`` raises in the open trial, and the block raises what took the search over."""
    monkeypatch.setattr("nas.search.lease.HEARTBEAT_S", 0.02)
    root = memory()
    with pytest.raises(SearchInterruptedError, match=r"session 2 on .* took the search over"), opened(root) as search:
        run = search.ask()
        records = Records(open_root(root).subfolder("s"))
        newer = threading.Thread(target=lambda: SearchLease(records, takeover=True).close())
        newer.start()
        with suppress(TrialStopped if is_caught else ()):
            for step in range(1_000):
                run.report(step, score=0.0)
                time.sleep(0.01)
    newer.join()

    assert states(search.results) == ["WAITING"]


def test_children_inherit_and_the_winner_is_tested() -> None:
    """Weights of the loop's trials are published: children inherit them, and ``test`` restores them."""
    with opened(memory(), WithTest) as search:
        for run in search:
            finish(run)

    assert [trial.inherited for trial in search.results.lineage] == [0.0, 1.0, 1.0]
    assert search.results.winner is not None
    assert "score" in search.results.tests[search.results.winner.number]["metrics"]


def test_loop_of_counted_asks_ends_the_search() -> None:
    """A block that took exactly the budget's trials ends with the winner, without another ask."""
    with opened(memory()) as search:
        for _ in range(3):
            search.ask().finish(score=1.0)

    assert search.results.standing == "finished"
    assert search.results.winner is not None


def test_loop_has_a_log_folder_and_an_export(tmp_path: Path) -> None:
    """``log_dir`` and ``export`` are those of ``run_search``; a session without ``export`` keeps the last one."""
    root = memory()
    with opened(root, budget=1, log_dir=str(tmp_path), export="best") as search:
        run = search.ask()
        assert run.log_dir == tmp_path / "s" / "trial-0000"
        run.finish(score=1.0)

    records = Records(open_root(root).subfolder("s"))
    assert last_export(records) == "best"
    for n_trials, given, kept in ((2, None, "best"), (3, "final", "final"), (4, None, "final")):
        with opened(root, budget=n_trials, export=given) as search:
            search.ask().finish(score=1.0)
        SearchLease(records, settings={"command": "gc"}).close()
        assert last_export(records) == kept


def test_larger_budget_continues() -> None:
    """A finished search has no trial, until it is opened with a larger budget."""
    root = memory()
    for budget in (2, 2, 3):
        with opened(root, budget=budget) as search:
            for run in search:
                finish(run)

    assert [trial.point["x"] for trial in search.results.lineage] == [0, 1, 2]


def test_trial_that_went_on_is_not_counted() -> None:
    """A trial of ``more_epochs`` uses no budget: a block that is left before the budget's last trial ends at once."""
    share = frozenset({Policy.SHARE_PARAMS})
    plain = Search(
        problem=Spec.of(Untrained),
        tuner=Spec.of(InOrderTuner),
        plan=PolicyPlan((Stage(name="search", policies=share),)),
    )
    root = memory()
    with open_search(plain, root=root, name="s", budget=1) as loop:
        finish(loop.ask())
    records = Records(open_root(root).subfolder("s"))
    more = SearchPipeline(plain.build(is_loop=True), records, Budget(trials=1), more_epochs=MoreEpochs(n_epochs=3))
    run_session(more, train_many=lambda job: [finish(run) for run in job.trials()])

    def take_one() -> None:
        with open_search(plain, root=root, name="s", budget=3) as search:
            finish(search.ask())

    thread = threading.Thread(target=take_one, daemon=True)
    thread.start()
    thread.join(120)

    assert not thread.is_alive()
    assert [t.more_epochs for t in loop.results.lineage if t.is_finished] == [None, 3, None]


def test_left_block_continues() -> None:
    """``break`` leaves an open trial without a result; it runs first in the next session."""
    root = memory()
    with opened(root) as search:
        finish(search.ask())
        search.ask()
    between = search.results
    with opened(root) as search:
        for run in search:
            finish(run)

    assert states(between)[0] == State.COMPLETE
    assert State.COMPLETE not in states(between)[1:]
    assert between.winner is None
    assert [(t.number, str(t.state), t.attempt) for t in search.results.lineage] == [
        (0, "COMPLETE", 1),
        (1, "COMPLETE", 2),
        (2, "COMPLETE", 1),
    ]


def test_exception_fails_the_trial() -> None:
    """An exception that leaves the block is the trial's error, and the next session goes on after it."""
    root = memory()
    with pytest.raises(ZeroDivisionError), opened(root) as search:
        search.ask()
        print(1 / 0)
    with opened(root) as search:
        for run in search:
            finish(run)

    assert states(search.results) == ["FAILED", "COMPLETE", "COMPLETE"]
    assert "ZeroDivisionError: division by zero" in str(search.results.lineage[0].error)


def test_ctrl_c_fails_no_trial() -> None:
    """Ctrl-C in the block leaves the trial without a result."""
    with pytest.raises(KeyboardInterrupt), opened(memory()) as search:
        search.ask()
        raise KeyboardInterrupt

    assert search.results.lineage[0].state not in (State.FAILED, State.COMPLETE)


def test_stopper_stops_a_trial() -> None:
    """A report that the stopper refuses raises ``TrialStopped``; the next ask records the trial as STOPPED."""
    search = Search(problem=Spec.of(Untrained), tuner=Spec.of(InOrderTuner), stopper=Spec.of(StopsFirst))
    with open_search(search, root=memory(), budget=2) as loop:
        for run in loop:
            try:
                run.report(1, score=run.point["x"])
            except TrialStopped:
                continue
            run.finish(score=run.point["x"])

    assert states(loop.results) == ["STOPPED", "COMPLETE"]


def test_stop_of_the_last_trial_ends_the_search() -> None:
    """A block whose last trial was stopped selects the winner, as after a last result."""
    tuner = Spec.of(InOrderTuner, xs=[4, 0])
    search = Search(problem=Spec.of(Untrained), tuner=tuner, stopper=Spec.of(StopsFirst))
    with open_search(search, root=memory(), budget=2) as loop:
        loop.ask().finish(score=4.0)
        with pytest.raises(TrialStopped):
            loop.ask().report(1, score=0.0)

    assert states(loop.results) == ["COMPLETE", "STOPPED"]
    assert loop.results.standing == "finished"
    assert loop.results.winner is not None


class StopsFirst(StopsAtZero):
    """``StopsAtZero`` with the metrics that a search gives."""

    def __init__(self, metrics: tuple[Metric, ...]) -> None:
        super().__init__(metrics)


def test_mistakes_in_a_loop() -> None:
    """Each mistake gives one line and loses no trial: the loop goes on."""
    with opened(memory(), budget=1) as search:
        run = search.ask()
        with pytest.raises(ConfigurationError, match=r"search\.ask: trial 0 has no result\. Call run\.finish"):
            search.ask()
        with pytest.raises(ConfigurationError, match=r"run\.finish: trial 0 needs score, not scores\. Call"):
            run.finish(scores=1.0)
        with pytest.raises(ConfigurationError, match=r"needs score, not nothing"):
            run.finish()
        with pytest.raises(ConfigurationError, match=r"trial 0: metric score must be a number, not 'high'"):
            run.finish(score="high")  # type: ignore[arg-type]
        run.finish(score=1.0)
        with pytest.raises(ConfigurationError, match=r"run\.finish: trial 0 has its result\. Call search\.ask\(\)"):
            run.finish(score=2.0)
        with pytest.raises(ConfigurationError, match=r"search\.ask: budget\.trials is used up\. Raise the budget, or"):
            search.ask()
    with pytest.raises(ConfigurationError, match=r"search\.ask: must be called inside `with nas\.open_search"):
        search.ask()
    with pytest.raises(ConfigurationError, match=r"must be entered once\. Call nas\.open_search again"), search:
        pass

    assert search.results.lineage[0].metrics == {"score": 1.0}


def test_tuner_without_proposals_ends_the_loop() -> None:
    """If the tuner is exhausted, the message says so, and the loop ends by itself."""
    tuner = Spec.of(InOrderTuner, xs=[4])
    with opened(memory(), tuner=tuner) as search:
        search.ask().finish(score=1.0)
        with pytest.raises(ConfigurationError, match=r"search\.ask: the tuner has no more proposals"):
            search.ask()

    assert search.results.winner is not None


def test_failure_of_the_search_leaves_the_loop() -> None:
    """An error of the controller is raised by ``ask``."""
    with pytest.raises(SearchFailedError, match="answers WAIT"), opened(memory(), tuner=Waits) as search:
        search.ask().finish(score=1.0)
        search.ask()


def test_the_callers_torch_state_goes_on() -> None:
    """Trials of a loop have the search's torch threads; the caller's, and the random generators, are kept."""
    search = Search(problem=Spec.of(Untrained), tuner=Spec.of(InOrderTuner), n_threads=3)
    n_threads, states, seen = torch.get_num_threads(), [random_state()], []
    torch.set_num_threads(2)
    with open_search(search, root=memory(), budget=2) as loop:
        for run in loop:
            seen.append(torch.get_num_threads())
            finish(run)
    after = torch.get_num_threads()
    states.append(random_state())
    torch.set_num_threads(n_threads)

    assert ({*seen}, after) == ({3}, 2)
    assert states[0]["python"] == states[1]["python"]
    assert torch.equal(states[0]["torch"], states[1]["torch"])


def test_loop_has_one_slot() -> None:
    """Several slots are refused with the remedy."""
    search = Search(problem=Spec.of(PlainProblem), tuner=Spec.of(RandomTuner), slots=2)

    with pytest.raises(ConfigurationError, match=r"slots=2: must be 1 in a loop\. Use run_search"):
        open_search(search, root=memory(), budget=Budget(trials=1))


INTERRUPTED = """
import os, signal, sys, threading, time
import nas
import nas.search.session as session
from nas.tuners.random import RandomTuner

slow, Lease = sys.argv[1], session.SearchLease
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it


class Own(nas.Problem):
    metrics = (nas.Metric("score"),)
    space = nas.ParameterSpace({"x": nas.Int(0, 99)})


class Slow(RandomTuner):
    def ask(self, lineage, number, job):
        time.sleep(5 if slow == "ask" else 0)
        return super().ask(lineage, number, job)


class SlowLease(Lease):
    def __init__(self, *arguments, **more):
        time.sleep(5 if slow == "lease" else 0)
        super().__init__(*arguments, **more)


session.SearchLease = SlowLease
loop = nas.open_search(Own, tuner=Slow, root="a", name="s", budget=3)
try:
    with loop as search:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        search.ask()
finally:
    print(loop.results.standing, [str(trial.state) for trial in loop.results.lineage])
"""


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["ask", "lease"])
def test_ctrl_c_while_ask_waits(tmp_path: Path, slow: str) -> None:
    """Ctrl-C while the tuner proposes, or before the session has begun, ends the process, and no trial fails."""
    script = tmp_path / "loop.py"
    script.write_text(INTERRUPTED)
    command, environment = [sys.executable, str(script), slow], {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)

    assert ended.returncode == -signal.SIGINT, ended.stderr
    assert ended.stdout == "not finished ['WAITING']\n"


KILLED = """
import os, signal, sys
import nas
from nas.tuners.evolution import EvolutionTuner


class Own(nas.Problem):
    metrics = (nas.Metric("score"),)
    space = nas.ParameterSpace({"x": nas.Int(0, 99)})


with nas.open_search(Own, tuner=EvolutionTuner, root=sys.argv[1], name="s", budget=6) as search:
    for run in search:
        if run.number == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        run.finish(score=run.point["x"])
for trial in search.results.lineage:
    print(trial.number, trial.point, trial.metrics, trial.parents)
"""


@pytest.mark.slow
def test_killed_loop_continues(tmp_path: Path) -> None:
    """After SIGKILL in a trial the same script continues, and ends with the table of one that was not killed."""
    script = tmp_path / "loop.py"
    script.write_text(KILLED)

    def run(root: str, killed_at: int) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), root, str(killed_at)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)

    killed, again, whole = run("a", 3), run("a", -1), run("b", -1)

    assert killed.returncode == -signal.SIGKILL
    assert again.returncode == 0, again.stderr
    assert again.stdout == whole.stdout
    assert len(again.stdout.splitlines()) == 6
