"""Real searches on a real Prefect server: edges, states, tags and artifacts, also after a kill."""

from __future__ import annotations

import itertools
import json
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nas.core.trial import Trial
from tests.support.commands import environment
from tests.support.prefect_searches import CHAINS, HELD, OUTCOMES, Command, Server, SteadySearch, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RUNNING_PARENTS = (*OUTCOMES, "tuner._target_=outcome_problem.RunningParentTuner")


NOISY = """
from nas import Int, Metric, ParameterSpace, Problem


class NoisyProblem(Problem):
    metrics = (Metric("accuracy"),)
    space = ParameterSpace({"width": Int(1, 9)})

    def train(self, run):
        if run.number == 0:
            print(*(f"line {n} \\x1b[31m" for n in range(100)), sep="\\n")
            raise ValueError("width 7 does not divide 8")
        return {"accuracy": 0.5}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server") / "home") as server:
        yield server


@pytest.fixture(scope="module")
def command(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Command:
    return Command(server, tmp_path_factory.mktemp("searches"))


def sources(trial: Trial) -> set[int]:
    """Returns parents, donors and replacing ancestors from the trial's records."""
    stand_ins = trial.inheritance.get("replaced", {}).values()
    named = {*trial.parents, *trial.proposal.weight_donors, *stand_ins, trial.resolved_donor}
    return {source for source in named if isinstance(source, int)}


def expected_edges(trials: list[Trial], shown: list[Trial] | None = None) -> set[tuple[str, str]]:
    """Returns (parent, child) by name; FAILED parents and donors have no edge, as Prefect would start no child."""
    failed = {trial.number for trial in trials if trial.state == "FAILED"}
    return {(task(source), task(trial.number)) for trial in shown or trials for source in sources(trial) - failed}


def shown_state(trial: Trial) -> tuple[str, str]:
    """Returns type and name of the state that Prefect shows; Failed has its default name."""
    return ("FAILED", "Failed") if trial.state == "FAILED" else ("COMPLETED", str(trial.state))


def task(number: int) -> str:
    return f"trial-{number:04d}"


def only_trials(names: set[tuple[str, str]]) -> set[tuple[str, str]]:
    return {edge for edge in names if edge[1].startswith("trial-")}


RACES = [
    (tuner, slots, runner)
    for tuner in ("running_parent", "chain")
    for slots in (1, 2)
    for runner in ("threads", "processes")
]


@dataclass(frozen=True)
class Race:
    """A search whose children are named while their parents wait or run, and its flow run."""

    slots: int
    folder: Path
    trials: list[Trial]
    flow_run: dict[str, Any]
    task_runs: list[dict[str, Any]]


@pytest.fixture(scope="module")
def raced(command: Command) -> Path:
    """Returns the folder of eight such searches from one multirun."""
    command.run(
        "-m",
        *OUTCOMES,
        "tuner._target_=outcome_problem.RunningParentTuner,outcome_problem.ChainTuner",
        "slots=1,2",
        "runner=threads,processes",
        "problem.seconds=0.15",
        "budget.trials=15",
    )
    return command.folder / "heirloom"


@pytest.fixture(scope="module", params=RACES, ids=lambda race: "-".join(map(str, race)))
def race(request: pytest.FixtureRequest, raced: Path, server: Server, command: Command) -> Race:
    tuner, slots, runner = request.param
    pattern = f"outcome-{tuner}-[0-9a-f]*-runner-{runner}-slots-{slots}"
    (folder,) = (folder for folder in raced.iterdir() if re.fullmatch(pattern, folder.name))
    (flow_run,) = server.flow_runs(folder.name)
    return Race(slots, folder, command.trials(folder.name), flow_run, server.task_runs(flow_run["id"], 15))


