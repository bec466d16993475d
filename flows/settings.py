"""What a session may choose anew each time: where it stores, what runs trials, how many at once, on which devices."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from flows.command import Invocation
from nas.budget import Budget
from nas.errors import ConfigurationError
from nas.policy import PolicyPlan
from nas.search import Search

RunnerKind = Literal["debug", "threads", "processes"]
RUNNERS = ("debug", "threads", "processes")
MAX_DEFAULT_SLOTS = 4
IDENTITY_KEYS = ("problem", "tuner", "policy", "stopper", "seed", "on_parent_failure", "deterministic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What trials run on.

    Attributes:
        slots: Trials at a time.
        n_threads: Torch threads of each.
        device: ``cpu``, ``cuda`` or ``mps``.
        gpus: Slot i sees only GPU ``gpus[i % len(gpus)]``.
    """

    runner: RunnerKind
    slots: int
    n_threads: int
    device: str
    gpus: tuple[int, ...]
    trial_timeout_s: float | None


def read_machine(values: Mapping[str, Any]) -> Machine:
    """The machine that ``runner``, ``slots``, ``threads``, ``device``, ``gpus`` and ``trial_timeout_s`` describe.

    Raises:
        ConfigurationError: one of them can't be, or does not go with another.
    """
    runner = (values.get("runner") or {}).get("kind")
    if runner not in RUNNERS:
        raise ConfigurationError(f"runner ({runner!r}) must be one of {', '.join(RUNNERS)}")
    device, gpus = _read_device(values["device"], values["gpus"])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    default_slots = 1 if runner == "debug" else len(gpus) or min(MAX_DEFAULT_SLOTS, cores)
    slots = _positive_int("slots", values["slots"], default_slots)
    if runner == "debug" and slots != 1:
        raise ConfigurationError(f"slots ({slots}) must be 1 with runner=debug; choose runner=threads or processes")
    timeout_s = values["trial_timeout_s"]
    if timeout_s is not None:
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or timeout_s <= 0:
            raise ConfigurationError(f"trial_timeout_s ({timeout_s!r}) must be a number of seconds greater than 0")
        if runner != "processes":
            raise ConfigurationError(
                f"trial_timeout_s ({timeout_s:g}) needs runner=processes: code in {runner} can't be interrupted"
            )
    return Machine(
        runner=cast("RunnerKind", runner),
        slots=slots,
        n_threads=_positive_int("threads", values["threads"], max(1, cores // slots)),
        device=device,
        gpus=gpus,
        trial_timeout_s=None if timeout_s is None else float(timeout_s),
    )


def _read_device(device: object, gpus: object) -> tuple[str, tuple[int, ...]]:
    import torch

    if device not in ("auto", "cpu", "cuda", "mps"):
        raise ConfigurationError(f"device ({device!r}) must be auto, cpu, cuda or mps")
    n_gpus = torch.cuda.device_count() if device in ("auto", "cuda") and torch.cuda.is_available() else 0
    has_mps = torch.backends.mps.is_available()
    if device == "cuda" and not n_gpus:
        raise ConfigurationError("device (cuda): torch sees no GPU here; choose device=auto or cpu")
    if device == "mps" and not has_mps:
        raise ConfigurationError("device (mps): torch sees no Apple GPU here; choose device=auto or cpu")
    if not n_gpus:
        return ("mps" if has_mps and device in ("auto", "mps") else "cpu"), ()
    if gpus == "all":
        return "cuda", tuple(range(n_gpus))
    chosen = gpus if isinstance(gpus, list) else str(gpus).split(",")
    try:
        numbers = tuple(int(gpu) for gpu in chosen)
    except ValueError as error:
        raise ConfigurationError(f"gpus ({gpus}) must be all, or a list of numbers such as [0,1]") from error
    if not numbers or any(not 0 <= number < n_gpus for number in numbers):
        raise ConfigurationError(f"gpus ({gpus}) must name GPUs from 0 to {n_gpus - 1}")
    return "cuda", numbers


def _positive_int(name: str, value: object, default: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name} ({value!r}) must be a whole number of at least 1")
    return value


def read_search(invocation: Invocation, machine: Machine) -> Search:
    """The search that a configuration describes.

    Raises:
        ConfigurationError: no tuner, or something that does not go with ``deterministic``.
    """
    values = invocation.values
    problem, tuner = invocation.spec("problem"), invocation.spec("tuner")
    if tuner is None or problem is None:
        missing = "problem" if problem is None else "tuner"
        raise ConfigurationError(f"no {missing}: add +tuner=NAME, one of {', '.join(choices_of(missing))}")
    policy = values.get("policy") or {}
    if not isinstance(policy, Mapping) or not policy.get("stages"):
        raise ConfigurationError("policy must be a choice of the group policy, with a list of stages")
    seed = values["seed"]
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise ConfigurationError(f"seed ({seed!r}) must be a whole number")
    deterministic = bool(values["deterministic"])
    if deterministic and machine.runner == "threads" and machine.slots > 1:
        raise ConfigurationError(
            f"deterministic=true with runner=threads needs slots=1, not {machine.slots}: threads share torch's random state"
        )
    return Search(
        problem=problem,
        tuner=tuner,
        plan=PolicyPlan.from_stages(policy["stages"]),
        plan_is_named="policy" in invocation.named,
        stopper=invocation.spec("stopper"),
        seed=seed,
        on_parent_failure=values["on_parent_failure"],
        deterministic=deterministic,
        slots=machine.slots,
        n_threads=machine.n_threads,
    )


def read_budget(values: Mapping[str, Any], search: Search, machine: Machine) -> Budget:
    """The budget, 16 trials where none is set.

    Raises:
        ConfigurationError: it does not go with ``deterministic``, or counts GPU-hours without a GPU.
    """
    budget = Budget(**values["budget"])
    timed = [name for name in ("hours", "gpu_hours") if getattr(budget, name) is not None]
    if search.deterministic and timed:
        raise ConfigurationError(
            f"budget.{timed[0]} does not go with deterministic=true: measured time decides; set budget.trials"
        )
    if budget.gpu_hours is not None and machine.device != "cuda":
        raise ConfigurationError(
            f"budget.gpu_hours ({budget.gpu_hours}) needs a GPU, but trials run on {machine.device}"
        )
    return budget


def search_name(invocation: Invocation, default: str, search: Search) -> str:
    """The name that was set, or the default with what a multirun varies outside the identity."""
    name = invocation.values.get("name")
    if name is not None:
        return str(name)
    in_identity = (*IDENTITY_KEYS, *(("slots", "threads") if search.deterministic else ()))
    more = [f"-{k}-{v}" for k, v in invocation.swept.items() if k.partition(".")[0] not in in_identity]
    return default + "".join(text.replace("/", "_") for text in more)


def choices_of(group: str) -> list[str]:
    """The choices of a group of conf/ that come with Heirloom."""
    from importlib.resources import files

    names = [entry.name.removesuffix(".yaml") for entry in files("conf").joinpath(group).iterdir()]
    return sorted(name for name in names if name not in ("custom", "__init__.py", "__pycache__"))
