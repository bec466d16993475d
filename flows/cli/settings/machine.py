"""The machine of a session: runner, slots, threads and devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flows.cli.settings.clusters import DaskCluster, read_dask, read_ray_address
from flows.cli.settings.runners import (
    DEVICES,
    PLACES_GPUS,
    RunnerKind,
    no_gpu,
    read_device,
    read_gpus_per_trial,
    read_runner,
    read_wanted_gpus,
)
from nas.core.cpus import usable_cores
from nas.core.errors import ConfigurationError
from nas.core.gpus import slots_of_gpus
from nas.core.validation import check_choice, check_mapping
from nas.executors.simulated import Workers

MAX_DEFAULT_SLOTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Runner, slots and devices of a session.

    Attributes:
        slots: Number of trials that run at a time.
        n_threads: Torch threads per trial.
        device: ``cpu``, ``cuda`` or ``mps``; on a cluster also ``auto``: each worker chooses.
        gpus: The GPUs for the slots.
        gpus_per_trial: GPUs of each trial; less than 1: trials share a GPU.
        workers: Behavior of simulated workers, for ``runner=simulated``.
        dask: Cluster, for ``runner=dask``.
        ray_address: Address of a cluster that runs, for ``runner=ray``; None: Ray is started on this machine.
    """

    runner: RunnerKind
    slots: int
    n_threads: int
    device: str
    gpus: tuple[int, ...]
    trial_timeout_s: float | None
    gpus_per_trial: float = 1.0
    workers: Workers | None = None
    dask: DaskCluster | None = None
    ray_address: str | None = None


def read_machine(values: Mapping[str, Any]) -> Machine:
    """Returns the machine that ``runner``, ``slots``, ``threads``, ``device``, ``gpus`` and ``trial_timeout_s`` give.

    Imports torch, which takes a second, to look for GPUs.

    Raises:
        ConfigurationError: one of the values is invalid or conflicts with another.
    """
    runner, slots, n_threads, timeout_s = read_runner(values)
    dask = read_dask(values) if runner == "dask" else None
    ray_address = read_ray_address(values) if runner == "ray" else None
    if (dask is not None and not dask.is_local) or ray_address is not None:
        machine = _read_cluster(values, slots or MAX_DEFAULT_SLOTS, n_threads or 1, timeout_s)
        return replace(machine, dask=dask, ray_address=ray_address)
    device, gpus = read_device(values["device"], values["gpus"])
    if gpus and runner not in PLACES_GPUS:  # one process, whose code asks for the first GPU
        if values["gpus"] != "all" and gpus != (0,):
            raise ConfigurationError(
                f"gpus={values['gpus']}: must be all or [0] with runner={runner}, which uses the first GPU. "
                "Set CUDA_VISIBLE_DEVICES, or choose runner=processes."
            )
        gpus = gpus[:1]
    shared_gpus = () if runner == "simulated" else gpus
    gpus_per_trial = read_gpus_per_trial(values, device, shared_gpus, slots)
    cores = usable_cores()
    if slots is None:
        slots = 1 if runner == "debug" else slots_of_gpus(len(gpus), gpus_per_trial) or min(MAX_DEFAULT_SLOTS, cores)
    return Machine(
        runner=runner,
        slots=slots,
        n_threads=n_threads or max(1, cores // slots),
        device=device,
        gpus=gpus,
        trial_timeout_s=timeout_s,
        gpus_per_trial=gpus_per_trial,
        workers=_read_workers(values),
        dask=dask,
        ray_address=ray_address,
    )


def _read_cluster(values: Mapping[str, Any], slots: int, n_threads: int, timeout_s: float | None) -> Machine:
    """Returns the machine of a cluster, whose workers choose a device if none is set."""
    if values["gpus"] != "all":
        raise ConfigurationError(
            f"gpus={values['gpus']}: must be all on a cluster: CUDA_VISIBLE_DEVICES of each worker chooses"
        )
    device, wanted = check_choice("device", values["device"], DEVICES), read_wanted_gpus(values)
    if wanted is not None and device in ("cpu", "mps"):
        raise no_gpu(wanted, device)
    return Machine(
        runner=values["runner"]["kind"],
        slots=slots,
        n_threads=n_threads,
        device=device,
        gpus=(),
        trial_timeout_s=timeout_s,
        gpus_per_trial=wanted or 1.0,
    )


def _read_workers(values: Mapping[str, Any]) -> Workers | None:
    workers = values["runner"].get("workers")
    if values["runner"]["kind"] != "simulated":
        return None
    try:
        return Workers(**check_mapping("runner.workers", workers or {}))
    except TypeError as error:
        allowed = ", ".join(f"runner.workers.{name}" for name in Workers.__slots__)
        raise ConfigurationError(f"runner.workers={workers!r}: {error}; there are {allowed}") from error