def test_no_child_starts_before_its_sources_are_committed(race: Race) -> None:
    """A child starts after the results of all its parents and donors are in their folder."""
    assert len(race.trials) == 15
    for child in race.trials:
        start = race.folder / f"trials/{child.number:06d}.start-1.json"
        for source in sources(child):
            result = race.folder / f"trials/{source:06d}.result.json"
            assert result.stat().st_ctime_ns <= start.stat().st_mtime_ns
            assert race.trials[source].finished <= json.loads(start.read_bytes())["time"]


def test_children_are_named_before_their_parents_have_finished(race: Race) -> None:
    """With a free slot the tuner is asked, and its answer is durable, while the parent runs or waits."""
    early = [t for t in race.trials if any(t.created < race.trials[parent].finished for parent in t.parents)]

    assert len(early) >= 2 if race.slots > 1 else not early  # how many depends on the machine


def test_each_outcome_is_a_parents(race: Race) -> None:
    """Parents are COMPLETE, FAILED, STOPPED or without weights; then an ancestor gives the weights."""
    children = [trial for trial in race.trials if trial.parents]
    outcomes = {race.trials[child.parents[0]].point["outcome"] for child in children}
    whole = {trial.number for trial in race.trials if trial.checkpoint is not None}

    assert outcomes >= {"complete", "failed", "stopped", "bare"}
    for child in children:
        named = [donor for donor in child.proposal.weight_donors if donor in whole]
        assert child.resolved_donor == named[0] if named else child.resolved_donor in whole | {None}
        assert child.donor == child.resolved_donor
        if child.state != "FAILED":
            assert child.inherited == (0.0 if child.donor is None else 1.0)


def test_every_edge_is_in_the_servers_graph(race: Race, server: Server) -> None:
    """The graph has one edge from each parent and donor that is not FAILED, no other, and no nested trial."""
    runs = race.task_runs
    names = {run["id"]: run["name"] for run in runs}
    inputs = [(names[i["id"]], run["name"]) for run in runs for i in run["task_inputs"].get("wait_for", [])]

    assert {run["state_type"] for run in runs} == {"COMPLETED", "FAILED"}
    assert only_trials(server.edges(race.flow_run["id"])) == expected_edges(race.trials)
    assert sorted(inputs) == sorted(server.edges(race.flow_run["id"]))
    assert not [run["name"] for run in runs if "__parents__" in run["task_inputs"]]


def test_a_trial_is_one_task_run_with_its_tags_and_state(race: Race, server: Server) -> None:
    """Task run ``trial-0007`` has stage, generation, job and policies as tags, and the state's name."""
    runs = [run for run in race.task_runs if run["name"].startswith("trial-")]

    assert race.flow_run["state_name"] == "Completed"
    shown = [(run["name"], (run["state_type"], run["state_name"]), sorted(run["tags"])) for run in runs]
    assert sorted(shown) == [
        (
            task(trial.number),
            shown_state(trial),
            [f"generation:{trial.generation}", f"job:{trial.number}", "policy:SHARE_PARAMS", "stage:search"],
        )
        for trial in race.trials
    ]


def test_published_weights_are_an_artifact_of_their_trial(race: Race, server: Server) -> None:
    """``checkpoint-0007`` of ``trial-0007`` has path, bytes, digest, donor and share; other trials have none."""
    names = {run["id"]: run["name"] for run in race.task_runs}
    found = {a["key"]: a for a in server.artifacts(race.flow_run["id"]) if a["key"].startswith("checkpoint-")}
    published = [trial for trial in race.trials if trial.checkpoint is not None]

    assert sorted(found) == [f"checkpoint-{trial.number:04d}" for trial in published]
    for trial in published:
        artifact = found[f"checkpoint-{trial.number:04d}"]
        assert names[artifact["task_run_id"]] == task(trial.number)
        manifest, size = trial.checkpoint.manifest, f"{trial.checkpoint.own_bytes:,}"
        donor = "-" if trial.donor is None else f"trial {trial.donor}"
        share = "-" if trial.resolved_donor is None else f"{trial.inherited:.1%}"
        for text in (manifest.path, manifest.digest, size, f"| donor | {donor} |", f"| inherited | {share} |"):
            assert text in artifact["data"]


