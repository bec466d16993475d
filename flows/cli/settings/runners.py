"""Runners of a session, and the devices that they use."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args

from nas.core.errors import ConfigurationError
from nas.core.gpus import share_of_slots, slots_of_gpus
from nas.core.validation import check_choice, check_int, check_number, short_repr

RunnerKind = Literal["debug", "threads", "processes", "dask", "ray", "simulated"]
RUNNERS: tuple[RunnerKind, ...] = get_args(RunnerKind)
WITH_PREFECT = frozenset({"threads", "processes", "dask", "ray"})
KILLABLE = frozenset({"processes", "dask", "ray"})
PLACES_GPUS = ("processes", "dask", "ray")
"""Runners whose workers see different GPUs."""
DEVICES = ("auto", "cpu", "cuda", "mps")


def read_runner(values: Mapping[str, Any]) -> tuple[RunnerKind, int | None, int | None, float | None]:
    """Returns runner, slots, torch threads and timeout; None for each one that is not set.

    Raises:
        ConfigurationError: one of the values is invalid or conflicts with the runner.
    """
    runner = (values.get("runner") or {}).get("kind")
    check_choice("runner", runner, RUNNERS)
    for name in ("cluster", "adapt", "resources"):
        if runner != "dask" and name in values["runner"]:
            raise ConfigurationError(f"runner.{name}: needs runner=dask, not {runner}. Leave it out.")
    slots, n_threads, timeout_s = values["slots"], values["threads"], values["trial_timeout_s"]
    for name, count in (("slots", slots), ("threads", n_threads)):
        if count is not None:
            check_int(name, count, 1)
    if runner == "debug" and slots not in (None, 1):
        raise ConfigurationError(f"slots={slots}: must be 1 with runner=debug. Choose runner=threads or processes.")
    if timeout_s is not None:
        timeout_s = float(check_number("trial_timeout_s", timeout_s, 0, excluded=0))
        if runner not in KILLABLE:
            raise ConfigurationError(
                f"trial_timeout_s={timeout_s:g}: needs runner=processes: code in {runner} can't be interrupted"
            )
    return cast("RunnerKind", runner), slots, n_threads, timeout_s


def read_device(device: object, gpus: object) -> tuple[str, tuple[int, ...]]:
    """Returns the device to train on and the GPUs for the slots.

    Raises:
        ConfigurationError: this machine has no such device.
    """
    chosen = read_gpus(device, gpus)
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


def read_gpus(device: object, gpus: object) -> tuple[int, ...] | None:
    """Returns the GPU numbers, or None for all.

    Raises:
        ConfigurationError: the values have another form.
    """
    check_choice("device", device, DEVICES)
    if gpus == "all":
        return None
    numbers = gpus if isinstance(gpus, list) else str(gpus).split(",")
    if not numbers or not all(str(number).strip().isdecimal() for number in numbers):
        raise ConfigurationError(f"gpus={gpus}: must be all, or a list of numbers such as [0,1]")
    return tuple(int(number) for number in numbers)


def read_gpus_per_trial(values: Mapping[str, Any], device: str, gpus: tuple[int, ...], slots: int | None) -> float:
    """Returns the GPUs of each trial; 1 without GPUs.

    Raises:
        ConfigurationError: the value is invalid, or this machine has too few GPUs for it.
    """
    wanted = read_wanted_gpus(values)
    if wanted is None:
        return share_of_slots(len(gpus), slots or 1) if gpus else 1.0
    if not gpus:
        raise no_gpu(wanted, device)
    name = f"gpus_per_trial={wanted:g}"
    most = slots_of_gpus(len(gpus), wanted)
    if not most:
        raise ConfigurationError(f"{name}: must be at most {len(gpus)}, the number of GPUs. Lower it.")
    if slots is not None and slots > most:
        raise ConfigurationError(f"slots={slots}: must be at most {most} with {name} on {len(gpus)} GPUs. Lower it.")
    return wanted


def no_gpu(wanted: float, device: str) -> ConfigurationError:
    """Returns the error of ``gpus_per_trial`` on a device that is no GPU of CUDA."""
    return ConfigurationError(
        f"gpus_per_trial={wanted:g}: needs a GPU, but trials run on {device}. Leave gpus_per_trial out."
    )


def read_wanted_gpus(values: Mapping[str, Any]) -> float | None:
    """Returns ``gpus_per_trial``, or None if it is not set.

    Raises:
        ConfigurationError: the value is invalid, or the runner does not place trials on GPUs.
    """
    wanted, runner = values["gpus_per_trial"], values["runner"]["kind"]
    if wanted is None:
        return None
    name = f"gpus_per_trial={short_repr(wanted)}"
    is_number = isinstance(wanted, int | float) and not isinstance(wanted, bool) and 0 < wanted <= sys.float_info.max
    if not is_number or (wanted > 1 and not float(wanted).is_integer()):
        raise ConfigurationError(
            f"{name}: must be 1, 2, ... or a share of a GPU such as 0.5. Leave it out for one each."
        )
    if runner not in PLACES_GPUS:
        raise ConfigurationError(f"{name}: needs runner={' or '.join(PLACES_GPUS)}, not {runner}")
    return float(wanted)
