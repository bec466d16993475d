"""A search from the first proposal to the export, in this process: winner, tests, resuming."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import pytest

from nas.api.results import Results
from nas.api.search import run_search
from nas.callbacks.base import Callback
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError, SearchFailedError, SearchInterruptedError, TrialStopped
from nas.core.lineage import Lineage
from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.spec import Spec
from nas.core.trial import Proposal, Reason, State, Trial
from nas.executors.in_process_pool import InProcessPool
from nas.executors.local_executor import LocalExecutor
from nas.search.controller import ControllerSettings
from nas.search.definition import Search
from nas.search.lease import SearchLease
from nas.search.more_epochs import MoreEpochs
from nas.search.pipeline import SearchPipeline
from nas.storage.lazy_weights import StoredWeights
from nas.storage.maintenance.gc.retention import Retention
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.sessions import past_sessions
from nas.training.messages import RuntimeSpec
from nas.training.problem import Problem
from nas.training.trial_run import TrialRun
from nas.tuners.base import Answer
from nas.tuners.random import RandomTuner
from tests.support.problems import (
    BodyProblem,
    ExportProblem,
    GrowingProblem,
    InOrderTuner,
    LeavingProblem,
    PlainProblem,
    ScoreProblem,
    network,
)
from tests.support.scripted_executor import paths_in_order


class Bureau:
    """Runs searches under one root in memory."""

    def __init__(self) -> None:
        self.root = f"memory://program/{uuid4().hex}"

    def run(
        self,
        *xs: int,
        name: str = "search",
        problem: type[Problem] = ScoreProblem,
        n_trials: int | None = None,
        finalists: int = 2,
        plan: PolicyPlan | None = None,
        donors: tuple[int | str, ...] | None = None,
        **arguments: Any,
    ) -> Results:
        """Runs or resumes the search of these points, in this order."""
        tuner = Spec.of(InOrderTuner, xs=list(xs), donors=None if donors is None else list(donors))
        search = Search(problem=Spec.of(problem, **arguments), tuner=tuner, **({"plan": plan} if plan else {}))
        budget = Budget(trials=len(xs) if n_trials is None else n_trials)
        return run_search(search, root=self.root, name=name, budget=budget, finalists=finalists)

    def records(self, name: str = "search") -> Records:
        return Records(open_root(self.root, retry_s=0).subfolder(name))

    def paths(self) -> list[str]:
        """Returns the files in the order of publication, without logs and heartbeats, which are replaced."""
        return [p for p in paths_in_order(self.records().files) if not p.startswith("logs/") and ".beat" not in p]


@pytest.fixture
def bureau() -> Iterator[Bureau]:
    ScoreProblem.tested.clear()
    yield Bureau()
    ScoreProblem.tested.clear()


def xs_of(summary: Results, stage: str) -> list[int]:
    return [trial.point["x"] for trial in summary.lineage if trial.stage == stage]


def table(summary: Results) -> list[tuple[object, ...]]:
    """Returns the fields that must be the same on each run."""
    return [(t.number, t.stage, t.point, t.parents, t.state, dict(t.metrics), t.donor) for t in summary.lineage]


class Overtaken(Callback):
    """Begins another session once trial 1 has ended, as on a machine that found this driver silent."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def on_trial_end(self, trial: Trial) -> None:
        if trial.number == 1:
            newer = {**past_sessions(self.records)[1], "session": 2, "host": "other", "pid": 77}
            self.records.publish("sessions/0002.json", newer)


