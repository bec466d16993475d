"""Clusters of Dask and Ray that run trials."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.validation import check_int, check_mapping, check_number

CUDA_CLUSTER = "dask_cuda.LocalCUDACluster"
"""A cluster that shows each of its workers a GPU of its own."""
LOCAL_CLUSTERS = frozenset({"distributed.LocalCluster", CUDA_CLUSTER})
"""Clusters whose workers run on the driver's machine and inherit its environment."""
_LISTS = ("hosts", "job_extra_directives", "worker_command", "worker_extra_args")
"""Arguments of clusters that are lists. A text would be taken letter by letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaskCluster:
    """The Dask cluster of ``runner=dask``.

    Attributes:
        address: Of a scheduler that runs already; None: the cluster is started.
        target: Dotted path of its class.
        arguments: Of its class.
        adapt: Arguments of ``cluster.adapt``, or None.
        resources: Abstract resources of Dask that each trial takes.
    """

    address: str | None
    target: str
    arguments: Mapping[str, Any]
    adapt: Mapping[str, int] | None
    resources: Mapping[str, float]

    @property
    def is_local(self) -> bool:
        """Whether the driver starts all workers on its machine."""
        return self.address is None and self.target in LOCAL_CLUSTERS

    @property
    def trials_per_worker(self) -> int:
        """Trials at a time on each worker; 1 if the cluster's arguments do not say."""
        if not self.resources:
            return self._threads_per_worker
        if not self.is_local:  # a command line has what its workers offer
            return 1
        offered = _offer(self.arguments)
        takes = [int(offered.get(name, 0) / amount) for name, amount in self.resources.items()]
        return max(1, min(self._threads_per_worker, *takes))

    @property
    def _threads_per_worker(self) -> int:
        command = list(self.arguments.get("worker_command") or ())
        if "--nthreads" in command[:-1]:
            return _count(command[command.index("--nthreads") + 1])
        if "cores" not in self.arguments:
            return _count(self.arguments.get("threads_per_worker"))
        if (processes := self.arguments.get("processes")) is None:  # dask-jobqueue chooses several
            return 1
        return max(1, _count(self.arguments["cores"]) // _count(processes))

    def n_workers(self, slots: int) -> int:
        """Returns the number of workers on which ``slots`` trials run at a time."""
        return math.ceil(slots / self.trials_per_worker)


def _count(value: object) -> int:
    """Returns the whole number of an argument; 1 if it is none."""
    text = str(value)
    return max(1, int(text)) if text.isdecimal() else 1


def read_dask(values: Mapping[str, Any]) -> DaskCluster:
    """Returns the cluster of ``runner.cluster``, ``runner.adapt`` and ``runner.resources``.

    Raises:
        ConfigurationError: a value is invalid, or Dask is not installed.
    """
    if find_spec("distributed") is None:
        raise ConfigurationError("runner=dask: needs Dask. Run: pip install 'heirloom-nas[dask]'")
    runner = values["runner"]
    arguments = check_mapping("runner.cluster", runner.get("cluster") or {})
    address, target = arguments.pop("address", None), arguments.pop("_target_", None)
    if address is not None and not (isinstance(address, str) and "://" in address):
        raise ConfigurationError(
            f"runner.cluster.address={address!r}: must be tcp://HOST:8786, as `dask scheduler` says"
        )
    if address is None and not isinstance(target, str):
        raise ConfigurationError(f"runner.cluster._target_={target!r}: must be a cluster class of Dask")
    if address is None and target == CUDA_CLUSTER:
        _check_cuda_cluster(values)
    for name in _LISTS:
        if isinstance(text := arguments.get(name), str):
            raise ConfigurationError(
                f"runner.cluster.{name}={text}: must be a list. Write 'runner.cluster.{name}=[{text}]'"
            )
    adapt, resources = runner.get("adapt"), check_mapping("runner.resources", runner.get("resources") or {})
    if adapt is not None:
        _check_adapt(adapt, address)
    for name, amount in resources.items():
        check_number(f"runner.resources.{name}", amount, 0, excluded=0)
    cluster = DaskCluster(address=address, target=target or "", arguments=arguments, adapt=adapt, resources=resources)
    if resources and cluster.is_local:
        _check_offer(resources, arguments)
    return cluster


def _check_cuda_cluster(values: Mapping[str, Any]) -> None:
    """Refuses a choice of GPUs that conflicts with that of ``LocalCUDACluster``."""
    if (gpus := values.get("gpus", "all")) != "all":
        raise ConfigurationError(
            f"gpus={gpus}: must be all with {CUDA_CLUSTER}. Set runner.cluster.CUDA_VISIBLE_DEVICES instead."
        )
    if (wanted := values.get("gpus_per_trial")) not in (None, 1):
        raise ConfigurationError(
            f"gpus_per_trial={wanted}: must be 1 with {CUDA_CLUSTER}. Choose distributed.LocalCluster."
        )


def _check_offer(resources: Mapping[str, float], arguments: Mapping[str, Any]) -> None:
    """Refuses resources that workers of this machine would not have: trials would wait forever."""
    offered = _offer(arguments)
    for name, amount in resources.items():
        if (has := offered.get(name, 0)) < amount:
            rule = f"at most {has:g}, which each worker offers" if has else "one that workers offer, and none offers it"
            raise ConfigurationError(
                f"runner.resources.{name}={amount:g}: must be {rule}. "
                f"Leave it out, or set runner.cluster.resources.{name}={amount:g}."
            )


def _offer(arguments: Mapping[str, Any]) -> dict[str, float]:
    """Returns the resources that each worker of this machine offers."""
    import dask.config

    option, offered = "runner.cluster.resources", arguments.get("resources")
    if offered is None:
        option = "distributed.worker.resources"
        offered = dask.config.get(option, None) or {}
    return {name: check_number(f"{option}.{name}", n, 0) for name, n in check_mapping(option, offered).items()}


def _check_adapt(adapt: object, address: str | None) -> None:
    if not (isinstance(adapt, Mapping) and set(adapt) <= {"minimum", "maximum"}):
        raise ConfigurationError(f"runner.adapt={adapt!r}: must be null or {{minimum: 0, maximum: 8}}")
    if address is not None:
        raise ConfigurationError(
            f"runner.adapt={dict(adapt)}: must be null with runner.cluster.address. Let that cluster adapt itself."
        )
    least, most = adapt.get("minimum", 0), adapt.get("maximum")
    check_int("runner.adapt.minimum", least, 0)
    if "maximum" in adapt and check_int("runner.adapt.maximum", most, 1) < least:
        raise ConfigurationError(f"runner.adapt.minimum={least}: must be at most maximum, {most}. Lower it.")


def read_ray_address(values: Mapping[str, Any]) -> str | None:
    """Returns ``runner.address``: ``HOST:6379``, ``auto``, or None to start Ray on this machine.

    Raises:
        ConfigurationError: the address is invalid, or Ray is not installed.
    """
    if find_spec("ray") is None:
        raise ConfigurationError("runner=ray: needs Ray. Run: pip install 'heirloom-nas[ray]'")
    address: str | None = values["runner"].get("address")
    if address not in (None, "auto") and not _is_host_with_port(str(address)):
        raise ConfigurationError(
            f"runner.address={address}: must be HOST:6379 of a cluster's head, or auto. Run the search on a node of it."
        )
    return address


def _is_host_with_port(address: str) -> bool:
    found = re.fullmatch(r"[^\s/]+:(\d{1,5})", address)
    return found is not None and 0 < int(found[1]) < 2**16
