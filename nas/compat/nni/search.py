"""An NNI experiment as a search: its problem, its tuner, its stopper, its budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nas.compat.nni.builtins import optimize_mode, stopper_spec, tuner_spec
from nas.compat.nni.config import Experiment
from nas.compat.nni.names import experiment_id
from nas.compat.nni.parents import ParentRule
from nas.compat.nni.tuner import RETRY_S
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.policy import PolicyPlan, Stage
from nas.core.spec import Spec
from nas.search.definition import Search

PLAN = PolicyPlan((Stage(name="search"),))
"""An experiment has one stage, and no policies."""
NNI_TRIALS = 99_999
"""What NNI takes where maxTrialNum is not set."""


def nni_search(
    experiment: Experiment,
    *,
    name: str | None = None,
    seed: int = 0,
    gpus: Sequence[int] | None = (),
    parents: str | None = None,
    patience_s: float = RETRY_S,
) -> tuple[str, Search]:
    """Returns the name of the experiment's search, and the search.

    Args:
        experiment: What its file says.
        name: By default the experiment's name and the digest of what is searched.
        seed: Of builtin tuners.
        gpus: Those of this machine; None: trials run on workers elsewhere, each of which gives its trial one.
        parents: Which parameters name a parent, for a tuner of the user's own; see ``ParentRule.of``.
        patience_s: How long such a tuner may wait while nothing runs that it could wait for.

    Raises:
        ConfigurationError: it asks for what is not there, by name.
    """
    is_builtin = experiment.tuner.builtin is not None
    if is_builtin and parents is not None:
        raise ConfigurationError(f"--parents ({parents}) is for a tuner of one's own, not {experiment.tuner.builtin}")
    if not patience_s > 0:
        raise ConfigurationError(f"--patience ({patience_s:g}) must be a number of seconds greater than 0")
    problem = {
        "command": experiment.command,
        "space": experiment.space if is_builtin else None,
        "optimize_mode": optimize_mode(experiment.tuner, strict=is_builtin),
        "multi_phase": experiment.multi_phase,
        "code_dir": str(experiment.code_dir),
        "gpus_per_trial": experiment.gpus_per_trial,
        "gpus": _chosen_gpus(experiment, gpus),
        "timeout_s": experiment.trial_timeout_s,
    }
    search = Search(
        problem=Spec("nas.compat.nni.problem.NniProblem", problem),
        tuner=tuner_spec(experiment) if is_builtin else _own_tuner(experiment, parents),
        stopper=None if experiment.assessor is None else stopper_spec(experiment.assessor),
        plan=PLAN,
        seed=seed,
        trials_per_job="unlimited" if experiment.multi_phase else 1,
    )
    if name is None:
        name = re.sub(r"[^A-Za-z0-9.]+", "_", experiment.name).strip("_.")[:100] or "experiment"
        name = f"{name}-{search.build().digest}"
    below = experiment.output_dir or Path.home() / "nni-experiments"
    place = {"search": name, "output_dir": str(below / experiment_id(name))}
    search = replace(search, problem=_with(search.problem, **place))
    if not is_builtin:
        most = experiment.most_jobs
        session = {"slots": experiment.concurrency, "most_jobs": most, "patience_s": patience_s}
        search = replace(search, tuner=_with(search.tuner, **place, **session, folder=str(experiment.folder)))
    return name, search


def _with(spec: Spec, **more: Any) -> Spec:
    return Spec(spec.target, {**spec.arguments, **more})


def _own_tuner(experiment: Experiment, parents: str | None) -> Spec:
    choice = experiment.tuner
    rule = ParentRule.of(parents)
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
            "with_stopped": choice.includes_intermediate,
            "parents": rule.describe(),
        },
    )


def nni_budget(experiment: Experiment) -> Budget:
    """``maxTrialNum`` jobs, which without multiPhase are as many trials, and ``maxExecDuration``."""
    most = experiment.most_jobs or NNI_TRIALS
    if experiment.multi_phase:
        return Budget(jobs=most, hours=experiment.hours)
    return Budget(trials=most, hours=experiment.hours)


def _chosen_gpus(experiment: Experiment, gpus: Sequence[int] | None) -> tuple[int, ...]:
    wanted = experiment.gpus_per_trial or 0
    if gpus is None:
        if wanted > 1 or experiment.gpus is not None:
            what = f"trial.gpuNum ({wanted})" if wanted > 1 else "localConfig.gpuIndices"
            raise ConfigurationError(
                f"{what} does not go with runner=remote: each worker gives its trial the first GPU that it sees "
                "(CUDA_VISIBLE_DEVICES)"
            )
        return ()
    chosen = tuple(gpus) if experiment.gpus is None else experiment.gpus
    if missing := [gpu for gpu in chosen if gpu not in gpus]:
        raise ConfigurationError(f"localConfig.gpuIndices ({missing[0]}): this machine has the GPUs {list(gpus)}")
    if wanted > len(chosen):
        raise ConfigurationError(
            f"trial.gpuNum ({wanted}) is more than the {len(chosen)} GPUs of this machine; say gpuNum: 0 for none"
        )
    return chosen
