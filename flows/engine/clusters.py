"""Opens the clusters of ``runner=dask`` and ``runner=ray``."""

from __future__ import annotations

import signal
import socket
from contextlib import suppress
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any

from flows.cli.settings.clusters import CUDA_CLUSTER, DaskCluster
from flows.cli.settings.machine import Machine
from nas.core.errors import ConfigurationError, HeirloomError, ServerError
from nas.core.spec import Spec
from nas.executors.engine_worker import EngineSpec, worker_environment
from nas.training.messages import RuntimeSpec
from nas.views.progress import Progress

if TYPE_CHECKING:
    from distributed import Client

    from nas.executors.batch_jobs import BatchJobs
    from nas.executors.dask_pool import DaskPool
    from nas.executors.ray_pool import RayPool

CONNECT_TIMEOUT_S = 20.0
LOST_JOB_TIMEOUT = "1s"
"""Time until a lost job of a batch system is replaced; Dask's default is 15 s."""
LOST_WORKER_TIMEOUT = "60s"
"""Time in which other clusters start a killed worker again.

One that joins later is closed and not replaced.
"""


def check_cluster(machine: Machine) -> None:
    """Checks that something answers at the cluster's address, before anything is written.

    Raises:
        ConfigurationError: the address needs certificates.
        ServerError: nothing answers.
    """
    if machine.dask is not None and machine.dask.address is not None:
        _connect(machine.dask.address).close()
    if machine.ray_address is not None and machine.ray_address != "auto":
        _check_head(machine.ray_address)


def open_dask_pool(machine: Machine, runtime: RuntimeSpec, progress: Progress) -> DaskPool:
    """Opens the cluster of ``runner.cluster`` and returns a pool on its workers.

    Raises:
        ConfigurationError: a package is missing, or the cluster refuses its arguments.
        ServerError: no scheduler answers, or the cluster can't start.
    """
    from nas.executors.dask_pool import DaskPool

    dask = machine.dask
    assert dask is not None  # read_machine saw to it
    client, jobs = (_connect(dask.address), None) if dask.address else _start(machine, runtime)
    pool = DaskPool(
        dask_spec(machine, runtime),
        client,
        progress,
        slots=machine.slots,
        resources=dask.resources,
        n_ahead=machine.slots if dask.address is not None or dask.adapt is not None else 0,
        may_grow=dask.adapt is not None or (not dask.is_local and _is_scalable(client.cluster)),
    )
    if jobs is not None:
        jobs.watch(note=progress.note, fail=pool.fail)
    return pool


def dask_spec(machine: Machine, runtime: RuntimeSpec) -> EngineSpec:
    """Returns the settings of Dask's workers; those of ``LocalCUDACluster`` keep their own GPU."""
    assert machine.dask is not None
    gpus = () if machine.dask.target == CUDA_CLUSTER else machine.gpus
    return EngineSpec(runtime=runtime, trial_timeout_s=machine.trial_timeout_s, gpus=gpus)


def open_ray_pool(machine: Machine, runtime: RuntimeSpec, progress: Progress) -> RayPool:
    """Returns a pool on the cluster of ``runner.address``, or on this machine."""
    from nas.executors.ray_pool import RayCluster, RayPool

    address = machine.ray_address
    if address is None:
        progress.say("starting Ray on this machine")
    cluster = RayCluster(
        address=address,
        gpus=machine.gpus,
        environment=worker_environment(runtime.url, runtime.options) if address is None else {},
    )
    return RayPool(
        EngineSpec(runtime=runtime, trial_timeout_s=machine.trial_timeout_s), cluster, progress, machine.slots
    )


def _check_head(address: str) -> None:
    """Raises a ServerError if nothing listens where a Ray cluster should be."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ServerError(
            f"runner.address={address}: no Ray cluster answers ({error}). Start one: ray start --head"
        ) from error


def _connect(address: str) -> Client:
    from distributed import Client

    if address.startswith("tls://"):
        _check_certificates(address)
    try:
        return Client(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ServerError(
            f"runner.cluster.address={address}: no Dask scheduler answers ({error}). Start one: dask scheduler"
        ) from error


def _check_certificates(address: str) -> None:
    """Raises a ConfigurationError without readable certificates: a client would not fail at once."""
    from distributed import Security

    try:
        why = "" if Security().get_connection_args("client")["ssl_context"] else "Dask's configuration names none"
    except OSError as error:
        why = str(error)
    if why:
        raise ConfigurationError(
            f"runner.cluster.address={address}: must have certificates: {why}. "
            "Set DASK_CONFIG to a configuration with distributed.comm.tls (docs/guides/clusters.md)"
        )


def _start(machine: Machine, runtime: RuntimeSpec) -> tuple[Client, BatchJobs | None]:
    """Starts the cluster; a batch system's jobs are to be watched."""
    settings = machine.dask
    assert settings is not None
    arguments, n_workers = dict(settings.arguments), settings.n_workers(machine.slots)
    if settings.is_local:
        arguments = {"n_workers": n_workers, **arguments}
        if variables := worker_environment(runtime.url, runtime.options):
            arguments["env"] = {**arguments.get("env", {}), **variables}
    resource_tracker.ensure_running()  # its start would unblock SIGINT again
    # Ctrl-C is the driver's: threads and processes of the cluster inherit the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        return _client_of(Spec(settings.target, arguments).call(), settings, n_workers)
    except HeirloomError:
        raise
    except Exception as error:  # of any package that has a cluster
        why = " ".join(str(error).split())
        kind = ConfigurationError if isinstance(error, TypeError | ValueError) else ServerError
        raise kind(f"runner.cluster._target_={settings.target}: can't start: {type(error).__name__}: {why}") from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _client_of(cluster: Any, settings: DaskCluster, n_workers: int) -> tuple[Client, BatchJobs | None]:
    """Lets a cluster grow and returns its client. Closes the cluster if that fails."""
    import dask.config
    from distributed import Client

    from nas.executors.batch_jobs import BatchJobs

    try:
        if settings.adapt is not None and not _is_scalable(cluster):
            raise ConfigurationError(
                f"runner.adapt={dict(settings.adapt)}: must be null with {settings.target}, which starts all workers "
                "at once. Leave it out."
            )
        jobs = BatchJobs(cluster) if hasattr(cluster, "job_cls") else None
        timeout = LOST_WORKER_TIMEOUT if jobs is None else LOST_JOB_TIMEOUT
        dask.config.set({"distributed.deploy.lost-worker-timeout": timeout})
        if settings.adapt is not None:
            cluster.adapt(**settings.adapt)
        elif not settings.is_local and _is_scalable(cluster):  # ``scale`` would not replace a lost job
            cluster.adapt(minimum=n_workers, maximum=n_workers)
        return Client(cluster, timeout=CONNECT_TIMEOUT_S, set_as_default=False), jobs
    except BaseException:
        with suppress(Exception):
            cluster.close()
        raise


def _is_scalable(cluster: Any) -> bool:
    """Returns whether a cluster can start more workers. That of Dask's ``SSHCluster`` can't."""
    return getattr(cluster, "new_spec", True) is not None
