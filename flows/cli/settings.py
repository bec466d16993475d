"""Settings of a session, read from the configuration: storage root, runner, slots, devices, budget and limits."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, cast

from flows.cli.command import Invocation
from flows.cli.formatting import masked
from flows.cli.overrides import choices_of, page_of
from nas.core.budget import Budget
from nas.core.cpus import usable_cores
from nas.core.errors import ConfigurationError
from nas.core.gpus import share_of_slots, slots_of_gpus
from nas.core.policy import PolicyPlan
from nas.core.validation import check_int
from nas.executors.simulated import Workers
from nas.search.definition import Search, read_retry
from nas.search.search_init import SearchInit
from nas.storage.maintenance.gc.retention import Retention
from nas.tuners.shared.constrained import checked_limits

if TYPE_CHECKING:
    from nas.storage.blobs import BlobStore

RunnerKind = Literal["debug", "threads", "processes", "dask", "ray", "simulated"]
RUNNERS = ("debug", "threads", "processes", "dask", "ray", "simulated")
WITH_PREFECT = frozenset({"threads", "processes", "dask", "ray"})
KILLABLE = frozenset({"processes", "dask", "ray"})
PLACES_GPUS = ("processes", "dask", "ray")
"""Runners whose workers see different GPUs."""
LOCAL_CLUSTERS = frozenset({"distributed.LocalCluster", "dask_cuda.LocalCUDACluster"})
"""Clusters whose workers run on the driver's machine and inherit its environment."""
MAX_DEFAULT_SLOTS = 4
LEAST_S = 1.0
"""Shortest time budget in seconds; a process alone takes longer to start."""
UNFIT = r"[^A-Za-z0-9._+=-]+"
"""Characters that a search's name can't hold."""
IDENTITY_KEYS = (
    "problem",
    "tuner",
    "policy",
    "stopper",
    "seed",
    "on_missing_weights",
    "constraints",
    "init",
    "deterministic",
    "job",
)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Runner, slots and devices of a session.

    Attributes:
        slots: Number of trials that run at a time.
        n_threads: Torch threads per trial.
        device: ``cpu``, ``cuda`` or ``mps``.
        gpus: The GPUs for the slots.
        gpus_per_trial: GPUs of each trial; less than 1: trials share a GPU.
    """

    runner: RunnerKind
    slots: int
    n_threads: int
    device: str
    gpus: tuple[int, ...]
    trial_timeout_s: float | None
    gpus_per_trial: float = 1.0
    workers: Workers | None = None
    """Behavior of simulated workers, for ``runner=simulated``."""
    dask: DaskCluster | None = None
    """Cluster, for ``runner=dask``."""
    ray: RayAddress | None = None
    """Cluster, for ``runner=ray``."""


def read_machine(values: Mapping[str, Any]) -> Machine:
    """Returns the machine that ``runner``, ``slots``, ``threads``, ``device``, ``gpus`` and ``trial_timeout_s`` give.

    Imports torch, which takes a second, to look for GPUs.

    Raises:
        ConfigurationError: one of the values is invalid or conflicts with another.
    """
    runner, slots, n_threads, timeout_s = _read_wishes(values)
    dask = read_dask(values) if runner == "dask" else None
    ray = read_ray(values) if runner == "ray" else None
    if (dask is not None and not dask.is_local) or (ray is not None and ray.address is not None):
        machine = _read_cluster(values, slots or MAX_DEFAULT_SLOTS, n_threads or 1, timeout_s)
        return replace(machine, dask=dask, ray=ray)
    device, gpus = read_device(values["device"], values["gpus"])
    if len(gpus) > 1 and runner not in PLACES_GPUS:  # one process, one choice of GPUs
        if values["gpus"] != "all":
            raise ConfigurationError(f"gpus={values['gpus']}: needs runner=processes: {runner} uses one GPU only")
        gpus = gpus[:1]
    gpus_per_trial = read_gpus_per_trial(values, device, gpus, slots)
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
        ray=ray,
    )


def _read_cluster(values: Mapping[str, Any], slots: int, n_threads: int, timeout_s: float | None) -> Machine:
    """Returns the machine of a cluster, whose workers choose a device if none is set."""
    if values["gpus"] != "all":
        raise ConfigurationError(
            f"gpus={values['gpus']}: must be all on a cluster: CUDA_VISIBLE_DEVICES of each worker chooses"
        )
    return Machine(
        runner=values["runner"]["kind"],
        slots=slots,
        n_threads=n_threads,
        device=values["device"],
        gpus=(),
        trial_timeout_s=timeout_s,
        gpus_per_trial=_read_wanted_gpus(values) or 1.0,
    )


def read_dask(values: Mapping[str, Any]) -> DaskCluster:
    """Returns the cluster of ``runner.cluster``, ``runner.adapt`` and ``runner.resources``.

    Raises:
        ConfigurationError: a value is invalid, or Dask is not installed.
    """
    if find_spec("distributed") is None:
        raise ConfigurationError("runner=dask: needs Dask. Run: pip install 'heirloom-nas[dask]'")
    runner = values["runner"]
    arguments = dict(runner.get("cluster") or {})
    address, target = arguments.pop("address", None), arguments.pop("_target_", None)
    if address is not None and not (isinstance(address, str) and "://" in address):
        raise ConfigurationError(
            f"runner.cluster.address={address!r}: must be tcp://HOST:8786, as `dask scheduler` says"
        )
    if address is None and not isinstance(target, str):
        raise ConfigurationError(f"runner.cluster._target_={target!r}: must be a cluster class of Dask")
    adapt, resources = runner.get("adapt"), runner.get("resources") or {}
    if adapt is not None and not (isinstance(adapt, Mapping) and set(adapt) <= {"minimum", "maximum"}):
        raise ConfigurationError(f"runner.adapt={adapt!r}: must be null or {{minimum: 0, maximum: 8}}")
    for name, count in (adapt or {}).items():
        check_int(f"runner.adapt.{name}", count, 0)
    is_amount = all(not isinstance(n, bool) and isinstance(n, int | float) and n > 0 for n in resources.values())
    if not is_amount:
        raise ConfigurationError(
            f"runner.resources={resources!r}: must hold numbers greater than 0, such as {{GPU: 1}}"
        )
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


def _read_workers(values: Mapping[str, Any]) -> Workers | None:
    wishes = values["runner"].get("workers")
    if values["runner"]["kind"] != "simulated":
        return None
    try:
        return Workers(**(wishes or {}))
    except TypeError as error:
        allowed = ", ".join(f"runner.workers.{name}" for name in Workers.__slots__)
        raise ConfigurationError(f"runner.workers={wishes!r}: {error}; there are {allowed}") from error


def _read_wishes(values: Mapping[str, Any]) -> tuple[RunnerKind, int | None, int | None, float | None]:
    """Returns runner, slots, torch threads and timeout; None for each one that is not set."""
    runner = (values.get("runner") or {}).get("kind")
    if runner not in RUNNERS:
        raise ConfigurationError(f"runner={runner!r}: must be one of {', '.join(RUNNERS)}")
    slots = positive_int("slots", values["slots"])
    if runner == "debug" and slots not in (None, 1):
        raise ConfigurationError(f"slots={slots}: must be 1 with runner=debug. Choose runner=threads or processes.")
    timeout_s = values["trial_timeout_s"]
    if timeout_s is not None:
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or timeout_s <= 0:
            raise ConfigurationError(f"trial_timeout_s={timeout_s!r}: must be a number of seconds greater than 0")
        if runner not in KILLABLE:
            raise ConfigurationError(
                f"trial_timeout_s={timeout_s:g}: needs runner=processes: code in {runner} can't be interrupted"
            )
    n_threads = positive_int("threads", values["threads"])
    return cast("RunnerKind", runner), slots, n_threads, None if timeout_s is None else float(timeout_s)


def read_device(device: object, gpus: object) -> tuple[str, tuple[int, ...]]:
    """Returns the device to train on and the GPUs for the slots.

    Raises:
        ConfigurationError: this machine has no such device.
    """
    chosen = _read_gpus(device, gpus)
    if device in ("cpu", "mps") and chosen is not None:
        raise ConfigurationError(f"gpus={gpus}: does not go with device={device}. Leave one of them out.")
    if device == "cpu":
        return "cpu", ()
    import torch

    n_gpus = torch.cuda.device_count() if device != "mps" and torch.cuda.is_available() else 0
    has_mps = torch.backends.mps.is_available()
    if device == "cuda" and not n_gpus:
        raise ConfigurationError("device=cuda: torch sees no GPU here. Choose device=auto or cpu.")
    if chosen is not None and not n_gpus:
        raise ConfigurationError(f"gpus={gpus}: torch sees no GPU here. Leave gpus out, or choose device=cpu.")
    if device == "mps" and not has_mps:
        raise ConfigurationError("device=mps: torch sees no Apple GPU here. Choose device=auto or cpu.")
    if not n_gpus:
        return ("mps" if has_mps else "cpu"), ()
    if chosen is not None and any(number >= n_gpus for number in chosen):
        raise ConfigurationError(f"gpus={gpus}: must name GPUs from 0 to {n_gpus - 1}")
    return "cuda", tuple(range(n_gpus)) if chosen is None else chosen


def read_gpus_per_trial(values: Mapping[str, Any], device: str, gpus: tuple[int, ...], slots: int | None) -> float:
    """Returns the GPUs of each trial; 1 without GPUs.

    Raises:
        ConfigurationError: the value is invalid, or this machine has too few GPUs for it.
    """
    wanted = _read_wanted_gpus(values)
    if wanted is None:
        return share_of_slots(len(gpus), slots or 1) if gpus else 1.0
    name = f"gpus_per_trial={wanted:g}"
    if not gpus:
        raise ConfigurationError(f"{name}: needs a GPU, but trials run on {device}. Leave gpus_per_trial out.")
    most = slots_of_gpus(len(gpus), wanted)
    if not most:
        raise ConfigurationError(f"{name}: must be at most {len(gpus)}, the number of GPUs. Lower it.")
    if slots is not None and slots > most:
        raise ConfigurationError(f"slots={slots}: must be at most {most} with {name} on {len(gpus)} GPUs. Lower it.")
    return wanted


def _read_wanted_gpus(values: Mapping[str, Any]) -> float | None:
    """Returns ``gpus_per_trial``, or None if it is not set."""
    wanted, runner = values["gpus_per_trial"], values["runner"]["kind"]
    if wanted is None:
        return None
    name = f"gpus_per_trial={wanted}"
    is_number = isinstance(wanted, int | float) and not isinstance(wanted, bool) and wanted > 0
    if not is_number or (wanted > 1 and not float(wanted).is_integer()):
        raise ConfigurationError(
            f"{name}: must be 1, 2, ... or a share of a GPU such as 0.5. Leave it out for one each."
        )
    if runner not in PLACES_GPUS:
        raise ConfigurationError(f"{name}: needs runner={' or '.join(PLACES_GPUS)}, not {runner}")
    return float(wanted)


def _read_gpus(device: object, gpus: object) -> tuple[int, ...] | None:
    """Returns the GPU numbers, or None for all."""
    if device not in ("auto", "cpu", "cuda", "mps"):
        raise ConfigurationError(f"device={device!r}: must be auto, cpu, cuda or mps")
    if gpus == "all":
        return None
    numbers = gpus if isinstance(gpus, list) else str(gpus).split(",")
    if not numbers or not all(str(number).strip().isdecimal() for number in numbers):
        raise ConfigurationError(f"gpus={gpus}: must be all, or a list of numbers such as [0,1]")
    return tuple(int(number) for number in numbers)


def positive_int(name: str, value: object) -> int | None:
    """Returns a count, or None if it is not set.

    Raises:
        ConfigurationError: the value is not a whole number of at least 1.
    """
    if value is None:
        return None
    check_int(name, value, 1)
    return cast("int", value)


def switch(values: Mapping[str, Any], name: str) -> bool:
    """Returns the value of a boolean key.

    Raises:
        ConfigurationError: the value is not true or false.
    """
    if not isinstance(values[name], bool):
        raise ConfigurationError(f"{name}={values[name]!r}: must be true or false")
    return bool(values[name])


def check_values(invocation: Invocation) -> None:
    """Checks, in a tenth of a second, all values that need no torch, problem or storage.

    Raises:
        ConfigurationError: there is no tuner, or a value is invalid.
    """
    values = invocation.values
    if invocation.spec("tuner") is None:
        raise ConfigurationError(
            f"no tuner: add +tuner=NAME, one of {', '.join(choices_of('tuner'))}, or tuner._target_=my_module.MyTuner"
        )
    if invocation.spec("problem") is None:
        raise ConfigurationError(f"no problem: add problem=NAME, one of {', '.join(choices_of('problem'))}")
    runner = _read_wishes(values)[0]
    if runner == "dask":
        read_dask(values)
    if runner == "ray":
        read_ray(values)
    _read_gpus(values["device"], values["gpus"])
    _read_wanted_gpus(values)
    Budget(**values["budget"])
    read_limits(values)
    read_root(values)
    read_retention(values)
    checked_limits(values["constraints"])
    if isinstance(values["seed"], bool) or not isinstance(values["seed"], int):
        raise ConfigurationError(f"seed={values['seed']!r}: must be a whole number")
    switch(values, "deterministic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits that each session may choose anew; see ``conf/search.yaml``."""

    finalists: int
    max_attempts: int
    max_failures: int
    resume_every_s: float
    takeover: bool
    code_may_change: bool
    retries_failed: bool


