"""GPUs and slots of a machine, by the settings."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.config
import pytest
import torch

from flows.cli.command import Invocation, run_command
from flows.cli.settings.clusters import read_dask
from flows.cli.settings.machine import Machine, read_machine
from flows.cli.settings.root import reach_root, read_root
from flows.cli.settings.runners import read_gpus_per_trial
from flows.cli.settings.search import read_search
from flows.engine.clusters import dask_spec
from flows.nni import gpus_of_trials, limit_gpus, limit_slots
from nas.compat.nni.config import read_experiment
from nas.core.errors import ConfigurationError
from nas.core.gpus import gpus_of_slot, slots_of_gpus
from nas.core.spec import Spec
from nas.search.definition import Search
from nas.training.messages import RuntimeSpec
from tests.support.nni_experiments import ExperimentFolder


def read(wanted: Any, n_gpus: int, slots: int | None) -> float:
    values = {"gpus_per_trial": wanted, "runner": {"kind": "processes"}}
    return read_gpus_per_trial(values, "cuda", tuple(range(n_gpus)), slots)


@pytest.mark.parametrize(
    ("gpus_per_trial", "n_slots", "first", "last"),
    [(0.5, 8, [0], [3]), (0.3, 12, [0], [3]), (1, 4, [0], [3]), (2, 2, [0, 1], [2, 3]), (3, 1, [0, 1, 2], [0, 1, 2])],
)
def test_slots_divide_the_gpus(gpus_per_trial: float, n_slots: int, first: list[int], last: list[int]) -> None:
    """Four GPUs give a slot for each whole number of them, or several slots for each."""
    assert slots_of_gpus(4, gpus_per_trial) == n_slots
    assert list(gpus_of_slot(range(4), 0, gpus_per_trial)) == first
    assert list(gpus_of_slot(range(4), n_slots - 1, gpus_per_trial)) == last


@pytest.mark.parametrize(("slots", "share"), [(None, 1), (1, 1), (2, 1), (3, 0.5), (4, 0.5), (5, 1 / 3)])
def test_more_slots_than_gpus_share_them(slots: int | None, share: float) -> None:
    """Without gpus_per_trial a trial has one GPU, or a share if there are more slots."""
    assert read(None, 2, slots) == share


@pytest.mark.parametrize(
    ("wanted", "slots", "complaint"),
    [
        (4, None, r"gpus_per_trial=4: must be at most 2, the number of GPUs"),
        (1, 4, r"slots=4: must be at most 2 with gpus_per_trial=1 on 2 GPUs"),
        (0.5, 5, r"slots=5: must be at most 4 with gpus_per_trial=0.5 on 2 GPUs"),
        (-1, None, r"gpus_per_trial=-1: must be 1, 2, ..."),
        (float("nan"), None, r"gpus_per_trial=nan: must be 1, 2, ..."),
        (10**400, None, r"gpus_per_trial=10+.*: must be 1, 2, ..."),
        (True, None, r"gpus_per_trial=True: must be 1, 2, ..."),
    ],
)
def test_impossible_shares_are_refused(wanted: Any, slots: int | None, complaint: str) -> None:
    """More GPUs than there are, more slots than they hold, and odd values are refused with the remedy."""
    with pytest.raises(ConfigurationError, match=complaint):
        read(wanted, 2, slots)


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"cluster": 3}, r"runner.cluster=\*\*\*: must hold keys. Set runner.cluster.KEY=VALUE"),
        ({"resources": [1]}, r"runner.resources=\*\*\*: must hold keys"),
        ({"resources": {"GPU": True}}, "runner.resources.GPU=True: must be a number greater than 0"),
        (
            {"cluster": {"_target_": "distributed.LocalCluster", "resources": {"GPU": "1"}}, "resources": {"GPU": 1}},
            "runner.cluster.resources.GPU='1': must be a number of at least 0",
        ),
        (
            {"cluster": {"_target_": "distributed.SSHCluster", "hosts": "here"}},
            r"^runner.cluster.hosts=here: must be a list. Write .runner.cluster.hosts=\[here\]",
        ),
    ],
)
def test_values_of_clusters_are_checked(wrong: dict[str, Any], complaint: str) -> None:
    """A value in the place of keys or of a list is one line, as is an amount that is no number."""
    runner = {"kind": "dask", "cluster": {"_target_": "distributed.LocalCluster"}, **wrong}

    with pytest.raises(ConfigurationError, match=complaint):
        read_dask({"runner": runner})


LOCAL: dict[str, Any] = {"kind": "dask", "cluster": {"_target_": "distributed.LocalCluster"}}
CUDA = {"kind": "dask", "cluster": {"_target_": "dask_cuda.LocalCUDACluster"}}
FAR = {"kind": "dask", "cluster": {"address": "tcp://h:8786"}}
RAY = {"kind": "ray", "address": "h:6379"}


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"runner": RAY, "device": "gpu"}, "device='gpu': must be auto, cpu, cuda or mps"),
        ({"runner": FAR, "device": "cuda:1"}, "device='cuda:1': must be auto, cpu, cuda or mps"),
        ({"runner": FAR, "device": "cpu", "gpus_per_trial": 2}, "gpus_per_trial=2: needs a GPU, but trials run on cpu"),
        ({"runner": RAY, "device": "mps", "gpus_per_trial": 1}, "gpus_per_trial=1: needs a GPU, but trials run on mps"),
        (
            {"runner": {**FAR, "adapt": {"maximum": 8}}},
            r"runner.adapt=.* must be null with runner.cluster.address. Let",
        ),
        ({"runner": {**LOCAL, "adapt": {"minimum": 8, "maximum": 2}}}, "runner.adapt.minimum=8: must be at most .* 2"),
        (
            {"runner": {**LOCAL, "adapt": {"maximum": 0}}},
            "runner.adapt.maximum=0: must be a whole number of at least 1",
        ),
        ({"runner": {**RAY, "address": "h:99999"}}, "runner.address=h:99999: must be HOST:6379"),
        (
            {"runner": CUDA, "gpus": [1]},
            r"gpus=\[1\]: must be all with dask_cuda.LocalCUDACluster. Set runner.cluster.",
        ),
        (
            {"runner": {**LOCAL, "resources": {"GPU": 1}}},
            "runner.resources.GPU=1: must be one that workers offer, and none offers it. Leave it out, or set runner",
        ),
        (
            {"runner": {**LOCAL, "cluster": {**LOCAL["cluster"], "resources": {"GPU": 1}}, "resources": {"GPU": 2}}},
            "runner.resources.GPU=2: must be at most 1, which each worker offers. Leave it out, or set runner.cluster",
        ),
        ({"runner": CUDA, "gpus_per_trial": 2}, "gpus_per_trial=2: must be 1 with dask_cuda.LocalCUDACluster. Choose"),
    ],
)
def test_conflicting_settings_of_clusters_are_refused(wrong: dict[str, Any], complaint: str) -> None:
    """What a cluster would ignore, or fail by much later, is one line."""
    values = {"slots": 2, "threads": 1, "trial_timeout_s": None, "device": "auto", "gpus": "all"}

    with pytest.raises(ConfigurationError, match=complaint):
        read_machine({**values, "gpus_per_trial": None, **wrong})


@pytest.mark.parametrize("runner", ["debug", "threads", "simulated"])
def test_one_process_uses_the_first_gpu(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner in one process refuses another GPU, instead of training on the first."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    values = {"slots": 1, "threads": 1, "trial_timeout_s": None, "device": "auto", "gpus_per_trial": None}
    values |= {"runner": {"kind": runner}}

    assert [read_machine({**values, "gpus": gpus}).gpus for gpus in ("all", [0], 0)] == [(0,)] * 3
    for gpus in ([1], [0, 1]):
        with pytest.raises(ConfigurationError, match=r"must be all or \[0\] .*Set CUDA_VISIBLE_DEVICES, or choose run"):
            read_machine({**values, "gpus": gpus})


@pytest.mark.parametrize(
    ("runner", "gpus", "found"), [("threads", "all", (0, 1)), ("threads", [0], (0,)), ("processes", [1], (1,))]
)
def test_gpus_of_nni_trials(runner: str, gpus: object, found: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of an experiment are processes of their own: they have the chosen GPUs with any runner."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    values = {"slots": 1, "threads": 1, "trial_timeout_s": None, "device": "auto", "gpus": gpus}
    values |= {"gpus_per_trial": None, "runner": {"kind": runner}}

    assert gpus_of_trials(values, read_machine(values)) == found


@pytest.mark.parametrize(("local", "found"), [({}, (1, 2)), ({"gpuIndices": "2"}, (2,))])
def test_nni_trials_keep_to_chosen_gpus(tmp_path: Path, local: dict[str, str], found: tuple[int, ...]) -> None:
    """The option gpus holds for trials without gpuNum, too; gpuIndices choose among them, and clusters place trials."""
    experiment = read_experiment(ExperimentFolder(tmp_path, fields={"localConfig": local}).write())

    assert limit_gpus(experiment, {"gpus": [1, 2]}, (1, 2)).gpus == found
    assert limit_gpus(experiment, {"gpus": "all"}, (0, 1, 2)) == experiment
    assert limit_gpus(experiment, {"gpus": [1, 2]}, None) == experiment


@pytest.mark.parametrize(("per_gpu", "slots"), [(1, 1), (2, 3), (9, 4)])
def test_slots_of_nni_trials(tmp_path: Path, capsys: pytest.CaptureFixture[str], per_gpu: int, slots: int) -> None:
    """No more jobs run at a time than there are gpuNum GPUs for; maxTrialNumPerGpu lets jobs share them."""
    trial = {"command": "python main.py", "codeDir": ".", "gpuNum": 2}
    folder = ExperimentFolder(tmp_path, fields={"trial": trial, "localConfig": {"maxTrialNumPerGpu": per_gpu}})
    experiment = read_experiment(folder.write())
    gpus = (0, 1, 2)
    machine = Machine(runner="threads", slots=4, n_threads=1, device="cuda", gpus=gpus, trial_timeout_s=None)

    assert limit_slots(machine, experiment, gpus).slots == slots
    assert capsys.readouterr().err.startswith(f"{slots} of 4 jobs run at a time: ") == (slots < 4)
    assert limit_slots(machine, replace(experiment, gpus_per_trial=1), None) == machine
    assert ("maxTrialNumPerGpu has no effect" in capsys.readouterr().err) == (per_gpu > 1)


def test_simulated_workers_share_no_gpu_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a whole one, so GPU-hours count alike on a machine with a GPU and on one without."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    values = {"slots": 20, "threads": 1, "trial_timeout_s": None, "device": "auto", "gpus": "all"}
    runner = {"kind": "simulated", "workers": {"have_gpus": True}}

    assert read_machine({**values, "gpus_per_trial": None, "runner": runner}).gpus_per_trial == 1
    with pytest.raises(ConfigurationError, match=r"gpus_per_trial=0.5: needs runner=processes .*, not simulated"):
        read_machine({**values, "gpus_per_trial": 0.5, "runner": runner})


@pytest.mark.parametrize(("runner", "gpus"), [(LOCAL, (0, 1)), (CUDA, ())])
def test_workers_of_a_cuda_cluster_keep_their_gpu(runner: dict[str, Any], gpus: tuple[int, ...]) -> None:
    """dask-cuda shows each worker its GPU first; to count on from there would give all workers the same."""
    runtime = RuntimeSpec(problem=Spec("no.Problem"), url="/nowhere", options={})
    machine = Machine(
        runner="dask", slots=2, n_threads=1, device="cuda", gpus=(0, 1), trial_timeout_s=None,
        dask=read_dask({"runner": runner}),
    )  # fmt: skip

    assert dask_spec(machine, runtime).gpus == gpus


@pytest.mark.parametrize(
    ("cluster", "resources", "n_workers"),
    [
        ({}, {}, 6),
        ({"threads_per_worker": 3}, {}, 2),
        ({"threads_per_worker": 4}, {}, 2),
        ({"threads_per_worker": 3, "resources": {"GPU": 2}}, {"GPU": 1}, 3),
        ({"_target_": "dask_jobqueue.SLURMCluster", "cores": 6, "processes": 2}, {}, 2),
        ({"_target_": "dask_jobqueue.SLURMCluster", "cores": 6, "processes": None}, {}, 6),
        ({"_target_": "dask_jobqueue.SLURMCluster", "cores": 6, "processes": 1}, {"GPU": 1}, 6),
        ({"_target_": "x.KubeCluster", "worker_command": ["dask", "worker", "--nthreads", "2"]}, {}, 3),
        ({"_target_": "x.KubeCluster", "worker_command": ["dask", "worker", "--nthreads", "2"]}, {"GPU": 1}, 6),
    ],
)
def test_slots_are_trials_not_workers(cluster: dict[str, Any], resources: dict[str, int], n_workers: int) -> None:
    """A cluster gets as many workers as six trials at a time need."""
    runner = {"kind": "dask", "cluster": {**LOCAL["cluster"], **cluster}, "resources": resources}

    assert read_dask({"runner": runner}).n_workers(6) == n_workers


def test_an_offer_of_dasks_configuration_counts() -> None:
    """Two trials of three threads have the resources that Dask's configuration lets each worker offer."""
    runner = {**LOCAL, "cluster": {**LOCAL["cluster"], "threads_per_worker": 3}, "resources": {"GPU": 1}}

    with dask.config.set({"distributed.worker.resources": {"GPU": 2}}):
        assert read_dask({"runner": runner}).n_workers(6) == 3


