"""A user's mistake is one line and status 2 (disk and server: 1), and nothing is half-written."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.support.commands import TIMED, Done, everything, only_search, run, trials
from tests.support.sample_searches import write_search

Mistakes = dict[str, Future[tuple[Path, Done]]]
DEBUG = (*TIMED, "runner=debug", "budget.trials=2")
NO_TUNER = TIMED[1:]
TUNERS = (
    "anneal, auto, autogrow, batch, cmaes, darts, darts_pt, drnas, enas, evolution, gdas, gp, grid, metis, "
    "network_morphism, nsga2, pbt, random, reinforce, rsps, screened, smac, spos, supernet, tpe"
)
MISTAKES = {
    "no_tuner": (
        NO_TUNER,
        rf"no tuner: add \+tuner=NAME, one of {TUNERS}",
    ),
    "unknown_tuner": (
        ("+tuner=nope",),
        f"unknown tuner nope: choose {TUNERS}",
    ),
    "misspelled_tuner": (
        ("tuner=Evolutoin",),
        rf"unknown tuner Evolutoin; did you mean evolution\? Choose {TUNERS}, or a class of your own",
    ),
    "misspelled_tuner_of_a_sweep": (
        ("-m", *NO_TUNER, "tuner=random,evoluton"),
        r"unknown tuner evoluton; did you mean evolution\? Choose",
    ),
    "part_of_a_problems_name": (
        (*DEBUG, "problem=mnist"),
        r"unknown problem mnist; did you mean fashion_mnist\? Choose cells, cifar10",
    ),
    "two_tuners": ((*TIMED, "tuner=evolution"), "tuner is chosen twice"),
    "tuner_without_a_choice": (
        (*NO_TUNER, "tuner.sample_size=3"),
        r"tuner=.*: must have a _target_. Add \+tuner=NAME, one of anneal",
    ),
    "template_that_is_not_there": (
        ("+tuner=auto", "problem=rafiki", "problem.file=Model.py"),
        r"problem.file=Model.py: can't be read: No such file",
    ),
    "nfs_that_is_not_mounted": (
        (*TIMED, "storage=nfs", "storage.root=somewhere/heirloom"),
        r"storage.root=somewhere/heirloom: is on .* \(\w+\), which is not a network file system: mount it",
    ),
    "unknown_logger": (
        (*TIMED, "logger=tensorbord"),
        r"unknown logger tensorbord; did you mean tensorboard\? Choose mlflow, tensorboard, wandb",
    ),
    "logger_that_is_none": (
        (*TIMED, "logger.mine._target_=timed_problem.TimedProblem"),
        r"logger.mine._target_=timed_problem.TimedProblem: must be a subclass of nas.Callback",
    ),
    "option_beside_its_logger": (
        (*TIMED, "logger=mlflow", "logger.tracking_uri=http://127.0.0.1:1"),
        r"logger.tracking_uri=http://127.0.0.1:1: must be in a logger. Set logger.mlflow.tracking_uri\.",
    ),
    "logger_without_a_choice": (
        (*TIMED, "logger.mlflow.experiment=mine"),
        r"logger.mlflow: must have a _target_. Add logger=NAME, one of mlflow, tensorboard, wandb",
    ),
    "log_dir_that_is_a_url": ((*TIMED, "log_dir=s3://bucket/runs"), "log_dir=s3://bucket/runs: must be a local folder"),
    "constraint_that_is_no_number": (
        (*TIMED, "+constraints.parameters=few"),
        r"constraints.parameters='few': must be a number",
    ),
    "constraint_of_nothing_known": (
        (*TIMED, "+constraints.parameters=1e6"),
        "constraints.parameters: the problem does not know it before training. Define `static_metrics`, or `build` and",
    ),
    "tuner_that_cannot_be": (
        (*NO_TUNER, "+tuner=evolution", "tuner.population_size=8", "tuner.sample_size=9"),
        r"tuner.sample_size=9: .* tuner.population_size \(8\)",
    ),
    "tuner_without_such_an_argument": (
        (*TIMED, "tuner.bogus=1"),
        "RandomTuner has no argument bogus; it takes donor='none'",
    ),
    "tuner_with_nearly_such_an_argument": (
        (*NO_TUNER, "+tuner=evolution", "tuner.population=4"),
        r"EvolutionTuner has no argument population; did you mean population_size\?; it takes population_size=None, s",
    ),
    "tuner_of_another_type": (
        (*NO_TUNER, "+tuner=evolution", "tuner.population_size=many"),
        r"population_size='many': must be a whole number",
    ),
    "tuner_that_would_explore_nothing": (
        (*NO_TUNER, "+tuner=pbt", "tuner.perturbed=[widht]"),
        r"tuner.perturbed: the space has no decision 'widht'. Choose from width, step, or null for all",
    ),
    "one_shot_tuner_without_a_supernet": (
        (*NO_TUNER, "+tuner=spos"),
        r"problem.space: must be the space of a supernet .* for a one-shot tuner. Choose problem=cells",
    ),
    "unknown_problem": ((*DEBUG, "problem=nope"), "unknown problem nope: choose cells, cifar10, digits"),
    "no_problem": (("+tuner=random", "problem=null"), "problem=null: choose one of cells, cifar10, digits"),
    "class_as_a_choice": (
        (*DEBUG[:1], "problem=my_problem.MyProblem"),
        r"unknown problem my_problem.MyProblem: a class of your own is problem._target_=my_problem.MyProblem",
    ),
    "argument_of_another_type": (
        (*DEBUG, "problem.seconds=long"),
        r"problem.seconds='long': must be a number, as timed_problem.TimedProblem declares it",
    ),
    "problem_not_importable": (("+tuner=random", "device=cpu", "problem._target_=nope.Nope"), "no module nope"),
    "problem_not_in_its_module": (
        ("+tuner=random", "device=cpu", "problem._target_=timed_problem.Nope"),
        "has no Nope",
    ),
    "problem_that_is_none": (
        ("+tuner=random", "device=cpu", "problem._target_=timed_problem.NoProblem"),
        "timed_problem.NoProblem must be a subclass of nas.Problem",
    ),
    "problem_without_such_an_argument": (
        (*TIMED, "problem.bogus=1"),
        "TimedProblem has no argument bogus; it takes seconds=0.0, fail='', weights=0",
    ),
    "unknown_key": (("bogus=1",), "unknown key bogus .*flows.search --help shows all keys"),
    "unknown_key_added": ((*DEBUG, "+bogus=1"), "unknown key bogus .*flows.search --help shows all keys"),
    "unknown_inner_key": ((*DEBUG, "budget.trails=3"), "unknown key budget.trails; did you mean budget.trials?"),
    "unknown_inner_key_added": ((*DEBUG, "+budget.trails=3"), "unknown key budget.trails; did you mean budget.trials?"),
    "key_without_its_group": ((*DEBUG, "trials=3"), "unknown key trials; did you mean budget.trials?"),
    "unknown_option": (("--bogus",), "unrecognized arguments: --bogus; --help"),
    "no_such_config_dir": ((*DEBUG, "--config-dir", "nope"), "nope' not found"),
    "no_value": ((*DEBUG, "seed"), "can't read 'seed': write seed=VALUE"),
    "lonely_tuner": (("evolution",), r"can't read 'evolution': did you mean \+tuner=evolution\?"),
    "lonely_word": ((*DEBUG, "quickly"), r"can't read 'quickly' \(.*\): write KEY=VALUE"),
    "no_key": ((*DEBUG, "=3"), "can't read '=3': write a key"),
    "bad_grammar": ((*DEBUG, "problem.seconds=[1"), r"can't read 'problem.seconds=\[1' .* quote"),
    "bad_grammar_with_a_password": (
        (*DEBUG, "storage.root=sftp://me:s3cret@host/[1"),
        r"can't read 'storage.root=sftp://me:\*\*\*@host/\[1': write",
    ),
    "unknown_storage_protocol": ((*DEBUG, "storage.root=nope://there"), "nope://there: unknown protocol"),
    "unknown_storage": ((*DEBUG, "storage=nope"), "unknown storage nope: choose local, memory, nfs"),
    "storage_is_a_folder": (
        (*DEBUG, "storage=/mnt/heirloom"),
        "storage=/mnt/heirloom: must be the name of a choice. Write storage.root=/mnt/heirloom$",
    ),
    "storage_is_a_url": (
        (*DEBUG, "storage=s3://me:s3cret@b/x"),
        r"storage=s3://me:\*\*\*@b/x: must be the name of a choice. Write storage.root=s3://me:\*\*\*@b/x$",
    ),
    "policy_is_a_file": (
        (*DEBUG, "policy=my_conf/policy/mine.yaml"),
        "policy=my_conf/policy/mine.yaml: must be the name of a choice. "
        "Write --config-dir DIR policy=NAME for DIR/policy/NAME.yaml$",
    ),
    "storage_nowhere": ((*DEBUG, "storage.root=null"), "storage.root=None: must be a folder or a URL"),
    "storage_takes_no_options": ((*DEBUG, "storage.options.anon=true"), r"storage\.options=anon: must be empty"),
    "storage_in_memory_of_one": ((*TIMED, "storage=memory"), "exists in one process only, but runner=processes"),
    "unknown_runner": (
        (*TIMED, "runner=nope"),
        "unknown runner nope: choose dask, debug, processes, ray, simulated, threads",
    ),
    "runner_of_a_cluster": (
        (*TIMED, "runner=slurm"),
        "unknown runner slurm: choose runner=dask runner/cluster=slurm",
    ),
    "dask_address": ((*TIMED, "runner=dask", "runner.cluster.address=here"), "address='here': must be tcp://HOST:8786"),
    "dask_adapt": ((*TIMED, "runner=dask", "runner.adapt.most=3"), r"runner.adapt=.*most.*: must be null or"),
    "ray_address": (
        (*TIMED, "runner=ray", "runner.address=ray://there:10001"),
        r"runner.address=ray://there:10001: must be HOST:6379 of a cluster's head, or auto",
    ),
    "dask_resources": (
        (*TIMED, "runner=dask", "runner.resources.GPU=0"),
        r"runner.resources.GPU=0: must be a number greater than 0",
    ),
    "dask_in_memory": ((*TIMED, "storage=memory", "runner=dask"), "exists in one process only, but runner=dask"),
    "remote": ((*TIMED, "runner=remote"), "unknown runner remote: choose dask, debug, processes, ray"),
    "unknown_stopper": (
        (*DEBUG, "stopper=ahsa"),
        r"unknown stopper ahsa; did you mean asha\? Choose asha, curve, .*, or a",
    ),
    "stopper_of_another_type": (
        (*DEBUG, "stopper=median", "stopper.min_trials=none"),
        r"min_trials='none': must be a whole number of at least 1",
    ),
    "unknown_policy": (
        (*DEBUG, "policy=nope"),
        "unknown policy nope: choose full, plain, search_only, three_stage, two_stage, warm_final",
    ),
    "undeclared_policy_named": (
        (*DEBUG, "policy=two_stage", "policy.stages=[{name: search, policies: [DOWNSCALE, QUICK_EVAL]}]"),
        "asks for DOWNSCALE, QUICK_EVAL, but the problem declares",
    ),
    "no_trials": ((*DEBUG, "budget.trials=0"), r"budget.trials=0: must be"),
    "trials_in_words": ((*DEBUG, "budget.trials=ten"), r"budget.trials='ten': must be a whole number"),
    "budget_without_its_unit": ((*DEBUG, "budget=5"), "budget.*holds keys: set budget.trials or budget.hours"),
    "no_hours": ((*DEBUG, "budget.hours=-1"), r"budget.hours=-1: must be a number greater than 0"),
    "hours_of_no_trial": ((*DEBUG, "budget.hours=1e-5"), r"budget.hours=1e-05: is 0.036 s, too short for any"),
    "at_deadline": ((*DEBUG, "budget.at_deadline=kill"), r"budget.at_deadline='kill': must be finish or stop"),
    "gpu_hours_of_no_trial": (
        (*DEBUG, "budget.gpu_hours=1e-9"),
        r"budget.gpu_hours=1e-09: is 3.6e-06 s, too short",
    ),
    "gpu_hours_without_gpu": ((*DEBUG, "budget.gpu_hours=1"), r"budget.gpu_hours=1: needs a GPU"),
    "no_slots": ((*TIMED, "slots=0"), r"slots=0: must be a whole number of at least 1"),
    "two_slots_in_debug": ((*DEBUG, "slots=2"), r"slots=2: must be 1 with runner=debug"),
    "no_finalists": ((*DEBUG, "finalists=0"), r"finalists=0: must be a whole number of at least 1"),
    "no_attempts": ((*DEBUG, "max_attempts=0"), r"max_attempts=0: must be"),
    "no_time_to_save_at": ((*DEBUG, "resume_every_s=-1"), r"resume_every_s=-1: must be a number of seconds"),
    "failures_in_words": ((*DEBUG, "max_failures=few"), r"max_failures='few': must be"),
    "seed_in_words": ((*DEBUG, "seed=luck"), r"seed='luck': must be a whole number"),
    "unknown_device": ((*DEBUG, "device=tpu"), r"device='tpu': must be auto, cpu, cuda or mps"),
    "gpus_without_gpu": ((*DEBUG, "gpus=[0,1]", "device=auto"), r"gpus=\[0, 1\]: (torch sees no GPU here|must)"),
    "gpus_of_the_cpu": ((*DEBUG, "gpus=[0]", "device=cpu"), r"gpus=\[0\]: does not go with device=cpu"),
    "unknown_gpus": ((*DEBUG, "gpus=best"), r"gpus=best: must be all, or a list"),
    "share_of_no_gpu": (
        ("+tuner=random", "device=cpu", "gpus_per_trial=0.5"),
        r"gpus_per_trial=0.5: needs a GPU, but trials run on cpu. Leave gpus_per_trial out",
    ),
    "broken_number_of_gpus": (
        (*TIMED, "gpus_per_trial=1.5"),
        r"gpus_per_trial=1.5: must be 1, 2, ... or a share of a GPU such as 0.5",
    ),
    "gpus_in_words": ((*TIMED, "gpus_per_trial=all"), r"gpus_per_trial='all': must be 1, 2, ... or a share"),
    "share_in_debug": ((*DEBUG, "gpus_per_trial=0.5"), r"gpus_per_trial=0.5: needs runner=processes.*not debug"),
    "neither_on_nor_off": ((*DEBUG, "deterministic=maybe"), r"deterministic='maybe': must be true or false"),
    "unknown_remedy": (
        (*DEBUG, "on_missing_weights=cry"),
        r"on_missing_weights='cry': must be ancestor, scratch or",
    ),
    "timeout_in_threads": (
        (*TIMED, "runner=threads", "trial_timeout_s=5"),
        r"trial_timeout_s=5: needs runner=processes: .*threads",
    ),
    "cluster_in_debug": ((*DEBUG, "runner.cluster.queue=long"), r"runner.cluster: needs runner=dask, not debug"),
    "timeout_in_debug": ((*DEBUG, "trial_timeout_s=5"), r"trial_timeout_s=5: needs runner=processes: .*debug"),
    "deterministic_hours": (
        (*DEBUG[:-1], "deterministic=true", "budget.hours=1"),
        "budget.hours does not go with deterministic=true",
    ),
    "deterministic_retry": (
        (*DEBUG, "deterministic=true", "retry=failed"),
        "retry=failed: must not be given with deterministic=true",
    ),
    "deterministic_threads": (
        (*TIMED, "runner=threads", "deterministic=true", "slots=2"),
        "deterministic=true with runner=threads needs slots=1, not 2",
    ),
    "name_with_a_slash": ((*DEBUG, "name=a/b"), r"name='a/b': must be"),
    "unknown_key_in_a_value": ((*DEBUG, "job={trials_per_job:2,size:3}"), "unknown key job.size"),
    "list_in_the_place_of_keys": (
        (*DEBUG, "constraints=[1]"),
        r"constraints=\[1\]: must hold keys. Set constraints.KEY=VALUE",
    ),
    "sweep_of_an_unknown_tuner": (("-m", *NO_TUNER, "+tuner=random,nope"), "unknown tuner nope"),
    "mapping_with_credentials_in_the_place_of_a_choice": (
        (*TIMED, "runner={kind:dask,cluster:{env:{PASSWORD:s3cret}}}"),
        r"^runner=\*\*\*: there is no default to replace, write \+runner=\*\*\*$",
    ),
}

DIFFERENCES = (
    "problem.arguments.weights: absent there, 4 here",
    "tuner.target: nas.tuners.random.RandomTuner there, nas.tuners.evolution.EvolutionTuner here",
    "tuner.arguments.population_size: absent there, 8 here",
    "policy: ",
    "stopper.target: absent there, nas.stoppers.median.MedianStopper here",
    "seed: 0 there, 7 here",
    "on_missing_weights: ancestor there, fail here",
    "deterministic: False there, True here",
    "slots: absent there, 1 here",
    "n_threads: absent there, 1 here",
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mounts a small file system, or changes its options."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options: str) -> Path:
        again = "remount," if os.path.ismount(folder) else ""
        command = ["mount", "-t", "tmpfs", "-o", again + options, "tmpfs", str(folder)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting needs root")
        return folder

    yield mount
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True)


def fill(disk: Path) -> None:
    with suppress(OSError) as _, (disk / "filling").open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


@pytest.fixture(scope="module")
def mistakes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mistakes]:
    """Makes the selected tests' mistakes on the cores that other workers leave. Returns folder and output of each."""

    def make(name: str) -> tuple[Path, Done]:
        folder = tmp_path_factory.mktemp(name) / "here"
        folder.mkdir()
        return folder, run(folder, *MISTAKES[name][0])

    selected = [item.callspec.params for item in request.session.items if "mistakes" in item.fixturenames]
    tmp_path_factory.getbasetemp()  # once, before the threads would make it at the same time
    n_free = (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 1))
    with ThreadPoolExecutor(max(1, min(len(selected), n_free))) as pool:
        yield {params["name"]: pool.submit(make, params["name"]) for params in selected}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if n % 8 else []) for n, name in enumerate(MISTAKES)]
)
def test_a_mistake_is_one_line(mistakes: Mistakes, name: str) -> None:
    """A mistake is one line that names the wrong and the allowed value; status 2, nothing written."""
    folder, done = mistakes[name].result()

    assert re.search(MISTAKES[name][1], done.complaint), done.complaint
    assert done.status == 2
    assert everything(folder) == []