def test_each_trial_of_a_job_is_a_task_run(server: Server, command: Command) -> None:
    """Trials that share a job have their own task runs, with the job's tag and all edges."""
    plan = ("slots=2", "runner=processes", "problem.seconds=0.1", "budget.trials=15", "job.trials_per_job=4")
    command.run(*OUTCOMES, "tuner._target_=outcome_problem.RunningParentTuner", *plan, "name=jobs")
    (flow_run,) = server.flow_runs("jobs")
    trials = command.trials("jobs")
    tags = {run["name"]: run["tags"] for run in server.task_runs(flow_run["id"], 15)}

    assert only_trials(server.edges(flow_run["id"])) == expected_edges(trials)
    assert len({trial.job for trial in trials}) < 15
    assert all(f"job:{trial.job}" in tags[task(trial.number)] for trial in trials)


def test_a_donor_by_a_rule_is_an_edge(server: Server, command: Command) -> None:
    """A donor found by ``tuner.donor=local_best`` at the start has an edge, and its slot is recorded."""
    plan = ("+tuner=random", "tuner.donor=local_best", "slots=2", "runner=processes", "budget.trials=12")
    command.run(OUTCOMES[0], *plan, "problem.seconds=0.1", "max_failures=100", "name=sources")
    (flow_run,) = server.flow_runs("sources")
    server.task_runs(flow_run["id"], 12)
    trials = command.trials("sources")
    given = [trial for trial in trials if trial.resolved_donor is not None]

    assert given
    assert all(trials[trial.resolved_donor].slot == trial.slot for trial in given)
    assert only_trials(server.edges(flow_run["id"])) == {
        (task(trial.resolved_donor), task(trial.number)) for trial in given
    }


def test_each_phase_has_an_edge_from_the_one_before(server: Server, command: Command) -> None:
    """The task runs of a job's dependent trials have edges, also across sessions."""
    plan = (
        *OUTCOMES,
        "tuner._target_=outcome_problem.PhaseTuner",
        "slots=2",
        "runner=processes",
        "problem.seconds=0.1",
    )
    for n_trials in (6, 10):
        command.run(*plan, "job.trials_per_job=4", f"budget.trials={n_trials}", "name=phases")
    flow_runs = server.flow_runs("phases")
    for flow_run, n_trials in zip(flow_runs, (6, 4), strict=True):
        server.task_runs(flow_run["id"], n_trials)
    edges = [only_trials(server.edges(flow_run["id"])) for flow_run in flow_runs]
    trials = [trial for trial in command.trials("phases") if trial.stage == "search"]
    jobs = [[trial for trial in trials if trial.job == job] for job in sorted({trial.job for trial in trials})]
    phases = [pair for members in jobs for pair in itertools.pairwise(members)]

    assert len(phases) == 10 - len(jobs) >= 6
    assert all(after.donor == before.number for before, after in phases)
    for session, of_session in enumerate([trials[:6], trials[6:]]):
        named = {(task(before.number), task(after.number)) for before, after in phases if after in of_session}
        assert named
        assert named <= edges[session]


def test_the_lineage_is_linked_from_the_flow_run(race: Race, server: Server) -> None:
    """The artifact ``lineage`` has the command that draws it; tags name the search and the session."""
    (artifact,) = server.artifacts(race.flow_run["id"], "lineage")
    name, root = race.folder.name, race.folder.parent

    assert f"`python -m flows.report name={name} storage.root={root} format=html`" in artifact["data"]
    assert re.search(rf"The page of this search is `/.*/{name}\.html`", artifact["data"])
    assert sorted(race.flow_run["tags"]) == [f"search:{name}", "session:1"]


