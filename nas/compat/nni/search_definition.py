"""The search of an NNI experiment: problem, tuner, stopper and budget."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nas.compat.nni.builtins import optimize_mode, stopper_spec, tuner_spec
from nas.compat.nni.config import Experiment
from nas.compat.nni.ids import experiment_id
from nas.compat.nni.parent_rule import ParentRule
from nas.compat.nni.tuner import WAIT_TIMEOUT_S
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.policy import PolicyPlan, Stage
from nas.core.spec import Spec
from nas.executors.process_pool import visible_gpus
from nas.search.definition import Search

PLAN = PolicyPlan((Stage(name="search"),))
"""One stage without policies."""
NNI_TRIALS = 99_999
"""NNI's default of maxTrialNum."""


def nni_search(
    experiment: Experiment,
    *,
    name: str | None = None,
    seed: int = 0,
    gpus: Sequence[int] | None = (),
    parents: str | None = None,
    wait_timeout_s: float = WAIT_TIMEOUT_S,
) -> tuple[str, Search]:
    """Returns the name and the definition of the experiment's search.

    Args:
        experiment: The configuration.
        name: The default is the experiment's name and the digest of the search.
        seed: The seed of builtin tuners.
        gpus: The numbers of GPUs that this process sees; None: trials run on a cluster, which gives each its GPU.
        parents: Parameters that name a parent, for an own tuner; see ``ParentRule.parse``.
        wait_timeout_s: Seconds that an idle own tuner may wait while no trial runs.

    Raises:
        ConfigurationError: the experiment needs something that is not supported, which the message names.
    """
    is_builtin = experiment.tuner.builtin is not None
    if is_builtin and parents is not None:
        raise ConfigurationError(
            f"--parents={parents}: must not be given with the builtin tuner {experiment.tuner.builtin}"
        )
    if not wait_timeout_s > 0:
        raise ConfigurationError(f"--patience={wait_timeout_s:g}: must be a number of seconds greater than 0")
    tuner = tuner_spec(experiment) if is_builtin else _own_tuner(experiment, parents)
    names_points = not is_builtin or experiment.tuner.builtin == "BatchTuner"
    problem = {
        "command": experiment.command,
        "space": None if names_points else experiment.space,
        "optimize_mode": optimize_mode(experiment),
        "multi_phase": experiment.multi_phase,
        "code_dir": str(experiment.code_dir),
        "gpus_per_trial": experiment.gpus_per_trial,
        "gpus": _names_of_gpus(experiment, gpus),
        "timeout_s": experiment.trial_timeout_s,
    }
    search = Search(
        problem=Spec("nas.compat.nni.problem.NniProblem", problem),
        tuner=tuner,
        stopper=None if experiment.assessor is None else stopper_spec(experiment.assessor),
        plan=PLAN,
        seed=seed,
        trials_per_job="unlimited" if experiment.multi_phase else 1,
    )
    if name is None:
        name = re.sub(r"[^A-Za-z0-9.]+", "_", experiment.name).strip("_.")[:100] or "experiment"
        name = f"{name}-{search.build().digest}"
    output_root = experiment.output_dir or Path.home() / "nni-experiments"
    names = {"search": name, "output_dir": str(output_root / experiment_id(name))}
    search = replace(search, problem=_extended(search.problem, **names))
    if not is_builtin:
        slots = slots_with_gpus(experiment.concurrency, experiment, gpus)
        session = {"slots": slots, "max_jobs": experiment.max_jobs, "wait_timeout_s": wait_timeout_s}
        search = replace(search, tuner=_extended(search.tuner, **names, **session, folder=str(experiment.folder)))
    return name, search


def _extended(spec: Spec, **more: Any) -> Spec:
    return Spec(spec.target, {**spec.arguments, **more})


def _own_tuner(experiment: Experiment, parents: str | None) -> Spec:
    choice = experiment.tuner
    rule = ParentRule.parse(parents)
    return Spec(
        "nas.compat.nni.tuner.NniTuner",
        {
            "class_file": choice.class_file,
            "class_name": choice.class_name,
            "code_dir": choice.code_dir,
            "class_args": dict(choice.arguments),
            "search_space": experiment.space,
            "multi_thread": experiment.multi_thread,
            "multi_phase": experiment.multi_phase,
            "include_intermediate": choice.include_intermediate,
            "parents": rule.describe(),
        },
    )


def nni_budget(experiment: Experiment) -> Budget:
    """Returns the budget of ``maxTrialNum`` (jobs, with multiPhase) and ``maxExecDuration``, which stops no trial."""
    most = experiment.max_jobs or NNI_TRIALS
    counted = {"jobs" if experiment.multi_phase else "trials": most}
    return Budget(**counted, hours=experiment.hours, at_deadline="finish")


def slots_with_gpus(slots: int, experiment: Experiment, gpus: Sequence[int] | None) -> int:
    """Returns the slots for whose jobs there are GPUs; the other jobs wait, as in NNI.

    Args:
        slots: The wanted number of jobs at a time.
        experiment: The configuration.
        gpus: As of ``nni_search``.

    Raises:
        ConfigurationError: there are too few GPUs for one job.
    """
    usable = _usable_gpus(experiment, gpus)
    if not usable or not experiment.gpus_per_trial:
        return slots
    return min(slots, len(usable) * experiment.jobs_per_gpu // experiment.gpus_per_trial)


def _names_of_gpus(experiment: Experiment, gpus: Sequence[int] | None) -> tuple[str, ...]:
    """Returns the names of the GPUs for trials; none: trials see those of this process.

    They are the same in each worker, whatever it sees itself.
    """
    usable = _usable_gpus(experiment, gpus)
    if not usable or (experiment.gpus is None and experiment.gpus_per_trial is None):
        return ()
    return tuple(visible_gpus(usable, os.environ).split(","))


def _usable_gpus(experiment: Experiment, gpus: Sequence[int] | None) -> tuple[int, ...]:
    n_gpus = experiment.gpus_per_trial or 0
    if gpus is None:
        if n_gpus > 1 or experiment.gpus is not None:
            field = f"trial.gpuNum ({n_gpus})" if n_gpus > 1 else "localConfig.gpuIndices"
            raise ConfigurationError(
                f"{field} is not supported with runner=dask or ray: each worker gives its trial the GPU that it sees "
                "(CUDA_VISIBLE_DEVICES)"
            )
        return ()
    usable = tuple(gpus) if experiment.gpus is None else experiment.gpus
    if missing := [gpu for gpu in usable if gpu not in gpus]:
        raise ConfigurationError(f"localConfig.gpuIndices={missing[0]}: must be among this machine's GPUs {list(gpus)}")
    if n_gpus > len(usable):
        raise ConfigurationError(
            f"trial.gpuNum={n_gpus}: must be at most {len(usable)}, the number of usable GPUs of this machine. "
            "Write gpuNum: 0 to use none"
        )
    return usable