@pytest.mark.slow
def test_a_table_without_the_column_is_refused(here: Path) -> None:
    """A table that only tests of finalists read is checked before the search."""
    (here / "t.csv").write_text("op_0_1,op_0_2,op_1_2,op_0_3,op_1_3,op_2_3,test\n" + 6 * "none," + "10.0\n")
    done = run(here, "+tuner=rsps", "problem=cells", "problem.table=t.csv", "problem.table_column=acc")

    assert done.complaint.startswith("problem.table_column='acc': must be a column of t.csv. It has ")
    assert done.status == 2
    assert everything(here) == ["t.csv"]


def test_finals_of_an_unknown_search_suggest_names(here: Path) -> None:
    """flows.final on an unknown name suggests similar ones, as flows.report does."""
    write_search(here / "heirloom", "digits-evolution-1a", [])
    done = run(here, "name=digit-evolution-1a", module="flows.final")

    assert done.status == 2
    assert done.complaint.startswith("no search digit-evolution-1a among 1 under ")
    assert "; nearest: digits-evolution-1a; name=last is the newest" in done.complaint


def test_a_users_folder_named_conf_is_ignored(here: Path) -> None:
    """A package named conf in the working folder does not hide Heirloom's choices."""
    (here / "conf").mkdir()
    (here / "conf" / "__init__.py").touch()

    assert run(here, "+tuner=nope").complaint.startswith(f"unknown tuner nope: choose {TUNERS}")


