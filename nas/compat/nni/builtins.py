"""NNI's builtin tuners and assessors, and what takes their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nas.compat.nni.config import Experiment, TunerChoice
from nas.core.errors import ConfigurationError
from nas.core.metric import Direction
from nas.core.spec import Spec

Arguments = dict[str, Any]


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
    """Returns the tuner that takes the place of a builtin one.

    Raises:
        ConfigurationError: there is none, or an argument can't be.
    """
    choice = experiment.tuner
    name = str(choice.builtin)
    if name in _NO_TUNERS:
        raise ConfigurationError(f"tuner.builtinTunerName ({name}): {_NO_TUNERS[name]}")
    if name not in _TUNERS:
        raise ConfigurationError(f"tuner.builtinTunerName ({name}) must be one of {', '.join(_TUNERS)}")
    stand_in = _TUNERS[name]
    given = {key: value for key, value in choice.arguments.items() if key not in ("optimize_mode", *stand_in.idle)}
    if unknown := given.keys() - stand_in.names.keys():
        raise ConfigurationError(f"tuner.classArgs.{sorted(unknown)[0]}: no argument of {name} that is known here")
    arguments = {**stand_in.arguments, **{stand_in.names[key]: value for key, value in given.items()}}
    if name == "BatchTuner":
        arguments["points"] = _batch_points(experiment.space or {})
    return Spec(stand_in.target, arguments)


def stopper_spec(choice: TunerChoice) -> Spec:
    """Returns the stopper that takes the place of a builtin assessor.

    Raises:
        ConfigurationError: there is none, or an argument can't be.
    """
    arguments = dict(choice.arguments)
    arguments.pop("optimize_mode", None)
    if choice.builtin == "Medianstop":
        taken = {"min_trials": 1, "warmup_steps": arguments.pop("start_step", 0)}
        found = Spec("nas.stoppers.median.MedianStopper", taken)
    elif choice.builtin == "Curvefitting":
        for name in ("threshold", "gap"):
            arguments.pop(name, None)
        taken = {"target_step": arguments.pop("epoch_num", 20), "start_step": arguments.pop("start_step", 6)}
        found = Spec("nas.stoppers.curve.CurveStopper", taken)
    else:
        what = "its own class" if choice.builtin is None else repr(choice.builtin)
        raise ConfigurationError(
            f"assessor ({what}): Medianstop and Curvefitting are there; write a stopper (docs/guides/stoppers.md)"
        )
    if arguments:
        raise ConfigurationError(f"assessor.classArgs.{sorted(arguments)[0]}: no argument of {choice.builtin}")
    return found


def _batch_points(space: Mapping[str, Any]) -> list[Arguments]:
    entries = list(space.items())
    if len(entries) != 1 or entries[0][1].get("_type") != "choice":
        raise ConfigurationError("BatchTuner needs a search space of one name, a choice of the configurations")
    name, entry = entries[0]
    return [{name: option} for option in entry["_value"]]


@dataclass(frozen=True, slots=True)
class _StandIn:
    """What takes the place of a builtin tuner.

    Attributes:
        target: The class.
        arguments: What it is built with where ``classArgs`` says nothing.
        names: What arguments of NNI's are called here.
        idle: Arguments of NNI's that have no effect.
    """

    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    idle: tuple[str, ...] = ()


_POPULATION = {"population_size": "population_size"}
_TUNERS: Mapping[str, _StandIn] = {
    "TPE": _StandIn(  # running trials always count as bad ones
        "nas.tuners.optuna.OptunaTuner", {"sampler": "tpe"}, idle=("parallel_optimize", "constant_liar_type")
    ),
    "Random": _StandIn("nas.tuners.random.RandomTuner"),
    "Anneal": _StandIn("nas.tuners.anneal.AnnealTuner"),
    "Evolution": _StandIn(
        "nas.tuners.evolution.EvolutionTuner",
        {"population_size": 32, "sample_size": 2, "replacement": "loser"},
        names=_POPULATION,
    ),
    "RegularizedEvolutionTuner": _StandIn(
        "nas.tuners.evolution.EvolutionTuner",
        {"population_size": 100, "sample_size": 25},
        names=_POPULATION | {"sample_size": "sample_size"},
    ),
    "SMAC": _StandIn("nas.tuners.smac.SmacTuner", idle=("config_dedup",)),  # no point is proposed twice
    "GridSearch": _StandIn("nas.tuners.grid.GridTuner"),
    "BatchTuner": _StandIn("nas.tuners.batch.BatchTuner"),
    "MetisTuner": _StandIn(
        "nas.tuners.metis.MetisTuner",
        names={"cold_start_num": "n_founders"},
        idle=("no_resampling", "no_candidates", "selection_num_starting_points", "exploration_probability"),
    ),
    "GPTuner": _StandIn(
        "nas.tuners.optuna.OptunaTuner",
        {"sampler": "gp"},
        idle=(
            *("utility", "kappa", "xi", "nu", "alpha"),
            *("cold_start_num", "selection_num_warm_up", "selection_num_starting_points"),
        ),
    ),
}
_NO_TUNERS: Mapping[str, str] = {
    "NetworkMorphism": "its networks are built by NNI itself; evolution over a space of layers with inherited weights "
    "takes its place (docs/reference/tuners.md)",
    "PBTTuner": "it passes folders of checkpoints; `python -m flows.search +tuner=pbt` keeps weights in the store "
    "(docs/reference/tuners.md)",
    "PPOTuner": "`python -m flows.search +tuner=reinforce` takes its place (docs/reference/tuners.md)",
    "Hyperband": "use `python -m flows.search stopper=asha` (docs/guides/stoppers.md)",
    "BOHB": "use `python -m flows.search +tuner=tpe stopper=asha` (docs/guides/stoppers.md)",
}