def test_replaced_driver_proposes_nothing(bureau: Bureau, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number would be taken when the session that replaced it proposes a trial."""
    monkeypatch.setattr("nas.search.lease.TAKEOVER_TIMEOUT_S", 0)  # as if it had stood still
    search = Search(problem=Spec.of(ScoreProblem), tuner=Spec.of(InOrderTuner, xs=[1, 2, 3, 4]))
    with pytest.raises(SearchInterruptedError, match=r"session 2 on other \(pid 77\) took the search over"):
        run_search(search, root=bureau.root, name="search", budget=4, callbacks=[Overtaken(bureau.records())])

    assert [trial.number for trial in bureau.records().load()[0]] == [0, 1]


class CarelessTuner(InOrderTuner):
    """Changes the points of finished trials instead of copies, to this ``x``."""

    x: ClassVar[int]

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        for trial in lineage.finished:
            trial.point["x"] = self.x
        return super().ask(lineage, number, job)


@pytest.mark.parametrize("x", [98, 1000])
def test_a_changed_point_is_not_trained_again(bureau: Bureau, monkeypatch: pytest.MonkeyPatch, x: int) -> None:
    """The finals and the winner have the points that were trained; the error has the remedy."""
    monkeypatch.setattr(CarelessTuner, "x", x, raising=False)
    changed = rf"the point of trial 1 was changed .* it was \{{'x': 30\}}, and is \{{'x': {x}\}}\. Copy the point"
    search = Search(problem=Spec.of(ScoreProblem), tuner=Spec.of(CarelessTuner, xs=[10, 30, 20]))
    with pytest.raises(SearchFailedError, match=changed):
        run_search(search, root=bureau.root, budget=3)


class TestWinner:
    def test_best_of_the_search_are_trained_in_full(self, bureau: Bureau) -> None:
        """The two best trials of the search stage are trained again without its policies, best first."""
        summary = bureau.run(10, 30, 20, 5)

        finals = [trial for trial in summary.lineage if trial.stage == "final"]
        assert [trial.point["x"] for trial in finals] == [30, 20]
        assert [trial.policies for trial in finals] == [frozenset()] * 2
        assert [trial.parents for trial in finals] == [(1,), (2,)]

    def test_winner_is_the_best_of_the_finals(self, bureau: Bureau) -> None:
        """Full scores decide among the finalists, whatever the search stage's scores."""
        summary = bureau.run(0, 1, 2, final=[0.1, 0.9, 0.3])

        assert xs_of(summary, "final") == [2, 1]
        assert summary.winner is not None
        assert (summary.winner.point, summary.winner.stage) == ({"x": 1}, "final")

    def test_winner_is_chosen_by_validation_only(self, bureau: Bureau) -> None:
        """The best on validation data wins, even if another is better on test data."""
        summary = bureau.run(0, 1, final=[0.9, 0.8], test=[0.1, 1.0])

        assert summary.winner is not None
        assert summary.winner.point == {"x": 0}
        assert summary.tests[summary.winner.number] == {"trial": summary.winner.number, "metrics": {"score": 0.1}}
        assert summary.export is not None
        assert summary.export["test"] == summary.tests[summary.winner.number]

    def test_each_stage_takes_the_best_of_the_one_before(self, bureau: Bureau) -> None:
        """Half of the search is scored again with the same weights; two finalists come from those scores."""
        cheap = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})
        recheck = Stage(name="recheck", policies=cheap, warm=True, best=0.5)
        plan = PolicyPlan((Stage(name="search", policies=cheap), recheck, Stage(name="final")))
        scores = {"search": [0.1, 0.2, 0.3, 0.4, 0.5], "recheck": [0.9, 0.8, 0.3, 0.7, 0.6], "final": [1, 2, 3, 4, 5]}

        summary = bureau.run(0, 1, 2, 3, 4, plan=plan, **scores)

        assert xs_of(summary, "recheck") == [4, 3, 2]  # three are half of five
        assert xs_of(summary, "final") == [3, 4]
        assert [t.donor for t in summary.lineage if t.stage == "recheck"] == [4, 3, 2]
        assert [t.parents for t in summary.lineage if t.stage == "final"] == [(6,), (5,)]
        assert summary.winner is not None
        assert summary.winner.point == {"x": 4}

    def test_progress_expects_as_many_finals_as_there_are_finalists(
        self, bureau: Bureau, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """If a stage trains a fifth of five trials, one of the two finalists is missing."""
        cheap = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})
        recheck = Stage(name="recheck", policies=cheap, warm=True, best=0.2)
        plan = PolicyPlan((Stage(name="search", policies=cheap), recheck, Stage(name="final")))
        search = Search(problem=Spec.of(ScoreProblem), tuner=Spec.of(InOrderTuner), plan=plan)
        run_search(search, root=bureau.root, budget=Budget(trials=5), progress=True)

        assert re.findall(r"^\[(\d/\d) done\]", capsys.readouterr().err, re.MULTILINE)[-2:] == ["6/7", "7/7"]

    def test_full_scores_never_mix_with_cheap_ones(self, bureau: Bureau) -> None:
        """A cheap score better than every full one does not win."""
        summary = bureau.run(0, 1, search=[0.99, 0.98], final=[0.5, 0.6])

        assert summary.winner is not None
        assert summary.winner.metrics == {"score": 0.6}

    def test_least_value_of_a_minimized_metric_wins(self, bureau: Bureau) -> None:
        """With a minimized metric finalists and winner have the least values."""
        summary = bureau.run(10, 30, 20, direction="minimize")

        assert xs_of(summary, "final") == [10, 20]
        assert summary.winner is not None
        assert summary.winner.point == {"x": 10}

    @pytest.mark.parametrize(("direction", "values"), [("minimize", [0.0, 0.5]), ("maximize", [0, -0.5])])
    def test_zero_may_win(self, bureau: Bureau, direction: str, values: list[float]) -> None:
        """A score of 0 wins if it is the best."""
        summary = bureau.run(0, 1, direction=direction, search=values, final=values, finalists=1)

        assert summary.winner is not None
        assert summary.winner.metrics == {"score": 0}
        assert xs_of(summary, "final") == [0]

    def test_failed_finalist_is_replaced(self, bureau: Bureau) -> None:
        """After a failed final the next best trial is trained, until enough finals have a score."""
        summary = bureau.run(0, 1, 2, 3, final=[0.1, 0.2, None, None])

        assert xs_of(summary, "final") == [3, 2, 1, 0]
        assert [t.state for t in summary.lineage if t.stage == "final"] == ["FAILED", "FAILED", "COMPLETE", "COMPLETE"]
        assert summary.winner is not None
        assert summary.winner.point == {"x": 1}

    def test_equal_points_are_one_finalist(self, bureau: Bureau) -> None:
        """A point that was proposed twice is trained in full once."""
        assert xs_of(bureau.run(9, 9, 5), "final") == [9, 5]

    def test_without_a_score_there_is_no_winner(self, bureau: Bureau) -> None:
        """If every trial fails there are no finals, tests and export, and the search is done."""
        summary = bureau.run(0, 1, search=[None, None])

        assert summary.winner is None
        assert summary.export is None
        assert xs_of(summary, "final") == []
        assert bureau.run(0, 1, search=[None, None]).winner is None
        assert bureau.records().files.names("sessions") == ["0001.beat", "0001.json"]

    def test_if_all_finals_fail_the_best_search_trial_wins(self, bureau: Bureau) -> None:
        """Without a final with a score, the best trial of the search stage wins."""
        summary = bureau.run(0, 1, final=[None, None])

        assert summary.winner is not None
        assert (summary.winner.stage, summary.winner.point) == ("search", {"x": 1})