def test_the_states_of_the_last_trials_are_delivered(server: Server, command: Command) -> None:
    """The command waits until the server has the final state of each quick trial."""
    plan = ("problem.seconds=0", "slots=4", "budget.trials=190", "storage=memory", "runner=threads")
    command.run(*CHAINS, *plan, "name=quick")
    (flow_run,) = server.flow_runs("quick")
    runs = server.task_runs(flow_run["id"], 190)

    assert sorted(run["name"] for run in runs if run["name"].startswith("trial-")) == [task(n) for n in range(190)]


def test_children_of_a_lost_parent_train(server: Server, command: Command) -> None:
    """A lost trial is Failed beside its Crashed attempts, and its children train."""
    command.run(*CHAINS, "tuner.outcomes=killed complete", "slots=2", "budget.trials=3", "name=lost")
    (flow_run,) = server.flow_runs("lost")
    runs = [(run["name"], run["state_name"]) for run in server.task_runs(flow_run["id"], 5)]

    assert [str(trial.reason) for trial in command.trials("lost")] == ["lost", "None", "None"]
    assert sorted(run for run in runs if run[0] == "trial-0000") == [
        ("trial-0000", "Crashed"),
        ("trial-0000", "Crashed"),
        ("trial-0000", "Failed"),
    ]
    assert {("trial-0001", "COMPLETE"), ("trial-0002", "COMPLETE")} <= set(runs)
    assert only_trials(server.edges(flow_run["id"])) == expected_edges(command.trials("lost"))


def test_a_trial_that_never_ran_is_shown(server: Server, command: Command) -> None:
    """With ``on_missing_weights=fail`` the child of a parent without weights is a Failed task run with its edges."""
    plan = ("tuner.outcomes=bare complete", "on_missing_weights=fail", "budget.trials=3")
    command.run(*CHAINS, *plan, "name=refused", "runner=threads")
    (flow_run,) = server.flow_runs("refused")
    runs = sorted((run["name"], run["state_name"]) for run in server.task_runs(flow_run["id"], 4))

    assert [t.reason for t in command.trials("refused")] == [None, "parent", "parent"]
    assert runs[1:] == [("trial-0000", "COMPLETE"), ("trial-0001", "Failed"), ("trial-0002", "Failed")]
    assert only_trials(server.edges(flow_run["id"])) == expected_edges(command.trials("refused"))


def test_a_failed_trial_triggers_an_automation_and_has_a_log(server: Server, command: Command) -> None:
    """It is found by its state, has the reason as message and 50 lines of log; no retry setting repeats it."""
    trigger = {"type": "event", "posture": "Reactive", "threshold": 1, "expect": ["prefect.task-run.Failed"]}
    automation = {"name": "on-failure", "trigger": trigger, "actions": [{"type": "do-nothing"}]}
    (folder := command.folder / "noisy").mkdir()
    (folder / "noisy_problem.py").write_text(NOISY)
    created = server.post("/automations/", automation)
    plan = ("+tuner=random", "problem._target_=noisy_problem.NoisyProblem", "budget.trials=2", "slots=1")
    retries = {"PREFECT_TASKS_DEFAULT_RETRIES": "2", "PREFECT_FLOWS_DEFAULT_RETRIES": "2"}
    Command(server, folder).run(*plan, "name=noisy", **retries)
    (flow_run,) = server.flow_runs("noisy")
    asked = {"flow_runs": {"id": {"any_": [flow_run["id"]]}}, "task_runs": {"state": {"type": {"any_": ["FAILED"]}}}}
    until(lambda: len(server.post("/task_runs/filter", asked)) == 1, 30, "the failed trial is found by its state")
    (run,) = server.post("/task_runs/filter", asked)
    fired = {"filter": {"event": {"name": ["prefect.automation.triggered"]}}}
    log, whole = server.logs(task_run_id=[run["id"]]), server.logs(flow_run_id=[flow_run["id"]])

    assert (run["name"], run["state_name"], run["run_count"]) == ("trial-0000", "Failed", 1)
    assert "width 7 does not divide 8" in run["state"]["message"]
    assert len(log) == 51
    assert "width 7 does not divide 8" in log[-1]
    assert any("line 99 \ufffd[31m" in line for line in log)
    assert "trial 1 COMPLETE, accuracy 0.5" in whole
    assert "begins" in whole[0]
    assert "ended" in whole[-1]
    until(lambda: created["id"] in str(server.post("/events/filter", fired)), 30, "the automation was triggered")