def read_limits(values: Mapping[str, Any]) -> Limits:
    """Returns the limits of a configuration.

    Raises:
        ConfigurationError: a limit is invalid.
    """
    counts = {}
    for name in ("finalists", "max_attempts", "max_failures"):
        if (count := positive_int(name, values[name])) is None:
            raise ConfigurationError(f"{name} must be a whole number of at least 1")
        counts[name] = count
    every_s = values["resume_every_s"]
    if isinstance(every_s, bool) or not isinstance(every_s, int | float) or not every_s >= 0:
        raise ConfigurationError(f"resume_every_s={every_s!r}: must be a number of seconds, 0 or more")
    retries_failed = read_retry(values.get("retry"), deterministic=values.get("deterministic") is True)
    if values["code"] not in (None, "changed"):
        raise ConfigurationError(f"code={values['code']!r}: must be changed, to go on with other code")
    return Limits(
        takeover=switch(values, "takeover"),
        code_may_change=values["code"] == "changed",
        retries_failed=retries_failed,
        resume_every_s=float(every_s),
        **counts,
    )


def read_root(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the storage root and its file-system options.

    Raises:
        ConfigurationError: the root is empty, or the options are not a mapping.
    """
    storage = values["storage"]
    root, options = storage.get("root"), storage.get("options") or {}
    if root is None or not str(root).strip():
        raise ConfigurationError(f"storage.root={root!r}: must be a folder or a URL")
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"storage.options={options!r}: holds keys: set storage.options.KEY=VALUE")
    return str(root), dict(options)


def reach_root(values: Mapping[str, Any]) -> BlobStore:
    """Opens the storage root and waits until its server answers.

    Raises:
        ConfigurationError: the root is invalid, or the server refuses access.
        StorageError: the server does not answer within seconds.
    """
    from nas.storage.open import open_root

    url, options = read_root(values)
    if values["storage"].get("mounted"):
        _check_mounted(url)
    root = open_root(url, options)
    root.check_reachable()
    return root


def search_url(root: str, files: BlobStore, name: str) -> str:
    """Returns the URL by which other processes open a search.

    Args:
        root: The root as returned by ``read_root``.
        files: The root as returned by ``reach_root``.
        name: The search's name.
    """
    return f"{root.rstrip('/')}/{name}" if "://" in root else files.subfolder(name).url


def _check_mounted(url: str) -> None:
    """Refuses a folder on which no network file system is mounted."""
    from nas.storage.mounts import find_mount

    mount = find_mount(url.removeprefix("file://"))
    if mount is not None and mount.is_local:
        raise ConfigurationError(
            f"storage.root={url}: is on {mount.source} ({mount.kind}), which is not a network file system: "
            "mount it, choose another storage.root, or set storage.mounted=false (or storage=local)"
        )


def read_retention(values: Mapping[str, Any]) -> Retention:
    """Returns the retention: the weights to keep and the disk limit.

    Raises:
        ConfigurationError: ``keep`` or ``max_gb`` is invalid.
    """
    storage = values["storage"]
    return Retention(keep=str(values.get("keep", storage.get("keep", "all"))), max_gb=storage.get("max_gb"))


def check_deterministic(deterministic: bool, machine: Machine) -> None:
    """Refuses a machine on which a deterministic search would give different results.

    Raises:
        ConfigurationError: several slots would share one process and torch's random state, or ``threads`` is not set.
    """
    if deterministic and machine.runner == "threads" and machine.slots > 1:
        raise ConfigurationError(
            f"deterministic=true with runner=threads needs slots=1, not {machine.slots}: "
            "threads share torch's random state"
        )


def read_search(invocation: Invocation, machine: Machine) -> Search:
    """Returns the search that a configuration describes.

    Raises:
        ConfigurationError: a setting conflicts with ``deterministic``, or the policy plan is invalid.
    """
    values = invocation.values
    problem, tuner = invocation.spec("problem"), invocation.spec("tuner")
    assert problem is not None  # check_values saw to it
    assert tuner is not None
    policy = values.get("policy") or {}
    if isinstance(policy, Mapping) and (unknown := [key for key in policy if key != "stages"]):
        raise ConfigurationError(f"policy.{unknown[0]}: a policy plan holds only the list `stages`")
    if not isinstance(policy, Mapping) or not isinstance(policy.get("stages"), list) or not policy["stages"]:
        raise ConfigurationError("policy must be a choice of the group policy, with a list `stages`")
    deterministic = switch(values, "deterministic")
    check_deterministic(deterministic, machine)
    return Search(
        problem=problem,
        tuner=tuner,
        plan=PolicyPlan.from_stages(policy["stages"]),
        plan_is_named="policy" in invocation.named and not _is_shipped(policy),
        stopper=invocation.spec("stopper"),
        seed=values["seed"],
        on_missing_weights=values["on_missing_weights"],
        constraints=checked_limits(values["constraints"]),
        init=SearchInit.read(**values["init"]),
        deterministic=deterministic,
        slots=machine.slots,
        n_threads=machine.n_threads,
        trials_per_job=values["job"]["trials_per_job"],
    )


def _is_shipped(policy: Mapping[str, Any]) -> bool:
    """Returns whether the policy plan is that of one of Heirloom's yaml files, as it is."""
    from omegaconf import OmegaConf

    pages = (page_of(f"policy/{name}") for name in choices_of("policy"))
    return any(OmegaConf.to_container(OmegaConf.create(page)) == policy for page in pages)


def read_budget(values: Mapping[str, Any], search: Search, machine: Machine) -> Budget:
    """Returns the budget; 16 trials if none is set.

    Raises:
        ConfigurationError: it conflicts with ``deterministic``, counts GPU-hours without a GPU, or is too short.
    """
    budget = Budget(**values["budget"])
    timed = [name for name in ("hours", "gpu_hours") if getattr(budget, name) is not None]
    if search.deterministic and timed:
        raise ConfigurationError(
            f"budget.{timed[0]} does not go with deterministic=true: measured time decides. Set budget.trials."
        )
    for name in timed:
        hours: float = getattr(budget, name)
        if 3600 * hours < LEAST_S and machine.runner != "simulated":
            raise ConfigurationError(
                f"budget.{name}={hours:g}: is {3600 * hours:.2g} s, too short for any trial; "
                f"it is in hours: half a minute is budget.{name}=0.0083"
            )
    has_gpu = machine.device == "cuda" if machine.workers is None else machine.workers.have_gpus
    if budget.gpu_hours is not None and not has_gpu:
        remedy = ". Add device=cuda, and every worker must have one." if machine.device == "auto" else ""
        remedy = remedy if machine.workers is None else ". Add runner.workers.have_gpus=true."
        where = machine.device if machine.workers is None else "simulated workers"
        raise ConfigurationError(f"budget.gpu_hours={budget.gpu_hours}: needs a GPU, but trials run on {where}{remedy}")
    return budget


def search_name(invocation: Invocation, default: str, search: Search, outside: Collection[str] = ()) -> str:
    """Returns the name that was set, or the default followed by swept keys outside the identity.

    Args:
        invocation: The command line.
        default: The name derived from the identity.
        search: The search whose identity counts.
        outside: Arguments of the problem that the default name does not depend on.
    """
    name = invocation.values.get("name")
    if name is not None:
        return str(name)
    in_identity = (*IDENTITY_KEYS, *(("slots", "threads") if search.deterministic else ()))
    data = {f"problem.{argument}" for argument in outside}
    swept = ((k, v) for k, v in invocation.swept.items() if k in data or k.partition(".")[0] not in in_identity)
    shown = ((key, masked(f"{key}={value}").partition("=")[2]) for key, value in swept)
    return default + "".join(f"-{key}-{re.sub(UNFIT, '_', value)}" for key, value in shown)