def test_simple_mistakes_are_refused_without_imports(here: Path) -> None:
    """A mistake that needs neither torch nor the problem is refused without importing them."""
    code = "import sys; from flows.search import main; main(); print({'torch', 'prefect', 'pandas'} & set(sys.modules))"
    done = run(here, line=f"python -c \"{code}\" 'budget.trials=0' +tuner=random")

    assert "budget.trials=0: " in done.err
    assert done.out == "set()\n"


@pytest.mark.parametrize("runner", ["threads", "processes"])
def test_an_unreachable_server_is_one_line(here: Path, runner: str) -> None:
    """An unreachable PREFECT_API_URL is one line with status 1, before anything is written."""
    done = run(here, *TIMED, f"runner={runner}", PREFECT_API_URL="http://127.0.0.1:9/api")

    assert "no Prefect server at http://127.0.0.1:9/api" in done.complaint
    assert "prefect server start" in done.complaint
    assert done.status == 1
    assert everything(here) == []


@pytest.mark.slow
def test_a_server_that_refuses_the_login_is_one_line(here: Path, api_url: str) -> None:
    """A login that the user's own server refuses is named after the start, without a traceback."""
    done = run(here, *TIMED, "runner=threads", PREFECT_API_URL=api_url, PREFECT_API_AUTH_STRING="me:wrong")

    assert done.status == 1
    assert "Traceback" not in done.err
    assert re.search(
        r"^heirloom: Prefect's server at \S+ did not begin the flow run \(.*401.*\): .*PREFECT_API_AUTH_STRING",
        done.err,
        re.M,
    )


