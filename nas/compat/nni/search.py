"""An NNI experiment as a search: its problem, its tuner, its stopper, its budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from nas.budget import Budget
from nas.compat.nni.builtins import optimize_mode, stopper_spec, tuner_spec
from nas.compat.nni.config import Experiment
from nas.compat.nni.names import experiment_id
from nas.errors import ConfigurationError
from nas.policy import PolicyPlan, Stage
from nas.search import Search
from nas.spec import Spec

PLAN = PolicyPlan((Stage(name="search"),))
"""An experiment has one stage, and no policies."""
NNI_TRIALS = 99_999
"""What NNI takes where maxTrialNum is not set."""


def nni_search(
    experiment: Experiment, *, name: str | None = None, seed: int = 0, gpus: Sequence[int] = ()
) -> tuple[str, Search]:
    """The name of the experiment's search, and the search.

    Args:
        experiment: What its file says.
        name: By default the experiment's name and the digest of what is searched.
        seed: Of builtin tuners.
        gpus: Those of this machine.

    Raises:
        ConfigurationError: it asks for what is not there, by name.
    """
    if experiment.tuner.builtin is None:
        raise ConfigurationError("tuner.classFileName: tuners of one's own are not supported yet; name a builtin one")
    problem = {
        "command": experiment.command,
        "space": experiment.space,
        "optimize_mode": optimize_mode(experiment.tuner),
        "multi_phase": experiment.multi_phase,
        "code_dir": str(experiment.code_dir),
        "gpus_per_trial": experiment.gpus_per_trial,
        "gpus": _chosen_gpus(experiment, gpus),
        "timeout_s": experiment.trial_timeout_s,
    }
    search = Search(
        problem=Spec("nas.compat.nni.problem.NniProblem", problem),
        tuner=tuner_spec(experiment),
        stopper=None if experiment.assessor is None else stopper_spec(experiment.assessor),
        plan=PLAN,
        seed=seed,
        trials_per_job="unlimited" if experiment.multi_phase else 1,
    )
    if name is None:
        name = re.sub(r"[^A-Za-z0-9.]+", "_", experiment.name).strip("_.")[:100] or "experiment"
        name = f"{name}-{search.build().digest}"
    below = experiment.output_dir or Path.home() / "nni-experiments"
    placed = {**problem, "search": name, "output_dir": str(below / experiment_id(name))}
    return name, replace(search, problem=replace(search.problem, arguments=placed))


def nni_budget(experiment: Experiment) -> Budget:
    """``maxTrialNum`` jobs, which without multiPhase are as many trials, and ``maxExecDuration``."""
    most = experiment.most_jobs or NNI_TRIALS
    if experiment.multi_phase:
        return Budget(jobs=most, hours=experiment.hours)
    return Budget(trials=most, hours=experiment.hours)


def _chosen_gpus(experiment: Experiment, gpus: Sequence[int]) -> tuple[int, ...]:
    wanted = experiment.gpus_per_trial or 0
    chosen = tuple(gpus) if experiment.gpus is None else experiment.gpus
    if missing := [gpu for gpu in chosen if gpu not in gpus]:
        raise ConfigurationError(f"localConfig.gpuIndices ({missing[0]}): this machine has the GPUs {list(gpus)}")
    if wanted > len(chosen):
        raise ConfigurationError(
            f"trial.gpuNum ({wanted}) is more than the {len(chosen)} GPUs of this machine; say gpuNum: 0 for none"
        )
    return chosen
