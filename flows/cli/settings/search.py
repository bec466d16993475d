"""The search that a configuration describes, and its name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from flows.cli.command import Invocation
from flows.cli.options import page_of
from flows.cli.overrides import choices_of
from flows.cli.settings.clusters import read_dask, read_ray_address
from flows.cli.settings.limits import read_limits
from flows.cli.settings.machine import Machine
from flows.cli.settings.root import reach_root, read_retention, read_root
from flows.cli.settings.runners import read_gpus, read_runner, read_wanted_gpus
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.policy import PolicyPlan
from nas.core.validation import check_bool, check_int
from nas.search.definition import Search, check_random_state
from nas.search.search_init import SearchInit
from nas.tuners.shared.constrained import checked_limits
from nas.views.formatting import masked

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
    runner = read_runner(values)[0]
    if runner == "dask":
        read_dask(values)
    if runner == "ray":
        read_ray_address(values)
    read_gpus(values["device"], values["gpus"])
    read_wanted_gpus(values)
    Budget(**values["budget"])
    read_limits(values)
    read_root(values)
    read_retention(values)
    checked_limits(values["constraints"])
    check_int("seed", values["seed"])
    check_bool("deterministic", values["deterministic"])


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
    deterministic = check_bool("deterministic", values["deterministic"])
    check_random_state(machine.runner, machine.slots, deterministic=deterministic)
    return Search(
        problem=problem,
        tuner=tuner,
        plan=PolicyPlan.from_stages(policy["stages"]),
        plan_is_named="policy" in invocation.named and not _is_shipped(policy),
        stopper=invocation.spec("stopper"),
        seed=values["seed"],
        on_missing_weights=values["on_missing_weights"],
        constraints=checked_limits(values["constraints"]),
        init=SearchInit.read(**values["init"], root=partial(reach_root, values)),
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
    return default + "".join(re.sub(UNFIT, "_", f"-{key}-{value}") for key, value in shown)