@pytest.mark.slow
def test_another_configuration_is_refused_key_by_key(here: Path) -> None:
    """An existing search is not continued with another identity; each differing key is named with both values."""
    first = run(here, *DEBUG, "name=mine", "finalists=1")
    before = contents(here)
    second = run(
        here, *NO_TUNER, "+tuner=evolution", "tuner.population_size=8", "runner=debug", "name=mine", "seed=7",
        "problem.weights=4",
        "policy=full", "stopper=median", "on_missing_weights=fail", "deterministic=true",
    )  # fmt: skip

    assert first.status == 0
    assert second.status == 2
    assert contents(here) == before
    for key in DIFFERENCES:
        assert key in second.complaint


@pytest.mark.slow
def test_a_refused_search_imports_no_weights(here: Path) -> None:
    """Initial weights of a search that is another one, or that are not there, leave no file under the root."""
    save_file({"weight": np.ones((2, 2), np.float32)}, here / "w.safetensors")
    first = run(here, *DEBUG, "name=mine", "finalists=1")
    before = contents(here)
    second = run(here, *DEBUG, "name=mine", "seed=7", "init.weights=w.safetensors")
    missing = run(here, *DEBUG, "name=other", "init.weights=mine:77")

    assert first.status == 0
    assert (second.status, missing.status) == (2, 2)
    assert "seed: 0 there, 7 here" in second.complaint
    assert "init.weights=mine:77: no such trial with weights under this root" in missing.complaint
    assert contents(here) == before


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_root_that_cannot_be_written_is_refused(here: Path, disk: Callable[[str], Path]) -> None:
    """A read-only root is a mistake; the line names it."""
    disk("size=64k")
    root = disk("ro")
    done = run(here, *DEBUG, f"storage.root={root}/deep")

    assert f"storage root {root}/deep" in done.complaint
    assert "Read-only file system" in done.complaint
    assert done.status == 2
    assert everything(here) == everything(root) == []