class TestTests:
    def test_each_finalist_is_tested_once(self, bureau: Bureau) -> None:
        """The test data is used once for each finalist, and not again by the same command."""
        for _ in range(3):
            bureau.run(0, 1, 2, final=[0.5, 0.7, 0.6])

        assert ScoreProblem.tested == [1, 2]

    @pytest.mark.parametrize(("best", "n_tested"), [(None, 2), (3, 3), (0.75, 3)])
    def test_each_final_of_the_plan_is_tested(self, bureau: Bureau, best: float | None, n_tested: int) -> None:
        """The last stage's own number of finalists holds for the tests, too."""
        cheap = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})
        plan = PolicyPlan((Stage(name="search", policies=cheap), Stage(name="final", best=best)))
        summary = bureau.run(0, 1, 2, 3, plan=plan)

        assert len(xs_of(summary, "final")) == n_tested
        assert ScoreProblem.tested == [3, 2, 1][:n_tested]

    def test_tests_come_after_the_finals(self, bureau: Bureau) -> None:
        """Test records are written after the last result, and before the export."""
        bureau.run(0, 1, 2)

        paths = [p for p in bureau.paths() if p.startswith(("tests/", "best")) or p.endswith("result.json")]
        kinds = [path.partition("/")[0] for path in paths]
        assert kinds == ["trials"] * 5 + ["tests"] * 2 + ["best"] * 3 + ["best-0001.json"]

    @pytest.mark.parametrize(
        ("value", "line"),
        [
            (None, "ScoreProblem.test raised RuntimeError: no score for 1"),
            ("nan", "FloatingPointError: test returned score=nan"),
        ],
    )
    def test_failing_test_is_recorded(self, bureau: Bureau, value: str | None, line: str) -> None:
        """A test that raises or returns NaN is recorded in one line; the winner is still exported."""
        summary = bureau.run(0, 1, test=[0.5, value])

        assert summary.winner is not None
        assert summary.winner.point == {"x": 1}
        assert summary.tests[summary.winner.number]["error"] == line
        assert summary.export is not None

    def test_only_competitors_are_tested(self, bureau: Bureau) -> None:
        """A failed finalist is not tested."""
        bureau.run(0, 1, 2, final=[0.1, 0.2, None])

        assert ScoreProblem.tested == [1, 0]


