"""Multiruns: each job is a search under the name of the single command, and no file is left over."""

from __future__ import annotations

import json
import os
import re
import signal
import tempfile
from pathlib import Path

import pytest

from flows.cli.command import Invocation, run_command
from flows.cli.job_process import JobCommand, JobResult
from flows.cli.settings.search import search_name
from nas.core.names import check_new_name
from nas.core.spec import Spec
from nas.search.definition import Search
from tests.support.commands import TIMED, Command, run, trials, until
from tests.support.problems import InOrderTuner, PlainProblem

DATA = (Path(__file__).parents[2] / os.environ.get("HEIRLOOM_DATA", "../shared/data")).resolve()
TABLE = DATA / "nasbench201_cifar10.parquet"
SMALL = (*TIMED[1:], "finalists=1")


def names(here: Path) -> list[str]:
    return sorted(path.name for path in (here / "heirloom").iterdir())


@pytest.mark.slow
def test_tuners_and_seeds_make_four_searches(here: Path) -> None:
    """-m +tuner=random,evolution seed=1,2 makes four searches under the single commands' names, and compares them."""
    sweep = (*SMALL, "runner=debug", "budget.trials=2")
    done = run(here, "-m", "+tuner=random,evolution", "seed=1,2", *sweep, "only.evolution.population_size=4")
    single = run(here, "+tuner=evolution", "seed=2", "tuner.population_size=4", *sweep)

    assert done.status == 0
    assert len(names(here)) == 4
    assert [re.sub("-[0-9a-f]{8}$", "", name) for name in names(here)] == ["timed-evolution"] * 2 + ["timed-random"] * 2
    assert done.out.count("best: trial") == 4
    assert re.findall(r"^search (\S+): ", done.out, re.MULTILINE)[-1] in single.out
    assert "is finished" in single.out
    table = done.out.partition("\nname ")[2]
    assert [line.split()[0] for line in table.splitlines()[1:5]] == sorted(names(here), key=table.index)
    assert "paired t test (Student), two-sided, over common seeds" in table
    assert "python -m flows.compare names=timed-random-" in table


def test_an_option_of_a_tuner_that_no_job_has(capsys: pytest.CaptureFixture[str]) -> None:
    """only.TUNER.KEY is refused if no job has the tuner, before any job runs, and for a list of values."""
    for words, line in (
        (["only.tpe.seed=1"], "only.tpe.seed=1: no job has this tuner. The tuners are random, evolution"),
        (["only.evolution.size=1,2"], "only.evolution.size=1,2: must be one value"),
        (["only.evolution=1"], "only.evolution=1: must be only.TUNER.KEY=VALUE"),
    ):
        assert run_command("search", lambda _: pytest.fail("ran"), ["-m", "+tuner=random,evolution", *words]) == 2
        assert capsys.readouterr().err.startswith(f"heirloom: {line}")


def test_an_option_of_a_tuner_that_no_preset_has(capsys: pytest.CaptureFixture[str]) -> None:
    """only.TUNER.KEY is refused in each job if the tuner comes from a preset and is another one."""
    words = ["-m", "+experiment=fashion_mnist", "seed=1,2", "only.evolutoin.population_size=8"]

    assert run_command("search", lambda _: pytest.fail("ran"), words) == 2
    error = "only.evolutoin.population_size=8: no job has this tuner. The tuner is evolution"
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "no job" in line] == [
        f"heirloom: job {n} (seed={n + 1}): {error}" for n in (0, 1)
    ]


def test_an_option_of_a_tuner_from_a_pattern() -> None:
    """Tuners chosen by a pattern of Hydra get their options."""
    sizes = []
    words = ["-m", "+tuner=glob(evo*)", "seed=1,2", "only.evolution.population_size=8"]

    assert run_command("search", lambda job: sizes.append(job.values["tuner"]["population_size"]) or 0, words) == 0
    assert sizes == [8, 8]


@pytest.mark.slow
def test_errors_name_their_job(here: Path) -> None:
    """A mistake in one job's values is a line that names the job; the other job runs, and the status is 2."""
    sweep = (*SMALL, "runner=debug", "budget.trials=1", "only.evolution.population_size=0")
    done = run(here, "-m", "+tuner=evolution,random", *sweep)

    assert done.status == 2
    assert "heirloom: job 0 (tuner=evolution): tuner.population_size=0: must be" in done.err
    assert done.err.splitlines()[-1].startswith("heirloom: 1 of 2 jobs failed: job 0 (tuner=evolution).")
    assert done.out.count("best: trial") == 1