@pytest.mark.slow
def test_a_root_that_no_folder_can_be_made_in_is_refused(here: Path) -> None:
    """A root in which the system makes no folders is a mistake; the line has a remedy."""
    done = run(here, *DEBUG, "storage.root=/proc/heirloom")

    assert done.complaint.startswith("storage root /proc/heirloom/timed-random-")
    assert done.complaint.endswith("Make it writable, or set another storage.root")
    assert done.status == 2


@pytest.mark.slow
@pytest.mark.parametrize("group", ["problem", "tuner", "stopper", "logger.mine"])
def test_a_module_that_cannot_be_imported_is_a_mistake(here: Path, group: str) -> None:
    """An import error in a module of one's own is one line with file, line and remedy, and status 2."""
    (here / "mine.py").write_text("import json\nimport no_such_package\n")
    given = [] if group == "tuner" else ["+tuner=random"]
    problem = [] if group == "problem" else list(TIMED[1:2])
    done = run(here, *given, *problem, "device=cpu", "runner=debug", f"{group}._target_=mine.Mine")

    assert done.status == 2
    assert re.search(
        r"_target_=mine.Mine: \S+/mine.py, line 2: ModuleNotFoundError: No module named 'no_such_package'. Install "
        "no_such_package where Heirloom is installed, or fix this import",
        done.complaint,
    )