class TestBest:
    def test_export_is_recorded(self, bureau: Bureau) -> None:
        """best-0001.json names the winner, its ancestors and its files with digests, which are whole."""
        summary = bureau.run(1, 2, 3)

        best = summary.export
        assert best is not None
        assert summary.winner is not None
        assert (best["number"], best["trial"]) == (1, summary.winner.number)
        assert best["ancestors"] == [2, 1, 0]
        assert best["missing"].keys() == {"program.pt2"}
        records = bureau.records()
        names = {file["path"].rpartition("/")[2] for file in best["files"]}
        assert names == {"model.safetensors", "architecture.json", "export.json"}
        assert all(len(records.files.read_if_present(file["path"]) or b"") == file["bytes"] for file in best["files"])

    @pytest.mark.parametrize(
        ("remarks", "kept"),
        [
            (["one", "two"], ["one", "two"]),
            (["x" * 2_000] * 200, ["x" * 1_000] * 100),
            ("one line", ["remarks: failed: TypeError: remarks returned 'one line': must return a list of lines"]),
            (None, ["remarks: failed: TypeError: 'NoneType' object is not subscriptable"]),
        ],
        ids=["lines", "many", "text", "none"],
    )
    def test_remarks_are_recorded(
        self, bureau: Bureau, monkeypatch: pytest.MonkeyPatch, remarks: Any, kept: list[str]
    ) -> None:
        """Remarks of any number and length are kept within limits; invalid ones are one line, and the winner stays."""
        monkeypatch.setattr(ScoreProblem, "remarks", lambda self, trials, winner: remarks)
        summary = bureau.run(1, 2)

        assert summary.export is not None
        assert summary.export["remarks"] == kept

    def test_better_winner_of_a_larger_search_gets_a_second_record(self, bureau: Bureau) -> None:
        """An extended search with a better winner writes best-0002.json; best-0001.json is unchanged."""
        first = bureau.run(1, 2, 9, 8, n_trials=2)
        second = bureau.run(1, 2, 9, 8)

        assert first.export is not None
        assert second.export is not None
        assert (first.export["number"], second.export["number"]) == (1, 2)
        assert second.export["point"] == {"x": 9}
        assert bureau.records().read("best-0001.json") == first.export
        assert xs_of(second, "final") == [2, 1, 9, 8]
        assert ScoreProblem.tested == [2, 1, 9, 8]

    def test_larger_search_without_a_better_winner_keeps_the_best(self, bureau: Bureau) -> None:
        """An extended search without a better winner exports nothing."""
        bureau.run(8, 9, 1, 2, n_trials=2)
        summary = bureau.run(8, 9, 1, 2)

        assert summary.export is not None
        assert summary.export["number"] == 1
        assert xs_of(summary, "search") == [8, 9, 1, 2]
        assert xs_of(summary, "final") == [9, 8]

    def test_more_finalists_are_trained_later(self, bureau: Bureau) -> None:
        """The same command with more finalists trains the missing ones."""
        bureau.run(1, 2, 3, finalists=1)
        summary = bureau.run(1, 2, 3, finalists=3)

        assert xs_of(summary, "final") == [3, 2, 1]
        assert ScoreProblem.tested == [3, 2, 1]

    @pytest.mark.slow
    def test_problem_with_an_export(self, bureau: Bureau) -> None:
        """If the problem defines export, the program is beside the weights and nothing is missing."""
        best = bureau.run(1, problem=ExportProblem).export

        assert best is not None
        assert best["missing"] == {}
        assert any(file["path"].endswith("/program.pt2") for file in best["files"])

    def test_winner_without_weights(self, bureau: Bureau) -> None:
        """A winner without weights is exported as far as possible, with reasons for the rest."""
        best = bureau.run(1, problem=ExportProblem, saves=False).export

        assert best is not None
        assert best["missing"].keys() == {"program.pt2", "model.safetensors"}
        assert "saved no weights" in best["missing"]["model.safetensors"]

    def test_exit_in_test_and_export_is_recorded(self, bureau: Bureau) -> None:
        """sys.exit in test or export is recorded in one line, and ends neither process nor search."""
        summary = bureau.run(1, problem=LeavingProblem)

        assert summary.winner is not None
        assert summary.tests[summary.winner.number]["error"] == "LeavingProblem.test raised SystemExit: 3"
        assert summary.export is not None
        assert summary.export["missing"] == {"program.pt2": "LeavingProblem.export raised SystemExit: no export today"}
        logs = bureau.records().other_logs(summary.winner)
        assert logs["test"].endswith("SystemExit: 3\n")
        assert logs["export"].endswith("SystemExit: no export today\n")
        assert bureau.run(1, problem=LeavingProblem).export == summary.export