@pytest.mark.slow
def test_a_launcher_runs_jobs_that_resume(here: Path) -> None:
    """With joblib's launcher, Ctrl-C stops all jobs, and the same command resumes each of them."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="hydra-joblib-launcher is not installed")
    sweep = (*SMALL, "+tuner=random", f"problem.hold={here}", "runner=debug", "budget.trials=4,6")
    (here / "1").touch()
    words = ("-m", *sweep, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    with Command(here, *words) as command:
        until(lambda: len({path.parts[-3] for path in here.glob("heirloom/*/trials/*.result.json")}) == 2)
        command.send(signal.SIGINT)
        stopped = command.wait()
        until(lambda: not command.leftovers(), what="the end of the jobs")
        interrupted = command.err
    (here / "1").unlink()
    done = run(here, *words)

    assert stopped.status == 130
    assert interrupted.count(f"Resume: python -m flows.search {' '.join(words)}") >= 2
    assert done.status == 0, done.err
    assert len(re.findall(r"job \d \(budget\.trials=\d\): search \S+ resumes after", done.err)) == 2
    assert {name.partition("-budget")[2]: len(trials(here / "heirloom" / name)) for name in names(here)} == {
        ".trials-4": 5,
        ".trials-6": 7,
    }
    assert "random, budget.trials=6" in done.out


@pytest.mark.slow
def test_a_launcher_returns_exit_statuses(here: Path) -> None:
    """The statuses of jobs in a launcher's processes travel as Hydra's return values: the greatest one is returned."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher", reason="hydra-joblib-launcher is not installed")
    sweep = (*SMALL, "+tuner=evolution,random", "runner=debug", "budget.trials=1", "only.evolution.population_size=0")
    done = run(here, "-m", *sweep, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")

    assert done.status == 2
    assert "heirloom: job 0 (tuner=evolution): tuner.population_size=0: must be" in done.err
    assert done.out.count("best: trial") == 1


@pytest.mark.parametrize("written", ['{"search": "mine"}', '{"sea', ""])
def test_a_cut_result_of_a_job_costs_its_name_only(here: Path, written: str) -> None:
    """A full disk may cut it. The job's status and output count."""
    program = f"import os; open(os.environ['HEIRLOOM_JOB'] + '/result.json', 'w').write({written!r}); print('done')"
    result = JobCommand(words=("-c", program), folder=str(here), label="job", orders={}).run()

    assert result == JobResult(0, "mine" if written.endswith("}") else None, "done\n")


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
def test_lanes_make_two_searches(here: Path, api_url: str) -> None:
    """-m problem.lanes=1,2 compares two searches, although their trials are the same."""
    lanes = ("runner=threads", "slots=2", "problem.lanes=1,2", "device=cpu", "policy=search_only")
    digits = ("+tuner=random", "problem=digits", "budget.trials=1")
    done = run(here, "-m", *digits, *lanes, PREFECT_API_URL=api_url)

    assert done.status == 0, done.err
    assert [name.partition("-problem.lanes")[2] for name in names(here)] == ["-1", "-2"]


@pytest.mark.slow
def test_a_multirun_leaves_no_files(here: Path) -> None:
    """No multirun.yaml and no outputs folder is left, here or in the temporary folder."""
    done = run(here, "-m", "+tuner=random", *SMALL, "runner=debug", "budget.trials=1", "seed=1,2")

    assert done.status == 0
    assert [path.name for path in here.iterdir()] == ["heirloom"]
    assert not Path(tempfile.gettempdir(), f"heirloom-multirun-{done.pid}").exists()


@pytest.mark.slow
def test_swept_data_and_odd_values_make_valid_names(here: Path) -> None:
    """Names show differences outside the identity, without characters that a folder's name can't have."""
    done = run(
        here, "-m", "+tuner=random", *SMALL, "runner=debug", "budget.trials=1", "storage.root=heirloom,./heirloom"
    )

    assert done.status == 0
    assert [name.partition("-storage")[2] for name in names(here)] == [".root-._heirloom", ".root-heirloom"]


def test_swept_groups_make_valid_names() -> None:
    """A group's name, too, is without characters that a folder's name can't have."""
    found: list[str] = []

    def body(invocation: Invocation) -> int:
        search = Search(problem=Spec.of(PlainProblem), tuner=Spec.of(InOrderTuner))
        found.append(check_new_name(search_name(invocation, "one", search)))
        return 0

    assert run_command("search", body, ["-m", "+tuner=random", "runner=dask", "runner/cluster=local,cuda"]) == 0
    assert found == ["one-runner_cluster-local", "one-runner_cluster-cuda"]