def test_a_root_below_a_file_is_refused(here: Path, tmp_path: Path) -> None:
    """A root below a file is a mistake."""
    (tmp_path / "file").touch()
    done = run(here, *DEBUG, f"storage.root={tmp_path}/file/root")

    assert f"{tmp_path}/file is not a folder" in done.complaint
    assert done.status == 2


def test_a_full_disk_at_start_leaves_nothing(here: Path, disk: Callable[[str], Path]) -> None:
    """A full disk is one line with status 1, and no folder is left."""
    root = disk("size=64k")
    fill(root)
    done = run(here, *DEBUG, f"storage.root={root}/deep/root")

    assert "the disk is full" in done.complaint
    assert done.status == 1
    assert everything(root) == ["filling"]


@pytest.mark.slow
def test_a_finished_search_on_a_read_only_root_is_shown(here: Path, disk: Callable[[str], Path]) -> None:
    """On a finished search the command writes nothing, so it works on a read-only root."""
    root = disk("size=1m")
    first = run(here, *DEBUG, f"storage.root={root}")
    disk("ro")
    second = run(here, *DEBUG, f"storage.root={root}")

    assert first.status == second.status == 0
    assert second.out.splitlines()[1:] == first.out.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("runner", ["debug", "processes"])
def test_a_disk_that_fills_ends_the_search_until_it_is_enlarged(
    here: Path, disk: Callable[[str], Path], api_url: str, runner: str
) -> None:
    """Weights that do not fit end the search with one line and status 1; with space the command continues."""
    root = disk("size=256k")
    command = (*TIMED, f"runner={runner}", f"storage.root={root}", "budget.trials=4", "problem.weights=20000")
    first = run(here, *command, PREFECT_API_URL=api_url)
    kept = [t.number for t in trials(only_search(root, "")) if t.is_finished]
    disk("size=8m")
    second = run(here, *command, PREFECT_API_URL=api_url)

    last = first.err.splitlines()[-1]
    assert first.status == 1
    assert "the disk is full" in last
    assert "python -m flows.search +tuner=random" in last
    assert "Traceback" not in first.err
    assert kept
    assert second.status == 0
    assert all(trial.is_finished and trial.state == "COMPLETE" for trial in trials(only_search(root, "")))
    assert all(attempts(only_search(root, ""), number) == [1] for number in kept)