class TestPlans:
    def test_one_stage(self, bureau: Bureau) -> None:
        """With one stage the best trial of the search wins, and is tested."""
        plan = PolicyPlan((Stage(name="search", policies=frozenset({Policy.SHARE_PARAMS})),))

        summary = bureau.run(1, 3, 2, plan=plan)

        assert {trial.stage for trial in summary.lineage} == {"search"}
        assert summary.winner is not None
        assert summary.winner.point == {"x": 3}
        assert ScoreProblem.tested == [3, 2]

    def test_plain_problem(self, bureau: Bureau) -> None:
        """A problem with train alone has a winner, no tests, and an export of its architecture."""
        summary = bureau.run(1, 3, 2, problem=PlainProblem)

        assert summary.winner is not None
        assert summary.winner.metrics == {"score": 3}
        assert summary.tests == {}
        assert summary.export is not None
        assert summary.export["test"] is None

    def test_warm_finalists_inherit_from_themselves(self, bureau: Bureau) -> None:
        """In a warm final stage a final inherits its finalist's weights."""
        plan = PolicyPlan(
            (
                Stage(name="search", policies=frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})),
                Stage(name="final", policies=frozenset({Policy.SHARE_PARAMS}), warm=True),
            )
        )

        summary = bureau.run(1, 2, plan=plan)

        finals = [trial for trial in summary.lineage if trial.stage == "final"]
        assert [(trial.donor, trial.inherited) for trial in finals] == [(1, 1.0), (0, 1.0)]

    @pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
    def test_finals_of_a_downscaled_search_build_the_full_network(self, bureau: Bureau, warm: bool) -> None:
        """Six layers become fifteen, from scratch or, in a warm stage, with the six trained ones."""
        cheap = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP, Policy.DOWNSCALE})
        plan = PolicyPlan((Stage(name="search", policies=cheap), Stage(name="final", warm=warm)))

        summary = bureau.run(5, problem=GrowingProblem, plan=plan, finalists=1)

        search, final = summary.lineage
        assert (search.checkpoint, final.checkpoint) != (None, None)
        small, large = (StoredWeights(bureau.records().files, t.checkpoint).shapes for t in (search, final))  # type: ignore[arg-type]
        assert (len(small), len(large)) == (2 * 6, 2 * 15)
        assert (final.donor, final.inherited) == ((0, pytest.approx(6 / 15)) if warm else (None, None))
        assert final.policies == ({Policy.SHARE_PARAMS} if warm else set())