def test_a_search_without_a_score_is_a_failed_flow_run(server: Server, command: Command) -> None:
    """The flow run is Failed, once, where the command's status is 1."""
    search = command.start(*CHAINS, "tuner.outcomes=failed", "budget.trials=2", "name=scoreless", "runner=threads")
    done = search.wait()
    (flow_run,) = server.flow_runs("scoreless")

    assert done.status == 1
    assert "no trial of 2 has a score" in done.err
    assert "flows.report" in done.out
    assert "flows.final" not in done.out
    assert (flow_run["state_name"], flow_run["run_count"]) == ("Failed", 1)
    assert "no trial of 2 has a score" in flow_run["state"]["message"]


def test_the_leaderboard_grows_during_the_search(server: Server, command: Command) -> None:
    """The artifact ``leaderboard`` shows more trials over time, best first."""
    seen: list[str] = []
    plan = ("tuner.outcomes=complete", "problem.seconds=1.2", "slots=2", "budget.trials=16")
    search = command.start(*CHAINS, *plan, "name=grows", "runner=threads")
    while search.process.poll() is None:
        for flow_run in server.flow_runs("grows"):
            seen += [a["data"] for a in server.artifacts(flow_run["id"], "leaderboard") if a["data"] not in seen]
        time.sleep(0.5)
    (flow_run,) = server.flow_runs("grows")
    seen += [a["data"] for a in server.artifacts(flow_run["id"], "leaderboard") if a["data"] not in seen]
    boards = [[int(row) for row in re.findall(r"^\| \d+ \| (\d+) ", text, re.MULTILINE)] for text in seen]

    assert search.wait().status == 0
    assert len(boards) >= 3
    assert [len(board) for board in boards] == sorted(len(board) for board in boards)
    assert all(board == sorted(board, reverse=True) for board in boards)
    assert boards[-1] == list(range(15, -1, -1))


def test_the_leaderboard_has_the_trials_of_sessions_without_prefect(server: Server, command: Command) -> None:
    """Trials of a session with ``runner=debug`` are on the leaderboard of the flow run that goes on."""
    plan = (*CHAINS, "tuner.outcomes=complete", "slots=1", "name=alone")
    command.run(*plan, "runner=debug", "budget.trials=2")
    command.run(*plan, "runner=threads", "budget.trials=4")
    (flow_run,) = server.flow_runs("alone")
    (board,) = server.artifacts(flow_run["id"], "leaderboard")

    assert re.findall(r"^\| \d+ \| (\d+) ", board["data"], re.MULTILINE) == ["3", "2", "1", "0"]