def attempts(search: Path, number: int) -> list[int]:
    return sorted(int(path.stem.rpartition("-")[2]) for path in (search / "trials").glob(f"{number:06d}.start-*.json"))


@pytest.mark.slow
def test_one_job_that_fails_does_not_end_the_others(here: Path) -> None:
    """A failing search in a multirun is one line with status 1, and the others run."""
    done = run(here, "-m", *DEBUG, "finalists=1", "problem.fail='','raise'", "max_failures=1")

    assert done.status == 1
    assert done.out.count("best: trial") == 1
    assert [line for line in done.err.splitlines() if line.startswith("heirloom:")] == [
        "heirloom: job 1 (problem.fail='raise'): 1 trials failed in a row (max_failures=1). The last, trial 0: "
        "exception: TimedProblem.train raised RuntimeError: as told. Fix the problem, then run the search with "
        "retry=failed (and code=changed if its code changed), or choose another name. The command `report` with "
        "trial=0 shows the traceback and the log",
        "heirloom: 1 of 2 jobs failed: job 1 (problem.fail='raise'). Run again to repeat them",
    ]


@pytest.mark.slow
def test_a_mistake_in_one_job_does_not_end_the_others(here: Path) -> None:
    """A mistake in one job of a multirun is one line with status 2, and the others run."""
    done = run(here, "-m", *DEBUG, "finalists=1,0")

    assert done.status == 2
    assert done.out.count("best: trial") == 1
    assert done.err.count("heirloom: job 1 (finalists=0): finalists=0: must be") == 1
    assert len(list((here / "heirloom").iterdir())) == 1