class TestInheritance:
    def test_children_carry_their_parents_weights(self, bureau: Bureau) -> None:
        """In a chain of trials that only inherit and save, the last weights equal the first, to the bit."""
        summary = bureau.run(1, 2, 3)

        files = bureau.records().files
        first, last = (
            StoredWeights(files, checkpoint).read_all()
            for number in (0, 2)
            if (checkpoint := summary.lineage[number].checkpoint) is not None
        )
        assert first.keys() == last.keys()
        assert all(first[name].equal(last[name]) for name in first)
        assert [summary.lineage[number].donor for number in range(3)] == [None, 0, 1]

    def test_donor_of_another_search(self, bureau: Bureau) -> None:
        """A donor named "search:number" is a trial of another search under the same root."""
        bureau.run(1, 2, name="first")
        summary = bureau.run(5, name="second", donors=("first:1",))

        assert summary.lineage[0].donor == "first:1"
        assert summary.lineage[0].inherited == 1.0

    def test_donor_of_a_missing_search(self, bureau: Bureau) -> None:
        """A missing donor is left out, and the record says so."""
        trial = bureau.run(5, donors=("nowhere:1",)).lineage[0]

        assert (trial.state, trial.donor) == (State.COMPLETE, None)
        assert trial.inheritance["replaced"] == {"nowhere:1": None}

    @pytest.mark.parametrize("donor", ["first", "first:x", ":1", "../first:1"])
    def test_malformed_donor_names_the_tuner(self, bureau: Bureau, donor: str) -> None:
        """An invalid donor name ends the search before anything is recorded."""
        with pytest.raises(SearchFailedError, match="proposal 0 of InOrderTuner: "):
            bureau.run(5, donors=(donor,))
        assert bureau.records().load()[0] == []


class TestAgain:
    def test_finished_search_does_nothing(self, bureau: Bureau) -> None:
        """The same command on a finished search starts no session and writes no file."""
        first = bureau.run(1, 2, 3)
        before = bureau.paths()
        again = bureau.run(1, 2, 3)

        assert bureau.paths() == before
        assert table(again) == table(first)
        assert again.export == first.export

    @pytest.mark.slow
    def test_search_killed_anywhere_ends_the_same(self, bureau: Bureau) -> None:
        """A search cut after any file and run again has the same table, tests and winner, and one export."""
        first = bureau.run(3, 1, 2, final=[0, 0.1, None, 0.2])
        records = bureau.records()

        paths = [path for path in bureau.paths() if not path.startswith("sessions/")]
        for n_files in range(len(paths)):
            cut = Bureau()
            for path in paths[:n_files]:
                cut.records().files.publish(path, [records.files.read_if_present(path) or b""])
            again = cut.run(3, 1, 2, final=[0, 0.1, None, 0.2])
            assert table(again) == table(first)
            assert again.tests == first.tests
            assert again.export is not None
            assert first.export is not None
            assert (again.export["number"], again.export["trial"]) == (1, first.export["trial"])

    @pytest.mark.parametrize(
        ("budget", "deterministic"), [(Budget(trials=9), False), (Budget(trials=9), True), (Budget(hours=9.0), False)]
    )
    def test_exhausted_tuner_ends_a_search(self, bureau: Bureau, budget: Budget, deterministic: bool) -> None:
        """STOP before the budget leads to the finals; the same command asks again and writes nothing."""
        tuner = Spec.of(InOrderTuner, xs=[1, 2])
        search = Search(problem=Spec.of(ScoreProblem), tuner=tuner, deterministic=deterministic)
        first = run_search(search, root=bureau.root, name="search", budget=budget)
        before = bureau.paths()
        again = run_search(search, root=bureau.root, name="search", budget=budget)

        assert xs_of(first, "final") == [2, 1]
        assert bureau.paths() == before
        assert bureau.records().files.names("sessions") == ["0001.beat", "0001.json"]
        assert table(again) == table(first)
        assert again.export == first.export

    def test_extended_search_continues(self, bureau: Bureau) -> None:
        """With a larger budget the next trial runs, after the tuner was asked for more."""
        bureau.run(1, 2, 3, n_trials=2)

        assert xs_of(bureau.run(1, 2, 3, n_trials=9), "search") == [1, 2, 3]

    def test_another_search_of_the_name_is_refused(self, bureau: Bureau) -> None:
        """Other points of the tuner make another search, which can't use the name."""
        bureau.run(1)

        with pytest.raises(ConfigurationError, match=r"tuner\.arguments\.xs: \[1\] there, \[2\] here"):
            bureau.run(2)


