"""NNI's builtin tuners and assessors, and what takes their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nas.compat.nni.config import Experiment, TunerChoice
from nas.errors import ConfigurationError
from nas.metric import Direction
from nas.spec import Spec

Arguments = dict[str, Any]
_GP_ONLY = "utility kappa xi nu alpha cold_start_num selection_num_warm_up selection_num_starting_points"


def optimize_mode(choice: TunerChoice, *, strict: bool) -> Direction:
    """``maximize``, unless ``classArgs`` says otherwise.

    Args:
        choice: The tuner.
        strict: It is no tuner of the user's own, whose arguments mean what it likes.

    Raises:
        ConfigurationError: it says neither.
    """
    mode = choice.arguments.get("optimize_mode", "maximize")
    if mode not in ("maximize", "minimize") and not strict:
        return "maximize"
    if mode not in ("maximize", "minimize"):
        raise ConfigurationError(f"classArgs.optimize_mode ({mode!r}) must be maximize or minimize")
    return mode  # type: ignore[no-any-return]


def tuner_spec(experiment: Experiment) -> Spec:
    """The tuner that takes the place of a builtin one.

    Raises:
        ConfigurationError: there is none, or an argument can't be.
    """
    choice = experiment.tuner
    name = str(choice.builtin)
    if name in _NO_TUNERS:
        raise ConfigurationError(f"tuner.builtinTunerName ({name}): {_NO_TUNERS[name]}")
    if name not in _TUNERS:
        raise ConfigurationError(f"tuner.builtinTunerName ({name}) must be one of {', '.join(_TUNERS)}")
    target, make = _TUNERS[name]
    arguments = dict(choice.arguments)
    arguments.pop("optimize_mode", None)
    found = make(arguments, experiment.space or {})
    if arguments:
        raise ConfigurationError(f"tuner.classArgs.{sorted(arguments)[0]}: no argument of {name} that is known here")
    return Spec(target, found)


def stopper_spec(choice: TunerChoice) -> Spec:
    """The stopper that takes the place of a builtin assessor.

    Raises:
        ConfigurationError: there is none, or an argument can't be.
    """
    arguments = dict(choice.arguments)
    arguments.pop("optimize_mode", None)
    if choice.builtin == "Medianstop":
        found = Spec("nas.stoppers.median.MedianStopper", {"min_trials": 1})
        found = Spec(found.target, {**found.arguments, "warmup_steps": arguments.pop("start_step", 0)})
    elif choice.builtin == "Curvefitting":
        for name in ("threshold", "gap"):
            arguments.pop(name, None)
        taken = {"target_step": arguments.pop("epoch_num", 20), "start_step": arguments.pop("start_step", 6)}
        found = Spec("nas.stoppers.curve.CurveStopper", taken)
    else:
        what = "its own class" if choice.builtin is None else repr(choice.builtin)
        raise ConfigurationError(
            f"assessor ({what}): Medianstop and Curvefitting are there; write others as a stopper (docs/stoppers.md)"
        )
    if arguments:
        raise ConfigurationError(f"assessor.classArgs.{sorted(arguments)[0]}: no argument of {choice.builtin}")
    return found


def _nothing(arguments: Arguments, space: Mapping[str, Any]) -> Arguments:
    return {}


def _tpe(arguments: Arguments, space: Mapping[str, Any]) -> Arguments:
    for name in ("parallel_optimize", "constant_liar_type"):  # running trials always count as bad ones
        arguments.pop(name, None)
    return {"sampler": "tpe"}


def _gp(arguments: Arguments, space: Mapping[str, Any]) -> Arguments:
    for name in _GP_ONLY.split():
        arguments.pop(name, None)
    return {"sampler": "gp"}


def _evolution(arguments: Arguments, space: Mapping[str, Any]) -> Arguments:
    return {"population_size": arguments.pop("population_size", 32), "sample_size": 2, "dies": "loser"}


def _regularized(arguments: Arguments, space: Mapping[str, Any]) -> Arguments:
    size = arguments.pop("population_size", 100)
    return {"population_size": size, "sample_size": arguments.pop("sample_size", 25)}


def _metis(arguments: Arguments, space: Mapping[str, Any]) -> Arguments:
    for name in ("no_resampling", "no_candidates", "selection_num_starting_points", "exploration_probability"):
        arguments.pop(name, None)
    cold = arguments.pop("cold_start_num", None)
    return {} if cold is None else {"n_founders": cold}


def _smac(arguments: Arguments, space: Mapping[str, Any]) -> Arguments:
    arguments.pop("config_dedup", None)  # no point is proposed twice
    return {}


def _batch(arguments: Arguments, space: Mapping[str, Any]) -> Arguments:
    entries = list(space.items())
    if len(entries) != 1 or entries[0][1].get("_type") != "choice":
        raise ConfigurationError("BatchTuner needs a search space of one name, a choice of the configurations")
    name, entry = entries[0]
    return {"points": [{name: option} for option in entry["_value"]]}


_TUNERS: Mapping[str, tuple[str, Callable[[Arguments, Mapping[str, Any]], Arguments]]] = {
    "TPE": ("nas.tuners.optuna.OptunaTuner", _tpe),
    "Random": ("nas.tuners.random.RandomTuner", _nothing),
    "Anneal": ("nas.tuners.anneal.AnnealTuner", _nothing),
    "Evolution": ("nas.tuners.evolution.EvolutionTuner", _evolution),
    "RegularizedEvolutionTuner": ("nas.tuners.evolution.EvolutionTuner", _regularized),
    "SMAC": ("nas.tuners.smac.SmacTuner", _smac),
    "GridSearch": ("nas.tuners.grid.GridTuner", _nothing),
    "BatchTuner": ("nas.tuners.batch.BatchTuner", _batch),
    "MetisTuner": ("nas.tuners.metis.MetisTuner", _metis),
    "GPTuner": ("nas.tuners.optuna.OptunaTuner", _gp),
}
_NO_TUNERS: Mapping[str, str] = {
    "NetworkMorphism": "its networks are built by NNI itself; evolution over a space of layers with inherited weights "
    "takes its place (docs/tuners.md)",
    "PBTTuner": "it passes folders of checkpoints; `python -m flows.search +tuner=pbt` keeps weights in the store "
    "(docs/tuners.md)",
    "PPOTuner": "`python -m flows.search +tuner=reinforce` takes its place (docs/tuners.md)",
    "Hyperband": "use `python -m flows.search stopper=asha` (docs/stoppers.md)",
    "BOHB": "use `python -m flows.search +tuner=tpe stopper=asha` (docs/stoppers.md)",
}