def test_a_resumed_search_has_its_edges_and_a_link_to_the_crashed_run(server: Server, command: Command) -> None:
    """After ``kill -9`` the command makes a new flow run with all edges, some from ``Restored`` trials."""
    held = command.folder / "held" / "10"
    held.parent.mkdir()
    held.touch()
    arguments = (*RUNNING_PARENTS, f"problem.hold={held.parent}", "slots=2", "budget.trials=20", "name=resumed")
    search = command.start(*arguments)
    command.wait_for_trials("resumed", 7)
    until(lambda: server.shows_running("resumed"), 60, "the server knows of a task run that runs")
    search.kill(to_group=False)
    until(lambda: not search.leftovers(), 30, "the workers of the killed driver have ended")
    held.unlink()
    before = command.trials("resumed")
    command.run(*arguments)
    old, new = server.flow_runs("resumed")
    runs = server.task_runs(new["id"], 20 - sum(trial.is_finished for trial in before))
    restored = {run["name"] for run in runs if run["state_name"] == "Restored"}
    trials = command.trials("resumed")
    finished = {task(trial.number) for trial in before if trial.is_finished}
    shown = [trial for trial in trials if task(trial.number) in restored or task(trial.number) not in finished]

    assert restored
    assert restored <= finished
    assert only_trials(server.edges(new["id"])) == expected_edges(trials, shown)
    assert {task(t.number) for t in shown} == {run["name"] for run in runs if run["name"].startswith("trial-")}
    assert (old["state_name"], new["state_name"]) == ("Crashed", "Completed")
    assert new["id"] in old["state"]["message"]
    assert {run["state_type"] for run in server.task_runs(old["id"])} <= {"COMPLETED", "FAILED", "CRASHED"}
    assert new["parameters"]["resumes"] == old["id"]
    assert set(old["tags"]) & set(new["tags"]) == {"search:resumed"}
    (lineage,) = server.artifacts(new["id"], "lineage")
    assert f"/runs/flow-run/{old['id']}" in lineage["data"]
    (board,) = server.artifacts(new["id"], "leaderboard")
    n_ranked = sum(trial.state == "COMPLETE" and trial.value("score") is not None for trial in trials)
    assert len(re.findall(r"^\| \d+ \|", board["data"], re.MULTILINE)) == n_ranked


def test_a_cancel_in_prefect_ends_a_search(server: Server, command: Command) -> None:
    """``prefect flow-run cancel``, and the state set by the API, each end a search whose trials never end."""
    hold = command.folder / "hold"
    hold.mkdir()
    for number in (2, 3):
        (hold / str(number)).touch()
    plan = (*HELD, f"problem.hold={hold}", "slots=2", "budget.trials=100")
    searches = {name: command.start(*plan, f"name={name}") for name in ("by-command", "by-state")}
    for name in searches:
        command.wait_for_trials(name, 2)
    by_command, by_state = (server.flow_runs(name)[0]["id"] for name in searches)
    cancel = [sys.executable, "-m", "prefect", "flow-run", "cancel", by_command]
    subprocess.run(cancel, env=environment(PREFECT_API_URL=server.url), check=True, capture_output=True)
    state = {"state": {"type": "CANCELLED", "name": "Cancelled"}, "force": True}
    server.post(f"/flow_runs/{by_state}/set_state", state)
    until(lambda: all(search.process.poll() is not None for search in searches.values()), 60, "both have ended")

    for name, search in searches.items():
        done = search.wait()
        (flow_run,) = server.flow_runs(name)
        trials = command.trials(name)
        assert done.status == 1
        assert "cancelled in Prefect" in done.err
        assert "Resume: python -m flows.search" in done.err
        assert flow_run["state_name"] == "Cancelled"
        assert [trial.number for trial in trials if trial.is_finished] == [0, 1]
        assert len(trials) > 2
        states = {run["state_name"] for run in server.task_runs(flow_run["id"])}
        assert states <= {"COMPLETE", "STOPPED", "Failed", "Cancelled"}


def test_a_locked_database_delays_no_trial(server: Server, command: Command) -> None:
    """While another process has SQLite's file locked for writing, trials run as fast as ever."""
    search = SteadySearch(command, "locked", n_trials=70)
    command.wait_for_trials("locked", 2)
    with closing(sqlite3.connect(server.home / "prefect.db", timeout=60)) as database:
        database.execute("BEGIN IMMEDIATE")
        n_finished = search.n_finished_in(12)
        database.rollback()
    search.check_end(within_s=30)

    assert n_finished >= search.n_least_in(12)
    assert [run["state_name"] for run in server.flow_runs("locked")] == ["Completed"]