@pytest.mark.parametrize("n_epochs", [0, -1, 2**63, 2**70, 1.5, True])
def test_more_epochs_fit_into_a_record(n_epochs: Any) -> None:
    """The number of epochs is one that readers of records accept; the error names the option."""
    with pytest.raises(ConfigurationError, match=r"^more_epochs=.*: must be .* from 1 to 9223372036854775807"):
        MoreEpochs(n_epochs=n_epochs)


class Contrary(RandomTuner):
    """Ranks the worst trial first."""

    def ranked(self, lineage: Lineage) -> Sequence[Trial]:
        return list(super().ranked(lineage))[::-1]


def test_finalists_are_ranked_by_the_tuner() -> None:
    """The finalist is the tuner's first trial, not the one with the best score."""
    search = Search(problem=Spec.of(ExportProblem), tuner=Spec.of(Contrary))

    found = run_search(search, root=f"memory://{uuid4().hex}", budget=Budget(trials=5), finalists=1)

    searched = [t for t in found.lineage if t.stage == "search"]
    [final] = [t for t in found.lineage if t.stage == "final"]
    assert final.parents == (min(searched, key=lambda t: (t.metrics["score"], -t.number)).number,)


class TestRunSearch:
    def test_defaults(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """By default a search is under ./heirloom by its default name, and has 16 trials."""
        monkeypatch.chdir(tmp_path)
        search = Search(problem=Spec.of(PlainProblem), tuner=Spec.of(InOrderTuner))

        summary = run_search(search)

        assert summary.name == search.build().default_name
        assert (tmp_path / "heirloom" / summary.name / "search.json").is_file()
        assert len(summary.lineage) == 16

    def test_memory_root_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The root memory:// creates no folder."""
        monkeypatch.chdir(tmp_path)
        search = Search(problem=Spec.of(PlainProblem), tuner=Spec.of(InOrderTuner))

        summary = run_search(search, root="memory://", name=f"a-{uuid4().hex}", budget=Budget(trials=1))

        assert summary.winner is not None
        assert list(tmp_path.iterdir()) == []

    def test_weights_outside_the_plan_are_deleted(self, tmp_path: Path) -> None:
        """With a retention plan the last two of eight trials, and needed ones, keep their weights."""
        search = Search(problem=Spec.of(ExportProblem), tuner=Spec("nas.tuners.random.RandomTuner"))

        found = run_search(search, root=str(tmp_path), budget=Budget(trials=8), retention=Retention(keep="last:2"))

        assert sum(trial.weights_deleted for trial in found.lineage) >= 3
        assert found.winner is not None
        assert found.winner.checkpoint is not None

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            ({"name": "../up"}, "name=.*: must be 1 to 200 letters"),
            ({"finalists": 0}, r"finalists=0: must be a whole number"),
            ({"finalists": True}, r"finalists=True: must be a whole number"),
        ],
    )
    def test_refusals(self, more: dict[str, Any], message: str) -> None:
        """An invalid folder name, and zero finalists, are refused in one line."""
        search = Search(problem=Spec.of(PlainProblem), tuner=Spec.of(InOrderTuner))

        with pytest.raises(ConfigurationError, match=message):
            run_search(search, root=f"memory://program/{uuid4().hex}", **more)

    def test_deterministic_search_of_many_slots_is_refused(self) -> None:
        """A deterministic search of several threads is refused, since they share torch's random state."""
        search = Search(problem=Spec.of(PlainProblem), tuner=Spec.of(InOrderTuner), deterministic=True, slots=2)

        with pytest.raises(ConfigurationError, match="runner=threads needs slots=1, not 2"):
            run_search(search, root="memory://", runner="threads")

    @pytest.mark.parametrize(("name", "limit"), [("hours", 1.0), ("gpu_hours", 1.0), ("jobs", 1)])
    def test_deterministic_search_counts_no_hours_and_jobs(self, name: str, limit: float) -> None:
        """A budget of time or of jobs is refused with deterministic."""
        search = Search(problem=Spec.of(PlainProblem), tuner=Spec.of(InOrderTuner), deterministic=True)

        with pytest.raises(ConfigurationError, match=f"budget.{name} does not go with deterministic=true"):
            run_search(search, root=f"memory://program/{uuid4().hex}", budget=Budget(**{name: limit}))  # type: ignore[arg-type]

    def test_deterministic_search_has_the_same_table(self) -> None:
        """Two runs of a deterministic search have the same table."""
        search = Search(problem=Spec.of(ScoreProblem), tuner=Spec.of(InOrderTuner), deterministic=True)
        roots = [f"memory://program/{uuid4().hex}" for _ in range(2)]

        tables = [table(run_search(search, root=root, budget=Budget(trials=4))) for root in roots]

        assert tables[0] == tables[1]