@pytest.mark.parametrize("options", ["hunter2hunter2", ["hunter2hunter2"], 22222])
def test_options_of_a_root_are_never_shown(options: object) -> None:
    """A credential in the place of keys is not in the error line."""
    with pytest.raises(ConfigurationError) as caught:
        read_root({"storage": {"root": "s3://bucket/searches", "options": options}})

    assert str(caught.value) == "storage.options=***: must hold keys. Set storage.options.KEY=VALUE"


@pytest.mark.parametrize(
    ("policy", "is_own"),
    [
        (["policy=search_only"], False),
        (["policy=three_stage"], False),
        (["policy=two_stage", "policy.stages=[{name: search, policies: [DOWNSCALE]}]"], True),
    ],
)
def test_only_an_own_plan_must_fit(policy: list[str], is_own: bool) -> None:
    """Heirloom's plans may ask for policies that the problem does not declare; a plan of the user's own may not."""
    found: list[Search] = []

    def body(invocation: Invocation) -> int:
        found.append(read_search(invocation, read_machine(invocation.values)))
        return 0

    run_command("search", body, ["+tuner=random", "problem=cells", "runner=debug", "device=cpu", *policy])
    assert [search.plan_is_named for search in found] == [is_own]


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is on no disk")
@pytest.mark.parametrize("root", ["~/heirloom", "local://{home}/heirloom", "file://{home}/heirloom"])
def test_the_folder_that_is_opened_must_be_mounted(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder on a disk is refused as a network storage, also from a working folder that is on no disk."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir("/proc")

    with pytest.raises(ConfigurationError, match=r"^storage.root=\S+: is on .* which is not a network file system"):
        reach_root({"storage": {"root": root.format(home=tmp_path), "mounted": True}})
