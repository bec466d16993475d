"""Opens the Ray cluster of ``runner=ray``."""

from __future__ import annotations

import socket

from flows.cli.settings import Machine
from flows.views.progress import Progress
from nas.core.errors import ServerError
from nas.executors.engine_worker import EngineSpec, worker_environment
from nas.executors.ray_pool import RayCluster, RayPool
from nas.training.messages import RuntimeSpec

CONNECT_TIMEOUT_S = 10.0


def check_address(address: str) -> None:
    """Checks that a Ray cluster may be at the address.

    Raises:
        ServerError: nothing listens there.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ServerError(
            f"runner.address={address}: no Ray cluster answers ({error}). Start one: ray start --head"
        ) from error


def open_ray_pool(machine: Machine, runtime: RuntimeSpec, progress: Progress) -> RayPool:
    """Returns a pool on the cluster of ``runner.address``, or on this machine."""
    assert machine.ray is not None  # read_machine saw to it
    address = machine.ray.address
    if address is None:
        progress.say("starting Ray on this machine")

    return RayPool(
        EngineSpec.of(runtime, trial_timeout_s=machine.trial_timeout_s),
        machine.slots,
        RayCluster(
            address=address,
            gpus=machine.gpus,
            environment=worker_environment(runtime.url, runtime.options) if address is None else {},
        ),
        note=progress.note,
        show_wait=progress.show_wait,
    )