@pytest.mark.parametrize("lost", [0, 2, 4])
def test_trial_with_a_deleted_result_runs_again(bureau: Bureau, lost: int) -> None:
    """A trial whose result was deleted runs again under its number before new proposals, even if it has children."""
    xs = (10, 30, 20, 5, 40, 50, 60)
    before = bureau.run(*xs, n_trials=5)
    files = bureau.records().files
    files.delete(f"trials/{lost:06d}.result.json")
    after = bureau.run(*xs, n_trials=5)

    assert table(after) == table(before)
    assert after.lineage[lost].attempt == 2

    files.delete(f"trials/{lost:06d}.result.json")
    more = bureau.run(*xs, n_trials=7)

    assert [t.point["x"] for t in more.lineage if t.stage == "search"] == [*xs[:5], 50, 60]
    assert more.lineage[lost].attempt == 3
    assert [t.learned for t in bureau.records().load()[0]][1:5] == [(0,), (1,), (2,), (3,)]


class TestHours:
    @pytest.mark.parametrize("trials_per_job", [None, "unlimited"])
    def test_running_trial_is_stopped_at_the_deadline(self, trials_per_job: Any) -> None:
        """A trial with endless reports is STOPPED with its last report; its weights win.

        The hours pass from its first report on.
        """
        reported_s: list[float] = []

        def body(run: TrialRun) -> object:
            for step in range(10_000):
                time.sleep(0.01)
                try:
                    run.report(step, score=step / 10_000)
                    reported_s.append(time.monotonic())
                except TrialStopped:
                    run.save(network())
                    raise
            return {}

        problem = Spec.of(BodyProblem)
        prepared = Search(problem=problem, tuner=Spec.of(RandomTuner), trials_per_job=trials_per_job).build()
        root = f"memory://program/{uuid4().hex}"
        records = Records(open_root(root, retry_s=0).subfolder("search"))
        pipeline = SearchPipeline(prepared, records, Budget(hours=1 / 3600, at_deadline="stop"))
        lease = SearchLease(records, now_s=lambda: time.monotonic() - reported_s[0] if reported_s else 0.0)
        runtime = RuntimeSpec(
            problem=problem, url=records.files.url, options={}, jobs_request_trials=prepared.jobs.requests_trials
        )
        executor = LocalExecutor(InProcessPool(runtime, records.files, BodyProblem(body)))
        try:
            pipeline.run(executor, lease, ControllerSettings(budget=pipeline.budget, jobs=prepared.jobs))
        finally:
            executor.close()
            lease.close()
        summary = pipeline.summary()

        [trial] = summary.lineage
        assert (trial.state, trial.reason, trial.metrics) == (State.STOPPED, Reason.DEADLINE, trial.curve[-1][1])
        assert trial.checkpoint is not None
        assert summary.winner == trial
        assert pipeline.ended_by() == "hours"

    @pytest.mark.parametrize(("at_deadline", "left"), [("stop", 2.0), ("finish", None)])
    def test_hours_left_are_told_if_trials_end_by_them(self, at_deadline: Any, left: float | None) -> None:
        """Trials that may finish run for longer, so the progress takes their time as it is."""
        prepared = Search(problem=Spec.of(PlainProblem), tuner=Spec.of(RandomTuner)).build()
        records = Records(open_root(f"memory://program/{uuid4().hex}").subfolder("search"))

        assert SearchPipeline(prepared, records, Budget(hours=2, at_deadline=at_deadline)).hours_left() == left

    def test_gpu_hours_need_a_gpu(self) -> None:
        """GPU-hours are refused, since run_search trains on the CPU."""
        search = Search(problem=Spec.of(PlainProblem), tuner=Spec.of(InOrderTuner))

        with pytest.raises(ConfigurationError, match=r"budget\.gpu_hours=1: needs a GPU"):
            run_search(search, root=f"memory://program/{uuid4().hex}", budget=Budget(gpu_hours=1))