BROKEN = """
import multiprocessing
import os

from nas import Float, Metric, ParameterSpace, Problem, Proposal, Stopper, Tuner

WHERE = os.environ["WHERE"]


def fail(where):
    if WHERE == "pipe" and where == "ask":
        reader, writer = os.pipe()
        os.close(reader)
        os.write(writer, b"to a program that has ended")
    if where == WHERE:
        raise RuntimeError("the cause\\nsee the manual")


class Broken(Problem):
    metrics = (Metric("accuracy"),)

    def __init__(self):
        fail("constructor")
        if multiprocessing.current_process().name == "heirloom-worker":
            fail("worker")

    @property
    def space(self):
        fail("space")
        return ParameterSpace({"rate": Float(0.1, 1.0)})

    def train(self, run):
        run.report(1, accuracy=0.5)
        return {"accuracy": run.point["rate"]}


class BrokenTuner(Tuner):
    def ask(self, lineage, number, job):
        fail("ask")
        return Proposal(point=self.space.sample(self.rng(number)))


class BrokenStopper(Stopper):
    def should_stop(self, lineage, trial):
        fail("stopper")
        return False
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("constructor", "Broken.__init__"),
        ("space", "Broken.space"),
        ("ask", "BrokenTuner.ask"),
        ("pipe", "BrokenTuner.ask"),
        ("worker", "a worker can't build the problem: Broken.__init__"),
        ("stopper", "BrokenStopper.should_stop"),
    ],
)
def test_errors_in_a_users_code(here: Path, api_url: str, where: str, name: str) -> None:
    """They end the command with the user's frames and one line, without a frame of Heirloom's."""
    (here / "broken.py").write_text(BROKEN)
    own = (f"{group}._target_=broken.Broken{kind}" for group, kind in (("problem", ""), ("tuner", "Tuner")))
    stopper = "stopper._target_=broken.BrokenStopper"
    runner = "runner=processes" if where == "worker" else "runner=threads"
    done = run(here, *own, stopper, runner, "slots=1", "budget.trials=1", WHERE=where, PREFECT_API_URL=api_url)
    pipe, cause = "BrokenPipeError: [Errno 32] Broken pipe", "RuntimeError: the cause ... see the manual"
    told = pipe if where == "pipe" else cause
    lines = done.err.splitlines()

    assert done.status == 1
    assert lines[-1].startswith(f"heirloom: {name} raised {told}")
    assert 'broken.py", line' in done.err
    assert "/nas/" not in done.err
    assert "/flows/" not in done.err
