"""Clusters of Dask and Ray that run trials."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.validation import check_int, check_mapping, check_number

LOCAL_CLUSTERS = frozenset({"distributed.LocalCluster", "dask_cuda.LocalCUDACluster"})
"""Clusters whose workers run on the driver's machine and inherit its environment."""


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


@dataclass(frozen=True, slots=True)
class RayAddress:
    """The Ray cluster of ``runner=ray``."""

    address: str | None
    """``HOST:6379`` or ``auto`` for one that runs; None: Ray is started on this machine."""


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
    adapt, resources = runner.get("adapt"), check_mapping("runner.resources", runner.get("resources") or {})
    if adapt is not None and not (isinstance(adapt, Mapping) and set(adapt) <= {"minimum", "maximum"}):
        raise ConfigurationError(f"runner.adapt={adapt!r}: must be null or {{minimum: 0, maximum: 8}}")
    for name, count in (adapt or {}).items():
        check_int(f"runner.adapt.{name}", count, 0)
    for name, amount in resources.items():
        check_number(f"runner.resources.{name}", amount, 0, excluded=0)
    return DaskCluster(address=address, target=target or "", arguments=arguments, adapt=adapt, resources=resources)


def read_ray(values: Mapping[str, Any]) -> RayAddress:
    """Returns the cluster of ``runner.address``.

    Raises:
        ConfigurationError: the address is invalid, or Ray is not installed.
    """
    if find_spec("ray") is None:
        raise ConfigurationError("runner=ray: needs Ray. Run: pip install 'heirloom-nas[ray]'")
    address = values["runner"].get("address")
    if address not in (None, "auto") and not re.fullmatch(r"[^\s/]+:\d{1,5}", str(address)):
        raise ConfigurationError(
            f"runner.address={address}: must be HOST:6379 of a cluster's head, or auto. Run the search on a node of it."
        )
    return RayAddress(address)
